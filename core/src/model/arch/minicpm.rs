//! `minicpm` (MiniCPM 1 and 2, MiniCPM-S): llama with Granite's factors on embeddings, branches and logits, which have
//! defaults. Logits are divided by `logit_scale`.
//!
//! Source: llama.cpp, `src/models/minicpm.cpp`. Its default of the divisor, 256 / width, is the inverse of the models'
//! own, `hidden_size / dim_model_base` with 256; here files without the key have the models'.

use super::draft::Draft;
use super::experts::{NORMALIZED, read_experts};
use super::{Family, Keys, layers};
use crate::kernels::contract::sqrt;
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;

pub(super) static MINICPM: Family = Family {
    name: "minicpm",
    layer: &[layers::ATTENTION, layers::FFN, layers::ROUTED],
    rope_pairing: RopePairing::Interleaved,
    keys: &["embedding_scale", "logit_scale", "residual_scale"],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let config = &mut draft.config;
    #[expect(clippy::cast_precision_loss, reason = "both are below 2^24")]
    let (width, n_layer) = (config.n_embd as f32, draft.n_layer as f32);
    config.embedding_scale = keys.f32_or("embedding_scale", 12.0)?;
    config.residual_scale = keys.f32_or("residual_scale", 1.4 / sqrt(n_layer))?;
    config.logit_scale = 1.0 / keys.f32_or("logit_scale", width / 256.0)?;
    if keys.size_or("expert_count", 0)? > 0 {
        read_experts(keys, draft, NORMALIZED, None)?;
    }
    Ok(())
}
