//! `sluice inspect`: the contents of a GGUF file.

mod model;

use crate::flags::engine::EngineArgs;
use crate::flags::prompt;
use crate::outcome::Ending;
use crate::ui::format::{Bytes, Count, shown};
use anyhow::Context as _;
use clap::Args;
use core::fmt::Write as _;
use serde_json::json;
use sluice::core::gguf::{Array, Gguf, TensorInfo, Value};
use sluice::core::kernels::GgmlType;
use sluice::core::kernels::neuron::Form;
use sluice::core::slc::{Layout, Slc};
use sluice::core::tokenizer::Tokenizer;
use sluice::file::{LoadMode, ModelFile};
use sluice::host::interrupt;
use sluice_make::uth;
use sluice_text::sampling::decimal;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Print metadata and tensors as one JSON object
    #[arg(long)]
    json: bool,
    /// GGUF file to describe: a model, or only a vocabulary
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn inspect(args: &InspectArgs) -> anyhow::Result<Ending> {
    if let Some(report) = blob(&args.file)? {
        crate::ui::output::TextOutput::new().write(&report)?;
        return Ok(Ending::Done);
    }
    let file = ModelFile::open(&args.file, LoadMode::Read)?;
    let gguf = file.parse()?;
    if args.engine.check_tensors {
        let stop = interrupt::install().context("cannot handle Ctrl-C")?;
        file.check_tensors(stop)?;
        if stop.is_set() {
            return Ok(Ending::Interrupted);
        }
    }
    let mut report = String::new();
    let mut output = crate::ui::output::TextOutput::new();
    if args.json {
        output.write(&format!("{}\n", object(&file, &gguf)))?;
        return Ok(Ending::Done);
    }
    file_lines(&mut report, &file, &gguf)?;
    if args.engine.check_tensors {
        let how = match file.slc()? {
            Some(_) => "all payloads have their checksums",
            None => "all weights are finite numbers",
        };
        writeln!(report, "checked     {how}")?;
    }
    if let Some(slc) = file.slc()? {
        packed(&mut report, &slc)?;
    }
    metadata(&mut report, &gguf)?;
    tensors(&mut report, &gguf)?;
    totals(&mut report, &gguf)?;
    tokenizer(&mut report, &gguf)?;
    model::describe(&mut report, &gguf, &args.engine)?;
    output.write(&report)?;
    Ok(Ending::Done)
}

/// Metadata and tensors for other programs. Long arrays are reduced to their type and length.
fn object(file: &ModelFile, gguf: &Gguf<'_>) -> serde_json::Value {
    let metadata: serde_json::Map<_, _> = gguf
        .metadata()
        .map(|(key, value)| (key.to_owned(), json_value(value)))
        .collect();
    let tensors: Vec<_> = gguf
        .tensors()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.ty.name(),
                "dims": tensor.dims[..tensor.n_dims],
                "bytes": tensor.len_bytes,
            })
        })
        .collect();
    json!({
        "file": file.name(),
        "bytes": file.contents().len_bytes(),
        "parts": file.n_parts(),
        "version": gguf.version(),
        "metadata": metadata,
        "tensors": tensors,
    })
}

