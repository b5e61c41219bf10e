//! What a program asks of its machine: cores, threads, and memory for what it will load.
#![forbid(unsafe_code)]

use crate::host::cpus::{CPUS_MAX, CpuList};
use crate::host::isa;
use crate::host::measures::HostMeasure;
use crate::host::memory::{self, MemoryPolicy};
use crate::host::placement::{Bind, Numa, Priority, WorkerOptions};
use crate::host::topology::{CoreChoice, Cores};
use crate::host::workers::Workers;
use std::io;

/// Where threads and memory go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementOptions {
    /// CPUs to use, from a mask; with [`Self::cpu_range`] both sets, with neither all.
    pub cpu_mask: Option<CpuList>,
    /// CPUs to use, from a range. One without an end means the CPUs that exist.
    pub cpu_range: Option<CpuList>,
    /// Whether each thread is pinned to one of the given CPUs or to all of them (the default). Without given CPUs
    /// each thread has a CPU of its own by default.
    pub cpu_strict: Option<bool>,
    /// The cores of a hybrid CPU; by default the performance cores, or all of the given CPUs.
    pub cores: Option<CoreChoice>,
    /// Whether each core's speed is measured and work divided accordingly.
    pub share_by_speed: bool,
    /// The scheduler's class.
    pub priority: Priority,
    /// How long idle threads spin before sleeping, 0 (never) to 100; 50 by default.
    pub poll: u8,
    /// The NUMA policy; by default the kernel's.
    pub numa: Option<Numa>,
    /// Whether huge pages are requested; true by default.
    pub huge_pages: bool,
    /// Whether weights are locked in memory.
    pub locks: bool,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        let WorkerOptions { priority, poll, .. } = WorkerOptions::default();
        Self {
            cpu_mask: None,
            cpu_range: None,
            cpu_strict: None,
            cores: None,
            share_by_speed: false,
            priority,
            poll,
            numa: None,
            huge_pages: true,
            locks: false,
        }
    }
}

impl PlacementOptions {
    /// The cores to use; sets the policy for memory. Call it before memory is taken and threads are started. `report`
    /// is called with the requests and their results.
    pub fn apply(&self, report: &mut dyn FnMut(&HostMeasure)) -> Cores {
        let mut cores = Cores::choose(self.core_choice());
        if let Some(given) = self.cpus()
            && let Some(measure) = self.keep(&given, &mut cores)
        {
            report(&measure);
        }
        if let Some(numa) = self.numa {
            numa.apply(&mut cores).iter().for_each(report);
        }
        memory::set_policy(MemoryPolicy {
            huge_pages: self.huge_pages,
            locks: self.locks,
        });
        cores
    }

    /// Keeps the given CPUs; the result where some of them are missing.
    fn keep(&self, given: &CpuList, cores: &mut Cores) -> Option<HostMeasure> {
        let allowed = cores.cpus();
        cores.keep(|cpu| given.0.contains(&cpu));
        let found = CpuList(cores.cpus());
        let is_allowed = |cpu: &usize| allowed.contains(cpu);
        let is_none = !given.0.iter().any(is_allowed);
        // A range without an end means the CPUs that exist.
        let range = self.cpu_range.as_ref();
        let range = range.filter(|range| range.0.last() == Some(&(CPUS_MAX - 1)));
        let is_wanted = |cpu: &&usize| !range.is_some_and(|range| range.0.contains(cpu));
        let why = if is_none {
            "none of them is there and allowed, so all that are will be used"
        } else if !given.0.iter().filter(is_wanted).all(is_allowed) {
            "not all of them are there and allowed"
        } else {
            return None;
        };
        let (wanted, found) = (format!("CPU {given}"), format!("CPU {found}"));
        let measure = HostMeasure::refused("CPUs", wanted, found, why);
        Some(measure.with_remedy("taskset or a cgroup cpuset that has them"))
    }

    /// `n` threads on `cores`, this one among them. `report` is called with the requests and their results.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn workers(
        &self,
        n: usize,
        cores: &Cores,
        report: &mut dyn FnMut(&HostMeasure),
    ) -> io::Result<Workers> {
        let mut workers = Workers::with_options(n, cores, self.options())?;
        workers.place_caller();
        workers.measures().iter().for_each(report);
        if self.share_by_speed {
            let table = isa::kernel_table(None).map_err(io::Error::other)?;
            workers.share_by_speed(table).map_err(io::Error::other)?;
        }
        Ok(workers)
    }

    /// How threads are placed and wait.
    pub fn options(&self) -> WorkerOptions {
        let is_own = self.cpu_strict.unwrap_or(self.cpus().is_none());
        WorkerOptions {
            bind: if is_own { Bind::Own } else { Bind::Together },
            priority: self.priority,
            poll: self.poll,
        }
    }

    /// Which kinds of cores to use. CPUs that are given are used whatever they are.
    fn core_choice(&self) -> CoreChoice {
        self.cores.unwrap_or(match self.cpus() {
            Some(_) => CoreChoice::All,
            None => CoreChoice::Performance,
        })
    }

    /// The CPUs of mask and range.
    fn cpus(&self) -> Option<CpuList> {
        let mut lists = [&self.cpu_mask, &self.cpu_range].into_iter().flatten();
        let mut all = lists.next()?.clone();
        lists.for_each(|list| all.extend(list));
        Some(all)
    }
}
