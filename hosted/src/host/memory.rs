//! Memory for weights, KV cache and scratch.

use crate::host::measures::HostMeasure;
use core::error::Error;
use core::fmt;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use rustix::mm::mlock;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Zeroed bytes straight from the kernel, aligned to a page (and so to
/// [`sluice_core::memory::ALIGN`]).
///
/// Pages become resident when they are first touched, so memory that is planned but not used,
/// such as the end of a KV cache, costs nothing. Freed on drop.
pub struct AlignedMemory {
    start: NonNull<u8>,
    len: usize,
}

/// Returns memory that the allocator has free to the system: glibc keeps it otherwise.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread.
    let _had_some = unsafe { libc::malloc_trim(0) };
}

/// The kernel refused the memory.
#[derive(Debug)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub len_bytes: usize,
    /// The kernel's error.
    pub error: io::Error,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len_bytes, error } = self;
        write!(f, "cannot reserve {len_bytes} bytes of memory: {error}")
    }
}

impl Error for OutOfMemory {}

// SAFETY: plain bytes that the value owns.
unsafe impl Send for AlignedMemory {}
// SAFETY: plain bytes; shared references only read them.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// `len` bytes of zeros; 0 is allowed.
    ///
    /// # Errors
    /// [`OutOfMemory`]: more than the address space, `ulimit -v` or the overcommit policy allow.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        Self::map(len, MapFlags::PRIVATE)
    }

    /// As [`Self::zeroed`], for memory that is mostly not used: more than the machine has may be asked for.
    ///
    /// # Errors
    /// As [`Self::zeroed`].
    pub(crate) fn sparse(len: usize) -> Result<Self, OutOfMemory> {
        Self::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn map(len: usize, flags: MapFlags) -> Result<Self, OutOfMemory> {
        // The kernel maps no empty ranges.
        let mapped_len = len.max(1);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, access, flags) };
        let refused = |error: rustix::io::Errno| OutOfMemory {
            len_bytes: len,
            error: error.into(),
        };
        let start = NonNull::new(start.map_err(refused)?.cast());
        let start = start.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        let memory = Self { start, len };
        if HUGE_PAGES.load(Ordering::Relaxed) && len >= HUGE_PAGE_BYTES {
            // A kernel without them leaves small pages: [`report`] reads what there is.
            let _hint = memory.advise_huge_pages();
            lock(&LIVE).push((start.addr().get(), len));
        }
        Ok(memory)
    }

    /// Keeps the pages from being swapped out, as far as the limit of locked memory allows. They
    /// become resident at once.
    ///
    /// # Errors
    /// The limit (`ulimit -l`) is too low, or memory is short.
    pub fn lock(&self) -> io::Result<()> {
        self.lock_part(0..self.len)
    }

    /// As [`Self::lock`], for a part.
    ///
    /// # Errors
    /// As [`Self::lock`].
    ///
    /// # Panics
    /// If the range is outside of the memory.
    pub(crate) fn lock_part(&self, range: Range<usize>) -> io::Result<()> {
        let part = &self[range];
        if part.is_empty() {
            return Ok(());
        }
        // SAFETY: our own map; locking changes no contents.
        Ok(unsafe { mlock(part.as_ptr().cast_mut().cast(), part.len()) }?)
    }

    /// Keeps a part in small pages, so that pages that are not used stay out of memory. A hint.
    ///
    /// # Panics
    /// If the range is outside of the memory.
    pub(crate) fn keep_small_pages(&self, range: Range<usize>) {
        let part = &self[range];
        // SAFETY: pages of our own map; the advice changes no contents.
        let _hint = unsafe { advise(part, Advice::LinuxNoHugepage) };
        let (start, end) = (part.as_ptr().addr(), part.as_ptr().addr() + part.len());
        let mut live = lock(&LIVE);
        if let Some(i) = live
            .iter()
            .position(|&(at, len)| at <= start && end <= at + len)
        {
            let (at, len) = live.swap_remove(i);
            live.extend([(at, start - at), (end, at + len - end)]);
            live.retain(|(_, len)| *len > 0);
        }
    }

    /// Asks for huge pages, which spare address translation. A hint: before the first touch,
    /// and granted only as far as the system has such pages.
    ///
    /// # Errors
    /// The kernel was built without transparent huge pages.
    pub fn advise_huge_pages(&self) -> io::Result<()> {
        let at = self.start.as_ptr().cast();
        // SAFETY: our own map; the advice changes no contents.
        unsafe { madvise(at, self.len.max(1), Advice::LinuxHugepage) }?;
        Ok(())
    }
}

