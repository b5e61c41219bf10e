//! `sluice gguf-split`: splits a model into parts, and merges parts into one file.

use crate::outcome::{Ending, UsageError};
use crate::ui::format::{Bytes, shown};
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use anyhow::{Context as _, bail};
use clap::Args;
use core::fmt::Write as _;
use core::num::NonZero;
use sluice::core::gguf::Gguf;
use sluice::file::{COUNT_KEY, LoadMode, ModelFile, OutputFile, split_path};
use sluice::host::interrupt;
use sluice_make::split::{PartMax, SplitError, SplitPlan};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice gguf-split --split-max-size 2G model.gguf parts/model
  sluice gguf-split --split-max-tensors 64 --no-tensor-first-split --dry-run model.gguf model
  sluice gguf-split --merge parts/model-00001-of-00003.gguf model.gguf

Parts are named OUT-00001-of-00003.gguf and so on. To use a split model, name its first part.";

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct GgufSplitArgs {
    /// GGUF file to read, or the first part of a split model
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Prefix of the parts' names; with --merge the file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Split into parts (the default)
    #[arg(long, conflicts_with = "merge")]
    split: bool,
    /// Merge the parts into one file
    #[arg(long,
        conflicts_with_all = ["split_max_tensors", "split_max_size", "no_tensor_first_split"])]
    merge: bool,
    /// Set the maximum number of tensors per part [default: 128]
    #[arg(long, value_name = "N", conflicts_with = "split_max_size")]
    split_max_tensors: Option<NonZero<u64>>,
    /// Set the maximum size of the tensors per part: 500M, 2G
    ///
    /// M is 10^6 and G is 10^9 bytes. A larger tensor gets a part of its own.
    #[arg(long, value_name = "N(M|G)", value_parser = size)]
    split_max_size: Option<NonZero<u64>>,
    /// Put only metadata into the first part
    #[arg(long)]
    no_tensor_first_split: bool,
    /// Print what would be written without writing it
    #[arg(long)]
    dry_run: bool,
    /// Overwrite output files that exist
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn gguf_split(args: &GgufSplitArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let file = ModelFile::open(&args.input, LoadMode::Read)?;
    if file.slc()?.is_some() {
        bail!(
            "{} is a .slc file: convert it to GGUF with `sluice unpack`",
            file.name()
        );
    }
    let gguf = file.parse()?;
    let plan = plan(args, &file, &gguf)?;
    let paths = paths(args, &plan)?;
    if !args.merge {
        TextOutput::new().write(&described(&plan))?;
    }
    note_large(args, &plan);
    let done = summary(&paths, &plan);
    if args.dry_run {
        note(format_args!("{done} (not written: --dry-run)"));
        return Ok(Ending::Done);
    }
    let create = |path: &PathBuf| OutputFile::create_model(path, args.overwrite, *b"GGUF");
    let outputs: Vec<_> = paths.iter().map(create).collect::<Result<_, _>>()?;
    let mut bar = None;
    let verb = if args.merge { "merging" } else { "splitting" };
    let written = plan.write(file.source(), outputs, stop, |progress| {
        let bar = bar.get_or_insert_with(|| WorkBar::of_bytes(verb, progress.total_bytes));
        bar.update(progress.done_bytes);
    });
    drop(bar);
    match written {
        Err(SplitError::Stopped) => return Ok(Ending::Interrupted),
        result => result.with_context(|| file.name().to_owned())?,
    }
    note(format_args!("{done}"));
    Ok(Ending::Done)
}

fn summary(paths: &[PathBuf], plan: &SplitPlan<'_>) -> String {
    let (n_tensors, size) = (plan.n_tensors(), Bytes(plan.file_bytes()));
    let first = paths.first().map(|path| path.display());
    let first = first.map_or_else(String::new, |first| first.to_string());
    match paths.len() {
        1 => format!("{first}: {n_tensors} tensors, {size}"),
        n => format!("{first} and {} more: {n_tensors} tensors, {size}", n - 1),
    }
}

fn plan<'g>(
    args: &GgufSplitArgs,
    file: &ModelFile,
    gguf: &Gguf<'g>,
) -> anyhow::Result<SplitPlan<'g>> {
    if args.merge {
        // A single part is still a part of a split model.
        let is_split = file.n_parts() > 1 || gguf.u64(COUNT_KEY) == Ok(1);
        if !is_split {
            bail!("{}: already a single file; nothing to merge", file.name());
        }
        return Ok(SplitPlan::one(gguf));
    }
    let max = match (args.split_max_size, args.split_max_tensors) {
        (Some(bytes), _) => PartMax::Bytes(bytes),
        (None, tensors) => PartMax::Tensors(tensors.unwrap_or(TENSORS_DEFAULT)),
    };
    let plan = SplitPlan::split(gguf, max, args.no_tensor_first_split);
    plan.with_context(|| file.name().to_owned())
}

/// The names of the output files.
fn paths(args: &GgufSplitArgs, plan: &SplitPlan<'_>) -> Result<Vec<PathBuf>, UsageError> {
    if args.output.file_name().is_none() {
        let output = args.output.display();
        return Err(UsageError(format!("{output}: not a file name")));
    }
    if args.merge {
        return Ok(vec![args.output.clone()]);
    }
    let count = plan.parts().len() as u64;
    let path = |index| split_path(&args.output, index, count);
    Ok((0..count).map(path).collect())
}

/// In llama-gguf-split's format.
fn described(plan: &SplitPlan<'_>) -> String {
    let mut text = format!("n_split: {}\n", plan.parts().len());
    for (part, number) in plan.parts().iter().zip(1..) {
        let (n_tensors, megabytes) = (part.n_tensors(), part.file_bytes() / 1_000_000);
        let _ = writeln!(
            text,
            "split {number:05}: n_tensors = {n_tensors}, total_size = {megabytes}M"
        );
    }
    text
}

/// Warns of parts that exceed the requested size, and why.
fn note_large(args: &GgufSplitArgs, plan: &SplitPlan<'_>) {
    let Some(max) = args.split_max_size else {
        return;
    };
    for (part, number) in plan.parts().iter().zip(1..) {
        if part.data_bytes() > max.get() {
            let name = part.tensor_names().next().unwrap_or_default();
            note(format_args!(
                "warning: part {number} exceeds the requested size: {} alone takes {}",
                shown(name.as_bytes(), 127),
                Bytes(part.data_bytes())
            ));
        }
    }
}

/// `500M` or `2G`, as llama-gguf-split reads them.
fn size(text: &str) -> Result<NonZero<u64>, String> {
    let (number, unit) = match (text.strip_suffix('M'), text.strip_suffix('G')) {
        (Some(number), _) => (number, 1_000_000),
        (None, Some(number)) => (number, 1_000_000_000),
        (None, None) => {
            return Err("expected a whole number followed by M or G, such as 500M or 2G".into());
        }
    };
    let bytes = number.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    let bytes = bytes.and_then(NonZero::new);
    bytes.ok_or_else(|| "expected a whole number above 0 before M or G, such as 500M".into())
}

/// As in llama-gguf-split.
const TENSORS_DEFAULT: NonZero<u64> = NonZero::new(128).expect("it is not 0");
