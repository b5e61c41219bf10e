//! `sluice pack`: a GGUF file as a `.slc` file.

use crate::outcome::Ending;
use crate::ui::format::Bytes;
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum, value_parser};
use sluice::core::model::LoadProgress;
use sluice::core::slc::MAGIC;
use sluice::core::team::WORKERS_MAX;
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice::host::interrupt;
use sluice::host::topology::Cores;
use sluice::identity::Identity;
use sluice_make::slc::{FfnLayout, PackOptions, SlcFileError, SlcWatch, pack as pack_file};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice pack model.gguf model.slc
  sluice pack model.gguf model.slc --verify --overwrite
  sluice pack --ffn neuron model.gguf model.slc
  sluice run -m model.slc -p \"Once upon a time\"

Every panel is unpacked and compared before it is written; --verify reads the whole file back.";

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// GGUF file to read
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// .slc file to write
    #[arg(value_name = "OUT.slc")]
    output: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
    /// Read the written file back and compare its contents by SHA-256
    #[arg(long)]
    verify: bool,
    /// Set how the matrices of feed-forward networks are stored
    ///
    /// With `neuron`, neurons that are zero need not be read: gates are stored in panels, up by row, down by
    /// neuron. With `predicted`, gates are stored by row as well, so that neurons that a predictor does not choose are not
    /// read at all (--sparse predictor). Both take quantised types of integers (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL,
    /// IQ4_XS, MXFP4).
    #[arg(long, value_enum, value_name = "LAYOUT", default_value_t)]
    ffn: Ffn,
    /// Set the number of threads
    ///
    /// By default one per physical core that this process may use.
    #[arg(short, long, value_name = "N",
        value_parser = value_parser!(u32).range(1..=WORKERS_MAX as i64))]
    threads: Option<u32>,
}

/// How feed-forward networks are stored.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Ffn {
    /// In panels of 16 rows
    #[default]
    Panel,
    /// By row and by neuron
    Neuron,
    /// As neuron, with gates by row: for --sparse predictor
    Predicted,
}

impl From<Ffn> for FfnLayout {
    fn from(ffn: Ffn) -> Self {
        match ffn {
            Ffn::Panel => Self::Panels,
            Ffn::Neuron => Self::Neurons,
            Ffn::Predicted => Self::Predicted,
        }
    }
}

pub(super) fn pack(args: &PackArgs) -> anyhow::Result<Ending> {
    let start = Instant::now();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let output = OutputFile::create_model(&args.output, args.overwrite, MAGIC)?;
    let file = ModelFile::open(&args.input, LoadMode::Read)?;
    if file.slc()?.is_some() {
        bail!("{} is already a .slc file", file.name());
    }
    let gguf = file.parse()?;
    let passes = if args.verify { 3 } else { 2 };
    let total_bytes = file.source().len_bytes().saturating_mul(passes);
    let bar = Mutex::new(WorkBar::of_bytes("packing", total_bytes));
    let report = |progress: LoadProgress| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.update(progress.done_bytes);
    };
    let options = PackOptions {
        n_threads: args
            .threads
            .map_or_else(|| Cores::detect().default_workers(), |n| n as usize),
        verify: args.verify,
        ffn: args.ffn.into(),
    };
    let watch = SlcWatch::new(total_bytes, stop, &report);
    let packed = pack_file(file.source(), &gguf, output, options, &watch);
    drop(bar);
    let header = match packed {
        Err(SlcFileError::Stopped) => return Ok(Ending::Interrupted),
        result => result.with_context(|| file.name().to_owned())?,
    };
    note(format_args!(
        "{}: {} from {}, {} tensors, SHA-256 of the GGUF {}{}, {:.2} s",
        args.output.display(),
        Bytes(header.file_len),
        Bytes(header.gguf_len),
        header.n_tensors,
        Identity(header.gguf_sha256),
        if args.verify { " (verified)" } else { "" },
        start.elapsed().as_secs_f64()
    ));
    Ok(Ending::Done)
}
