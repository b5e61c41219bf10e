//! Placement of threads and memory, for every command that runs a model.

use crate::flags::names::one_of;
use crate::ui::output::note;
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use sluice::Team;
use sluice::host::cpus::CpuList;
use sluice::host::measures::HostMeasure;
use sluice::host::memory;
use sluice::host::placement::{Numa, Priority};
use sluice::host::threads::PlacementOptions;
use sluice::host::topology::{CoreChoice, Cores};

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
    /// By default each thread is pinned to a CPU of its own.
    #[arg(long, value_name = "0|1", value_parser = PossibleValuesParser::new(["0", "1"]))]
    pub(crate) cpu_strict: Option<String>,
    /// Select the cores of a hybrid CPU: performance, efficiency or all
    ///
    /// By default the performance cores, or all of the given CPUs.
    #[arg(long, value_name = "KIND", env = "SLUICE_CORES", hide_env_values = true,
        value_parser = one_of::<CoreChoice>(["performance", "efficiency", "all"]))]
    cores: Option<CoreChoice>,
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
    /// The flags as options. `locks` is whether the load mode locks.
    pub(crate) fn options(&self, locks: bool) -> PlacementOptions {
        PlacementOptions {
            cpu_mask: self.cpu_mask.clone(),
            cpu_range: self.cpu_range.clone(),
            cpu_strict: self.cpu_strict.as_deref().map(|strict| strict == "1"),
            cores: self.cores,
            share_by_speed: self.share_by_speed,
            priority: self.prio,
            poll: self.poll,
            numa: self.numa,
            huge_pages: self.huge_pages != "off",
            locks: locks || self.mlock,
        }
    }

    /// The cores to use, and the policy for memory to come; notes what was refused. Call it before
    /// memory is taken and threads are started. `locks` is whether the load mode locks.
    pub(crate) fn cores(&self, locks: bool) -> Cores {
        self.options(locks).apply(&mut say)
    }

    /// The requested number of threads; notes refusals.
    pub(crate) fn team(&self, n: usize, cores: &Cores) -> anyhow::Result<Team> {
        let workers = self.options(false).workers(n, cores, &mut say);
        Ok(workers.context("cannot start threads")?.into())
    }

    /// Notes which measures for memory were refused; huge pages only if they were requested.
    pub(crate) fn say_memory(&self) {
        let measures = memory::report();
        let asked = |measure: &&HostMeasure| {
            self.huge_pages == "on" || !measure.name.starts_with("huge pages")
        };
        measures.iter().filter(asked).for_each(say);
    }
}

/// Notes a measure that is not in force, and the command that fixes it.
pub(crate) fn say(measure: &HostMeasure) {
    if !measure.is_held() {
        note(format_args!("warning: {measure}"));
    }
}
