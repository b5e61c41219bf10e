//! The resource limits of a process.

use super::report::{Finding, Section, System, bytes};

pub(super) fn section(system: &System) -> Section {
    let limits = system.read("proc/self/limits").unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(soft) = soft(&limits, "Max locked memory") {
        let finding = Finding::new("locked memory", shown(soft));
        let total = soft.is_some_and(|bytes| bytes < ENOUGH_LOCKED);
        findings.push(if total {
            finding
                .problem("weights cannot be locked in memory")
                .remedy("ulimit -l unlimited (as root; LimitMEMLOCK=infinity for a service, --ulimit memlock=-1 for a container)")
        } else {
            finding
        });
    }
    if let Some(soft) = soft(&limits, "Max open files") {
        let value = soft.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        let finding = Finding::new("open files", value);
        findings.push(if soft.is_some_and(|n| n < 1024) {
            finding
                .problem("only few connections and expert files can be open at once")
                .remedy("ulimit -n 65536")
        } else {
            finding
        });
    }
    if let Some(soft) = soft(&limits, "Max realtime priority") {
        let n = soft.unwrap_or(99);
        let finding = Finding::new("realtime priority", n.to_string());
        findings.push(if n == 0 && !is_root(system) {
            finding
                .problem("other programs can take the cores in the middle of a step")
                .remedy("echo '@audio - rtprio 95' | sudo tee -a /etc/security/limits.d/sluice.conf (then log in again), or LimitRTPRIO=95 for a service")
        } else {
            finding
        });
    }
    if let Some(soft) = soft(&limits, "Max address space") {
        let finding = Finding::new("address space", shown(soft));
        findings.push(if soft.is_some() {
            finding
                .problem("larger models cannot be mapped")
                .remedy("ulimit -v unlimited")
        } else {
            finding
        });
    }
    if findings.is_empty() {
        findings.push(Finding::new("limits", "/proc is not mounted"));
    }
    Section {
        title: "Limits",
        findings,
    }
}

/// The soft limit on the line of this name; the inner `None` means unlimited.
fn soft(limits: &str, name: &str) -> Option<Option<u64>> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let word = line.split_whitespace().next()?;
    if word == "unlimited" {
        return Some(None);
    }
    Some(Some(word.parse().ok()?))
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), bytes)
}

/// Whether the process is exempt from limits.
fn is_root(system: &System) -> bool {
    let status = system.read("proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// Whether a large model fits.
const ENOUGH_LOCKED: u64 = 1 << 30;
