//! `sluice lora merge`: merges adapters into a model's weights.

use super::{AdapterWeight, warn};
use crate::commands::quantize::tensor_type;
use crate::outcome::Ending;
use crate::ui::format::Bytes;
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::bail;
use clap::{Args, value_parser};
use sluice::core::kernels::GgmlType;
use sluice::core::team::WORKERS_MAX;
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice::host::interrupt;
use sluice::host::topology::Cores;
use sluice_hf::adapter::read_to_merge;
use sluice_make::convert::Outcome;
use sluice_make::lora::MergePlan;
use std::path::PathBuf;
use std::time::Instant;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice lora merge -m model.gguf --lora my-adapter.gguf -o merged.gguf
  sluice lora merge -m model-q4.gguf --lora style:0.5 --lora facts --outtype q8_0 -o merged.gguf";

#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Set the GGUF file of the model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Merge an adapter; several are added up: --lora a,b
    ///
    /// Each is multiplied by its SCALE, by default 1.
    #[arg(
        long,
        alias = "lora-scaled",
        value_name = "PATH[:SCALE]",
        value_delimiter = ',',
        required = true
    )]
    lora: Vec<AdapterWeight>,
    /// Set the GGUF file to write
    #[arg(short, long, value_name = "OUT.gguf")]
    output: PathBuf,
    /// Set the folder of the adapter's model; its config.json is enough
    ///
    /// By default the folder that the adapter names, the adapter's own if it has a config.json, or
    /// MODEL.
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// Set the type of the adapted weights; by default their own
    #[arg(long = "type", visible_alias = "outtype", value_name = "TYPE", value_parser = tensor_type)]
    ty: Option<GgmlType>,
    /// Overwrite OUT if it exists
    #[arg(long)]
    overwrite: bool,
    /// Set the number of threads
    ///
    /// By default one per physical core that this process may use.
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    threads: Option<u16>,
}

pub(super) fn merge(args: &MergeArgs) -> anyhow::Result<Ending> {
    let since = Instant::now();
    let stop = interrupt::install()?;
    let model = ModelFile::open(&args.model, LoadMode::Read)?;
    if model.slc()?.is_some() {
        bail!(
            "{} is a .slc file: convert it to GGUF with `sluice unpack`",
            model.name()
        );
    }
    let gguf = model.parse()?;
    let mut adapters = Vec::new();
    for AdapterWeight { path, scale } in &args.lora {
        let adapter = read_to_merge(path, args.base.as_deref(), &model)?;
        warn(&adapter.file);
        adapters.push((adapter, *scale));
    }
    let plan = MergePlan::new(&model, &gguf, &adapters, args.ty)?;
    for what in plan.notes() {
        note(format_args!("note: {what}"));
    }
    let (n_adapted, n_tensors) = (plan.n_adapted(), plan.header().tensors().len());
    let file_bytes = plan.header().file_bytes();
    let data_bytes = plan.header().tensors().iter().map(|t| t.len_bytes).sum();
    let output = OutputFile::create_model(&args.output, args.overwrite, *b"GGUF")?;
    let threads = args.threads.map(usize::from);
    let threads = threads.unwrap_or_else(|| Cores::detect().default_workers());
    let mut bar = WorkBar::of_bytes("merging", data_bytes);
    let ended = plan.write(output, threads, stop, &mut |done| bar.update(done))?;
    drop(bar);
    if ended == Outcome::Stopped {
        note(format_args!("interrupted; nothing was written"));
        return Ok(Ending::Interrupted);
    }
    note(format_args!(
        "{}: {n_adapted} of {n_tensors} tensors adapted, {}, in {:.2} s",
        args.output.display(),
        Bytes(file_bytes),
        since.elapsed().as_secs_f64()
    ));
    Ok(Ending::Done)
}
