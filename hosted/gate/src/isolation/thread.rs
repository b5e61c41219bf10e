//! A thread's core, scheduling class and timers, and the CPUs' sleep.

use super::{CoreRequest, IsolationRequest, NotHeld as _};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use sluice::host::measures::{HostMeasure, Report};
use sluice::host::topology::Cores;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};

/// The privileges of a thread; released when dropped.
#[derive(Debug)]
pub struct Isolation {
    affinity: Option<CpuSet>,
    scheduling: Option<(i32, libc::sched_param)>,
    timer_slack_ns: Option<u64>,
    /// Held open: closing it lets CPUs sleep again.
    _cpu_latency: Option<File>,
    /// Belongs to the thread.
    _not_send: PhantomData<*mut ()>,
}

const NICE_REMEDY: &str = "run as root, or: sudo setcap cap_sys_nice+ep $(command -v sluice)";

impl Isolation {
    /// Asks for the thread's part of `request` on the calling thread.
    pub(super) fn new(request: &IsolationRequest, report: &mut Report) -> Self {
        let mut isolation = Self {
            affinity: None,
            scheduling: None,
            timer_slack_ns: None,
            _cpu_latency: None,
            _not_send: PhantomData,
        };
        let items = &mut report.measures;
        if let Some((cpu, reason)) = choose(request.core) {
            isolation.pin(cpu, &reason, items);
        }
        if let Some(wanted) = request.timer_slack_ns {
            isolation.set_timer_slack(wanted, items);
        }
        if let Some(wanted) = request.cpu_latency_us {
            isolation.hold_cpu_latency(wanted, items);
        }
        if let Some(priority) = request.fifo_priority {
            isolation.set_fifo(priority, items);
        }
        isolation
    }

    fn pin(&mut self, cpu: usize, reason: &str, items: &mut Vec<HostMeasure>) {
        let requested = format!("CPU {cpu} only ({reason})");
        let before = sched_getaffinity(None);
        let mut set = CpuSet::new();
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
        let result = sched_setaffinity(None, &set);
        let found = allowed_cpus().unwrap_or_else(|| "unknown".into());
        let item = HostMeasure::held("core", requested, format!("allowed CPUs: {found}"));
        items.push(match result {
            Ok(()) => {
                self.affinity = before.ok();
                if found == cpu.to_string() {
                    item
                } else {
                    item.not("the kernel reports a different affinity", None)
                }
            }
            Err(error) => {
                let remedy = format!("taskset or a cgroup cpuset that allows CPU {cpu}");
                item.not(error, Some(&remedy))
            }
        });
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings = fs::read_to_string(path).unwrap_or_default();
        let others: Vec<_> = list(&siblings).filter(|&other| other != cpu).collect();
        let item = HostMeasure::held("smt", "no other thread on the core", String::new());
        items.push(match others.first() {
            None if siblings.is_empty() => HostMeasure {
                found: "not reported by sysfs".into(),
                ..item
            }
            .not("the topology is unknown", None),
            None => HostMeasure {
                found: "the core has a single thread".into(),
                ..item
            },
            Some(other) => HostMeasure {
                found: format!("siblings {}", siblings.trim()),
                ..item
            }
            .not(
                format_args!("CPU {other} is a thread of the same core"),
                Some(&format!(
                    "echo 0 | sudo tee /sys/devices/system/cpu/cpu{other}/online"
                )),
            ),
        });
    }

    fn set_timer_slack(&mut self, wanted: u64, items: &mut Vec<HostMeasure>) {
        let before = timer_slack_ns();
        let slack = libc::c_ulong::try_from(wanted).unwrap_or(libc::c_ulong::MAX);
        // SAFETY: takes a number and touches no memory.
        let result = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
        let error = io::Error::last_os_error();
        let found = timer_slack_ns();
        let text = found.map_or("unknown".into(), |ns| format!("{ns} ns"));
        let item = HostMeasure::held("timer slack", format!("{wanted} ns"), text);
        if result == 0 {
            self.timer_slack_ns = before;
        }
        items.push(if found.is_some_and(|found| found <= wanted) {
            item
        } else {
            item.not(error, None)
        });
    }

    fn hold_cpu_latency(&mut self, wanted: i32, items: &mut Vec<HostMeasure>) {
        const PATH: &str = "/dev/cpu_dma_latency";
        let requested = format!("at most {wanted} µs to wake up");
        let held = File::options().read(true).write(true).open(PATH);
        let held = held.and_then(|mut file| {
            file.write_all(&wanted.to_ne_bytes())?;
            // The device reads as the minimum of all requests, not just ours.
            file.rewind()?;
            let mut found = [0; 4];
            file.read_exact(&mut found)?;
            Ok((file, i32::from_ne_bytes(found)))
        });
        match held {
            Ok((file, found)) => {
                self._cpu_latency = Some(file);
                let item = HostMeasure::held("cpu latency", requested, format!("{found} µs"));
                items.push(if found <= wanted {
                    item
                } else {
                    item.not("the kernel kept a larger value", None)
                });
            }
            Err(error) => {
                let remedy = format!("run as root, or: sudo chmod o+rw {PATH}");
                let remedy = (error.kind() == io::ErrorKind::PermissionDenied).then_some(remedy);
                let item = HostMeasure::held("cpu latency", requested, "not held");
                let why = format_args!("{PATH}: {error}").to_string();
                items.push(item.not(why, remedy.as_deref()));
            }
        }
    }

