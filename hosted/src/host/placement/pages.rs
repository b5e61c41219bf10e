//! Memory on chosen NUMA nodes, and the location of its pages.
//!
//! For a piece of memory, such as the buffers for a drive's reads; [`Numa`](super::Numa) applies to
//! all memory that a thread allocates.

use super::{MPOL_BIND, NODES_MAX, NodeMask, mask_of, nodes_of, policy_name};
use crate::host::cpus::CpuList;
use crate::host::measures::HostMeasure;
use core::ffi::c_void;
use core::ptr;
use std::collections::BTreeMap;
use std::io;

/// The location of a memory's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages by node.
    pub by_node: BTreeMap<usize, usize>,
    /// Pages that were never written to, or that are swapped out: they are on no node.
    pub absent: usize,
}

/// Takes the pages of `memory` from these nodes alone from now on, and moves those that are
/// elsewhere. The policy is read back; [`pages_on`] reports where pages are. Pages that are only
/// partly in `memory` are bound whole.
///
/// # Errors
/// A node does not exist or has too little memory for the pages to move, a container forbids it, or
/// the kernel reports another policy.
pub fn bind_to(memory: &[u8], nodes: &[usize]) -> io::Result<()> {
    let mask = mask_of(nodes);
    let wanted = nodes_of(&mask);
    if wanted.0.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (start, len) = span(memory);
    if len == 0 {
        return Ok(());
    }
    let (policy, at) = (libc::c_long::from(MPOL_BIND), mask.as_ptr());
    let flags = libc::c_long::from(MPOL_MF_STRICT | MPOL_MF_MOVE);
    // SAFETY: the mask is readable and has the length passed to the call. The range is a slice's,
    // and moving its pages changes no contents.
    let result =
        unsafe { libc::syscall(libc::SYS_mbind, start, len, policy, at, NODES_MAX, flags) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let found = policy_at(start)?;
    if found != (MPOL_BIND, wanted) {
        let name = policy_name(found.0, &found.1);
        return Err(io::Error::other(format!("the kernel reports: {name}")));
    }
    Ok(())
}

/// Asks the kernel for the node of each page of `memory`.
///
/// # Errors
/// A container forbids the query, or the kernel does not support NUMA.
pub fn pages_on(memory: &[u8]) -> io::Result<Pages> {
    let (start, len) = span(memory);
    let page_bytes = rustix::param::page_size();
    let mut pages = Pages::default();
    for first in (0..len).step_by(page_bytes * QUESTION_PAGES) {
        let end = len.min(first + page_bytes * QUESTION_PAGES);
        let ask = (first..end).step_by(page_bytes);
        let addresses: Vec<*const c_void> = ask.map(|at| start.wrapping_byte_add(at)).collect();
        let mut nodes: Vec<libc::c_int> = vec![libc::c_int::MIN; addresses.len()];
        let (n, from, to) = (addresses.len(), addresses.as_ptr(), nodes.as_mut_ptr());
        let (own, stay) = (0usize, ptr::null::<libc::c_int>());
        // SAFETY: one address to read and one number to write for each of `n` pages; without nodes
        // to move to, no page moves.
        let result = unsafe { libc::syscall(libc::SYS_move_pages, own, n, from, stay, to, 0usize) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        for node in nodes {
            match usize::try_from(node) {
                Ok(node) => *pages.by_node.entry(node).or_default() += 1,
                // Errors are negative: no page yet, or the page of zeros that all share.
                Err(_) => pages.absent += 1,
            }
        }
    }
    Ok(pages)
}

/// Reports the location of the pages of `memory` that should be on `nodes`: held if none is elsewhere.
/// Pages that were never written to do not count.
pub fn report(name: impl Into<String>, memory: &[u8], nodes: &[usize]) -> HostMeasure {
    let requested = policy_name(MPOL_BIND, &CpuList(nodes.to_vec()));
    let pages = match pages_on(memory) {
        Ok(pages) => pages,
        Err(error) => {
            let measure = HostMeasure::refused(name, requested, "unknown", error);
            return measure.with_remedy(REMEDY);
        }
    };
    let mut found: Vec<_> = pages
        .by_node
        .iter()
        .map(|(node, n)| format!("{n} pages on node {node}"))
        .collect();
    if pages.absent > 0 {
        found.push(format!("{} not resident", pages.absent));
    }
    let found = found.join(", ");
    if pages.by_node.keys().all(|node| nodes.contains(node)) {
        return HostMeasure::held(name, requested, found);
    }
    HostMeasure::refused(name, requested, found, "pages are on other nodes").with_remedy(REMEDY)
}

/// Policy and nodes of the memory at an address.
fn policy_at(address: *const c_void) -> io::Result<(libc::c_int, CpuList)> {
    let mut policy: libc::c_int = 0;
    let mut mask: NodeMask = [0; _];
    let (policy_to, mask_to) = (&raw mut policy, mask.as_mut_ptr());
    // SAFETY: both are writable, and the mask has the length passed to the call; the address is only
    // queried.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            policy_to,
            mask_to,
            NODES_MAX,
            address,
            MPOL_F_ADDR,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((policy, nodes_of(&mask)))
}

/// The whole pages of some memory: where they begin, and their bytes.
fn span(memory: &[u8]) -> (*const c_void, usize) {
    if memory.is_empty() {
        return (ptr::null(), 0);
    }
    let page_bytes = rustix::param::page_size();
    let start = memory.as_ptr().cast::<c_void>();
    let before = start.addr() % page_bytes;
    let len = (before + memory.len()).next_multiple_of(page_bytes);
    (start.wrapping_byte_sub(before), len)
}

/// Pages per query.
const QUESTION_PAGES: usize = 4096;
/// Of `linux/mempolicy.h`: fail if a page stays elsewhere; move those that do; the policy of an
/// address.
const MPOL_MF_STRICT: libc::c_int = 1;
const MPOL_MF_MOVE: libc::c_int = 2;
const MPOL_F_ADDR: usize = 2;
const REMEDY: &str =
    "a container needs CAP_SYS_NICE, or a seccomp profile that allows mbind and move_pages";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::AlignedMemory;

    /// A container may forbid the calls altogether, and a kernel may not support NUMA.
    fn is_forbidden(error: &io::Error) -> bool {
        let kinds = [Some(libc::EPERM), Some(libc::ENOSYS)];
        kinds.contains(&error.raw_os_error())
    }

    #[test]
    fn pages_lie_on_the_node_that_memory_is_bound_to() {
        let page_bytes = rustix::param::page_size();
        let mut memory = AlignedMemory::zeroed(page_bytes * (QUESTION_PAGES + 3)).unwrap();
        let before = match pages_on(&memory) {
            Ok(pages) => pages,
            Err(error) => return assert!(is_forbidden(&error), "{error}"),
        };
        assert_eq!(before.absent, QUESTION_PAGES + 3);
        // This thread's node is one that memory can be taken from.
        memory[0] = 1;
        let node = *pages_on(&memory).unwrap().by_node.keys().next().unwrap();
        match bind_to(&memory, &[node]) {
            Ok(()) => {}
            Err(error) => return assert!(is_forbidden(&error), "{error}"),
        }
        memory[page_bytes..].fill(2);
        let pages = pages_on(&memory).unwrap();
        assert_eq!(pages.by_node.get(&node), Some(&(QUESTION_PAGES + 3)));
        assert_eq!((pages.by_node.len(), pages.absent), (1, 0));
        let measure = report("pool", &memory, &[node]);
        assert!(measure.is_held(), "{measure}");
        let measure = report("pool", &memory, &[node + 1]);
        assert!(!measure.is_held(), "{measure}");
    }

    #[test]
    fn nodes_that_are_not_there_and_odd_ends() {
        let memory = AlignedMemory::zeroed(100).unwrap();
        for nodes in [&[][..], &[1022], &[NODES_MAX]] {
            let error = bind_to(&memory, nodes).unwrap_err();
            let is_refused = error.kind() == io::ErrorKind::InvalidInput;
            assert!(is_refused || is_forbidden(&error), "{nodes:?}: {error}");
        }
        assert!(bind_to(&[], &[0]).is_ok());
        assert_eq!(pages_on(&[]).unwrap(), Pages::default());
        let page_bytes = rustix::param::page_size();
        let memory = AlignedMemory::zeroed(3 * page_bytes).unwrap();
        let across = span(&memory[page_bytes - 1..=page_bytes]);
        assert_eq!(across, (memory.as_ptr().cast(), 2 * page_bytes));
        assert_eq!(span(&memory[..page_bytes]).1, page_bytes);
    }
}
