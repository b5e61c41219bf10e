//! Where threads and memory go: the flags that every command which runs a model shares.

use crate::flags::names::one_of;
use crate::ui::output::note;
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use core::str::FromStr as _;
use sluice::Team;
use sluice::host::cpus::{CPUS_MAX, CpuList};
use sluice::host::isa;
use sluice::host::measures::HostMeasure;
use sluice::host::memory::{self, MemoryPolicy};
use sluice::host::placement::{Bind, Numa, Priority, WorkerOptions};
use sluice::host::topology::{CoreChoice, Cores};
use sluice::host::workers::Workers;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct PlacementArgs {
    /// Set the CPUs to use as a hexadecimal mask
    ///
    /// 0x3 is CPUs 0 and 1. Combined with --cpu-range, both sets are used.
    #[arg(short = 'C', long, value_name = "HEX", value_parser = CpuList::from_mask)]
    pub(crate) cpu_mask: Option<CpuList>,
    /// Set the CPUs to use as a range, such as 0-3 [short: -Cr]
    #[arg(long, value_name = "FIRST-LAST", value_parser = CpuList::from_range,
        allow_hyphen_values = true)]
    pub(crate) cpu_range: Option<CpuList>,
    /// Pin each thread to one of the given CPUs (1) or to all of them (0)
    ///
    /// Without given CPUs each thread has a CPU of its own.
    #[arg(long, value_name = "0|1", value_parser = PossibleValuesParser::new(["0", "1"]))]
    pub(crate) cpu_strict: Option<String>,
    /// Select the cores of a hybrid CPU: performance, efficiency or all
    ///
    /// By default the performance cores, or all of the given CPUs.
    #[arg(long, value_name = "KIND", env = "SLUICE_CORES", hide_env_values = true,
        value_parser = cores_choice())]
    cores: Option<String>,
    /// Measure each core's speed and divide the work accordingly
    ///
    /// For --cores all.
    #[arg(long)]
    share_by_speed: bool,
    /// Set the scheduling priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true
    )]
    prio: Priority,
    /// Set how long idle threads spin before sleeping: 0 never, 100 longest
    #[arg(long, value_name = "0..100", default_value_t = 50,
        value_parser = value_parser!(u8).range(0..=100))]
    pub(crate) poll: u8,
    /// Set the NUMA policy
    ///
    /// distribute spreads threads and memory over all nodes, isolate keeps both on the current node, numactl
    /// takes the nodes that numactl has set.
    #[arg(long, value_name = "MODE", value_parser = one_of::<Numa>(["distribute", "isolate", "numactl"]))]
    numa: Option<Numa>,
    /// Request huge pages for weights, KV cache and scratch memory
    ///
    /// auto requests them where the kernel supports them.
    #[arg(long, value_name = "MODE", default_value = "auto",
        value_parser = PossibleValuesParser::new(["on", "off", "auto"]))]
    pub(crate) huge_pages: String,
    /// Lock the weights in memory, whatever --load-mode says
    #[arg(long)]
    mlock: bool,
}

impl PlacementArgs {
    /// The cores to use, and the policy for memory to come; says what was refused. Call it before
    /// memory is taken and threads are started. `locks` is whether the load mode locks.
    pub(crate) fn cores(&self, locks: bool) -> Cores {
        let mut cores = Cores::choose(self.core_choice());
        if let Some(given) = self.cpus() {
            let allowed = cores.cpus();
            cores.keep(|cpu| given.0.contains(&cpu));
            let found = CpuList(cores.cpus());
            let is_allowed = |cpu: &usize| allowed.contains(cpu);
            let is_none = !given.0.iter().any(is_allowed);
            // A range without an end means those that there are.
            let range = self
                .cpu_range
                .iter()
                .find(|range| range.0.last() == Some(&(CPUS_MAX - 1)));
            let is_wanted = |cpu: &&usize| !range.is_some_and(|range| range.0.contains(cpu));
            if is_none || !given.0.iter().filter(is_wanted).all(is_allowed) {
                let why = if is_none {
                    "none of them is there and allowed, so all that are will be used"
                } else {
                    "not all of them are there and allowed"
                };
                let (wanted, found) = (format!("CPU {given}"), format!("CPU {found}"));
                let measure = HostMeasure::refused("CPUs", wanted, found, why);
                say(&[measure.with_remedy("taskset or a cgroup cpuset that has them")]);
            }
        }
        if let Some(numa) = self.numa {
            say(&numa.apply(&mut cores));
        }
        memory::set_policy(MemoryPolicy {
            huge_pages: self.huge_pages != "off",
            locks: locks || self.mlock,
        });
        cores
    }

    /// Which kinds of cores to use. CPUs that are given are used whatever they are.
    fn core_choice(&self) -> CoreChoice {
        match self.cores.as_deref().map(CoreChoice::from_str) {
            Some(choice) => choice.expect("clap accepts only names of kinds"),
            None if self.cpus().is_some() => CoreChoice::All,
            None => CoreChoice::Performance,
        }
    }

    /// The CPUs of mask and range.
    fn cpus(&self) -> Option<CpuList> {
        let mut lists = [&self.cpu_mask, &self.cpu_range].into_iter().flatten();
        let mut all = lists.next()?.clone();
        lists.for_each(|list| all.extend(list));
        Some(all)
    }

    pub(crate) fn options(&self) -> WorkerOptions {
        let given = self.cpus().is_some();
        let strict = self.cpu_strict.as_deref();
        WorkerOptions {
            bind: match strict {
                Some("1") => Bind::Own,
                None if !given => Bind::Own,
                _ => Bind::Together,
            },
            priority: self.prio,
            poll: self.poll,
        }
    }

    /// Threads as asked for; says what was refused.
    pub(crate) fn team(&self, n: usize, cores: &Cores) -> anyhow::Result<Team> {
        let workers = Workers::with_options(n, cores, self.options());
        let mut workers = workers.context("cannot start threads")?;
        workers.place_caller();
        say(workers.measures());
        if self.share_by_speed {
            workers.share_by_speed(isa::kernel_table(None)?)?;
        }
        Ok(workers.into())
    }

    /// Says what of the memory's measures was refused; of huge pages only if they were asked for.
    pub(crate) fn say_memory(&self) {
        let measures = memory::report();
        let asked = |measure: &&HostMeasure| {
            self.huge_pages == "on" || !measure.name.starts_with("huge pages")
        };
        say(&measures.iter().filter(asked).cloned().collect::<Vec<_>>());
    }
}

fn cores_choice() -> PossibleValuesParser {
    PossibleValuesParser::new(["performance", "efficiency", "all"])
}

/// Says which measures are not held, and what to type to get them.
pub(crate) fn say(measures: &[HostMeasure]) {
    for measure in measures.iter().filter(|measure| !measure.is_held()) {
        note(format_args!("warning: {measure}"));
    }
}
