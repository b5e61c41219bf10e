//! The flags of `sluice gate`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use sluice::core::gate::{Measure, NoiseFloor};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputArgs {
    /// How samples are written: by default what the file's name says (.wav, .csv, .f32, .i16)
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(["wav", "f32", "i16", "csv", "212"]))]
    pub(super) format: Option<String>,
    /// Interleaved channels of raw samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) channels: Option<u16>,
    /// Channel to take, from 0; by default the mean of all, in which opposite phases cancel out
    #[arg(long, value_name = "N")]
    pub(super) channel: Option<usize>,
    /// Column of a CSV file that has several, by name or counted from 1
    #[arg(long, value_name = "NAME")]
    pub(super) column: Option<String>,
    /// Samples in a frame
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) frame_len: u32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// What is compared with the threshold
    #[arg(long, value_name = "NAME", default_value = "max_abs",
        value_parser = PossibleValuesParser::new(Measure::all().map(Measure::name)))]
    pub(super) measure: String,
    /// Frames at this value or above pass
    #[arg(long, value_name = "X", default_value_t = 1e-5)]
    pub(super) threshold: f32,
    /// Frames at the threshold or below pass
    #[arg(long)]
    pub(super) below: bool,
    /// Share of the threshold down to which an open gate stays open
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(super) hysteresis: f32,
    /// Frames that pass after the last active one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) hang_over: u32,
    /// Keep the threshold this many times above the noise
    #[arg(long, value_name = "RATIO")]
    pub(super) noise_floor: Option<f32>,
    /// How fast the noise floor falls, per frame
    #[arg(long, value_name = "SHARE", default_value_t = NoiseFloor::default().fall, requires = "noise_floor")]
    pub(super) floor_fall: f32,
    /// How fast the noise floor rises, per frame
    #[arg(long, value_name = "SHARE", default_value_t = NoiseFloor::default().rise, requires = "noise_floor")]
    pub(super) floor_rise: f32,
    /// Frames of smaller samples are silent whatever is measured
    #[arg(long, value_name = "X", default_value_t = 1e-5)]
    pub(super) wall: f32,
    /// Do not compute features and scaling of frames that pass
    #[arg(long)]
    pub(super) no_score: bool,
    /// Bins of the entropy's histogram
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) num_bins: usize,
    /// Mean magnitude below which a frame is sparse
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub(super) l1_threshold: f32,
    /// Weight of the newest scaling in the temporal coherence
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub(super) ema_alpha: f32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// A line per frame on stdout [default: csv; with --watch none]
    #[arg(long, value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(["csv", "jsonl", "none"]))]
    pub(super) decisions: Option<String>,
    /// File for the frames that pass: .wav, .csv, or raw numbers as .f32, .raw or without an ending
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Picture of signal, measure and decisions
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Show frames/s, sparsity, fill and drops while it runs
    #[arg(long)]
    pub(super) watch: bool,
    /// Replace output files that are there
    #[arg(long)]
    pub(super) overwrite: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerArgs {
    /// When the ring is full: wait, or drop whole frames and count them
    #[arg(long, value_name = "HOW", default_value = "block",
        value_parser = PossibleValuesParser::new(["block", "drop-newest", "drop-oldest"]))]
    pub(super) on_full: String,
    /// Frames in the ring
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) capacity: u32,
    /// Ask for a core, priority, locked memory and so on, and report what was granted
    #[arg(long)]
    pub(super) isolate: bool,
    /// Kernels to use: scalar, avx2, …; by default the fastest this CPU runs
    #[arg(long, value_name = "NAME", env = "SLUICE_ISA", hide_env_values = true)]
    pub(super) isa: Option<String>,
}
