//! The `llama` family (Llama 1–3, TinyLlama, SmolLM and many more), as llama.cpp writes it:
//! Q and K rows are permuted so that rotary pairs are adjacent.

use super::{OUTPUT, TOKEN_EMBD};
use crate::gguf::{Gguf, optional};
use crate::kernels::table::RopePairing;
use crate::model::{Architecture, ModelConfig, ModelError, Name, RopeScaling};

pub(in crate::model) fn describe(gguf: &Gguf<'_>) -> Result<ModelConfig, ModelError> {
    let size = |key: &str| -> Result<usize, ModelError> { Ok(gguf.u32(key)? as usize) };
    let size_or = |key: &str, default: usize| -> Result<usize, ModelError> {
        Ok(optional(gguf.u32(key))?.map_or(default, |n| n as usize))
    };
    if size_or("llama.expert_count", 0)? > 0 {
        return Err(not_implemented("mixture of experts", "llama.expert_count"));
    }
    let n_embd = size("llama.embedding_length")?;
    let n_head = size("llama.attention.head_count")?;
    let head_dim = n_embd.checked_div(n_head).unwrap_or(0);
    let head_dim_k = size_or("llama.attention.key_length", head_dim)?;
    let token_embd = gguf.tensor(TOKEN_EMBD).ok_or(ModelError::MissingTensor {
        name: TOKEN_EMBD.into(),
    })?;
    Ok(ModelConfig {
        architecture: Architecture::Llama,
        n_layer: size("llama.block_count")?,
        n_embd,
        n_head,
        n_head_kv: size_or("llama.attention.head_count_kv", n_head)?,
        head_dim_k,
        head_dim_v: size_or("llama.attention.value_length", head_dim)?,
        n_ff: size("llama.feed_forward_length")?,
        n_vocab: usize::try_from(token_embd.dims[1]).unwrap_or(usize::MAX),
        n_ctx_train: size("llama.context_length")?,
        n_rot: size_or("llama.rope.dimension_count", head_dim_k)?,
        rope_freq_base: optional(gguf.f32("llama.rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling: rope_scaling(gguf)?,
        rope_pairing: RopePairing::Interleaved,
        rms_eps: gguf.f32("llama.attention.layer_norm_rms_epsilon")?,
        tied_output: gguf.tensor(OUTPUT).is_none(),
        activations: ModelConfig::activations(gguf),
    })
}

fn rope_scaling(gguf: &Gguf<'_>) -> Result<RopeScaling, ModelError> {
    let factor = optional(gguf.f32("llama.rope.scaling.factor"))?
        // The spelling of files from 2023.
        .or(optional(gguf.f32("llama.rope.scale_linear"))?)
        .unwrap_or(0.0);
    let ty = optional(gguf.str("llama.rope.scaling.type"))?.unwrap_or("linear");
    match ty {
        _ if factor == 0.0 => Ok(RopeScaling::None),
        "none" => Ok(RopeScaling::None),
        "linear" if factor.is_normal() && factor > 0.0 => Ok(RopeScaling::Linear { factor }),
        "linear" => Err(ModelError::Setting {
            key: "llama.rope.scaling.factor".into(),
            value: factor.into(),
            expected: "above 0",
        }),
        _ => Err(not_implemented("rotary scaling", ty)),
    }
}

fn not_implemented(what: &'static str, name: &str) -> ModelError {
    ModelError::NotImplemented {
        what,
        name: Name::from(name),
    }
}
