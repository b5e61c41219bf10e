//! The contents of data directories.

use super::DenseTensor;
use super::error::ImportError;
use super::manifest::{Json, Listed, PackedExperts, packed};
use crate::uth::BlobType;
use sluice_core::kernels::GgmlType;
use std::fs;
use std::path::{Path, PathBuf};

/// The values in `metadata.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`.
    pub name: String,
    /// Decoder layers.
    pub n_layer: u32,
    /// Experts per layer.
    pub n_expert: u32,
    /// Experts used per token.
    pub n_expert_used: u32,
    /// Width of the hidden state.
    pub n_embd: u32,
    /// Width of an expert.
    pub n_ff: u32,
    /// The type of experts without a header.
    pub dtype: BlobType,
}

/// A directory whose metadata has been read, or several that hold one model together.
#[derive(Debug)]
pub struct Directory {
    paths: Vec<PathBuf>,
    facts: Facts,
    experts_only: bool,
    /// Packed experts, by directory: the blob, and offset and length by ID.
    packed: Vec<PackedExperts>,
}

impl Facts {
    /// Reads `metadata.json` of a directory.
    fn read(metadata: &Json, architecture: Option<&str>) -> Result<Self, ImportError> {
        let dtype = metadata.str("dtype")?;
        let n_layer = metadata.u32("num_layers")?;
        let facts = Self {
            architecture: match architecture {
                Some(name) => name.into(),
                None => metadata.str("architecture")?.into(),
            },
            name: metadata.str("model").unwrap_or("imported").into(),
            n_layer,
            n_expert: metadata.u32("num_experts_per_layer")?,
            n_expert_used: metadata.u32("top_k")?,
            n_embd: metadata.u32("d_model")?,
            n_ff: metadata.u32("d_ff")?,
            dtype: BlobType::from_name(dtype)
                .ok_or_else(|| metadata.error("dtype", "a known type"))?,
        };
        let limits = [
            ("num_layers", facts.n_layer, 4096),
            ("num_experts_per_layer", facts.n_expert, 1 << 16),
            ("d_model", facts.n_embd, 1 << 24),
            ("d_ff", facts.n_ff, 1 << 24),
        ];
        for (key, value, max) in limits {
            if value == 0 || value > max {
                return Err(metadata.error(key, "in its range"));
            }
        }
        Ok(facts)
    }
}