impl Deref for AlignedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised (zeroed) bytes that `self` owns.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        let start = self.start.addr().get();
        lock(&LIVE).retain(|(at, _)| !(start..start + self.len.max(1)).contains(at));
        // SAFETY: our own map, of the length it was made with; no borrow outlives the value.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len.max(1)) };
    }
}

/// Gives advice for the pages that hold `bytes`.
///
/// # Safety
/// - They lie in a map, and the advice is one that changes no contents.
pub(crate) unsafe fn advise(bytes: &[u8], advice: Advice) -> rustix::io::Result<()> {
    let at = bytes.as_ptr().cast_mut();
    let within = at.addr() % PAGE_BYTES;
    // SAFETY: by the caller; a map starts at a page.
    unsafe { madvise(at.wrapping_sub(within).cast(), bytes.len() + within, advice) }
}

/// Only the length.
impl fmt::Debug for AlignedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedMemory({} bytes)", self.len)
    }
}

/// Requests to the kernel for memory to be allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// Huge pages for every piece that could hold one.
    pub huge_pages: bool,
    /// Weights locked in memory.
    pub locks: bool,
}

/// Sets the policy of this process, for memory allocated from now on. At first nothing is requested.
pub fn set_policy(policy: MemoryPolicy) {
    HUGE_PAGES.store(policy.huge_pages, Ordering::Relaxed);
    LOCKS.store(policy.locks, Ordering::Relaxed);
}

/// The policy in force.
pub fn policy() -> MemoryPolicy {
    MemoryPolicy {
        huge_pages: HUGE_PAGES.load(Ordering::Relaxed),
        locks: LOCKS.load(Ordering::Relaxed),
    }
}

static HUGE_PAGES: AtomicBool = AtomicBool::new(false);
static LOCKS: AtomicBool = AtomicBool::new(false);
/// Address and length of memory that huge pages were asked for.
static LIVE: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// As [`LIVE`], for parts of mapped files.
static MAPPED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// Results of locking weights.
static LOCKED: Mutex<Vec<HostMeasure>> = Mutex::new(Vec::new());
const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that huge pages were requested for bytes of a mapped file, until [`forget_mapped`].
pub(crate) fn note_mapped(bytes: &[u8]) {
    lock(&MAPPED).push((bytes.as_ptr().addr(), bytes.len()));
}

/// The file mapped at `map` is unmapped now.
pub(crate) fn forget_mapped(map: Range<usize>) {
    lock(&MAPPED).retain(|(at, _)| !map.contains(at));
}

/// Notes the result of locking `len` bytes: the kernel's own count of locked memory decides.
pub(crate) fn note_lock(result: io::Result<()>, len: usize) {
    let requested = Size(len as u64).to_string();
    let kib = |line: &str| crate::host::process::status_kib(line).unwrap_or(0);
    let locked = kib("VmLck:");
    let found = Size(locked << 10).to_string();
    let is_locked = locked >= (len >> 10) as u64;
    let name = "locked weights";
    let measure = match result {
        Ok(()) if is_locked => HostMeasure::held(name, requested, found),
        Ok(()) => HostMeasure::refused(name, requested, found, "the kernel reports less"),
        Err(error) => HostMeasure::refused(name, requested, found, error)
            .with_remedy("ulimit -l unlimited (LimitMEMLOCK=infinity in a systemd unit)"),
    };
    lock(&LOCKED).push(measure);
}

/// Bytes in MiB, of little in KiB.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 20 => write!(f, "{} KiB", bytes.div_ceil(1 << 10)),
            bytes => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

