//! The limits of the process's control group, such as a container's.

use super::report::{Finding, Section, System, bytes};

pub(super) fn section(system: &System) -> Section {
    let groups = system.read("proc/self/cgroup").unwrap_or_default();
    let mut findings = Vec::new();
    // Version 2 has one line, `0::/path`; version 1 has one for each controller.
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.trim_matches('/');
        let has = |name: &str| controllers.split(',').any(|controller| controller == name);
        if controllers.is_empty() {
            let read = |name| at(system, "sys/fs/cgroup", path, name);
            findings.extend(read("cpu.max").and_then(|text| cpu(text.split_whitespace())));
            findings.extend(read("memory.max").and_then(|text| memory(&text)));
            findings.extend(read("cpu.stat").and_then(|text| throttled(&text)));
        }
        if has("cpu") {
            let read = |name| at(system, &format!("sys/fs/cgroup/{controllers}"), path, name);
            let quota = read("cpu.cfs_quota_us").zip(read("cpu.cfs_period_us"));
            findings.extend(quota.and_then(|(quota, period)| cpu([&*quota, &*period].into_iter())));
            findings.extend(read("cpu.stat").and_then(|text| throttled(&text)));
        }
        if has("memory") {
            let folder = format!("sys/fs/cgroup/{controllers}");
            let limit = at(system, &folder, path, "memory.limit_in_bytes");
            findings.extend(limit.and_then(|text| memory(&text)));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new(
            "control group",
            "no limits on CPU time or memory",
        ));
    }
    Section {
        title: "Container",
        findings,
    }
}

/// A file of the group, or of the root if a container sees its own group there.
fn at(system: &System, folder: &str, path: &str, name: &str) -> Option<String> {
    let own = system.read(&format!("{folder}/{path}/{name}"));
    own.or_else(|| system.read(&format!("{folder}/{name}")))
}

fn cpu<'t>(mut words: impl Iterator<Item = &'t str>) -> Option<Finding> {
    // "max" and -1 mean no limit.
    let quota: f64 = words.next()?.parse().ok().filter(|quota| *quota > 0.0)?;
    let period: f64 = words.next()?.parse().ok().filter(|period| *period > 0.0)?;
    let cpus = quota / period;
    let finding = Finding::new("CPU time", format!("{cpus:.2} CPUs"));
    #[expect(clippy::float_cmp, reason = "a whole number of CPUs avoids throttling")]
    Some(if cpus.trunc() == cpus {
        finding
    } else {
        finding
            .problem("all threads stop together when the CPU quota is used up")
            .remedy("assign whole CPUs to the container: --cpuset-cpus 0-3 instead of --cpus")
    })
}

fn memory(text: &str) -> Option<Finding> {
    let limit: u64 = text.parse().ok()?;
    // Version 1 expresses "no limit" as the largest number of pages.
    (limit < 1 << 60).then(|| Finding::new("memory", format!("at most {}", bytes(limit))))
}

fn throttled(text: &str) -> Option<Finding> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("nr_throttled "))?;
    let n: u64 = line.trim().parse().ok().filter(|n| *n > 0)?;
    Some(
        Finding::new("throttled", format!("{n} times"))
            .problem("the group exceeded its CPU quota, and all of its threads stood still")
            .remedy("use fewer threads (-t), or raise the limit"),
    )
}
