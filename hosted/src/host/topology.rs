//! Physical cores, and putting threads on them.

#[cfg(test)]
pub(crate) mod fixture;
mod kinds;

pub use kinds::CoreChoice;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The CPUs this process may use, by physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Per physical core its allowed logical CPUs, ascending; the cores in order of their first,
    /// the efficient ones of a hybrid processor last.
    cores: Vec<Vec<usize>>,
    /// CPUs of efficient cores.
    efficient: Vec<usize>,
    /// CPU time limit of the process in whole CPUs (a container's quota).
    quota: usize,
}

impl Cores {
    /// The cores to use by default: [`Self::choose`] with the performance cores.
    pub fn detect() -> Self {
        Self::choose(CoreChoice::Performance)
    }

    /// Reads the affinity mask (which `taskset` and cgroup cpusets narrow) and sysfs, and keeps
    /// the cores of the requested kinds; all, if there are no such cores. Where sysfs is missing
    /// every CPU counts as a core.
    pub fn choose(choice: CoreChoice) -> Self {
        let quota = std::thread::available_parallelism().map_or(1, |n| n.get());
        // The mask cannot be read on machines of more CPUs than a CpuSet holds.
        let allowed = current_cpus().unwrap_or_else(|_| (0..quota).collect());
        let mut cores = Self::from_sysfs(Path::new("/sys/devices"), allowed, quota);
        cores.keep_kind(choice);
        cores
    }

    /// All cores of `allowed`; `devices` is `/sys/devices`.
    #[must_use]
    pub fn from_sysfs(devices: &Path, allowed: Vec<usize>, quota: usize) -> Self {
        let root = devices.join("system/cpu");
        let mut by_first_sibling = BTreeMap::<usize, Vec<usize>>::new();
        for cpu in allowed {
            let list = root.join(format!("cpu{cpu}/topology/thread_siblings_list"));
            let siblings = std::fs::read_to_string(list).unwrap_or_default();
            let first = first_of_list(&siblings).unwrap_or(cpu);
            by_first_sibling.entry(first).or_default().push(cpu);
        }
        let mut cores: Vec<_> = by_first_sibling.into_values().collect();
        if cores.is_empty() {
            cores.push(vec![0]);
        }
        let efficient = kinds::efficient_cpus(devices);
        cores.sort_by_key(|core| (efficient.contains(&core[0]), core[0]));
        Self {
            cores,
            efficient,
            quota,
        }
    }

    /// Leaves out the cores of other kinds, unless none would be left.
    pub fn keep_kind(&mut self, choice: CoreChoice) {
        let efficient = self.efficient.clone();
        match choice {
            CoreChoice::All => {}
            CoreChoice::Performance => self.keep(|cpu| !efficient.contains(&cpu)),
            CoreChoice::Efficiency => self.keep(|cpu| efficient.contains(&cpu)),
        }
    }

    /// Physical cores by kind: performance, efficiency. If all are alike they count as performance cores.
    pub fn kind_counts(&self) -> (usize, usize) {
        let is_efficient = |core: &&Vec<usize>| self.efficient.contains(&core[0]);
        let n_efficient = self.cores.iter().filter(is_efficient).count();
        (self.cores.len() - n_efficient, n_efficient)
    }

    /// Physical cores with at least one allowed CPU.
    pub fn physical_count(&self) -> usize {
        self.cores.len()
    }

    /// Allowed logical CPUs.
    pub fn logical_count(&self) -> usize {
        self.cores.iter().map(Vec::len).sum()
    }

    /// Workers to run by default: one per physical core, within the CPU time limit. A core's
    /// second thread adds nothing where memory bandwidth or vector units are the limit.
    pub fn default_workers(&self) -> usize {
        self.cores.len().min(self.quota).max(1)
    }

