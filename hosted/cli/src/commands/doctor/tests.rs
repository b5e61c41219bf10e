use super::report::{Finding, System};
use super::{drives, examine, machine};
use fixture::with_devices;
use sluice::host::cpus::CpuList;
use sluice::host::drives::Drives;
use sluice::host::topology::{CoreChoice, Cores};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../../src/host/topology/fixture.rs"]
mod fixture;

/// Files as on another machine.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let id = std::process::id();
        let root = std::env::temp_dir().join(format!("sluice-doctor-{name}-{id}"));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn section(&self, title: &str) -> Vec<Finding> {
        let report = examine(&System::at(&self.0));
        let found = report
            .sections
            .into_iter()
            .find(|section| section.title == title);
        found.unwrap().findings
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn find<'f>(findings: &'f [Finding], name: &str) -> &'f Finding {
    let found = findings.iter().find(|finding| finding.name == name);
    found.unwrap_or_else(|| panic!("{name}: {findings:?}"))
}

#[test]
fn a_machine_of_two_nodes_in_a_container() {
    let tree = Tree::new("two", TWO_NODES);
    let memory = tree.section("Memory");
    assert_eq!(find(&memory, "memory").value, "1 GiB, 512 MiB available");
    assert!(find(&memory, "swapped out").problem.is_some());
    let huge = find(&memory, "transparent huge pages");
    assert!(
        huge.remedy.as_ref().unwrap().contains("echo madvise"),
        "{huge:?}"
    );
    assert_eq!(
        find(&memory, "huge pages").value,
        "4 of 2 MiB reserved, 1 free"
    );
    let nodes = tree.section("NUMA");
    assert!(
        find(&nodes, "node0")
            .value
            .contains("CPUs 0-7; memory 2 MiB, 1 MiB free")
    );
    assert!(
        find(&nodes, "nodes")
            .remedy
            .as_ref()
            .unwrap()
            .contains("numactl")
    );
    assert!(find(&nodes, "NUMA balancing").remedy.is_some());
    let processor = tree.section("Processor");
    assert!(find(&processor, "L3 unified").value.contains("32768K"));
    assert!(find(&processor, "frequency governor").remedy.is_some());
    let limits = tree.section("Limits");
    for name in ["locked memory", "open files", "realtime priority"] {
        assert!(find(&limits, name).remedy.is_some(), "{name}");
    }
    assert!(find(&limits, "address space").problem.is_none());
    let container = tree.section("Container");
    assert_eq!(find(&container, "CPU time").value, "1.50 CPUs");
    assert!(find(&container, "CPU time").problem.is_some());
    assert_eq!(find(&container, "memory").value, "at most 1 GiB");
    assert_eq!(find(&container, "throttled").value, "7 times");
}

const TWO_NODES: &[(&str, &str)] = &[
    (
        "proc/meminfo",
        "MemTotal:  1048576 kB\nMemAvailable: 524288 kB\nSwapTotal: 2048 kB\n\
                              SwapFree: 1024 kB\nHugePages_Total: 4\nHugePages_Free: 1\nHugepagesize: 2048 kB\n",
    ),
    ("proc/sys/kernel/numa_balancing", "1\n"),
    (
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always madvise [never]\n",
    ),
    ("sys/devices/system/cpu/cpu0/cache/index3/level", "3\n"),
    ("sys/devices/system/cpu/cpu0/cache/index3/type", "Unified\n"),
    ("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n"),
    (
        "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list",
        "0-15\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "powersave\n",
    ),
    ("sys/devices/system/node/node0/cpulist", "0-7\n"),
    (
        "sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal: 2048 kB\nNode 0 MemFree: 1024 kB\n",
    ),
    ("sys/devices/system/node/node1/cpulist", "8-15\n"),
    ("sys/devices/system/node/possible", "0-1\n"),
    ("proc/self/cgroup", "0::/box\n"),
    ("sys/fs/cgroup/box/cpu.max", "150000 100000\n"),
    ("sys/fs/cgroup/box/memory.max", "1073741824\n"),
    (
        "sys/fs/cgroup/box/cpu.stat",
        "usage_usec 5\nnr_throttled 7\n",
    ),
    ("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n"),
    (
        "proc/self/limits",
        "Limit   Soft Limit  Hard Limit  Units\nMax locked memory    65536   65536   bytes\n\
                                  Max open files    256    4096   files\nMax realtime priority  0   0\n\
                                  Max address space   unlimited   unlimited  bytes\n",
    ),
];

