//! The flags of `sluice gate`.

use crate::flags::names::kernels;
use clap::Args;
use clap::builder::PossibleValuesParser;
use sluice::core::gate::{Measure, NoiseFloor};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct InputArgs {
    /// Set the sample format; by default inferred from the file extension
    #[arg(long, value_name = "NAME",
        value_parser = PossibleValuesParser::new(["wav", "f32", "i16", "csv", "212"]))]
    pub(super) format: Option<String>,
    /// Set the number of interleaved channels of raw samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) channels: Option<u16>,
    /// Select one channel, counted from 0; by default the mean of all
    ///
    /// Channels of opposite phase cancel out in the mean.
    #[arg(long, value_name = "N")]
    pub(super) channel: Option<usize>,
    /// Select the column of a CSV file, by name or counted from 1
    #[arg(long, value_name = "NAME")]
    pub(super) column: Option<String>,
    /// Set the number of samples per frame
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) frame_len: u32,
    /// Judge whole frames only, and leave out the last samples if they do not fill one
    ///
    /// By default the last frame is padded with zeros.
    #[arg(long)]
    pub(super) keep_whole_frames: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Select the measure to compare with the threshold
    #[arg(long, value_name = "NAME", default_value = "max_abs",
        value_parser = PossibleValuesParser::new(Measure::all().map(Measure::name)))]
    pub(super) measure: String,
    /// Pass frames at or above this value
    #[arg(long, value_name = "X", default_value_t = 1e-5)]
    pub(super) threshold: f32,
    /// Pass frames at or below the threshold instead
    #[arg(long)]
    pub(super) below: bool,
    /// Close an open gate only below this share of the threshold
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(super) hysteresis: f32,
    /// Pass this many frames after the last active one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) hang_over: u32,
    /// Keep the threshold this many times above the noise floor
    #[arg(long, value_name = "RATIO")]
    pub(super) noise_floor: Option<f32>,
    /// Set how fast the noise floor falls, per frame
    #[arg(long, value_name = "SHARE", default_value_t = NoiseFloor::default().fall, requires = "noise_floor")]
    pub(super) floor_fall: f32,
    /// Set how fast the noise floor rises, per frame
    #[arg(long, value_name = "SHARE", default_value_t = NoiseFloor::default().rise, requires = "noise_floor")]
    pub(super) floor_rise: f32,
    /// Treat frames with only smaller samples as silent
    #[arg(long, value_name = "X", default_value_t = 1e-5)]
    pub(super) wall: f32,
    /// Do not compute features and scaling of passing frames
    #[arg(long)]
    pub(super) no_score: bool,
    /// Set the number of bins of the entropy histogram
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(super) num_bins: usize,
    /// Set the mean magnitude below which a frame is sparse
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub(super) l1_threshold: f32,
    /// Set the weight of the newest scaling in the temporal coherence
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub(super) ema_alpha: f32,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print a line per frame [default: csv; with --watch none]
    #[arg(long, value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(["csv", "jsonl", "none"]))]
    pub(super) decisions: Option<String>,
    /// Write the passing frames to a file
    ///
    /// Its extension sets the format: .wav, .csv, or raw numbers as .f32, .raw or without an
    /// extension.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Plot the signal, the measure and the decisions (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Show frames per second, sparsity, fill level and drops while running
    #[arg(long)]
    pub(super) watch: bool,
    /// Overwrite output files that exist
    #[arg(long)]
    pub(super) overwrite: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerArgs {
    /// Set what happens when the ring is full: wait, or drop frames
    ///
    /// Dropped frames are counted.
    #[arg(long, value_name = "HOW", default_value = "block",
        value_parser = PossibleValuesParser::new(["block", "drop-newest", "drop-oldest"]))]
    pub(super) on_full: String,
    /// Set the number of frames in the ring
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(super) capacity: u32,
    /// Request a core, priority and locked memory, and report what was granted
    #[arg(long)]
    pub(super) isolate: bool,
    /// Select the kernels
    ///
    /// By default the fastest that this CPU supports.
    #[arg(long, value_name = "NAME", value_parser = kernels(), env = "SLUICE_ISA", hide_env_values = true)]
    pub(super) isa: Option<String>,
}
