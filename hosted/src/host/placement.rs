//! Placement of threads and memory: CPUs, NUMA nodes, priorities.
//!
//! The names are llama.cpp's (`--cpu-mask`, `--cpu-range`, `--cpu-strict`, `--prio`, `--poll`,
//! `--numa`). Settings made here are requested by [`crate::host::workers`] and [`Numa::apply`], read
//! back and reported as [`HostMeasure`]s. Pieces of memory have a node of their own with [`pages`].

pub mod pages;

use crate::host::cpus::CpuList;
use crate::host::measures::HostMeasure;
use crate::host::topology::Cores;
use core::fmt;
use core::str::FromStr;
use std::io;

/// How the threads of a team are placed and wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Whether a thread gets one CPU of its own, or may move among all that are given.
    pub bind: Bind,
    /// The scheduler's class.
    pub priority: Priority,
    /// How long to spin before sleeping, 0 (not at all) to 100.
    pub poll: u8,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            bind: Bind::Own,
            priority: Priority::Normal,
            poll: 50,
        }
    }
}

/// What a thread is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// One CPU, by rank.
    Own,
    /// All CPUs of the team.
    Together,
}

/// The scheduler's class of a thread, by llama.cpp's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// `SCHED_IDLE`: only while nothing else wants the CPU. Not one of llama.cpp's.
    Idle,
    /// -1: `SCHED_BATCH`.
    Low,
    /// 0: unchanged.
    #[default]
    Normal,
    /// 1: `SCHED_FIFO` 40.
    Medium,
    /// 2: `SCHED_FIFO` 80.
    High,
    /// 3: `SCHED_FIFO` 90.
    Realtime,
}

impl Priority {
    /// Class and priority for the kernel; `None` leaves both as they are.
    const fn class(self) -> Option<(libc::c_int, libc::c_int)> {
        match self {
            Self::Normal => None,
            Self::Idle => Some((libc::SCHED_IDLE, 0)),
            Self::Low => Some((libc::SCHED_BATCH, 0)),
            Self::Medium => Some((libc::SCHED_FIFO, 40)),
            Self::High => Some((libc::SCHED_FIFO, 80)),
            Self::Realtime => Some((libc::SCHED_FIFO, 90)),
        }
    }

    /// Requests the class for the calling thread and reads it back; `None` for
    /// [`Self::Normal`], which asks for nothing.
    pub fn apply(self, name: impl fmt::Display) -> Option<HostMeasure> {
        let wanted = self.class()?;
        let name = format!("priority of {name}");
        let parameter = libc::sched_param {
            sched_priority: wanted.1,
        };
        // SAFETY: changes the calling thread's class; the parameter lives through the call.
        let result = unsafe { libc::sched_setscheduler(0, wanted.0, &raw const parameter) };
        let error = (result != 0).then(io::Error::last_os_error);
        let found = current_class();
        let (requested, in_force) = (class_name(wanted.0, wanted.1), class_name(found.0, found.1));
        if found == wanted {
            return Some(HostMeasure::held(name, requested, in_force));
        }
        let why = error.unwrap_or_else(|| io::Error::other("the kernel reports another class"));
        let measure = HostMeasure::refused(name, requested, in_force, why);
        Some(measure.with_remedy("sudo setcap cap_sys_nice=ep $(command -v sluice)"))
    }
}

/// Class and priority of the calling thread.
fn current_class() -> (libc::c_int, libc::c_int) {
    let mut parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: asks about the calling thread.
    let class = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: as above; the parameter is writable.
    unsafe { libc::sched_getparam(0, &raw mut parameter) };
    (class & !libc::SCHED_RESET_ON_FORK, parameter.sched_priority)
}

fn class_name(class: libc::c_int, priority: libc::c_int) -> String {
    match class {
        libc::SCHED_OTHER => "SCHED_OTHER".into(),
        libc::SCHED_BATCH => "SCHED_BATCH".into(),
        libc::SCHED_IDLE => "SCHED_IDLE".into(),
        libc::SCHED_FIFO => format!("SCHED_FIFO {priority}"),
        libc::SCHED_RR => format!("SCHED_RR {priority}"),
        other => format!("class {other}"),
    }
}

/// Parses llama.cpp's number, -1 to 3.
impl FromStr for Priority {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "-1" => Ok(Self::Low),
            "0" => Ok(Self::Normal),
            "1" => Ok(Self::Medium),
            "2" => Ok(Self::High),
            "3" => Ok(Self::Realtime),
            _ => Err("expected -1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime)"),
        }
    }
}

/// `--numa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Threads over all nodes in turn, memory interleaved over them.
    Distribute,
    /// Threads and memory on the node that the program started on.
    Isolate,
    /// Threads and memory where `numactl` placed the program.
    Numactl,
}

/// Parses llama.cpp's names.
impl FromStr for Numa {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "distribute" => Ok(Self::Distribute),
            "isolate" => Ok(Self::Isolate),
            "numactl" => Ok(Self::Numactl),
            _ => Err("expected distribute, isolate or numactl"),
        }
    }
}

/// Memory policies of `linux/mempolicy.h`.
const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_BIND: libc::c_int = 2;
const MPOL_INTERLEAVE: libc::c_int = 3;
/// Maximum number of nodes in a mask.
const NODES_MAX: usize = 1024;
type NodeMask = [libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize];

