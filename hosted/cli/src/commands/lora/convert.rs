//! `sluice lora convert`: an adapter in another format.

use super::{BaseArgs, n_parameters, warn};
use crate::outcome::{Ending, UsageError};
use crate::ui::format::Count;
use crate::ui::output::note;
use clap::Args;
use clap::builder::PossibleValuesParser;
use sluice::adapter::AdapterFile;
use sluice::file::{ModelFile, OutputFile};
use sluice_hf::adapter::read;
use sluice_make::convert::FloatType;
use sluice_make::lora::{
    GgufOptions, InfqOptions, Matrices, OUTLIER_THRESHOLD, PeftOptions, write_gguf, write_infq,
    write_peft,
};
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice lora convert my-adapter -o my-adapter.gguf --base Llama-3.2-1B
  sluice lora convert my-adapter -m model.gguf --outtype f16
  sluice lora convert my-adapter.gguf --to peft -m model.gguf -o my-adapter
  sluice lora convert my-adapter.gguf --to infq --int4 -o my-adapter.infq

llama.cpp can read the GGUF file.";

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Adapter to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Set the output
    ///
    /// By default IN with the extension .gguf, -peft or .infq.
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    #[command(flatten)]
    base: BaseArgs,
    /// Set the output format
    #[arg(long, value_name = "FORMAT", default_value = "gguf",
        value_parser = PossibleValuesParser::new(["gguf", "peft", "infq"]))]
    to: String,
    /// Use 4-bit instead of 8-bit numbers (INFQ)
    #[arg(long)]
    int4: bool,
    /// Keep numbers beyond X in 16 bits; 0 keeps none (INFQ)
    #[arg(long, value_name = "X")]
    outlier_threshold: Option<f32>,
    #[command(flatten)]
    gguf: GgufArgs,
}

/// The GGUF options of an adapter.
#[derive(Debug, Args)]
pub(crate) struct GgufArgs {
    /// Set the type of the matrices; by default f32
    ///
    /// With q8_0, rows whose length is not a multiple of 32 become F16.
    #[arg(long = "type", visible_alias = "outtype", value_name = "TYPE",
        value_parser = PossibleValuesParser::new(["f32", "f16", "bf16", "q8_0"]))]
    ty: Option<String>,
    /// Overwrite OUT if it exists
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn convert(args: &ConvertArgs) -> anyhow::Result<Ending> {
    args.check()?;
    let model = args.base.model()?;
    let file = read(&args.input, args.base.base(), model.as_ref())?;
    warn(&file);
    if let Some(model) = &model {
        Matrices::of_model(model)?.check(&file)?;
    }
    let path = args.output();
    match args.to.as_str() {
        "infq" => write_infq(&file, args.infq(&path)?, &path)?,
        "peft" => write_peft(&file, args.peft(model.as_ref()), &path)?,
        _ => write(
            &file,
            &args.input,
            &path,
            &args.base,
            model.as_ref(),
            &args.gguf,
        )?,
    }
    note(format_args!(
        "{}: {} matrices, {} parameters",
        path.display(),
        file.factors.len(),
        Count(n_parameters(&file))
    ));
    Ok(Ending::Done)
}

/// Writes a GGUF file. The adapter is checked against the model, which also gives the height of stacks.
pub(super) fn write(
    file: &AdapterFile,
    input: &Path,
    path: &Path,
    base: &BaseArgs,
    model: Option<&ModelFile>,
    args: &GgufArgs,
) -> anyhow::Result<()> {
    let matrices = match model {
        Some(model) => Some(Matrices::of_model(model)?),
        None => Matrices::of_base(input, file.base_model.as_deref(), base.base())?,
    };
    if let Some(matrices) = matrices.as_ref().filter(|_| model.is_some()) {
        matrices.check(file)?;
    }
    let output = OutputFile::create_model(path, args.overwrite, *b"GGUF")?;
    let options = GgufOptions {
        float: float(args.ty.as_deref()),
        matrices: matrices.as_ref(),
        name: None,
    };
    Ok(write_gguf(file, options, output)?)
}

impl ConvertArgs {
    /// # Errors
    /// A flag does not apply to this format.
    fn check(&self) -> Result<(), UsageError> {
        let is_infq = self.to == "infq";
        let of_other = [
            (self.int4 && !is_infq, "--int4"),
            (
                self.outlier_threshold.is_some() && !is_infq,
                "--outlier-threshold",
            ),
            (self.gguf.ty.is_some() && is_infq, "--type"),
        ];
        match of_other.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, flag)) => Err(UsageError(format!(
                "{flag} does not apply to --to {}",
                self.to
            ))),
            None => Ok(()),
        }
    }

    fn infq<'p>(&self, path: &'p Path) -> Result<InfqOptions<'p>, UsageError> {
        let threshold = self.outlier_threshold.unwrap_or(OUTLIER_THRESHOLD);
        if !(threshold >= 0.0 && threshold.is_finite()) {
            let what = format!("--outlier-threshold {threshold} is not a number of at least 0");
            return Err(UsageError(what));
        }
        let name = path.file_stem().and_then(|name| name.to_str());
        Ok(InfqOptions {
            name: name.unwrap_or("adapter"),
            is_int4: self.int4,
            outlier_threshold: threshold,
            overwrite: self.gguf.overwrite,
        })
    }

    fn peft<'o>(&'o self, model: Option<&'o ModelFile>) -> PeftOptions<'o> {
        PeftOptions {
            float: float(self.gguf.ty.as_deref()),
            base: self.base.base(),
            model,
            overwrite: self.gguf.overwrite,
        }
    }

    fn output(&self) -> PathBuf {
        let default = || {
            let mut name = self.input.file_name().unwrap_or_default().to_owned();
            name.push(match self.to.as_str() {
                "infq" => ".infq",
                "peft" => "-peft",
                _ => ".gguf",
            });
            self.input.with_file_name(name)
        };
        self.output.clone().unwrap_or_else(default)
    }
}

fn float(name: Option<&str>) -> FloatType {
    match name.unwrap_or("f32") {
        "f16" => FloatType::F16,
        "bf16" => FloatType::Bf16,
        "q8_0" => FloatType::Q8_0,
        _ => FloatType::F32,
    }
}