    /// Allowed logical CPUs, ascending.
    pub fn cpus(&self) -> Vec<usize> {
        let mut cpus: Vec<_> = self.cores.iter().flatten().copied().collect();
        cpus.sort_unstable();
        cpus
    }

    /// Leaves out the CPUs for which `keeps` is false, unless none would be left.
    pub fn keep(&mut self, keeps: impl Fn(usize) -> bool) {
        let kept = |core: &Vec<usize>| -> Vec<usize> {
            core.iter().copied().filter(|&cpu| keeps(cpu)).collect()
        };
        let cores: Vec<_> = self.cores.iter().map(kept).collect();
        let cores: Vec<_> = cores.into_iter().filter(|core| !core.is_empty()).collect();
        if !cores.is_empty() {
            self.cores = cores;
        }
    }

    /// NUMA nodes with allowed CPUs and their CPUs, as sysfs lists them; one node of all CPUs if
    /// it lists none.
    pub fn nodes(&self) -> Vec<(usize, Vec<usize>)> {
        self.nodes_in(Path::new("/sys/devices/system/node"))
    }

    fn nodes_in(&self, root: &Path) -> Vec<(usize, Vec<usize>)> {
        let allowed = self.cpus();
        let mut nodes: Vec<(usize, Vec<usize>)> = std::fs::read_dir(root)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let node = name.to_str()?.strip_prefix("node")?.parse().ok()?;
                let list = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
                let mut cpus = numbers_of_list(&list);
                cpus.retain(|cpu| allowed.contains(cpu));
                (!cpus.is_empty()).then_some((node, cpus))
            })
            .collect();
        nodes.sort();
        if nodes.is_empty() {
            nodes.push((0, allowed));
        }
        nodes
    }

    /// Reorders the cores so that neighbouring ranks are on different nodes.
    pub fn distribute(&mut self, nodes: &[(usize, Vec<usize>)]) {
        let on = |core: &Vec<usize>, cpus: &Vec<usize>| cpus.contains(&core[0]);
        let mut by_node: Vec<Vec<Vec<usize>>> = nodes
            .iter()
            .map(|(_, cpus)| {
                self.cores
                    .iter()
                    .filter(|core| on(core, cpus))
                    .cloned()
                    .collect()
            })
            .collect();
        let mut in_turn = Vec::with_capacity(self.cores.len());
        while by_node.iter().any(|cores| !cores.is_empty()) {
            for cores in by_node.iter_mut().filter(|cores| !cores.is_empty()) {
                in_turn.push(cores.remove(0));
            }
        }
        if in_turn.len() == self.cores.len() {
            self.cores = in_turn;
        }
    }

    /// Lets the calling thread run on all of these CPUs again, after [`pin_current_thread`]. Threads
    /// that it starts inherit that.
    pub fn release_current_thread(&self) {
        let mut set = CpuSet::new();
        for &cpu in self.cores.iter().flatten() {
            if cpu < CpuSet::MAX_CPU {
                set.set(cpu);
            }
        }
        // These CPUs were allowed when they were read. If that has changed, the thread stays where
        // it is, which is allowed too.
        let _stays = sched_setaffinity(None, &set);
    }

    /// CPUs for `n` workers: every core once, then the cores' other threads. Workers beyond
    /// that are left to the scheduler.
    pub fn placement(&self, n: usize) -> Vec<Option<usize>> {
        let threads_max = self.cores.iter().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..threads_max)
            .flat_map(|thread| self.cores.iter().filter_map(move |core| core.get(thread)));
        let pinned = in_turn.map(|&cpu| Some(cpu));
        pinned.chain(core::iter::repeat(None)).take(n).collect()
    }
}

/// Binds the calling thread to one CPU and reads the binding back.
///
/// # Errors
/// The kernel refuses, or accepts and does something else.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    if sched_getaffinity(None)? != set {
        return Err(io::Error::other("the kernel reports a different affinity"));
    }
    Ok(())
}

