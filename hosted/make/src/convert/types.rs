//! The types of a converted file's tensors.

use super::folder::Weights;
use sluice_core::kernels::GgmlType;
use sluice_hf::safetensors::Dtype;

/// Returns a tensor's type from its GGUF name and its dimensions (the row length first).
pub type TypeOf<'a> = dyn Fn(&str, &[u64]) -> GgmlType + 'a;

/// The types available for most tensors of a converted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8 bits per number, with a scale for each 32.
    Q8_0,
}

impl FloatType {
    /// llama.cpp's number for a file of this type (`LLAMA_FTYPE_…`).
    #[must_use]
    pub const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Chooses as llama.cpp's converter does: [`keeps_f32`] applies, and rows that are not a whole
    /// number of blocks become F16. Usable as a [`TypeOf`].
    #[must_use]
    pub fn type_of(self, name: &str, dims: &[u64]) -> GgmlType {
        if keeps_f32(name, dims) {
            return GgmlType::F32;
        }
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Bf16 => GgmlType::BF16,
            Self::Q8_0 if dims[0].is_multiple_of(32) => GgmlType::Q8_0,
            Self::Q8_0 => GgmlType::F16,
        }
    }

    /// The type of the folder's first float matrix. 8-bit weights become BF16, because they have
    /// more range than F16 and no more digits than BF16.
    pub(super) fn of(weights: &Weights) -> Self {
        let mut tensors = weights.tensors.iter();
        let first = tensors.find_map(|tensor| match tensor.entry.dtype {
            _ if tensor.entry.shape.len() < 2 => None,
            Dtype::BF16 | Dtype::F8_E4M3 => Some(Self::Bf16),
            Dtype::F16 | Dtype::F32 => Some(Self::F16),
            _ => None,
        });
        first.unwrap_or(Self::F16)
    }
}

/// Whether a tensor is stored as F32 in files of every type: vectors, norms, biases, the routers of
/// experts, the taps of convolutions, an encoder's positions and token types.
#[must_use]
pub fn keeps_f32(name: &str, dims: &[u64]) -> bool {
    dims.len() < 2
        || !name.ends_with(".weight")
        || name.ends_with("_norm.weight")
        || name.ends_with("ffn_gate_inp.weight")
        || name.ends_with("ffn_gate_inp_shexp.weight")
        || name.ends_with("shortconv.conv.weight")
        || name.ends_with("ssm_conv1d.weight")
        || ["position_embd.weight", "token_types.weight"].contains(&name)
}
