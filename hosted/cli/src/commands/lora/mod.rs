//! `sluice lora`: inspects, converts, merges and blends adapters.

mod blend;
mod convert;
mod inspect;
mod merge;

use crate::outcome::Ending;
use crate::ui::output::note;
use clap::{Args, Subcommand};
use core::str::FromStr;
use sluice::adapter::AdapterFile;
use sluice::file::{LoadMode, ModelFile};
use sluice_hf::adapter::read;
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice lora inspect my-adapter -m model.gguf
  sluice lora convert my-adapter -o my-adapter.gguf -m model.gguf
  sluice lora merge -m model.gguf --lora my-adapter:0.5 -o merged.gguf
  sluice lora blend style.gguf:0.5 facts.gguf -o both.gguf

Adapters are PEFT folders or llama.cpp's GGUF files: docs/lora.md.";

#[derive(Debug, Args)]
pub(crate) struct LoraArgs {
    #[command(subcommand)]
    command: LoraCommand,
}

#[derive(Debug, Subcommand)]
enum LoraCommand {
    /// Show the matrices of an adapter
    #[command(args_override_self = true, after_help = inspect::EXAMPLES)]
    Inspect(inspect::InspectArgs),
    /// Convert an adapter to another format
    #[command(args_override_self = true, after_help = convert::EXAMPLES)]
    Convert(convert::ConvertArgs),
    /// Merge adapters into a model's weights
    #[command(args_override_self = true, after_help = merge::EXAMPLES)]
    Merge(merge::MergeArgs),
    /// Combine several adapters into one
    #[command(args_override_self = true, after_help = blend::EXAMPLES)]
    Blend(blend::BlendArgs),
}

pub(super) fn lora(args: &LoraArgs) -> anyhow::Result<Ending> {
    match &args.command {
        LoraCommand::Inspect(args) => inspect::inspect(args),
        LoraCommand::Convert(args) => convert::convert(args),
        LoraCommand::Merge(args) => merge::merge(args),
        LoraCommand::Blend(args) => blend::blend(args),
    }
}

/// Where the sizes of the adapter's model come from.
#[derive(Debug, Args)]
struct BaseArgs {
    /// Set the folder of the adapter's model; its config.json is enough
    ///
    /// By default the folder that the adapter names, the adapter's own if it has a config.json, or
    /// MODEL.
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Set the GGUF file of the adapter's model
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
}

impl BaseArgs {
    fn base(&self) -> Option<&Path> {
        self.base.as_deref()
    }

    fn model(&self) -> anyhow::Result<Option<ModelFile>> {
        let open = |path: &PathBuf| ModelFile::open(path, LoadMode::Read);
        Ok(self.model.as_ref().map(open).transpose()?)
    }
}

/// An adapter and its factor, as `PATH` or `PATH:0.5`.
#[derive(Clone, Debug)]
struct AdapterWeight {
    path: PathBuf,
    scale: f32,
}

impl FromStr for AdapterWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |scale| Self {
            path: text.into(),
            scale,
        };
        // A file may have a colon in its name.
        let Some((path, scale)) = text.rsplit_once(':').filter(|_| !Path::new(text).exists())
        else {
            return Ok(whole(1.0));
        };
        match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() && !path.is_empty() => Ok(Self {
                path: path.into(),
                scale,
            }),
            _ => Err(
                "expected a path, optionally followed by a colon and a number: my-adapter:0.5"
                    .into(),
            ),
        }
    }
}

/// Reads adapters, with a warning for parts that have no effect.
fn read_all(
    adapters: &[AdapterWeight],
    base: Option<&Path>,
    model: Option<&ModelFile>,
) -> anyhow::Result<Vec<(AdapterFile, f32)>> {
    let mut files = Vec::new();
    for AdapterWeight { path, scale } in adapters {
        let file = read(path, base, model)?;
        warn(&file);
        files.push((file, *scale));
    }
    Ok(files)
}

/// Warns of contents of the file that have no effect.
fn warn(file: &AdapterFile) {
    for warning in &file.warnings {
        note(format_args!("warning: {warning}"));
    }
}

/// The number of parameters of all matrices.
fn n_parameters(file: &AdapterFile) -> u64 {
    let factors = file.factors.iter();
    factors.map(|own| (own.a.len() + own.b.len()) as u64).sum()
}
