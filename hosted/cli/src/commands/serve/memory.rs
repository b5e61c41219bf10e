//! How much memory there is to keep earlier prompts in.

use std::fs::read_to_string;

/// Bytes that this process may still take: what the machine has free, or less where a cgroup allows less.
pub(super) fn available() -> u64 {
    let info = read_to_string("/proc/meminfo").unwrap_or_default();
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
    let free = free.map_or(FREE, |kib: u64| kib << 10);
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    // In a container the own group is often the root of what it sees.
    let folders = [format!("/sys/fs/cgroup{own}"), "/sys/fs/cgroup".to_owned()];
    let rooms = folders.iter().filter_map(|folder| room_in(folder));
    rooms.fold(free, u64::min)
}

/// What a cgroup leaves, if it has a limit.
fn room_in(folder: &str) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = read_to_string(format!("{folder}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let max = number("memory.max")?;
    Some(max.saturating_sub(number("memory.current").unwrap_or(0)))
}

/// Assumed if the kernel does not report it.
const FREE: u64 = 4 << 30;