#[test]
fn version_1_groups_and_no_limits() {
    let one = Tree::new(
        "one",
        &[
            ("proc/self/cgroup", "4:memory:/a\n1:cpu:/a\n0::/\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            (
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ],
    );
    let container = one.section("Container");
    assert_eq!(container.len(), 1, "{container:?}");
    assert!(find(&container, "CPU time").problem.is_none());
    let none = Tree::new(
        "none",
        &[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ],
    );
    assert_eq!(
        find(&none.section("Container"), "control group").problem,
        None
    );
}

#[test]
fn kinds_of_cores_are_counted() {
    let kinds = |name: &str, allowed: Vec<usize>| {
        let n = allowed.len();
        let all = with_devices(name, |devices| Cores::from_sysfs(devices, allowed, n));
        let mut used = all.clone();
        used.keep_kind(CoreChoice::Performance);
        machine::core_kinds(&all, &used).map(|finding| finding.value)
    };
    let hybrid = kinds("meteor-lake-6p-8e-2lp", (0..22).collect());
    assert_eq!(
        hybrid.as_deref(),
        Some("6 performance, 10 efficiency; performance cores are used by default (--cores)")
    );
    let efficient = kinds("alder-lake-8p-8e", vec![16, 17]);
    assert_eq!(
        efficient.as_deref(),
        Some("0 performance, 2 efficiency; efficiency cores are used by default (--cores)")
    );
    assert_eq!(kinds("ranked-16", (0..32).collect()), None);
    assert_eq!(kinds("files-missing", (0..4).collect()), None);
}

#[test]
fn drives_are_named_with_their_nodes() {
    let of = |devices: &[&str], nodes: &[usize], cpus: &[usize]| {
        let drives = Drives {
            devices: devices.iter().map(|&name| name.to_owned()).collect(),
            nodes: nodes.to_vec(),
        };
        let findings = drives::described(&drives, &CpuList(cpus.to_vec()));
        findings.map(|finding| finding.value).join(" | ")
    };
    let two = of(&["nvme0n1", "nvme1n1"], &[0, 1], &[0, 1, 2, 3]);
    assert_eq!(two, "nvme0n1 nvme1n1 | 0-1 (CPUs 0-3)");
    let far = of(&["sda"], &[1], &[]);
    assert_eq!(far, "sda | 1, without a CPU that this process may use");
    let hidden = of(&[], &[], &[]);
    assert!(hidden.matches("unknown").count() == 2, "{hidden}");
    // A missing model is reported as a problem; the other checks run all the same.
    let missing = drives::section(Path::new("/does/not/exist")).findings;
    assert!(find(&missing, "of").problem.is_some());
    let here = drives::section(Path::new(".")).findings;
    for name in [
        "devices",
        "NUMA node",
        "direct reads (O_DIRECT)",
        "io_uring",
    ] {
        assert!(!find(&here, name).value.is_empty());
    }
    assert_eq!(find(&here, "io_uring"), find(&missing, "io_uring"));
}

#[test]
fn this_machine_and_its_text() {
    let report = examine(&System::default());
    let text = report.to_string();
    for words in [
        "Kernels",
        "scalar",
        "selected",
        "Limits",
        "open files",
        "problem",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let chosen = text
        .lines()
        .filter(|line| line.contains("and selected"))
        .count();
    assert_eq!(chosen, 1);
}