/// The requests for memory that is in use, and their state in the kernel now
/// (`/proc/self/smaps`, `VmLck`).
pub fn report() -> Vec<HostMeasure> {
    let (live, mapped) = (lock(&LIVE).clone(), lock(&MAPPED).clone());
    let mut measures = lock(&LOCKED).clone();
    if live.is_empty() && mapped.is_empty() {
        return measures;
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    if !live.is_empty() {
        let why = "the kernel had no more available";
        let remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled; \
                      echo 1 | sudo tee /proc/sys/vm/compact_memory";
        measures.push(huge_pages("huge pages", &smaps, &live, [why, remedy]));
    }
    if !mapped.is_empty() {
        let why = "the file system has none, or the file was cached in small pages";
        let remedy = "--load-mode none copies the weights to memory that has them";
        let name = "huge pages of the mapped weights";
        measures.push(huge_pages(name, &smaps, &mapped, [why, remedy]));
    }
    measures
}

/// The state of a request for huge pages at `places`, and what to do where it was refused.
fn huge_pages(
    name: &'static str,
    smaps: &str,
    places: &[(usize, usize)],
    [why, remedy]: [&'static str; 2],
) -> HostMeasure {
    let (huge, resident) = huge_bytes(smaps, places);
    let found = format!("{} of {} MiB", huge >> 20, resident >> 20);
    // The ends of each piece, and what was touched before its neighbours, stay small.
    let is_most = huge + places.len() as u64 * 2 * HUGE_PAGE_BYTES as u64 >= resident / 10 * 9;
    match is_most {
        true => HostMeasure::held(name, "all", found),
        false => HostMeasure::refused(name, "all", found, why).with_remedy(remedy),
    }
}

/// Bytes in huge pages, and resident bytes, of the mappings in `smaps` that overlap `live`.
fn huge_bytes(smaps: &str, live: &[(usize, usize)]) -> (u64, u64) {
    let (mut huge, mut resident, mut is_ours) = (0, 0, false);
    for line in smaps.lines() {
        let word = line.split(' ').next().unwrap_or_default();
        if let Some((from, to)) = word.split_once('-') {
            let address = |digits| usize::from_str_radix(digits, 16);
            if let (Ok(from), Ok(to)) = (address(from), address(to)) {
                is_ours = live.iter().any(|&(at, len)| at < to && from < at + len);
                continue;
            }
        }
        if !is_ours {
            continue;
        }
        let kib = |name| crate::host::process::kib_of_line(line, name);
        for kind in ["AnonHugePages:", "FilePmdMapped:"] {
            huge += kib(kind).unwrap_or(0) * 1024;
        }
        resident += kib("Rss:").unwrap_or(0) * 1024;
    }
    (huge, resident)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::memory::ALIGN;

    #[test]
    fn zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 4096, 1 << 20] {
            let mut memory = AlignedMemory::zeroed(len).unwrap();
            assert_eq!(memory.len(), len);
            assert_eq!(memory.as_ptr().addr() % ALIGN, 0);
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn huge_pages_are_counted_by_smaps() {
        let smaps = "7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
            Size:               4096 kB\nRss:                3000 kB\n\
            AnonHugePages:      2048 kB\nVmFlags: rd wr hg\n\
            7f0000400000-7f0000500000 rw-p 00000000 00:00 0 \n\
            Rss:                 512 kB\nAnonHugePages:         0 kB\n";
        let live = [(0x7f00_0000_1000, 0x1000)];
        assert_eq!(huge_bytes(smaps, &live), (2048 << 10, 3000 << 10));
        assert_eq!(huge_bytes(smaps, &[(0x7f00_0050_0000, 9)]), (0, 0));
        assert_eq!(huge_bytes("", &live), (0, 0));
    }

    #[test]
    fn a_policy_is_reported_as_the_kernel_sees_it() {
        assert_eq!(policy(), MemoryPolicy::default());
        set_policy(MemoryPolicy {
            huge_pages: true,
            locks: false,
        });
        let mut memory = AlignedMemory::zeroed(32 << 20).unwrap();
        set_policy(MemoryPolicy::default());
        memory.fill(1);
        let measures = report();
        let huge = measures.iter().find(|m| m.name == "huge pages").unwrap();
        let thp = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if thp.is_ok_and(|thp| thp.contains("[never]")) {
            assert!(!huge.is_held(), "{huge}");
        }
        assert!(huge.found.ends_with(" MiB"), "{huge}");
        // VmLck decides how much is locked, even where the limit forbids it.
        note_lock(memory.lock(), memory.len());
        let measures = report();
        let locked = measures
            .iter()
            .find(|m| m.name == "locked weights")
            .unwrap();
        let kib = crate::host::process::status_kib("VmLck:").unwrap();
        assert_eq!(locked.is_held(), kib >= 32 << 10, "{locked}");
    }

    #[test]
    fn too_much_is_an_error_with_the_size() {
        let error = AlignedMemory::zeroed(usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains(&(usize::MAX / 2).to_string()));
    }

    #[test]
    fn sparse_memory_may_be_larger_than_the_machine() {
        let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
        if policy.is_ok_and(|policy| policy.trim() == "2") {
            return eprintln!("SKIPPED: this system counts all address space");
        }
        let mut memory = AlignedMemory::sparse(8 << 40).unwrap();
        memory[7 << 40] = 1;
        assert_eq!(memory[(7 << 40) + 1], 0);
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let before = crate::host::process::peak_memory_bytes().unwrap();
        let memory = AlignedMemory::zeroed(1 << 30).unwrap();
        let after = crate::host::process::peak_memory_bytes().unwrap();
        // Other tests of this process may touch memory meanwhile.
        assert!(after - before < 512 << 20, "{before} {after}");
        assert_eq!(memory.len(), 1 << 30);
    }
}
