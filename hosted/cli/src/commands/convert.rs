//! `sluice convert`: a Hugging Face folder to a GGUF file.

use crate::flags::names::suggestion;
use crate::outcome::Ending;
use crate::ui::format::{Bytes, Count};
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use clap::{Args, value_parser};
use core::str::FromStr;
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::core::team::WORKERS_MAX;
use sluice::file::OutputFile;
use sluice::host::interrupt;
use sluice::host::topology::Cores;
use sluice_make::convert::{Conversion, FloatType, Options, Outcome};
use sluice_make::quantize::{FILE_TYPES, FileType, Plan, QuantizeRequest};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

/// Reads config.json, the tokenizer's files and safetensors, and writes what llama.cpp's
/// convert_hf_to_gguf.py writes. The output file appears once it is complete.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json, tokenizer and *.safetensors
    ///
    /// The tokenizer is tokenizer.json or tokenizer.model.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// GGUF file to write
    #[arg(value_name = "OUT", required_unless_present = "outfile")]
    out: Option<PathBuf>,
    /// Set the GGUF file to write, in place of OUT
    #[arg(short, long, value_name = "OUT", conflicts_with = "out")]
    outfile: Option<PathBuf>,
    /// Set the type of the weights; auto keeps the folder's
    ///
    /// f32, f16, bf16, q8_0 or any type of `sluice quantize`. Vectors, norms and routers are always F32.
    #[arg(
        long = "type",
        visible_alias = "outtype",
        value_name = "TYPE",
        default_value = "auto"
    )]
    ty: TypeArg,
    /// Set the pre-tokenizer where the rules of tokenizer.json are unknown
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Set the model's name; by default the folder's
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Overwrite OUT if it exists
    #[arg(long)]
    overwrite: bool,
    /// Set the number of threads
    ///
    /// By default one per physical core that this process may use.
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
enum TypeArg {
    Auto,
    /// A type of llama.cpp's converter.
    Float(FloatType),
    /// A type of `sluice quantize`.
    Mix(FileType),
}

impl FromStr for TypeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let file_type = FileType::from_str(text).map_err(|error| {
            let names = FILE_TYPES.iter().map(|known| known.name).chain(["auto"]);
            format!("{error} auto{}", suggestion(text, names))
        })?;
        if file_type.base.is_lane() {
            return Err(format!(
                "{file_type} exists in .slc files only; convert to F16, then sluice quantize IN OUT.slc {file_type}"
            ));
        }
        Ok(match file_type.name {
            "F32" => Self::Float(FloatType::F32),
            "F16" => Self::Float(FloatType::F16),
            "BF16" => Self::Float(FloatType::Bf16),
            "Q8_0" => Self::Float(FloatType::Q8_0),
            _ => Self::Mix(file_type),
        })
    }
}

const EXAMPLES: &str = "\
Examples:
  sluice convert Qwen3-0.6B qwen3-0.6b.gguf
  sluice convert Qwen3-0.6B --outfile qwen3-0.6b.gguf --outtype q8_0
  sluice convert Llama-3.2-1B llama.gguf --type Q4_K_M && sluice run -m llama.gguf -p \"The sea\"";

impl ConvertArgs {
    fn plan(&self) -> anyhow::Result<Conversion> {
        let plan = |types| {
            let (pre, name) = (self.pre.as_deref(), self.model_name.as_deref());
            Conversion::plan(&self.dir, &Options { types, pre, name })
        };
        match self.ty {
            TypeArg::Auto => Ok(plan(None)?),
            TypeArg::Float(float) => {
                let type_of = |name: &str, dims: &[u64]| float.type_of(name, dims);
                Ok(plan(Some((float.file_type(), &type_of)))?)
            }
            TypeArg::Mix(file_type) => {
                // A mix of types depends on the whole model, so it is planned on the F32 file.
                let f32 = |_: &str, _: &[u64]| GgmlType::F32;
                let whole = plan(Some((0, &f32)))?;
                let (header, len) = (whole.header().bytes(), whole.header().file_bytes());
                let gguf = Gguf::parse(&header, len).context("the converted file")?;
                let request = QuantizeRequest::new(file_type);
                let mix = Plan::new(&gguf, &request)?;
                mix.check(&request, None)?;
                let tensors = mix.tensors.into_iter();
                let types: HashMap<_, _> = tensors.map(|t| (t.name, t.target)).collect();
                let type_of = |name: &str, _: &[u64]| types[name];
                Ok(plan(Some((file_type.number, &type_of)))?)
            }
        }
    }
}

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<Ending> {
    let since = Instant::now();
    let stop = interrupt::install()?;
    let out = args.outfile.as_ref().or(args.out.as_ref());
    let out = out.expect("clap requires one of the two");
    let conversion = args.plan()?;
    for warning in conversion.warnings() {
        note(format_args!("warning: {warning}"));
    }
    let header = conversion.header();
    let (n_tensors, file_bytes) = (header.tensors().len(), header.file_bytes());
    let parameters = header.tensors().iter();
    let parameters = parameters.map(|t| t.dims.iter().product::<u64>()).sum();
    let output = OutputFile::create_model(out, args.overwrite, *b"GGUF")?;
    let threads = args.threads.map(usize::from);
    let threads = threads.unwrap_or_else(|| Cores::detect().default_workers());
    let data_bytes = header.tensors().iter().map(|t| t.len_bytes).sum();
    let mut bar = WorkBar::of_bytes("converting", data_bytes);
    let ended = conversion.write(output, threads, stop, &mut |done| bar.update(done))?;
    drop(bar);
    if ended == Outcome::Stopped {
        note(format_args!("interrupted; nothing was written"));
        return Ok(Ending::Interrupted);
    }
    note(format_args!(
        "{}: {n_tensors} tensors, {} parameters, {}, in {:.2} s",
        out.display(),
        Count(parameters),
        Bytes(file_bytes),
        since.elapsed().as_secs_f64()
    ));
    Ok(Ending::Done)
}
