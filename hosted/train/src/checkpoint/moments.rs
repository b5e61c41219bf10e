//! `optimizer.safetensors`: the moments of each tensor, by torch's names, and the number of steps.

use super::error::CheckpointError;
use super::files::CHUNK;
use crate::optimizer::{AdamW, TrainedTensor};
use serde_json::{Map, Value, json};
use sluice::file::{OutputError, OutputFile};
use sluice_hf::safetensors::{Dtype, Header, HeaderError, PREFIX_BYTES, SafetensorsEntry};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// torch's names of m and v.
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];
const STEP: &str = "step";

/// Writes the state of an optimizer.
pub(super) fn write(path: &Path, optimizer: &AdamW) -> Result<(), OutputError> {
    let mut header = Map::new();
    let about = json!({"format": "pt", "rows": "in the order of the GGUF file"});
    header.insert("__metadata__".to_owned(), about);
    let mut end = 8;
    let entry = json!({"dtype": "U64", "shape": [1], "data_offsets": [0, end]});
    header.insert(STEP.to_owned(), entry);
    for moment in MOMENTS {
        for TrainedTensor { name, shape, .. } in optimizer.tensors() {
            let begin = end;
            end += shape[0] * shape[1] * 4;
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
            header.insert(format!("{moment}.{name}"), entry);
        }
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let file = OutputFile::create(path, false)?;
    file.reserve((PREFIX_BYTES + header.len() + end) as u64)?;
    let mut at = 0;
    let mut write = |bytes: &[u8]| {
        let written = file.write_at(at, bytes);
        at += bytes.len() as u64;
        written
    };
    write(&(header.len() as u64).to_le_bytes())?;
    write(header.as_bytes())?;
    write(&optimizer.step().to_le_bytes())?;
    let mut bytes = Vec::with_capacity(CHUNK);
    for moment in optimizer.moments() {
        // The tensors follow each other in the list as in the file.
        for numbers in moment.chunks(CHUNK / 4) {
            bytes.clear();
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            write(&bytes)?;
        }
    }
    file.finish()
}

/// Reads the number of steps and the moments of these tensors.
pub(super) fn read(
    path: &Path,
    tensors: &[TrainedTensor],
) -> Result<(u64, [Vec<f32>; 2]), CheckpointError> {
    let opened = File::open(path).and_then(|file| {
        let len = file.metadata()?.len();
        Ok((file, len))
    });
    let read_error = |error| CheckpointError::Read {
        path: path.to_path_buf(),
        error,
    };
    let damaged = |what: String| CheckpointError::Damaged {
        path: path.to_path_buf(),
        what,
    };
    let (file, len) = opened.map_err(read_error)?;
    let of_header = |error: HeaderError| damaged(error.to_string());
    let mut head = Vec::new();
    let mut more = |n: u64| (&file).take(n).read_to_end(&mut head).map(|_| head.clone());
    let prefix = more(PREFIX_BYTES as u64).map_err(read_error)?;
    let json_bytes = Header::json_bytes(&prefix, len).map_err(of_header)?;
    let head = more(json_bytes as u64).map_err(read_error)?;
    let header = Header::parse(&head, len).map_err(of_header)?;
    let find = |name: &str, dtype: Dtype, shape: &[u64]| {
        let found = header.tensors.iter().find(|entry| entry.name == name);
        let found = found.ok_or_else(|| damaged(format!("{name} is missing")))?;
        match found.dtype == dtype && found.shape == shape {
            true => Ok(found),
            false => Err(damaged(format!(
                "{name} is {} of shape {:?}, expected {dtype} of shape {shape:?}",
                found.dtype, found.shape
            ))),
        }
    };
    let mut step = [0; 8];
    let entry = find(STEP, Dtype::U64, &[1])?;
    file.read_exact_at(&mut step, entry.offset)
        .map_err(read_error)?;
    let n = tensors.last().map_or(0, |tensor| tensor.range.end);
    let mut moments = [vec![0.0; n], vec![0.0; n]];
    for (moment, values) in MOMENTS.iter().zip(&mut moments) {
        for tensor in tensors {
            let shape = tensor.shape.map(|n| n as u64);
            let entry = find(&format!("{moment}.{}", tensor.name), Dtype::F32, &shape)?;
            let values = &mut values[tensor.range.clone()];
            numbers(&file, entry, values).map_err(read_error)?;
        }
    }
    if header.tensors.len() != 1 + 2 * tensors.len() {
        let found = header.tensors.len().saturating_sub(1) / 2;
        let what = format!(
            "has the state of {found} matrices, and {} are trained",
            tensors.len()
        );
        return Err(damaged(what));
    }
    Ok((u64::from_le_bytes(step), moments))
}

fn numbers(file: &File, entry: &SafetensorsEntry, values: &mut [f32]) -> std::io::Result<()> {
    let mut bytes = vec![0; CHUNK];
    let mut at = entry.offset;
    for values in values.chunks_mut(CHUNK / 4) {
        let bytes = &mut bytes[..values.len() * 4];
        file.read_exact_at(bytes, at)?;
        at += bytes.len() as u64;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }
    Ok(())
}
