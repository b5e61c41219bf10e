//! What the kernel says about this process.
#![forbid(unsafe_code)]

/// Most memory this process has had resident so far, in bytes (`VmHWM`): anonymous memory and
/// pages of mapped files. `None` where `/proc` is not mounted.
pub fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    parse_peak_memory(&status)
}

/// The number of a line of `/proc/self/status` that is in KiB, such as `VmLck:`.
pub(crate) fn status_kib(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| kib_of_line(line, name))
}

/// The number of a line such as `Rss:   12 kB`, if it is the line `name`.
pub(crate) fn kib_of_line(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.trim();
    value.strip_suffix("kB")?.trim().parse().ok()
}

/// Reads `VmHWM:   1234 kB` of a status file; the unit is always 1024 bytes.
fn parse_peak_memory(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
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
