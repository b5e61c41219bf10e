//! The experts of a directory, as three tensors per layer.

use super::directory::{Directory, stored_as};
use super::error::ImportError;
use crate::uth::{Blob, BlobType, Projection, UthError};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{f16_to_f32, f32_to_f16};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// The float type for int8 weights that Q8_0 would round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// code × scale, rounded once to f16.
    F16,
    /// code × scale, rounded once to f32.
    F32,
}

/// The GGUF names of gate, up and down.
const NAMES: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// All experts, with their headers checked.
pub(super) struct Experts<'d> {
    directory: &'d Directory,
    float: Option<Float>,
    /// By layer: the types of gate, up and down.
    types: Vec<[BlobType; 3]>,
}

/// An expert's blob in its file.
struct Expert {
    id: u64,
    path: PathBuf,
    file: File,
    offset: u64,
    parts: [Projection; 3],
}

impl<'d> Experts<'d> {
    /// Reads and checks every expert's header.
    pub(super) fn new(directory: &'d Directory, float: Option<Float>) -> Result<Self, ImportError> {
        let facts = directory.facts();
        let mut types = Vec::new();
        for layer in 0..facts.n_layer {
            let mut of_layer = None;
            for local in 0..facts.n_expert {
                let parts = Expert::open(directory, layer, local)?.parts;
                let found = parts.each_ref().map(|part| part.dtype);
                let first = *of_layer.get_or_insert(found);
                if let Some(i) = (0..3).find(|&i| first[i] != found[i]) {
                    let projection = NAMES[i];
                    return Err(ImportError::TypesDiffer { layer, projection });
                }
            }
            types.extend(of_layer);
        }
        let experts = Self {
            directory,
            float,
            types,
        };
        experts.check_types()?;
        Ok(experts)
    }