impl Directory {
    /// Reads `metadata.json` and, if there is one, the manifest of packed experts. `architecture` overrides the
    /// metadata.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn open(path: &Path, architecture: Option<&str>) -> Result<Self, ImportError> {
        Self::open_all(&[path.into()], architecture)
    }

    /// Opens several directories, possibly on different drives: expert `id` is looked for in directory `id` modulo
    /// their number, then in the others; all other files may be in any of them. The first has `metadata.json`.
    ///
    /// # Errors
    /// [`ImportError`].
    ///
    /// # Panics
    /// If `paths` is empty.
    pub fn open_all(paths: &[PathBuf], architecture: Option<&str>) -> Result<Self, ImportError> {
        let metadata = Json::read(paths[0].join("metadata.json"))?;
        let facts = Facts::read(&metadata, architecture)?;
        for path in &paths[1..] {
            let path = path.join("metadata.json");
            if path.exists() && Facts::read(&Json::read(path.clone())?, architecture)? != facts {
                return Err(ImportError::OtherFacts { path });
            }
        }
        let experts_only = metadata
            .str("conversion_mode")
            .is_ok_and(|mode| mode == "experts_only");
        Ok(Self {
            packed: paths
                .iter()
                .map(|path| packed(path))
                .collect::<Result<_, _>>()?,
            paths: paths.into(),
            facts,
            experts_only,
        })
    }

    /// The values in `metadata.json`.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The position of an expert's blob: file, offset, length.
    pub(super) fn expert(
        &self,
        layer: u32,
        local: u32,
    ) -> Result<(PathBuf, u64, u64), ImportError> {
        let id = self.expert_id(layer, local);
        let names = [
            format!("expert_{id}.bin"),
            format!("expert_{layer}_{local}.bin"),
        ];
        let mut looked_for = names.join(", ");
        let n = self.paths.len();
        // The remainder is less than `n`.
        let home = usize::try_from(id % n as u64).unwrap_or(0);
        for index in (home..n).chain(0..home) {
            for name in &names {
                let path = self.paths[index].join(name);
                if let Ok(found) = fs::metadata(&path) {
                    return Ok((path, 0, found.len()));
                }
            }
            if let Some((blob, entries)) = &self.packed[index] {
                if let Some(&(offset, len)) = entries.get(&id) {
                    return Ok((blob.clone(), offset, len));
                }
                looked_for += &format!(", the manifest of {}", blob.display());
            }
        }
        Err(ImportError::MissingExpert {
            id,
            layer,
            local,
            looked_for,
        })
    }

    pub(super) fn expert_id(&self, layer: u32, local: u32) -> u64 {
        u64::from(layer) * u64::from(self.facts.n_expert) + u64::from(local)
    }

    /// The tensors outside of experts; empty if the directory has only experts.
    pub(super) fn dense(&self) -> Result<Vec<DenseTensor>, ImportError> {
        let manifests = self
            .paths
            .iter()
            .map(|path| path.join("dense_manifest.json"));
        let mut listed = Vec::new();
        for path in manifests.filter(|path| path.exists()) {
            listed.extend(Listed::manifest(&path)?);
        }
        let mut tensors = Vec::new();
        let mut missing = None;
        for place in self.places() {
            let is_it = |name: &String| {
                let stem = name.trim_end_matches(".bin");
                place.stems.iter().any(|other| other == stem)
            };
            let index = listed.iter().position(|t| t.names.iter().any(is_it));
            let found = match index {
                Some(index) => Some(listed.remove(index)),
                None => place.stems.iter().find_map(|stem| self.unlisted(stem)),
            };
            match found {
                Some(found) if found.tied => {}
                Some(found) => tensors.push(self.place(&place, found)?),
                None if place.required => {
                    missing.get_or_insert_with(|| place.stems[0].clone());
                }
                None => {}
            }
        }
        match missing {
            Some(name) if !tensors.is_empty() && !self.experts_only => {
                Err(ImportError::MissingDense { name })
            }
            _ => Ok(tensors),
        }
    }

    /// An f32 file that no manifest lists.
    fn unlisted(&self, stem: &str) -> Option<Listed> {
        let file = format!("{stem}.bin");
        let mut paths = self.paths.iter().map(|path| path.join(&file));
        let (path, len_bytes) =
            paths.find_map(|path| Some((path.clone(), fs::metadata(&path).ok()?.len())))?;
        Some(Listed {
            names: Vec::new(),
            path,
            dtype: BlobType::F32,
            len_bytes,
            checksum: None,
            tied: false,
        })
    }

    /// Derives a tensor's type and shape from its length.
    fn place(&self, place: &Place, found: Listed) -> Result<DenseTensor, ImportError> {
        let path = found.path;
        let dtype = found.dtype;
        let ty = dtype.ggml().ok_or_else(|| ImportError::Type {
            what: path.display().to_string(),
            dtype: dtype.name(),
        })?;
        let elements = found.len_bytes / ty.block_bytes() as u64 * ty.block_len() as u64;
        let n_embd = u64::from(self.facts.n_embd);
        let dims = match place.shape {
            Shape::Vector => vec![elements],
            Shape::Inputs => vec![n_embd, elements / n_embd],
            Shape::Outputs => vec![elements / n_embd, n_embd],
        };
        let expected = ty
            .row_bytes(dims[0])
            .map_or(0, |row| row * dims[1..].iter().product::<u64>());
        if expected == 0 || expected != found.len_bytes {
            let found = found.len_bytes;
            return Err(ImportError::Length {
                path,
                found,
                expected,
            });
        }
        Ok(DenseTensor {
            name: place.gguf.clone(),
            path,
            dims,
            ty,
            len_bytes: found.len_bytes,
            checksum: found.checksum,
        })
    }

    /// Every tensor that may exist, in the order of the GGUF file.
    fn places(&self) -> Vec<Place> {
        let place = |gguf: String, stems: &[String], shape, required| Place {
            gguf,
            stems: stems.into(),
            shape,
            required,
        };
        let s = |text: &str| text.to_owned();
        let mut places = vec![
            place(
                s("token_embd.weight"),
                &[s("embedding"), s("embed")],
                Shape::Inputs,
                true,
            ),
            place(
                s("output_norm.weight"),
                &[s("final_norm"), s("final_rms")],
                Shape::Vector,
                true,
            ),
            place(s("output.weight"), &[s("lm_head")], Shape::Inputs, false),
        ];
        for l in 0..self.facts.n_layer {
            layer_places(l, &mut |part, stems, shape, required| {
                places.push(place(
                    format!("blk.{l}.{part}.weight"),
                    stems,
                    shape,
                    required,
                ));
            });
        }
        places
    }
}

