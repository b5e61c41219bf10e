//! Importing a data directory of expert blobs ([`crate::uth`]) as a GGUF file.
//!
//! Weights are converted by type, without another rounding:
//!
//! | there | here |
//! |---|---|
//! | f32, f16, bf16, q4_0, q8_0, q4k, q5k, q6k | the same ggml type, the same bytes |
//! | mxfp4 | MXFP4: codes and scales in ggml's order; exact. Rows of whole blocks of 32 only |
//! | int8 | Q8_0 with the projection's scale in every block: exact where that scale is an f16; else an error, and [`Float`] says to which float type |
//!
//! [`link`] leaves the weights of the first row's types where they are.
//!
//! The low nibble of a byte of MXFP4 codes is the even column. Rows of Q and K keep their order: directories made from
//! GGUF files have llama.cpp's.

mod directory;
mod error;
mod experts;
mod linked;
mod manifest;

pub use directory::{Directory, Facts};
pub use error::ImportError;
pub use experts::Float;

use experts::Experts;
use sluice::file::{GgufHeader, GgufWriter, OutputFile};
use sluice_core::kernels::GgmlType;
use sluice_core::model::LoadProgress;
use sluice_core::team::StopFlag;
use std::path::{Path, PathBuf};

/// Counts of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// Decoder layers.
    pub n_layer: usize,
    /// Experts per layer.
    pub n_expert: usize,
    /// Number of tensors outside of the experts; 0 if the directory has only experts, which an engine cannot run.
    pub n_dense: usize,
}

/// Writes the GGUF file of a directory. `header` provides the metadata; the values the directory knows (counts and
/// widths) are set in it under the architecture's name.
///
/// # Errors
/// [`ImportError`], naming the missing or mismatched part; no output remains.
pub fn import(
    directory: &Directory,
    mut header: GgufHeader,
    float: Option<Float>,
    output: OutputFile,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress),
) -> Result<ImportSummary, ImportError> {
    let experts = Experts::new(directory, float)?;
    let dense = describe(directory, &mut header)?;
    for (name, dims, ty) in experts.tensors() {
        header.add_tensor(&name, &dims, ty);
    }
    let mut writing = Writing::start(header, output, stop, progress)?;
    writing.dense(&dense)?;
    experts.convert(|index, offset, bytes| writing.write(dense.len() + index, offset, bytes))?;
    writing.finish(directory, &dense)
}

/// As [`import()`], but experts are not copied: the file refers to them. Paths are relative if the experts are in its
/// folder, so that both can be moved together.
///
/// # Errors
/// As [`import()`]; [`ImportError::Left`] if weights have other bytes in a GGUF file.
pub fn link(
    directory: &Directory,
    mut header: GgufHeader,
    output: OutputFile,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress),
) -> Result<ImportSummary, ImportError> {
    let experts = Experts::new(directory, None)?;
    let dense = describe(directory, &mut header)?;
    let folder = output.path().parent().unwrap_or(Path::new(""));
    linked::links(directory, &experts, folder)?.write_to(&mut header);
    let mut writing = Writing::start(header, output, stop, progress)?;
    writing.dense(&dense)?;
    writing.finish(directory, &dense)
}

/// Sets the directory's counts and widths in the header, and adds the tensors outside of experts.
fn describe(
    directory: &Directory,
    header: &mut GgufHeader,
) -> Result<Vec<DenseTensor>, ImportError> {
    let facts = directory.facts();
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
    Ok(dense)
}

/// The file being written.
struct Writing<'s, P> {
    writer: GgufWriter,
    stop: &'s StopFlag,
    progress: P,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'s, P: FnMut(LoadProgress)> Writing<'s, P> {
    fn start(
        header: GgufHeader,
        output: OutputFile,
        stop: &'s StopFlag,
        progress: P,
    ) -> Result<Self, ImportError> {
        Ok(Self {
            total_bytes: header.file_bytes(),
            writer: header.start(output)?,
            stop,
            progress,
            done_bytes: 0,
        })
    }

    fn dense(&mut self, tensors: &[DenseTensor]) -> Result<(), ImportError> {
        for (index, tensor) in tensors.iter().enumerate() {
            self.write(index, 0, &tensor.read()?)?;
        }
        Ok(())
    }

    fn write(&mut self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), ImportError> {
        self.writer.write(index, offset, bytes)?;
        self.done_bytes += bytes.len() as u64;
        (self.progress)(LoadProgress {
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
        match self.stop.is_set() {
            true => Err(ImportError::Stopped),
            false => Ok(()),
        }
    }

    fn finish(
        self,
        directory: &Directory,
        dense: &[DenseTensor],
    ) -> Result<ImportSummary, ImportError> {
        self.writer.finish()?;
        Ok(ImportSummary {
            n_layer: directory.facts().n_layer as usize,
            n_expert: directory.facts().n_expert as usize,
            n_dense: dense.len(),
        })
    }
}

/// A tensor outside of the experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseTensor {
    /// Its name in the GGUF file.
    name: String,
    /// The file it is read from.
    path: PathBuf,
    dims: Vec<u64>,
    ty: GgmlType,
    len_bytes: u64,
    checksum: Option<String>,
}
