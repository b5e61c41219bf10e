//! `gemma2` and `gemma3`: norms before and behind attention and feed-forward network, GeGLU,
//! embeddings times sqrt(n_embd), sliding windows in most layers.
//!
//! Norm weights are used as they are: converters have added Gemma's 1 to them.

use super::{Architecture, Family, Keys, Matrix as M, Norm, Tensor};
use crate::kernels::contract::sqrt;
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, LocalRope, ModelConfig, QkNorm, WindowPattern};
use crate::model::error::ModelError;

pub(super) static GEMMA2: Family = Family {
    name: "gemma2",
    architecture: Architecture::Gemma2,
    layer: &[
        Tensor::Norm("attn_norm", Norm::Attn),
        Tensor::Matrix("attn_q", &[M::AttnQ]),
        Tensor::Matrix("attn_k", &[M::AttnK]),
        Tensor::Matrix("attn_v", &[M::AttnV]),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::Norm("post_attention_norm", Norm::AttnPost),
        Tensor::Norm("ffn_norm", Norm::Ffn),
        Tensor::Matrix("ffn_gate", &[M::FfnGate]),
        Tensor::Matrix("ffn_up", &[M::FfnUp]),
        Tensor::Matrix("ffn_down", &[M::FfnDown]),
        Tensor::Norm("post_ffw_norm", Norm::FfnPost),
    ],
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::None,
    activation: Activation::Gelu,
    adjust: gemma2,
};

pub(super) static GEMMA3: Family = Family {
    name: "gemma3",
    architecture: Architecture::Gemma3,
    layer: &[
        Tensor::Norm("attn_norm", Norm::Attn),
        Tensor::Matrix("attn_q", &[M::AttnQ]),
        Tensor::Matrix("attn_k", &[M::AttnK]),
        Tensor::Matrix("attn_v", &[M::AttnV]),
        Tensor::Norm("attn_q_norm", Norm::Query),
        Tensor::Norm("attn_k_norm", Norm::Key),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::Norm("post_attention_norm", Norm::AttnPost),
        Tensor::Norm("ffn_norm", Norm::Ffn),
        Tensor::Matrix("ffn_gate", &[M::FfnGate]),
        Tensor::Matrix("ffn_up", &[M::FfnUp]),
        Tensor::Matrix("ffn_down", &[M::FfnDown]),
        Tensor::Norm("post_ffw_norm", Norm::FfnPost),
    ],
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::Head,
    activation: Activation::Gelu,
    adjust: gemma3,
};

fn gemma2(keys: &Keys<'_, '_>, c: &mut ModelConfig) -> Result<(), ModelError> {
    common(keys, c, 46);
    c.attention_soft_cap = soft_cap(keys, "attn_logit_softcapping", 50.0)?;
    c.logit_soft_cap = soft_cap(keys, "final_logit_softcapping", 30.0)?;
    windows(keys, c, 4096, 2)?;
    let freq_base = keys.f32_or("rope.freq_base_swa", c.rope_freq_base)?;
    if freq_base.to_bits() != c.rope_freq_base.to_bits() {
        let is_scaled = true;
        c.rope_local = Some(LocalRope {
            freq_base,
            is_scaled,
        });
    }
    Ok(())
}

fn gemma3(keys: &Keys<'_, '_>, c: &mut ModelConfig) -> Result<(), ModelError> {
    common(keys, c, 62);
    c.logit_soft_cap = keys.f32_or("final_logit_softcapping", 0.0)?;
    windows(keys, c, 0, 6)?;
    if c.sliding_window > 0 {
        c.rope_local = Some(LocalRope {
            freq_base: keys.f32_or("rope.freq_base_swa", 10_000.0)?,
            is_scaled: false,
        });
    }
    Ok(())
}

/// Scales of embeddings and queries. The largest model of a family, told by its layers, divides
/// by the width per head, which is not its head length.
fn common(_: &Keys<'_, '_>, c: &mut ModelConfig, n_layer_27b: usize) {
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    let root = |n: usize| sqrt(n as f32);
    c.embedding_scale = root(c.n_embd);
    if c.n_layer == n_layer_27b {
        c.attention_scale = 1.0 / root(c.n_embd.checked_div(c.n_head).unwrap_or(0));
    }
}

/// A cap that the family always has.
fn soft_cap(keys: &Keys<'_, '_>, key: &str, default: f32) -> Result<f32, ModelError> {
    let cap = keys.f32_or(key, default)?;
    if cap == 0.0 {
        return Err(keys.refuse(key, cap, "above 0"));
    }
    Ok(cap)
}

/// Which layers have a window, and of how many keys. The pattern is a period, whose last layer
/// sees all keys, or a truth value per layer.
fn windows(
    keys: &Keys<'_, '_>,
    c: &mut ModelConfig,
    window: usize,
    period: usize,
) -> Result<(), ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    c.sliding_window = keys.size_or("attention.sliding_window", window)?;
    if let Some(array) = keys.array(PATTERN) {
        let is_bools = array.iter().all(|value| value.as_bool().is_some());
        if !is_bools || array.len() != c.n_layer as u64 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let len = array.len() as f64;
            return Err(keys.refuse(PATTERN, len, "a truth value for each layer"));
        }
        c.window_pattern = WindowPattern::Listed;
    } else {
        c.window_pattern = WindowPattern::Period(keys.size_or(PATTERN, period)?);
    }
    Ok(())
}

/// Whether the file's list gives layer `i` a window.
pub(in crate::model) fn is_listed(keys: &Keys<'_, '_>, i: usize) -> bool {
    keys.array("attention.sliding_window_pattern")
        .and_then(|array| array.get(i as u64)?.as_bool())
        .unwrap_or(false)
}
