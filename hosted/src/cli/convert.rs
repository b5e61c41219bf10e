//! `sluice convert`: a folder of Hugging Face's to a GGUF file.

use super::Ending;
use super::format::{Bytes, Count};
use super::output::note;
use super::progress::WorkBar;
use clap::{Args, ValueEnum, value_parser};
use sluice::convert::{Conversion, Ended, FloatType, Options};
use sluice::core::kernels::GgmlType;
use sluice::core::team::WORKERS_MAX;
use sluice::file::OutputFile;
use sluice::interrupt;
use sluice::topology::Cores;
use std::path::PathBuf;
use std::time::Instant;

/// Reads config.json, the tokenizer's files and safetensors; writes what llama.cpp's
/// convert_hf_to_gguf.py writes. The file appears under its name when it is complete.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ConvertArgs {
    /// Folder with config.json, tokenizer.json or tokenizer.model, and *.safetensors
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Type of the weights; auto keeps the folder's (vectors, norms and routers are F32 always)
    #[arg(
        long = "type",
        visible_alias = "outtype",
        value_name = "TYPE",
        default_value = "auto",
        ignore_case = true
    )]
    ty: TypeArg,
    /// Name of the pre-tokenizer to write, where tokenizer.json's rules are not known
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Name of the model to write; by default the folder's
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Replace OUT if it is there
    #[arg(long)]
    overwrite: bool,
    /// Threads; by default one per physical core that this process may use
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TypeArg {
    Auto,
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

const EXAMPLES: &str = "\
Examples:
  sluice convert Qwen3-0.6B qwen3-0.6b.gguf
  sluice convert Llama-3.2-1B llama.gguf --type q8_0 && sluice run -m llama.gguf -p \"The sea\"";

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<Ending> {
    let since = Instant::now();
    let stop = interrupt::install()?;
    let float = match args.ty {
        TypeArg::Auto => None,
        TypeArg::F32 => Some(FloatType::F32),
        TypeArg::F16 => Some(FloatType::F16),
        TypeArg::Bf16 => Some(FloatType::Bf16),
        TypeArg::Q8_0 => Some(FloatType::Q8_0),
    };
    let type_of = |name: &str, dims: &[u64]| -> GgmlType {
        float.map_or(GgmlType::F32, |float| float.type_of(name, dims))
    };
    let conversion = Conversion::plan(
        &args.dir,
        &Options {
            types: float.map(|float| (float.file_type(), &type_of as _)),
            pre: args.pre.as_deref(),
            name: args.model_name.as_deref(),
        },
    )?;
    let header = conversion.header();
    let (n_tensors, file_bytes) = (header.tensors().len(), header.file_bytes());
    let parameters = header.tensors().iter();
    let parameters = parameters.map(|t| t.dims.iter().product::<u64>()).sum();
    let output = OutputFile::create(&args.out, args.overwrite)?;
    let threads = args.threads.map(usize::from);
    let threads = threads.unwrap_or_else(|| Cores::detect().default_workers());
    let data_bytes = header.tensors().iter().map(|t| t.len_bytes).sum();
    let mut bar = WorkBar::of_bytes("converting", data_bytes);
    let ended = conversion.write(output, threads, stop, &mut |done| bar.update(done))?;
    drop(bar);
    if ended == Ended::Stopped {
        note(format_args!("interrupted; nothing was written"));
        return Ok(Ending::Interrupted);
    }
    note(format_args!(
        "{}: {n_tensors} tensors, {} parameters, {}, in {:.2} s",
        args.out.display(),
        Count(parameters),
        Bytes(file_bytes),
        since.elapsed().as_secs_f64()
    ));
    Ok(Ending::Done)
}