    fn check_types(&self) -> Result<(), ImportError> {
        for (layer, types) in self.types.iter().enumerate() {
            for (i, &dtype) in types.iter().enumerate() {
                let [_, n_cols] = self.shape(i);
                let fits = self.ty(dtype).and_then(|ty| ty.row_bytes(n_cols));
                if fits.is_none() {
                    return Err(ImportError::Type {
                        what: format!("{} of layer {layer}, rows of {n_cols},", NAMES[i]),
                        dtype: dtype.name(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The GGUF type for a blob's type.
    fn ty(&self, dtype: BlobType) -> Option<GgmlType> {
        match (dtype, self.float) {
            (BlobType::Int8, Some(Float::F16)) => Some(GgmlType::F16),
            (BlobType::Int8, Some(Float::F32)) => Some(GgmlType::F32),
            _ => stored_as(dtype),
        }
    }

    /// (rows, columns) of projection `i`.
    fn shape(&self, i: usize) -> [u64; 2] {
        let facts = self.directory.facts();
        Blob::shapes(facts.n_embd, facts.n_ff)[i].map(u64::from)
    }

    /// Name, dimensions and type of every tensor, in the order of [`Self::convert`].
    pub(super) fn tensors(&self) -> Vec<(String, [u64; 3], GgmlType)> {
        let n_expert = u64::from(self.directory.facts().n_expert);
        let mut tensors = Vec::new();
        for (layer, types) in self.types.iter().enumerate() {
            for (i, &dtype) in types.iter().enumerate() {
                let [n_rows, n_cols] = self.shape(i);
                let name = format!("blk.{layer}.{}.weight", NAMES[i]);
                let ty = self.ty(dtype).expect("`check_types` has seen it");
                tensors.push((name, [n_cols, n_rows, n_expert], ty));
            }
        }
        tensors
    }

    /// The file of an expert whose bytes match a GGUF file's, and the offsets of gate, up and down in it.
    pub(super) fn place(&self, layer: u32, local: u32) -> Result<(PathBuf, [u64; 3]), ImportError> {
        let expert = Expert::open(self.directory, layer, local)?;
        if let Some(part) = expert.parts.iter().find(|part| part.dtype.ggml().is_none()) {
            let (id, dtype) = (expert.id, part.dtype.name());
            return Err(ImportError::Left { id, dtype });
        }
        let at = |part: &Projection| expert.offset.saturating_add(part.range.start);
        Ok((expert.path, expert.parts.each_ref().map(at)))
    }

    /// Passes every projection of every expert to `write`: tensor, offset in it, bytes.
    pub(super) fn convert(
        &self,
        mut write: impl FnMut(usize, u64, &[u8]) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let facts = self.directory.facts();
        for layer in 0..facts.n_layer {
            for local in 0..facts.n_expert {
                let expert = Expert::open(self.directory, layer, local)?;
                for i in 0..3 {
                    let bytes = self.weights(&expert, i)?;
                    let offset = u64::from(local) * bytes.len() as u64;
                    write(layer as usize * 3 + i, offset, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// The bytes of a projection in GGUF's layout.
    fn weights(&self, expert: &Expert, i: usize) -> Result<Vec<u8>, ImportError> {
        let part = &expert.parts[i];
        let mut bytes = vec![0; usize::try_from(part.range.end - part.range.start).unwrap_or(0)];
        expert.read(part.range.start, &mut bytes)?;
        let [n_rows, n_cols] = self.shape(i).map(|n| usize::try_from(n).unwrap_or(0));
        match (part.dtype, part.scale) {
            (BlobType::Int8, Some(scale)) => self.int8(expert.id, &bytes, scale),
            (BlobType::MXFP4, _) => Ok(mxfp4(&bytes, n_rows, n_cols)),
            _ => Ok(bytes),
        }
    }

    fn int8(&self, id: u64, codes: &[u8], scale: f32) -> Result<Vec<u8>, ImportError> {
        let value = |code: &u8| f32::from(code.cast_signed()) * scale;
        match self.float {
            Some(Float::F32) => Ok(codes.iter().flat_map(|c| value(c).to_le_bytes()).collect()),
            Some(Float::F16) => {
                let halves = codes.iter().map(|c| f32_to_f16(value(c)));
                Ok(halves.flat_map(u16::to_le_bytes).collect())
            }
            None => {
                let d = f32_to_f16(scale);
                if f16_to_f32(d).to_bits() != scale.to_bits() {
                    return Err(ImportError::Int8Scale { id, scale });
                }
                let blocks = codes.as_chunks::<32>().0;
                let blocks = blocks
                    .iter()
                    .flat_map(|qs| d.to_le_bytes().into_iter().chain(*qs));
                Ok(blocks.collect())
            }
        }
    }
}

impl Expert {
    fn open(directory: &Directory, layer: u32, local: u32) -> Result<Self, ImportError> {
        let (path, offset, len) = directory.expert(layer, local)?;
        let id = directory.expert_id(layer, local);
        let facts = directory.facts();
        let file = File::open(&path).map_err(|error| ImportError::Read {
            path: path.clone(),
            error,
        })?;
        let wanted = len.min(crate::uth::ALIGN + 12);
        let mut head = vec![0; usize::try_from(wanted).unwrap_or(0)];
        let mut expert = Self {
            id,
            path,
            file,
            offset,
            parts: core::array::from_fn(|_| Projection {
                dtype: facts.dtype,
                shape: [0; 2],
                range: 0..0,
                scale: None,
            }),
        };
        expert.read(0, &mut head)?;
        let in_expert = |error| ImportError::Expert { id, error };
        if Blob::is_uth(&head) {
            let blob = Blob::parse(&head, len).map_err(in_expert)?;
            for (what, found, expected) in [
                ("n_embd", blob.n_embd, facts.n_embd),
                ("n_ff", blob.n_ff, facts.n_ff),
            ] {
                if found != expected {
                    let (found, expected) = (found.to_string(), expected.to_string());
                    return Err(ImportError::Mismatch {
                        id,
                        what,
                        found,
                        expected,
                    });
                }
            }
            expert.parts = blob.projections;
            return Ok(expert);
        }
        if facts.dtype == BlobType::Mixed {
            let magic = *head.first_chunk().unwrap_or(&[0; 4]);
            return Err(in_expert(UthError::NotUth { magic }));
        }
        expert.bare(
            facts.dtype,
            Blob::shapes(facts.n_embd, facts.n_ff),
            &head,
            len,
        )?;
        Ok(expert)
    }

    /// Describes a payload without a header, of the directory's type.
    fn bare(
        &mut self,
        dtype: BlobType,
        shapes: [[u32; 2]; 3],
        head: &[u8],
        len_bytes: u64,
    ) -> Result<(), ImportError> {
        let id = self.id;
        let is_int8 = dtype == BlobType::Int8;
        let mut at = if is_int8 { 12 } else { 0 };
        for (index, (part, shape)) in (0u8..).zip(self.parts.iter_mut().zip(shapes)) {
            let [n_rows, n_cols] = shape.map(u64::from);
            let len = dtype.matrix_bytes(n_rows, n_cols);
            let error = UthError::Rows { index };
            let len = len.ok_or(ImportError::Expert { id, error })?;
            *part = Projection {
                dtype,
                shape,
                range: at..at + len,
                scale: None,
            };
            at += len;
            if is_int8 {
                let bytes = head
                    .get(4 * usize::from(index)..)
                    .and_then(<[u8]>::first_chunk);
                part.scale = bytes.map(|bytes| f32::from_le_bytes(*bytes));
            }
        }
        if at > len_bytes {
            let error = UthError::Truncated {
                needed: at,
                len_bytes,
            };
            return Err(ImportError::Expert { id, error });
        }
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ImportError> {
        let read = self
            .file
            .read_exact_at(into, self.offset.saturating_add(at));
        read.map_err(|error| ImportError::Read {
            path: self.path.clone(),
            error,
        })
    }
}

/// Converts codes of the whole matrix, followed by scales, to ggml's blocks: a scale, then 16 bytes whose low nibbles
/// are columns 0..16 and whose high nibbles are columns 16..32.
fn mxfp4(bytes: &[u8], n_rows: usize, n_cols: usize) -> Vec<u8> {
    let n_blocks = n_rows * n_cols / 32;
    let (codes, scales) = bytes.split_at(n_blocks * 16);
    let code = |block: &[u8; 16], col: usize| block[col / 2] >> (col % 2 * 4) & 0xf;
    let mut out = Vec::with_capacity(n_blocks * 17);
    for (block, &scale) in codes.as_chunks::<16>().0.iter().zip(scales) {
        out.push(scale);
        out.extend((0..16).map(|j| code(block, j) | code(block, j + 16) << 4));
    }
    out
}
