//! Cores, caches, memory and NUMA nodes.

use super::report::{Finding, Section, System, bytes};
use sluice::host::topology::{CoreChoice, Cores};

pub(super) fn processor(system: &System) -> Section {
    let mut findings = Vec::new();
    let info = system.read("proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    if let Some((_, name)) = model.and_then(|line| line.split_once(':')) {
        findings.push(Finding::new("model", name.trim()));
    }
    let (all, cores) = (Cores::choose(CoreChoice::All), Cores::detect());
    findings.extend(core_kinds(&all, &cores));
    findings.push(Finding::new(
        "available to this process",
        format!(
            "{} cores, {} CPUs; {} threads by default (-t)",
            cores.physical_count(),
            cores.logical_count(),
            cores.default_workers()
        ),
    ));
    let folder = "sys/devices/system/cpu/cpu0/cache";
    for index in system.list(folder) {
        let field = |name: &str| system.read(&format!("{folder}/{index}/{name}"));
        let (Some(level), Some(kind), Some(size)) = (field("level"), field("type"), field("size"))
        else {
            continue;
        };
        let shared = field("shared_cpu_list").unwrap_or_default();
        let name = format!("L{level} {}", kind.to_lowercase());
        findings.push(Finding::new(
            name,
            format!("{size}, shared by CPUs {shared}"),
        ));
    }
    let governor = system.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if let Some(governor) = governor {
        let finding = Finding::new("frequency governor", &governor);
        findings.push(if governor == "performance" {
            finding
        } else {
            finding
                .problem("the clock rises late when work starts")
                .remedy("sudo cpupower frequency-set -g performance")
        });
    }
    Section {
        title: "Processor",
        findings,
    }
}

/// The number of cores of each kind, and which are used; `None` if all are alike.
pub(super) fn core_kinds(all: &Cores, used: &Cores) -> Option<Finding> {
    let (n_performance, n_efficient) = all.kind_counts();
    if n_efficient == 0 {
        return None;
    }
    let used = match used.kind_counts() {
        (_, 0) => "performance cores are",
        (0, _) => "efficiency cores are",
        _ => "both are",
    };
    let value = format!(
        "{n_performance} performance, {n_efficient} efficiency; {used} used by default (--cores)"
    );
    Some(Finding::new("kinds of cores", value))
}

pub(super) fn nodes(system: &System) -> Section {
    let folder = "sys/devices/system/node";
    let nodes = system.list(folder);
    let is_node = |name: &&String| {
        let number = name.strip_prefix("node");
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let nodes: Vec<_> = nodes.iter().filter(is_node).collect();
    let mut findings = Vec::new();
    for node in &nodes {
        let cpus = system
            .read(&format!("{folder}/{node}/cpulist"))
            .unwrap_or_default();
        let info = system
            .read(&format!("{folder}/{node}/meminfo"))
            .unwrap_or_default();
        let of = |key: &str| kib(&info, key).map_or_else(|| "?".to_owned(), bytes);
        let value = format!(
            "CPUs {cpus}; memory {}, {} free",
            of("MemTotal:"),
            of("MemFree:")
        );
        findings.push(Finding::new(*node, value));
    }
    match nodes.len() {
        0 => findings.push(Finding::new(
            "nodes",
            "not reported by the kernel; one is assumed",
        )),
        1 => {}
        n => {
            let balancing = system.read("proc/sys/kernel/numa_balancing");
            if balancing.as_deref().is_some_and(|value| value != "0") {
                findings.push(
                    Finding::new("NUMA balancing", "on")
                        .problem(
                            "the kernel migrates pages of the weights between nodes while they are read",
                        )
                        .remedy("sudo sysctl kernel.numa_balancing=0"),
                );
            }
            findings.push(
                Finding::new("nodes", n.to_string())
                    .problem("weights are on the node that loads them, threads on all nodes")
                    .remedy("numactl --cpunodebind=0 --membind=0 sluice … (one node), or --interleave=all"),
            );
        }
    }
    Section {
        title: "NUMA",
        findings,
    }
}

pub(super) fn memory(system: &System) -> Section {
    let info = system.read("proc/meminfo").unwrap_or_default();
    let mut findings = Vec::new();
    if let (Some(total), Some(available)) = (kib(&info, "MemTotal:"), kib(&info, "MemAvailable:")) {
        let value = format!("{}, {} available", bytes(total), bytes(available));
        findings.push(Finding::new("memory", value));
    }
    let swap = kib(&info, "SwapTotal:").unwrap_or(0) - kib(&info, "SwapFree:").unwrap_or(0);
    if swap > 0 {
        findings.push(
            Finding::new("swapped out", bytes(swap))
                .problem("swapped-out parts of a model are read again for every token"),
        );
    }
    let huge = "sys/kernel/mm/transparent_hugepage/enabled";
    findings.push(match system.read(huge) {
        None => Finding::new("transparent huge pages", "not supported by the kernel")
            .problem("every 4 KiB of weights take a TLB entry"),
        Some(text) => {
            let chosen = text.split(['[', ']']).nth(1).unwrap_or(&text).to_owned();
            let finding = Finding::new("transparent huge pages", &chosen);
            if chosen == "never" {
                finding
                    .problem("every 4 KiB of weights take a TLB entry")
                    .remedy(format!("echo madvise | sudo tee /{huge}"))
            } else {
                finding
            }
        }
    });
    let number = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.trim().parse::<u64>().ok())
    };
    if let (Some(total), Some(free)) = (number("HugePages_Total:"), number("HugePages_Free:")) {
        let size = kib(&info, "Hugepagesize:").map_or_else(|| "?".to_owned(), bytes);
        let value = format!("{total} of {size} reserved, {free} free");
        findings.push(Finding::new("huge pages", value));
    }
    Section {
        title: "Memory",
        findings,
    }
}

/// Bytes on the line of `key`, in a file such as `/proc/meminfo`.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(key))?;
    let (_, rest) = line.split_once(key)?;
    let number = rest.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}
