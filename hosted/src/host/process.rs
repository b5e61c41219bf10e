//! The kernel's figures for this process.
#![forbid(unsafe_code)]

use core::fmt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::read_to_string;

/// Peak resident memory of this process so far, in bytes (`VmHWM`): anonymous memory and
/// pages of mapped files. `None` if `/proc` is not mounted.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = read_to_string("/proc/self/status").ok()?;
    parse_peak_memory(&status)
}

/// Bytes of memory that this process may still take: what the machine has available, or less where a cgroup allows
/// less.
pub fn available_memory_bytes() -> u64 {
    let info = read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| kib_of_line(line, "MemAvailable:"));
    let free = free.map_or(AVAILABLE_IF_UNKNOWN, |kib| kib << 10);
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut own = groups.lines().filter_map(|line| line.strip_prefix("0::"));
    // In a container the own group is often the root of what it sees.
    let own = format!("/sys/fs/cgroup{}", own.next().unwrap_or("/"));
    let folders = [own.as_str(), "/sys/fs/cgroup"];
    let rooms = folders.into_iter().filter_map(cgroup_room);
    rooms.fold(free, u64::min)
}

/// The bytes that a cgroup's limit leaves; `None` without a limit.
fn cgroup_room(folder: &str) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = read_to_string(format!("{folder}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let max = number("memory.max")?;
    Some(max.saturating_sub(number("memory.current").unwrap_or(0)))
}

/// Available memory where the kernel does not report it.
const AVAILABLE_IF_UNKNOWN: u64 = 4 << 30;

/// The process may not open as many files as it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyFiles {
    /// Limit of open files.
    pub limit: u64,
    /// Number of open files.
    pub n_open: u64,
}

impl fmt::Display for TooManyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at most {} files may be open at once, and {} are (RLIMIT_NOFILE, ulimit -Hn)",
            self.limit, self.n_open
        )
    }
}

/// Raises the soft limit of open files if `n` more do not fit.
///
/// # Errors
/// The hard limit is lower.
pub fn allow_files(n: usize) -> Result<(), TooManyFiles> {
    let open = std::fs::read_dir("/proc/self/fd");
    let n_open = open.map_or(0, Iterator::count) as u64;
    let limit = getrlimit(Resource::Nofile);
    let needed = n_open + n as u64 + FILES_BESIDE_MIN;
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(needed + FILES_BESIDE);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < wanted {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        // If refused, the limit stays as it is.
        let _raised = setrlimit(Resource::Nofile, raised);
    }
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(TooManyFiles { limit, n_open }),
        _ => Ok(()),
    }
}

/// Minimum number of other files that may be opened meanwhile.
const FILES_BESIDE_MIN: u64 = 4;

/// Further files to leave room for, opened later for other purposes.
const FILES_BESIDE: u64 = 256;

/// The number of a line of `/proc/self/status` that is in KiB, such as `VmLck:`.
pub(crate) fn status_kib(name: &str) -> Option<u64> {
    let status = read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| kib_of_line(line, name))
}

/// The number of a line such as `Rss:   12 kB`, if it is the line `name`.
pub(crate) fn kib_of_line(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.trim();
    value.strip_suffix("kB")?.trim().parse().ok()
}

/// Reads `VmHWM:   1234 kB` of a status file; the unit is always 1024 bytes.
fn parse_peak_memory(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let kib = lines.find_map(|line| kib_of_line(line, "VmHWM:"))?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_and_scaled() {
        let status = "Name:\tsluice\nVmPeak:\t  9 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1 kB\n";
        assert_eq!(parse_peak_memory(status), Some(1234 * 1024));
        assert_eq!(parse_peak_memory("VmHWM:\t12 MB\n"), None);
        assert_eq!(parse_peak_memory(""), None);
    }

    #[test]
    fn it_grows_with_what_is_touched() {
        let before = peak_memory_bytes().unwrap();
        let touched = core::hint::black_box(vec![1u8; 64 << 20]);
        let after = peak_memory_bytes().unwrap();
        assert!(after > before, "{before} {after} {}", touched.len());
        assert!(after > 64 << 20);
    }
}
