//! `sluice lora blend`: combines several adapters into one.

use super::convert::{GgufArgs, write};
use super::{AdapterWeight, BaseArgs, n_parameters, read_all};
use crate::outcome::Ending;
use crate::ui::format::Count;
use crate::ui::output::note;
use clap::Args;
use sluice_make::lora::{interpolate, stack};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice lora blend style.gguf:0.5 facts.gguf -o both.gguf
  sluice lora blend --interpolate a:0.25 b:0.75 -m model.gguf -o between.gguf

Without --interpolate the result computes the weighted sum of the adapters' outputs, and its rank is the sum of
their ranks. With it the matrices themselves are summed, which is not the same, and the rank is unchanged.";

#[derive(Debug, Args)]
pub(crate) struct BlendArgs {
    /// Adapters with their weights [default: 1]
    #[arg(value_name = "PATH[:WEIGHT]", required = true)]
    adapters: Vec<AdapterWeight>,
    /// Set the GGUF file to write
    #[arg(short, long, value_name = "OUT.gguf")]
    output: PathBuf,
    /// Sum the matrices of adapters of equal rank
    #[arg(long)]
    interpolate: bool,
    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    gguf: GgufArgs,
}

pub(super) fn blend(args: &BlendArgs) -> anyhow::Result<Ending> {
    let model = args.base.model()?;
    let files = read_all(&args.adapters, args.base.base(), model.as_ref())?;
    let file = match args.interpolate {
        true => interpolate(&files)?,
        false => stack(&files)?,
    };
    let first = &args.adapters[0].path;
    write(
        &file,
        first,
        &args.output,
        &args.base,
        model.as_ref(),
        &args.gguf,
    )?;
    note(format_args!(
        "{}: {} matrices, {} parameters",
        args.output.display(),
        file.factors.len(),
        Count(n_parameters(&file))
    ));
    Ok(Ending::Done)
}
