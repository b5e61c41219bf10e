//! `sluice gate bench`: the gate's speed on this machine.

use crate::flags::names::kernels;
use crate::outcome::Ending;
use crate::ui::output::TextOutput;
use clap::Args;
use core::fmt::Write as _;
use sluice::core::gate::GateConfig;
use sluice::host::topology::{Cores, pin_current_thread};
use sluice_gate::bench::{Figure, SILENT_PCT, Stream, clock, gate, read_probe, scan, stats};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice gate bench
  sluice gate bench --frame-len 320 --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Set the number of samples per frame
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    frame_len: u32,
    /// Set the size of the samples in memory, in MB
    #[arg(long, value_name = "MB", default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    memory: u32,
    /// Set the size of the samples in cache, in KB
    #[arg(long, value_name = "KB", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    cache: u32,
    /// Set the time to measure per figure, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// Select the kernels
    ///
    /// By default the fastest that this CPU supports.
    #[arg(long, value_name = "NAME", value_parser = kernels(), env = "SLUICE_ISA", hide_env_values = true)]
    isa: Option<String>,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

/// The rows of the table, printed as they are measured.
struct Table {
    output: TextOutput,
    json: bool,
}

impl Table {
    fn row(&mut self, what: &str, place: &str, figure: &Figure) -> anyhow::Result<()> {
        let Figure {
            frames_per_second,
            cycles_per_frame,
            bytes_per_second,
            probe_bytes_per_second,
            of_probe,
        } = *figure;
        let share = 100.0 * of_probe;
        let (gb, probe_gb) = (bytes_per_second / 1e9, probe_bytes_per_second / 1e9);
        let mut line = String::new();
        if self.json {
            writeln!(
                line,
                "{{\"what\":\"{what}\",\"from\":\"{place}\",\"frames_per_second\":{frames_per_second:.0},\
                 \"cycles_per_frame\":{cycles_per_frame:.1},\"gb_per_second\":{gb:.3},\
                 \"probe_gb_per_second\":{probe_gb:.3},\"probe_pct\":{share:.1}}}"
            )?;
        } else {
            writeln!(
                line,
                "{what:<16} {place:<7} {frames_per_second:>12.0} {cycles_per_frame:>13.1} {gb:>8.2} \
                 {share:>9.1}%"
            )?;
        }
        self.output.write(&line)
    }
}

pub(super) fn bench(args: &BenchArgs) -> anyhow::Result<Ending> {
    let kernels = super::kernels(args.isa.as_deref())?;
    // The main thread is pinned; if that is not permitted, the figures are noisier.
    let pinned = Cores::detect().placement(1)[0].is_some_and(|cpu| pin_current_thread(cpu).is_ok());
    let frame_len = args.frame_len as usize;
    let frames = |bytes: usize| (bytes / 4 / frame_len).max(1);
    let mut table = Table {
        output: TextOutput::new(),
        json: args.json,
    };
    if !args.json {
        let mut head = String::new();
        writeln!(
            head,
            "kernels {}, clock {:.2} GHz, frames of {frame_len} samples{}\n{:<16} {:<7} {:>12} {:>13} {:>8} {:>11}",
            kernels.name(),
            clock() / 1e9,
            if pinned { "" } else { ", not pinned" },
            "silent frames",
            "from",
            "frames/s",
            "cycles/frame",
            "GB/s",
            "of probe"
        )?;
        table.output.write(&head)?;
    }
    let places = [
        ("L1", frames(16 << 10)),
        ("cache", frames(args.cache as usize * 1000)),
        ("memory", frames(args.memory as usize * 1_000_000)),
    ];
    for (place, n_frames) in places {
        let all = Stream::new(n_frames, frame_len, 100)?;
        table.row("(read probe)", place, &read_probe(&all, args.seconds))?;
        let asks = place == "memory";
        let figure = scan(&all, kernels, asks, args.seconds);
        table.row("(scan alone)", place, &figure)?;
        table.row("(statistics)", place, &stats(&all, kernels, args.seconds))?;
        drop(all);
        if place == "L1" {
            continue;
        }
        for silent_pct in SILENT_PCT {
            let stream = Stream::new(n_frames, frame_len, silent_pct)?;
            let figure = gate(&stream, GateConfig::default(), kernels, args.seconds)?;
            table.row(&format!("{silent_pct}%"), place, &figure)?;
        }
    }
    Ok(Ending::Done)
}