    fn set_fifo(&mut self, priority: i32, items: &mut Vec<HostMeasure>) {
        let before = scheduling();
        let wanted = libc::sched_param {
            sched_priority: priority,
        };
        // SAFETY: reads the parameter; 0 is the calling thread.
        let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wanted) };
        let error = io::Error::last_os_error();
        let found = scheduling();
        let item = HostMeasure::held(
            "scheduling",
            format!("SCHED_FIFO, priority {priority}"),
            found.map_or("unknown".into(), |(policy, param)| {
                format!("{}, priority {}", policy_name(policy), param.sched_priority)
            }),
        );
        if result == 0 {
            self.scheduling = before;
        }
        let is_it = found.is_some_and(|(policy, param)| {
            policy == libc::SCHED_FIFO && param.sched_priority == priority
        });
        items.push(if is_it {
            item
        } else {
            item.not(error, Some(NICE_REMEDY))
        });
    }
}

impl Drop for Isolation {
    fn drop(&mut self) {
        if let Some((policy, param)) = self.scheduling {
            // SAFETY: reads the parameter; 0 is the calling thread, which is still the same.
            unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
        }
        if let Some(slack) = self.timer_slack_ns {
            let slack = libc::c_ulong::try_from(slack).unwrap_or(libc::c_ulong::MAX);
            // SAFETY: takes a number and touches no memory.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
        }
        if let Some(affinity) = &self.affinity {
            // Was allowed before; a CPU that was removed meanwhile is not ours to report here.
            let _restored = sched_setaffinity(None, affinity);
        }
    }
}

/// The CPU to take, and the reason.
fn choose(request: CoreRequest) -> Option<(usize, String)> {
    match request {
        CoreRequest::Any => None,
        CoreRequest::Cpu(cpu) => Some((cpu, "as requested".into())),
        CoreRequest::Last => {
            let cores = Cores::detect();
            let n = cores.physical_count();
            let cpu = cores.placement(n).into_iter().flatten().next_back()?;
            let reason = if n > 1 {
                format!("the last of {n} cores, as interrupts prefer the first")
            } else {
                "the only allowed core".into()
            };
            Some((cpu, reason))
        }
    }
}

/// `Cpus_allowed_list` of the calling thread.
fn allowed_cpus() -> Option<String> {
    let path = format!("/proc/self/task/{}/status", gettid().as_raw_nonzero());
    let status = fs::read_to_string(path).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// The numbers of a list such as `0-3,8`.
fn list(text: &str) -> impl Iterator<Item = usize> {
    text.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1),
            _ => 0..0,
        }
    })
}

fn timer_slack_ns() -> Option<u64> {
    // SAFETY: takes no argument and touches no memory.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    u64::try_from(slack).ok()
}

fn scheduling() -> Option<(i32, libc::sched_param)> {
    // SAFETY: 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let mut param = MaybeUninit::<libc::sched_param>::zeroed();
    // SAFETY: `param` has room for what is written.
    let result = unsafe { libc::sched_getparam(0, param.as_mut_ptr()) };
    // SAFETY: zeroed, so initialised whatever the kernel did.
    let param = unsafe { param.assume_init() };
    (policy >= 0 && result == 0).then_some((policy, param))
}

const fn policy_name(policy: i32) -> &'static str {
    match policy {
        libc::SCHED_OTHER => "SCHED_OTHER",
        libc::SCHED_FIFO => "SCHED_FIFO",
        libc::SCHED_RR => "SCHED_RR",
        libc::SCHED_BATCH => "SCHED_BATCH",
        libc::SCHED_IDLE => "SCHED_IDLE",
        _ => "another class",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(list("0\n").collect::<Vec<_>>(), [0]);
        assert_eq!(list("0-2,8\n").collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert_eq!(list("").count(), 0);
        assert_eq!(list("junk,3").collect::<Vec<_>>(), [3]);
    }

    /// Requests everything on a separate thread, and compares the kernel's state before, between and
    /// after.
    #[test]
    fn everything_is_undone() {
        let thread = std::thread::spawn(|| {
            let state = || (allowed_cpus(), timer_slack_ns(), scheduling().map(|s| s.0));
            let before = state();
            let mut report = Report::default();
            let isolation = Isolation::new(&IsolationRequest::all(), &mut report);
            let between = state();
            for item in &report.measures {
                if !item.is_held() {
                    eprintln!("SKIPPED: cannot check what is not granted here: {item}");
                }
            }
            let core = &report.measures[0];
            assert!(core.is_held(), "{core}");
            let cpu = between.0.clone().expect("/proc is mounted");
            assert!(
                core.requested.starts_with(&format!("CPU {cpu} ")),
                "{core:?} {cpu}"
            );
            assert_ne!(between, before);
            drop(isolation);
            assert_eq!(state(), before);
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_with_a_remedy() {
        let thread = std::thread::spawn(|| {
            let request = IsolationRequest {
                core: CoreRequest::Cpu(1000),
                ..IsolationRequest::none()
            };
            let mut report = Report::default();
            let before = allowed_cpus();
            drop(Isolation::new(&request, &mut report));
            let core = &report.measures[0];
            assert!(core.why_not.is_some() && core.remedy.is_some(), "{core}");
            assert_eq!(allowed_cpus(), before);
        });
        thread.join().unwrap();
    }
}
