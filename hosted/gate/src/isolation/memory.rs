//! The ring's memory: huge pages, lock, prefetch, NUMA node.

use super::{IsolationRequest, NotHeld as _};
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::mm::{madvise, mlock, mmap_anonymous, mprotect, munmap};
use sluice::host::measures::{HostMeasure, Report};
use std::fs;
use std::io;

/// Zeroed memory between two guards of no access: reading past an end faults, and the kernel keeps
/// it a mapping of its own, whose counters in smaps are its own too.
#[derive(Debug)]
pub struct RingMemory {
    map: NonNull<u8>,
    map_len: usize,
    start: NonNull<u8>,
    /// Whole pages.
    len: usize,
}

// SAFETY: plain bytes that the value owns.
unsafe impl Send for RingMemory {}
// SAFETY: the value itself gives no access to them.
unsafe impl Sync for RingMemory {}

const HUGE_PAGE: usize = 2 << 20;

impl RingMemory {
    /// `len` bytes rounded up to whole pages, at a huge page's boundary where there is one in it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(len: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let len = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(too_large)?;
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { page };
        let map_len = len.checked_add(2 * align).ok_or_else(too_large)?;
        let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: a new map at an address of the kernel's choice.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), map_len, none, private) }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or_else(too_large)?;
        // At least a page of guard on either side.
        let offset = map.as_ptr().wrapping_add(page).align_offset(align) + page;
        let start = map.as_ptr().wrapping_add(offset);
        let memory = Self {
            map,
            map_len,
            start: NonNull::new(start).ok_or_else(too_large)?,
            len,
        };
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: offset ≤ page + align - 1 and whole pages, so start + len lies in the map, which
        // no other thread uses.
        unsafe { mprotect(start.cast(), len, access) }?;
        Ok(memory)
    }

    /// The first byte, aligned to a page.
    pub const fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes, whole pages.
    pub const fn len_bytes(&self) -> usize {
        self.len
    }

    /// Asks for the memory's part of `request`. On the thread that will use it, before any sample:
    /// pages that are written to zero here come from that thread's node.
    pub(super) fn prepare(&self, request: &IsolationRequest, report: &mut Report) {
        let at = self.start().cast();
        // Policies of pages before pages.
        let bound = request.numa.then(|| self.bind_to_this_node());
        let huge = request.huge_pages.then(|| {
            // SAFETY: our own map; the advice changes no contents.
            unsafe { madvise(at, self.len, Advice::LinuxHugepage) }
        });
        let locked = request.lock_memory.then(|| {
            // SAFETY: our own map; locking changes no contents.
            unsafe { mlock(at, self.len) }
        });
        if request.prefetch {
            self.touch();
        }
        let found = Smaps::of(self.start().addr()).unwrap_or_default();
        let items = &mut report.measures;
        if let Some(result) = huge {
            items.push(self.huge_pages(result.err(), &found));
        }
        if let Some(result) = locked {
            items.push(self.lock(result.err(), &found));
        }
        if request.prefetch {
            let requested = format!("{} resident", kib(self.len));
            let item =
                HostMeasure::held("prefetch", requested, format!("{} in Rss", kib(found.rss)));
            items.push(if found.rss >= self.len {
                item
            } else {
                item.not("pages were reclaimed", None)
            });
        }
        if let Some(bound) = bound {
            items.push(self.numa(bound));
        }
    }

    /// Writes a byte of every page.
    fn touch(&self) {
        for offset in (0..self.len).step_by(rustix::param::page_size()) {
            // SAFETY: within our map, which no other thread accesses before the stream starts; zero is
            // what it holds.
            unsafe { self.start().wrapping_add(offset).write_volatile(0) };
        }
    }

    fn huge_pages(&self, error: Option<rustix::io::Errno>, found: &Smaps) -> HostMeasure {
        let possible = self.len / HUGE_PAGE * HUGE_PAGE;
        let requested = format!("{} in huge pages", kib(possible));
        let text = format!("{} in AnonHugePages", kib(found.huge));
        let item = HostMeasure::held("huge pages", requested, text);
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let is_never = setting.is_ok_and(|setting| setting.contains("[never]"));
        if let Some(error) = error {
            return item.not(format_args!("madvise: {error}"), None);
        }
        if possible == 0 {
            return item.not("the ring is smaller than one huge page (2048 KiB)", None);
        }
        if found.huge >= possible {
            return item;
        }
        if is_never {
            let remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
            return item.not("huge pages are disabled", Some(remedy));
        }
        if found.rss < possible {
            return item.not("not all pages are resident: request prefetch as well", None);
        }
        let remedy = "echo 1 | sudo tee /proc/sys/vm/compact_memory";
        item.not("the kernel has no free huge pages left", Some(remedy))
    }

    fn lock(&self, error: Option<rustix::io::Errno>, found: &Smaps) -> HostMeasure {
        let requested = format!("{} locked", kib(self.len));
        let item = HostMeasure::held(
            "memory lock",
            requested,
            format!("{} in Locked", kib(found.locked)),
        );
        let Some(error) = error else {
            return if found.locked >= self.len {
                item
            } else {
                item.not("smaps shows less than was passed to mlock", None)
            };
        };
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        let limit = limit.map_or("none".into(), |bytes| format!("{} KiB", bytes / 1024));
        let why = format!("mlock: {error}; the limit (ulimit -l) is {limit}");
        let remedy = "ulimit -l unlimited, or: sudo setcap cap_ipc_lock+ep $(command -v sluice)";
        item.not(why, Some(remedy))
    }

    /// Tells the kernel to take pages from the calling thread's node.
    fn bind_to_this_node(&self) -> io::Result<u32> {
        /// `MPOL_PREFERRED` of `linux/mempolicy.h`: that node, others where it is full.
        const PREFERRED: libc::c_long = 1;
        let node = this_node()?;
        let mut mask = [0u64; 16];
        let word = usize::try_from(node / 64).unwrap_or(usize::MAX);
        *mask.get_mut(word).ok_or(io::ErrorKind::Unsupported)? = 1 << (node % 64);
        // SAFETY: the mask has the 1024 bits that are promised; the map is ours.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start(),
                self.len,
                PREFERRED,
                mask.as_ptr(),
                1024usize,
                0usize,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(node)
    }

    fn numa(&self, bound: io::Result<u32>) -> HostMeasure {
        let asked = bound
            .as_ref()
            .map_or("the worker's node".into(), |node| format!("node {node}"));
        let requested = format!("the ring's pages on {asked}");
        let pages = self.page_nodes();
        let worker = this_node();
        let (pages, worker) = match (pages, worker) {
            (Ok(pages), Ok(worker)) => (pages, worker),
            (Err(error), _) | (_, Err(error)) => {
                let item = HostMeasure::held("numa", requested, "unknown");
                let why = format!("the node cannot be determined: {error}");
                return item.not(why, None);
            }
        };
        judge(requested, worker, &pages, bound.err())
    }

    /// Nodes of up to 64 pages spread over the ring. Untouched pages give the node that they would be allocated on.
    fn page_nodes(&self) -> io::Result<Vec<u32>> {
        let page = rustix::param::page_size();
        let step = (self.len / 64).next_multiple_of(page).max(page);
        let offsets = (0..self.len).step_by(step);
        offsets
            .map(|at| node_of(self.start().wrapping_add(at)))
            .collect()
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: our own map; no borrow outlives the value. Unmapping releases a lock as well.
        let _unmapped = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

/// Compares the nodes of pages with the worker's node.
fn judge(requested: String, worker: u32, pages: &[u32], error: Option<io::Error>) -> HostMeasure {
    let far: Vec<_> = pages.iter().filter(|&&node| node != worker).collect();
    let found = format!(
        "worker on node {worker}, {} of {} pages there",
        pages.len() - far.len(),
        pages.len()
    );
    let item = HostMeasure::held("numa", requested, found);
    let Some(node) = far.first() else {
        // All pages are where they should be, with or without a policy.
        return item;
    };
    let mut why = format!("CRITICAL: pages on node {node}: every sample crosses the interconnect");
    if let Some(error) = error {
        why += &format!("; mbind: {error}");
    }
    let remedy = format!("numactl --cpunodebind={worker} --membind={worker} sluice …");
    item.not(why, Some(&remedy))
}

fn this_node() -> io::Result<u32> {
    let (mut cpu, mut node) = (0u32, 0u32);
    let nothing = ptr::null::<u8>();
    // SAFETY: room for both numbers; the third argument is unused.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, nothing) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(node)
}

/// The node of the page at `at`.
fn node_of(at: *mut u8) -> io::Result<u32> {
    /// `MPOL_F_NODE | MPOL_F_ADDR` of `linux/mempolicy.h`.
    const NODE_OF_ADDRESS: usize = 1 | 2;
    let mut node = 0i32;
    let mask = ptr::null_mut::<u64>();
    // SAFETY: room for the number; no mask is asked for; the kernel looks at `at`'s page alone.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            mask,
            0usize,
            at,
            NODE_OF_ADDRESS,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn kib(bytes: usize) -> String {
    format!("{} KiB", bytes / 1024)
}

/// A mapping's counters, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Smaps {
    rss: usize,
    locked: usize,
    huge: usize,
}

impl Smaps {
    /// Counters of the mapping that contains `address`.
    fn of(address: usize) -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/smaps").ok()?, address)
    }

    fn parse(text: &str, address: usize) -> Option<Self> {
        let mut found: Option<Self> = None;
        for line in text.lines() {
            if let Some((from, to)) = range(line) {
                if found.is_some() {
                    break;
                }
                found = (from..to).contains(&address).then_some(Self::default());
            } else if let (Some(found), Some((name, value))) = (&mut found, line.split_once(':')) {
                let kib = value
                    .trim()
                    .strip_suffix(" kB")
                    .and_then(|n| n.trim().parse().ok());
                let bytes = 1024 * kib.unwrap_or(0usize);
                match name {
                    "Rss" => found.rss = bytes,
                    "Locked" => found.locked = bytes,
                    "AnonHugePages" => found.huge = bytes,
                    _ => {}
                }
            }
        }
        found
    }
}

