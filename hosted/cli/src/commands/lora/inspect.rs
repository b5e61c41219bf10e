//! `sluice lora inspect`: lists the matrices of an adapter.

use super::{BaseArgs, n_parameters, warn};
use crate::outcome::Ending;
use crate::ui::format::{Count, shown};
use crate::ui::output::{TextOutput, note};
use clap::Args;
use core::fmt::Write as _;
use serde_json::json;
use sluice::adapter::{AdapterFile, AdapterFormat, AdapterLoadError, Factors};
use sluice_hf::adapter::{read, read_as_named};
use sluice_make::lora::Matrices;
use sluice_text::sampling::decimal;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice lora inspect my-adapter
  sluice lora inspect my-adapter.gguf -m model.gguf --json";

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Adapter to read
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    base: BaseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn inspect(args: &InspectArgs) -> anyhow::Result<Ending> {
    let model = args.base.model()?;
    let format = AdapterFormat::of(&args.path)?;
    let file = match read(&args.path, args.base.base(), model.as_ref()) {
        Err(AdapterLoadError::NoBase { what, .. }) => {
            note(format_args!("the names are Hugging Face's: {what}"));
            read_as_named(&args.path)?
        }
        result => result?,
    };
    warn(&file);
    if let Some(model) = &model {
        Matrices::of_model(model)?.check(&file)?;
    }
    let text = match args.json {
        true => format!("{:#}\n", object(&file, format)),
        false => described(&file, format),
    };
    TextOutput::new().write(&text)?;
    Ok(Ending::Done)
}

fn object(file: &AdapterFile, format: AdapterFormat) -> serde_json::Value {
    let matrix = |own: &Factors| {
        json!({
            "tensor": own.tensor,
            "part": own.part,
            "rank": own.rank,
            "rows": own.n_rows(),
            "columns": own.n_cols(),
            "scale": decimal(own.scale),
        })
    };
    json!({
        "path": file.path,
        "format": format.name(),
        "architecture": file.architecture,
        "base_model": file.base_model,
        "n_parameters": n_parameters(file),
        "warnings": file.warnings,
        "matrices": file.factors.iter().map(matrix).collect::<Vec<_>>(),
    })
}

fn described(file: &AdapterFile, format: AdapterFormat) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{name:<14} {value}");
        }
    };
    let (n, parameters) = (file.factors.len(), Count(n_parameters(file)));
    line("format", format.name());
    line("architecture", &shown(file.architecture.as_bytes(), 127));
    let base_model = file.base_model.as_deref().unwrap_or_default();
    line("base model", &shown(base_model.as_bytes(), 255));
    line("matrices", &format!("{n}, {parameters} parameters"));
    for group in file.factors.chunk_by(is_alike) {
        let [first, ..] = group else { continue };
        let parts = match (first.part, group.len()) {
            (None, _) => String::new(),
            (Some(part), 1) => format!("[{part}]"),
            (Some(part), n) => format!("[{part}..{}]", u64::from(part) + n as u64),
        };
        let name = shown(first.tensor.as_bytes(), 127) + &parts;
        let (rows, columns) = (first.n_rows(), first.n_cols());
        let _ = writeln!(
            text,
            "  {name:<40} rank {:>3}  scale {:<8} {rows} x {columns}",
            first.rank, first.scale
        );
    }
    text
}

/// Whether two pairs are adjacent in a stack, with equal rank and scale.
fn is_alike(a: &Factors, b: &Factors) -> bool {
    let follows = match (a.part, b.part) {
        (Some(a), Some(b)) => a.checked_add(1) == Some(b),
        _ => false,
    };
    follows && a.tensor == b.tensor && a.rank == b.rank && a.scale.to_bits() == b.scale.to_bits()
}
