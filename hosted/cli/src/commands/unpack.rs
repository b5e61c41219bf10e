//! `sluice unpack`: the GGUF file that a `.slc` file was made from.

use crate::outcome::{Ending, UsageError};
use crate::ui::format::Bytes;
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::{Context as _, bail};
use clap::Args;
use sluice::core::model::LoadProgress;
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice::host::interrupt;
use sluice::identity::Identity;
use sluice_make::slc::{SlcFileError, SlcWatch, unpack as unpack_file, verify};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice unpack model.slc model.gguf
  sluice unpack model.slc --verify

The GGUF file is checked against the recorded SHA-256 before it is renamed to its final name.";

#[derive(Debug, Args)]
pub(crate) struct UnpackArgs {
    /// .slc file to read
    #[arg(value_name = "IN.slc")]
    input: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT.gguf", required_unless_present = "verify")]
    output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
    /// Compare without writing anything (without OUT.gguf)
    #[arg(long)]
    verify: bool,
}

pub(super) fn unpack(args: &UnpackArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    if args.overwrite && args.output.is_none() {
        return Err(UsageError("--overwrite requires an output file, OUT.gguf".into()).into());
    }
    let output = match &args.output {
        Some(path) => Some(OutputFile::create_model(path, args.overwrite, *b"GGUF")?),
        None => None,
    };
    let file = ModelFile::open(&args.input, LoadMode::Read)?;
    let Some(slc) = file.slc()? else {
        bail!("{} is a GGUF file, not a .slc file", file.name());
    };
    let total_bytes = slc.header().gguf_len;
    let bar = Mutex::new(WorkBar::of_bytes("unpacking", total_bytes));
    let report = |progress: LoadProgress| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.update(progress.done_bytes);
    };
    let watch = SlcWatch::new(total_bytes, stop, &report);
    let done = match output {
        Some(output) => unpack_file(file.contents(), &slc, output, &watch),
        None => verify(file.contents(), &slc, &watch),
    };
    drop(bar);
    match done {
        Err(SlcFileError::Stopped) => return Ok(Ending::Interrupted),
        result => result.with_context(|| file.name().to_owned())?,
    }
    let verb = if args.output.is_some() {
        "written"
    } else {
        "verified"
    };
    let sha256 = Identity(slc.header().gguf_sha256);
    note(format_args!(
        "GGUF file of {} {verb}, SHA-256 {sha256}",
        Bytes(total_bytes)
    ));
    Ok(Ending::Done)
}