/// The addresses of a mapping's first line.
fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
Rss:                2048 kB
AnonHugePages:      2048 kB
Locked:             2048 kB
VmFlags: rd wr mr
7f0000200000-7f0000201000 rw-p 00000000 00:00 0
Rss:                   4 kB
Locked:                0 kB
";

    #[test]
    fn smaps_of_one_mapping() {
        let first = Smaps::parse(TEXT, 0x7f00_0010_0000).unwrap();
        assert_eq!(
            (first.rss, first.locked, first.huge),
            (2 << 20, 2 << 20, 2 << 20)
        );
        let second = Smaps::parse(TEXT, 0x7f00_0020_0000).unwrap();
        assert_eq!((second.rss, second.locked, second.huge), (4096, 0, 0));
        assert_eq!(Smaps::parse(TEXT, 0x1000), None);
    }

    /// A machine of two nodes, which this one need not be.
    #[test]
    fn pages_on_another_node_are_critical() {
        let item = judge(String::new(), 0, &[0, 0], None);
        assert!(item.is_held());
        let item = judge(String::new(), 1, &[0, 1, 1], None);
        assert!(item.why_not.unwrap().contains("CRITICAL"));
        let item = judge(
            String::new(),
            1,
            &[0, 0],
            Some(io::ErrorKind::PermissionDenied.into()),
        );
        assert!(item.why_not.unwrap().contains("mbind"));
        assert!(item.remedy.unwrap().contains("--membind=1"));
    }

    #[test]
    fn memory_of_its_own_between_guards() {
        for len in [1, 4096, 100_000, 5 << 20] {
            let memory = RingMemory::new(len).unwrap();
            assert!(memory.len_bytes() >= len && memory.len_bytes() < len + 4096);
            memory.touch();
            let text = fs::read_to_string("/proc/self/smaps").unwrap();
            let start = memory.start().addr();
            let mappings: Vec<_> = text.lines().filter_map(range).collect();
            assert!(
                mappings.contains(&(start, start + memory.len_bytes())),
                "{len}"
            );
            assert_eq!(Smaps::of(start).unwrap().rss, memory.len_bytes());
        }
        assert!(RingMemory::new(usize::MAX - 5).is_err());
    }
}