/// Binds the calling thread to several CPUs and reads the binding back.
///
/// # Errors
/// As [`pin_current_thread`].
pub fn bind_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
    }
    sched_setaffinity(None, &set)?;
    if sched_getaffinity(None)? != set {
        return Err(io::Error::other("the kernel reports a different affinity"));
    }
    Ok(())
}

/// The CPUs that the calling thread may run on, as the kernel lists them.
pub fn current_affinity() -> String {
    match current_cpus() {
        Ok(cpus) => format!("CPU {}", crate::host::cpus::CpuList(cpus)),
        Err(_) => "unknown".into(),
    }
}

/// The CPUs that the calling thread may run on.
///
/// # Errors
/// The machine has more CPUs than a mask here holds.
pub fn current_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    Ok(cpus.collect())
}

/// All numbers of a list such as `0-3,8`; empty if it is not a list.
fn numbers_of_list(list: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            numbers.extend((first..=last).take(CpuSet::MAX_CPU));
        }
    }
    numbers
}

/// The first number of a list such as `0-3,8`.
fn first_of_list(list: &str) -> Option<usize> {
    let end = list.find(|c: char| !c.is_ascii_digit());
    list[..end.unwrap_or(list.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::fs;

    /// A sysfs of 4 cores with 2 threads each: CPU n and n + 4.
    fn hyperthreaded(allowed: &[usize], quota: usize) -> Cores {
        // Tests run at the same time.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (id, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(format!("sluice-sysfs-{id}-{n}"));
        for cpu in 0..8 {
            let topology = root.join(format!("system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            let siblings = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
            fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        let cores = Cores::from_sysfs(&root, allowed.to_vec(), quota);
        fs::remove_dir_all(root).unwrap();
        cores
    }

    #[test]
    fn cores_first_then_their_other_threads_then_none() {
        let all: Vec<usize> = (0..8).collect();
        let cores = hyperthreaded(&all, 8);
        assert_eq!((cores.physical_count(), cores.logical_count()), (4, 8));
        assert_eq!(cores.default_workers(), 4);
        let expected: Vec<_> = (0..8).map(Some).chain([None, None]).collect();
        assert_eq!(cores.placement(10), expected);
        assert_eq!(cores.placement(3), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn only_allowed_cpus_count() {
        // Core 1 by its second thread, core 2 by both, core 3 by its second.
        let cores = hyperthreaded(&[2, 5, 6, 7], 4);
        assert_eq!((cores.physical_count(), cores.logical_count()), (3, 4));
        assert_eq!(
            cores.placement(5),
            [Some(2), Some(5), Some(7), Some(6), None]
        );
        assert_eq!(hyperthreaded(&[0, 1, 2], 2).default_workers(), 2);
    }

    #[test]
    fn without_sysfs_every_cpu_is_a_core() {
        let cores = Cores::from_sysfs(Path::new("/does/not/exist"), vec![3, 4], 2);
        assert_eq!(cores.placement(2), [Some(3), Some(4)]);
        let none = Cores::from_sysfs(Path::new("/does/not/exist"), vec![], 1);
        assert_eq!(none.default_workers(), 1);
    }

    #[test]
    fn lists() {
        for (list, first) in [("0\n", Some(0)), ("2-3\n", Some(2)), ("12,44", Some(12))] {
            assert_eq!(first_of_list(list), first);
        }
        assert_eq!(first_of_list(""), None);
    }

    #[test]
    fn nodes_and_turns() {
        let root = std::env::temp_dir().join(format!("sluice-nodes-{}", std::process::id()));
        for (node, list) in [
            ("node0", "0-1,4-5\n"),
            ("node1", "2-3,6-7\n"),
            ("node2", "\n"),
        ] {
            fs::create_dir_all(root.join(node)).unwrap();
            fs::write(root.join(node).join("cpulist"), list).unwrap();
        }
        let all: Vec<usize> = (0..8).collect();
        let mut cores = hyperthreaded(&all, 8);
        let nodes = cores.nodes_in(&root);
        assert_eq!(nodes, [(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])]);
        cores.distribute(&nodes);
        assert_eq!(cores.placement(4), [Some(0), Some(2), Some(1), Some(3)]);
        cores.keep(|cpu| nodes[1].1.contains(&cpu));
        assert_eq!(cores.placement(3), [Some(2), Some(3), Some(6)]);
        cores.keep(|_| false);
        assert_eq!(cores.cpus(), [2, 3, 6, 7]);
        fs::remove_dir_all(root).unwrap();
        assert_eq!(cores.nodes_in(Path::new("/does/not/exist")).len(), 1);
        assert_eq!(numbers_of_list("0-2,7,x,9-"), [0, 1, 2, 7]);
    }

    /// A machine of `tests/sysfs`, with all of its CPUs allowed.
    fn machine(name: &str, n_cpus: usize) -> Cores {
        let cores = fixture::with_devices(name, |devices| {
            Cores::from_sysfs(devices, (0..n_cpus).collect(), n_cpus)
        });
        assert_eq!(cores.logical_count(), n_cpus, "{name}");
        cores
    }

    #[test]
    fn kinds_of_hybrid_and_other_processors() {
        for (name, n_cpus, kinds) in [
            ("alder-lake-8p-8e", 24, (8, 8)),
            ("alder-lake-clocks-only", 24, (8, 8)),
            ("meteor-lake-6p-8e-2lp", 22, (6, 10)),
            ("meteor-lake-cppc-only", 22, (6, 10)),
            ("types-4p-4e", 8, (4, 4)),
            ("big-little-4-4", 8, (4, 4)),
            ("three-kinds-3-4-1", 8, (5, 3)),
            ("ranked-16", 32, (16, 0)),
            ("files-missing", 4, (4, 0)),
        ] {
            let all = machine(name, n_cpus);
            assert_eq!(all.kind_counts(), kinds, "{name}");
            let mut used = all.clone();
            used.keep_kind(CoreChoice::Performance);
            assert_eq!(used.kind_counts(), (kinds.0, 0), "{name}");
            assert_eq!(used.default_workers(), kinds.0, "{name}");
            let mut efficient = all.clone();
            efficient.keep_kind(CoreChoice::Efficiency);
            // Without efficient cores, all cores are kept.
            let expected = if kinds.1 == 0 { kinds } else { (0, kinds.1) };
            assert_eq!(efficient.kind_counts(), expected, "{name}");
        }
    }

    #[test]
    fn performance_cores_come_first() {
        let mut cores = machine("alder-lake-8p-8e", 24);
        let placed: Vec<_> = cores.placement(18).into_iter().flatten().collect();
        let expected: Vec<_> = (0..8).map(|i| 2 * i).chain(16..24).chain([1, 3]).collect();
        assert_eq!(placed, expected);
        cores.keep_kind(CoreChoice::Performance);
        assert_eq!(cores.placement(9)[8], Some(1), "a second thread");
        // The little ones have the lower numbers.
        let placed = machine("big-little-4-4", 8).placement(5);
        assert_eq!(placed, [Some(4), Some(5), Some(6), Some(7), Some(0)]);
        // A process that may use efficient cores alone uses them.
        let mut few = fixture::with_devices("alder-lake-8p-8e", |devices| {
            Cores::from_sysfs(devices, vec![16, 17], 2)
        });
        few.keep_kind(CoreChoice::Performance);
        assert_eq!(few.kind_counts(), (0, 2));
    }

    #[test]
    fn a_thread_is_pinned_where_it_was_put() {
        let cpu = Cores::detect().placement(1)[0].expect("an allowed CPU");
        let pinned = std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            Cores::detect().logical_count()
        });
        assert_eq!(pinned.join().unwrap(), 1);
        assert!(pin_current_thread(CpuSet::MAX_CPU).is_err());
    }
}