impl DenseTensor {
    /// Reads the bytes of a tensor and checks them.
    pub(super) fn read(&self) -> Result<Vec<u8>, ImportError> {
        let path = self.path.clone();
        let bytes = fs::read(&path).map_err(|error| ImportError::Read {
            path: path.clone(),
            error,
        })?;
        if bytes.len() as u64 != self.len_bytes {
            let found = bytes.len() as u64;
            let expected = self.len_bytes;
            return Err(ImportError::Length {
                path,
                found,
                expected,
            });
        }
        if let Some(expected) = &self.checksum {
            let found = format!("fnv1a64:{:016x}", fnv1a64(&bytes));
            if found != *expected {
                let expected = expected.clone();
                return Err(ImportError::Checksum {
                    path,
                    found,
                    expected,
                });
            }
        }
        Ok(bytes)
    }
}

/// The GGUF name and shape of a tensor to look for.
struct Place {
    gguf: String,
    /// Possible file names, without `.bin`.
    stems: Vec<String>,
    shape: Shape,
    required: bool,
}

/// Called for each tensor of a layer: its GGUF name, its file names, its shape, and whether it is required.
type Add<'a> = &'a mut dyn FnMut(&str, &[String], Shape, bool);

/// The tensors of layer `l` outside of experts.
fn layer_places(l: u32, add: Add<'_>) {
    use Shape::{Inputs, Outputs, Vector};
    let norm = [format!("layer_{l}_attn_norm"), format!("rms_attn_{l}")];
    add("attn_norm", &norm, Vector, true);
    for (to, from, shape) in [
        ("attn_q", "q", Inputs),
        ("attn_k", "k", Inputs),
        ("attn_v", "v", Inputs),
        ("attn_output", "o", Outputs),
    ] {
        let stems = [format!("layer_{l}_{from}"), format!("attn_{l}_{from}")];
        add(to, &stems, shape, true);
    }
    add("attn_q_norm", &[format!("q_norm_{l}")], Vector, false);
    add("attn_k_norm", &[format!("k_norm_{l}")], Vector, false);
    let norm = [format!("layer_{l}_ffn_norm"), format!("rms_moe_{l}")];
    add("ffn_norm", &norm, Vector, true);
    add("ffn_gate_inp", &[format!("gate_{l}")], Inputs, true);
    for (to, from, shape) in [
        ("ffn_gate_shexp", "gate", Inputs),
        ("ffn_up_shexp", "up", Inputs),
        ("ffn_down_shexp", "down", Outputs),
        ("ffn_gate_inp_shexp", "gate_inp", Vector),
    ] {
        add(to, &[format!("layer_{l}_shexp_{from}")], shape, false);
    }
}

/// The shape that a tensor's length determines.
#[derive(Clone, Copy)]
enum Shape {
    Vector,
    /// Rows of length n_embd.
    Inputs,
    /// A total of n_embd rows.
    Outputs,
}

/// FNV-1a, 64 bit, over all bytes.
fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The ggml type in which a whole tensor of experts is stored.
pub(super) const fn stored_as(dtype: BlobType) -> Option<GgmlType> {
    match dtype {
        BlobType::Int8 => Some(GgmlType::Q8_0),
        BlobType::MXFP4 => Some(GgmlType::MXFP4),
        _ => dtype.ggml(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_has_its_published_values() {
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