fn json_value(value: Value<'_>) -> serde_json::Value {
    match value {
        Value::U8(n) => n.into(),
        Value::I8(n) => n.into(),
        Value::U16(n) => n.into(),
        Value::I16(n) => n.into(),
        Value::U32(n) => n.into(),
        Value::I32(n) => n.into(),
        Value::U64(n) => n.into(),
        Value::I64(n) => n.into(),
        Value::F32(x) => decimal(x).into(),
        Value::F64(x) => x.into(),
        Value::Bool(b) => b.into(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(array) if array.len() <= JSON_ELEMENTS_MAX => {
            let elements = array.iter().map(|element| match element {
                // Nested arrays are reduced to their length, so that depth cannot multiply the
                // output.
                Value::Array(inner) => json!({"len": inner.len()}),
                value => json_value(value),
            });
            elements.collect::<Vec<_>>().into()
        }
        Value::Array(array) => {
            json!({"type": array.element_type().to_string(), "len": array.len()})
        }
    }
}

/// Maximum length of arrays that are printed whole.
const JSON_ELEMENTS_MAX: u64 = 256;

fn file_lines(report: &mut String, file: &ModelFile, gguf: &Gguf<'_>) -> core::fmt::Result {
    let size = file.contents().len_bytes();
    let parts = match file.n_parts() {
        1 => String::new(),
        n => format!(", joined from {n} files"),
    };
    writeln!(
        report,
        "file        {} ({}{parts})",
        file.name(),
        Bytes(size)
    )?;
    writeln!(
        report,
        "format      GGUF version {}, header {}, data aligned to {} bytes",
        gguf.version(),
        Bytes(gguf.header_bytes().len() as u64),
        gguf.alignment()
    )
}

/// What a `.slc` file contains in addition to the GGUF file in it.
fn packed(report: &mut String, slc: &Slc<'_>) -> core::fmt::Result {
    let header = slc.header();
    let count = |layout| slc.tensors().filter(|(_, t)| t.layout == layout).count();
    let form = |form| slc.tensors().filter(|(_, t)| t.form == form).count();
    let by_neuron = match (form(Form::Rows), form(Form::Neurons)) {
        (0, 0) => String::new(),
        (up, down) => format!(", {up} by row, {down} by neuron"),
    };
    writeln!(
        report,
        "packed      .slc version {}, payloads from byte {}: {} tensors in panels, {} in stacks, \
         {} in expert records, {} raw{by_neuron}; {} gaps\n            GGUF file of {}, SHA-256 {}",
        sluice::core::slc::VERSION,
        header.payload_offset(),
        count(Layout::Panels),
        count(Layout::Stack),
        count(Layout::ExpertRecords),
        count(Layout::Raw),
        header.n_gaps,
        Bytes(header.gguf_len),
        sluice::identity::Identity(header.gguf_sha256)
    )
}

/// A report on another system's expert blob, if the file is one.
fn blob(path: &Path) -> anyhow::Result<Option<String>> {
    let Ok(mut file) = std::fs::File::open(path) else {
        // The error of the model reader is clearer.
        return Ok(None);
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let mut head = Vec::new();
    let wanted = uth::ALIGN + 12;
    (&mut file).take(wanted).read_to_end(&mut head)?;
    if !uth::Blob::is_uth(&head) {
        return Ok(None);
    }
    let size = file.metadata()?.len();
    let blob = uth::Blob::parse(&head, size).with_context(|| path.display().to_string())?;
    let mut report = String::new();
    writeln!(report, "file        {} ({})", path.display(), Bytes(size))?;
    writeln!(
        report,
        "format      expert blob, UTH{} header, type {}, n_embd {}, n_ff {}",
        blob.version,
        blob.dtype.name(),
        blob.n_embd,
        blob.n_ff
    )?;
    writeln!(
        report,
        "flags       {:#x}{}, payload from byte {}, tile hint {:?}",
        blob.flags,
        if blob.is_page_aligned() {
            " (page-aligned)"
        } else {
            ""
        },
        blob.payload_offset,
        blob.tile
    )?;
    for (name, part) in ["gate", "up", "down"].into_iter().zip(&blob.projections) {
        let [rows, cols] = part.shape;
        let scale = part
            .scale
            .map_or_else(String::new, |scale| format!(", scale {scale}"));
        let (ty, at) = (part.dtype.name(), part.range.start);
        let size = Bytes(part.range.end - at);
        writeln!(
            report,
            "{name:<11} {rows} x {cols}, {ty}, {size} at byte {at}{scale}"
        )?;
    }
    Ok(Some(report))
}

fn metadata(report: &mut String, gguf: &Gguf<'_>) -> core::fmt::Result {
    writeln!(report, "\nmetadata    {} keys", gguf.metadata_count())?;
    let width = gguf.metadata().map(|(key, _)| key.chars().count()).max();
    let width = width.unwrap_or(0).min(50);
    for (key, value) in gguf.metadata() {
        let key = shown(key.as_bytes(), 100);
        writeln!(
            report,
            "  {key:<width$}  {:<6}  {}",
            value.value_type(),
            value_text(value)
        )?;
    }
    Ok(())
}

/// A value on one line: long strings and arrays are truncated.
fn value_text(value: Value<'_>) -> String {
    match value {
        Value::U8(n) => n.to_string(),
        Value::I8(n) => n.to_string(),
        Value::U16(n) => n.to_string(),
        Value::I16(n) => n.to_string(),
        Value::U32(n) => n.to_string(),
        Value::I32(n) => n.to_string(),
        Value::U64(n) => n.to_string(),
        Value::I64(n) => n.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::String(bytes) => format!("\"{}\"", shown(bytes, STRING_CHARS_SHOWN)),
        Value::Array(array) => array_text(array),
    }
}

fn array_text(array: Array<'_>) -> String {
    let mut text = format!("{} x {}: ", array.len(), array.element_type());
    for (i, element) in array.iter().take(ARRAY_ELEMENTS_SHOWN).enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        text += separator;
        text += &match element {
            Value::String(bytes) => format!("\"{}\"", shown(bytes, ELEMENT_CHARS_SHOWN)),
            // Nested arrays are reduced to their length, so that depth cannot multiply the output.
            Value::Array(inner) => format!("[{} x {}]", inner.len(), inner.element_type()),
            value => value_text(value),
        };
    }
    if array.len() > ARRAY_ELEMENTS_SHOWN as u64 {
        text += ", …";
    }
    text
}

fn tensors(report: &mut String, gguf: &Gguf<'_>) -> core::fmt::Result {
    writeln!(report, "\ntensors     {}", gguf.tensor_count())?;
    for tensor in gguf.tensors() {
        let (name, shape) = (shown(tensor.name.as_bytes(), 127), shape_text(&tensor));
        writeln!(
            report,
            "  {name:<32}  {shape:<20}  {:<7}  {:>12}",
            tensor.ty,
            Bytes(tensor.len_bytes)
        )?;
    }
    Ok(())
}

/// Dimensions in the order of the file: the row length first.
fn shape_text(tensor: &TensorInfo<'_>) -> String {
    let dims = tensor.dims[..tensor.n_dims].iter().map(u64::to_string);
    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
}

fn totals(report: &mut String, gguf: &Gguf<'_>) -> core::fmt::Result {
    if gguf.tensor_count() == 0 {
        return Ok(());
    }
    let mut by_type = BTreeMap::<u32, (GgmlType, u64, u64, u64)>::new();
    for tensor in gguf.tensors() {
        let total = by_type
            .entry(tensor.ty as u32)
            .or_insert((tensor.ty, 0, 0, 0));
        total.1 += 1;
        total.2 = total.2.saturating_add(elements(&tensor));
        total.3 = total.3.saturating_add(tensor.len_bytes);
    }
    let all = by_type.values().fold((0u64, 0u64, 0u64), |sum, of_type| {
        (
            sum.0 + of_type.1,
            sum.1.saturating_add(of_type.2),
            sum.2.saturating_add(of_type.3),
        )
    });
    writeln!(
        report,
        "\ntotals      type     tensors  parameters          size  bits/weight"
    )?;
    let rows = by_type
        .values()
        .map(|(ty, n, params, size)| (ty.name(), *n, *params, *size));
    for (name, n, params, size) in rows.chain([("all", all.0, all.1, all.2)]) {
        #[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
        let bits = 8.0 * size as f64 / params.max(1) as f64;
        let (params, size) = (Count(params), Bytes(size));
        writeln!(
            report,
            "            {name:<7} {n:>8} {params:>11} {size:>13} {bits:>12.2}"
        )?;
    }
    Ok(())
}

fn elements(tensor: &TensorInfo<'_>) -> u64 {
    tensor
        .dims
        .iter()
        .fold(1, |product, &dim| product.saturating_mul(dim))
}

fn tokenizer(report: &mut String, gguf: &Gguf<'_>) -> core::fmt::Result {
    let memory = prompt::tokenizer_memory(gguf);
    let mut words = match memory {
        Ok(words) => words,
        Err(error) => return writeln!(report, "\ntokenizer   cannot be used: {error:#}"),
    };
    let tokenizer = match Tokenizer::new(gguf, &mut words) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return writeln!(report, "\ntokenizer   cannot be used: {error}"),
    };
    let special = tokenizer.special_tokens();
    let roles = [
        ("bos", special.bos),
        ("eos", special.eos),
        ("eot", special.eot),
    ];
    write!(report, "\ntokenizer   {} tokens", tokenizer.n_vocab())?;
    if let Some(pre) = tokenizer.pre_tokenizer() {
        write!(report, ", pre-tokenizer {pre:?}")?;
    }
    for (role, id) in roles {
        if let Some(id) = id {
            write!(
                report,
                ", {role} {id} \"{}\"",
                shown(tokenizer.piece(id), 30)
            )?;
        }
    }
    writeln!(report, ", tables {}", Bytes(4 * words.len() as u64))
}

const STRING_CHARS_SHOWN: usize = 80;
const ARRAY_ELEMENTS_SHOWN: usize = 6;
const ELEMENT_CHARS_SHOWN: usize = 20;
