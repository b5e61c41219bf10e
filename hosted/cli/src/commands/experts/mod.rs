//! `sluice experts`: analyses traces of a mixture's experts.

mod replay;
mod stats;
mod table;

use crate::outcome::Ending;
use crate::ui::format::shown;
use clap::{Args, Subcommand, value_parser};
use sluice::experts::trace::EXPERTS_MAX;
use sluice_experts::{Steps, TraceReader};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice experts stats trace.jsonl
  sluice experts replay trace.jsonl --share 25%,50%

A trace records the experts that each layer chose for each token, one JSON object per line: docs/experts.md.";

#[derive(Debug, Args)]
pub(crate) struct ExpertsArgs {
    #[command(subcommand)]
    command: ExpertsCommand,
}

#[derive(Debug, Subcommand)]
enum ExpertsCommand {
    /// Simulate caches and predictions on a trace and compare them with the optimum
    #[command(args_override_self = true, after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Summarise a trace: how evenly experts are used, how many a text needs
    #[command(args_override_self = true, after_help = stats::EXAMPLES)]
    Stats(stats::StatsArgs),
}

pub(super) fn experts(args: &ExpertsArgs) -> anyhow::Result<Ending> {
    match &args.command {
        ExpertsCommand::Replay(args) => replay::replay(args),
        ExpertsCommand::Stats(args) => stats::stats(args),
    }
}

/// The trace to read.
#[derive(Debug, Args)]
struct TraceArgs {
    /// Trace to read; - is stdin
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Set the number of experts per layer
    ///
    /// By default one more than the largest id.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(EXPERTS_MAX)))]
    experts: Option<u32>,
}

impl TraceArgs {
    fn read(&self) -> anyhow::Result<Steps> {
        if self.trace == Path::new("-") {
            let reader = TraceReader::new("stdin", io::stdin().lock());
            return Ok(Steps::read(reader, self.experts)?);
        }
        Ok(Steps::read(TraceReader::open(&self.trace)?, self.experts)?)
    }

    fn name(&self) -> String {
        shown(self.trace.as_os_str().as_bytes(), 255)
    }
}

/// A fraction as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}
