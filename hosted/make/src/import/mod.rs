//! Importing a data directory of expert blobs ([`sluice_core::uth`]) as a GGUF file.
//!
//! Weights are taken dtype by dtype, without rounding again:
//!
//! | there | here |
//! |---|---|
//! | f32, f16, bf16, q4_0, q8_0, q4k, q5k, q6k | the same ggml type, the same bytes |
//! | mxfp4 | MXFP4: codes and scales in ggml's order; exact. Rows of whole blocks of 32 only |
//! | int8 | Q8_0 with the projection's scale in every block: exact where that scale is an f16; else an error, and [`Float`] says to which float type |
//!
//! Of a byte of MXFP4 codes the low nibble is taken for the column of even number. Rows of Q and K are
//! taken in the order they have: directories made from GGUF files have llama.cpp's.
#![forbid(unsafe_code)]

mod directory;
mod error;
mod experts;
mod manifest;

pub use directory::{Directory, Facts};
pub use error::ImportError;
pub use experts::Float;

use experts::Experts;
use sluice::file::{GgufHeader, OutputFile};
use sluice_core::kernels::GgmlType;
use sluice_core::model::LoadProgress;
use sluice_core::team::StopFlag;

/// What was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Decoder layers.
    pub n_layer: usize,
    /// Experts of each.
    pub n_expert: usize,
    /// Tensors beside the experts; 0 means that the directory has experts alone, which no engine
    /// can run.
    pub n_dense: usize,
}

/// Writes the GGUF file of a directory. `header` brings the metadata; what the directory knows
/// (counts and widths) is set in it under the architecture's name.
///
/// # Errors
/// [`ImportError`]: what is missing or does not fit, by name. Then there is no output.
pub fn import(
    directory: &Directory,
    mut header: GgufHeader,
    float: Option<Float>,
    output: OutputFile,
    stop: &StopFlag,
    mut progress: impl FnMut(LoadProgress),
) -> Result<Imported, ImportError> {
    let facts = directory.facts();
    let experts = Experts::new(directory, float)?;
    let dense = directory.dense()?;
    for (key, value) in [
        ("block_count", facts.n_layer),
        ("embedding_length", facts.n_embd),
        ("expert_count", facts.n_expert),
        ("expert_used_count", facts.n_expert_used),
        ("expert_feed_forward_length", facts.n_ff),
    ] {
        header.set(&format!("{}.{key}", facts.architecture), value);
    }
    header.set("general.architecture", facts.architecture.as_str());
    if !header.contains("general.name") {
        header.set("general.name", facts.name.as_str());
    }
    for tensor in &dense {
        header.add_tensor(&tensor.name, &tensor.dims, tensor.ty);
    }
    for (name, dims, ty) in experts.tensors() {
        header.add_tensor(&name, &dims, ty);
    }
    let total_bytes = header.file_bytes();
    let writer = header.start(output)?;
    let mut done_bytes = 0;
    let mut advance = |bytes: usize| {
        done_bytes += bytes as u64;
        progress(LoadProgress {
            done_bytes,
            total_bytes,
        });
        if stop.is_set() {
            return Err(ImportError::Stopped);
        }
        Ok(())
    };
    for (index, tensor) in dense.iter().enumerate() {
        let bytes = directory.read_dense(tensor)?;
        writer.write(index, 0, &bytes)?;
        advance(bytes.len())?;
    }
    experts.convert(|index, offset, bytes| {
        writer.write(dense.len() + index, offset, bytes)?;
        advance(bytes.len())
    })?;
    writer.finish()?;
    Ok(Imported {
        n_layer: facts.n_layer as usize,
        n_expert: facts.n_expert as usize,
        n_dense: dense.len(),
    })
}

/// A tensor outside of the experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTensor {
    /// In the GGUF file.
    name: String,
    /// The file it comes from.
    file: String,
    dims: Vec<u64>,
    ty: GgmlType,
    len_bytes: u64,
    checksum: Option<String>,
}