impl Numa {
    /// Narrows or reorders `cores` and sets the memory policy of the calling thread, which threads
    /// started later inherit; so call it before memory is touched. Returns the results.
    pub fn apply(self, cores: &mut Cores) -> Vec<HostMeasure> {
        let nodes = cores.nodes();
        let all = || CpuList(nodes.iter().map(|&(node, _)| node).collect());
        let (policy, wanted) = match self {
            Self::Numactl => (None, CpuList(Vec::new())),
            Self::Distribute => {
                cores.distribute(&nodes);
                (Some(MPOL_INTERLEAVE), all())
            }
            Self::Isolate => {
                let here = current_node(&nodes);
                cores.keep(|cpu| {
                    nodes
                        .iter()
                        .any(|(n, cpus)| *n == here && cpus.contains(&cpu))
                });
                (Some(MPOL_BIND), CpuList(vec![here]))
            }
        };
        let found = || match memory_policy() {
            Ok((policy, nodes)) => policy_name(policy, &nodes),
            Err(error) => format!("unknown ({error})"),
        };
        let Some(policy) = policy else {
            let requested = "numactl's";
            return vec![HostMeasure::held("memory policy", requested, found())];
        };
        let requested = policy_name(policy, &wanted);
        if nodes.len() < 2 {
            let found = format!("{}; the machine has a single node", found());
            return vec![HostMeasure::held("memory policy", requested, found)];
        }
        let set = set_memory_policy(policy, &wanted);
        let found = found();
        vec![match set {
            Ok(()) if found == requested => HostMeasure::held("memory policy", requested, found),
            Ok(()) => {
                HostMeasure::refused("memory policy", requested, found, "the kernel's choice")
            }
            Err(error) => HostMeasure::refused("memory policy", requested, found, error)
                .with_remedy("a container needs CAP_SYS_NICE, or a seccomp profile that allows set_mempolicy"),
        }]
    }
}

/// The node of the CPU that this thread runs on.
fn current_node(nodes: &[(usize, Vec<usize>)]) -> usize {
    // SAFETY: asks for a number.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
    let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
    node.map_or(0, |&(node, _)| node)
}

fn set_memory_policy(policy: libc::c_int, nodes: &CpuList) -> io::Result<()> {
    let mask = mask_of(&nodes.0);
    let (mode, at) = (libc::c_long::from(policy), mask.as_ptr());
    // SAFETY: the mask is readable and has the length passed to the call.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, at, NODES_MAX) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Policy and nodes of the calling thread.
fn memory_policy() -> io::Result<(libc::c_int, CpuList)> {
    let mut policy: libc::c_int = 0;
    let mut mask: NodeMask = [0; _];
    let (policy_at, mask_at) = (&raw mut policy, mask.as_mut_ptr());
    // SAFETY: both are writable, and the mask has the length passed to the call; no address is
    // queried.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            policy_at,
            mask_at,
            NODES_MAX,
            0usize,
            0usize,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((policy, nodes_of(&mask)))
}

/// The mask of some nodes. Nodes beyond a mask's size do not exist, and are left out.
fn mask_of(nodes: &[usize]) -> NodeMask {
    let mut mask: NodeMask = [0; _];
    let bits = libc::c_ulong::BITS as usize;
    for &node in nodes.iter().filter(|&&node| node < NODES_MAX) {
        mask[node / bits] |= 1 << (node % bits);
    }
    mask
}

fn nodes_of(mask: &NodeMask) -> CpuList {
    let bits = libc::c_ulong::BITS as usize;
    let has = |node: &usize| mask[node / bits] & 1 << (node % bits) != 0;
    CpuList((0..NODES_MAX).filter(has).collect())
}

fn policy_name(policy: libc::c_int, nodes: &CpuList) -> String {
    match policy {
        MPOL_DEFAULT => "default".into(),
        MPOL_BIND => format!("bind to node {nodes}"),
        MPOL_INTERLEAVE => format!("interleave over nodes {nodes}"),
        other => format!("policy {other} on nodes {nodes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of a thread as `/proc` shows it: field 41 of `stat`.
    fn class_in_proc() -> String {
        // SAFETY: asks for a number.
        let thread = unsafe { libc::gettid() };
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(38).unwrap().to_owned()
    }

    #[test]
    fn a_priority_is_held_only_if_proc_says_so() {
        assert_eq!(Priority::Normal.apply("a thread"), None);
        for (priority, class) in [(Priority::Low, "3"), (Priority::Medium, "1")] {
            let thread = std::thread::spawn(move || {
                let measure = priority.apply("a thread").unwrap();
                assert_eq!(measure.is_held(), class_in_proc() == class, "{measure}");
                assert_eq!(measure.is_held(), measure.remedy.is_none(), "{measure}");
            });
            thread.join().unwrap();
        }
        for (text, expected) in [("-1", Priority::Low), ("3", Priority::Realtime)] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for wrong in ["", "4", "-2", "high"] {
            assert!(Priority::from_str(wrong).is_err());
        }
    }

    #[test]
    fn memory_policies_are_read_back() {
        // In a thread of its own: the policy is a thread's.
        let thread = std::thread::spawn(|| {
            for numa in [Numa::Numactl, Numa::Isolate, Numa::Distribute] {
                let mut cores = Cores::detect();
                let measures = numa.apply(&mut cores);
                assert_eq!(measures.len(), 1);
                assert!(cores.physical_count() > 0);
            }
            let Err(error) = set_memory_policy(MPOL_BIND, &CpuList(vec![1000])) else {
                panic!("node 1000 does not exist");
            };
            // A container may forbid the call altogether.
            let kinds = [Some(libc::EINVAL), Some(libc::EPERM), Some(libc::ENOSYS)];
            assert!(kinds.contains(&error.raw_os_error()), "{error}");
        });
        thread.join().unwrap();
    }
}
