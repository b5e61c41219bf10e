//! `mistral3` (Ministral 3, Devstral Small 2): llama with YaRN, and queries that grow beyond the original context.
//!
//! Source: llama.cpp, `src/models/mistral3.cpp`.

use super::draft::Draft;
use super::experts::{NORMALIZED, read_experts, share_expert};
use super::{Family, Keys, layers};
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;
use crate::model::shape::QueryTemperature;

pub(super) static MISTRAL3: Family = Family {
    name: "mistral3",
    layer: layers::EXPERTS,
    rope_pairing: RopePairing::Interleaved,
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.temperature_scale",
        "expert_shared_feed_forward_length",
    ],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.read_windows(keys)?;
    let scale = keys.f32_or("attention.temperature_scale", 0.0)?;
    if scale != 0.0 {
        draft.attention.temperature = Some(QueryTemperature {
            scale,
            length: draft.config.rope_scaling.n_ctx_orig,
        });
    }
    if keys.size_or("expert_count", 0)? > 0 {
        read_experts(keys, draft, NORMALIZED, None)?;
        let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
        share_expert(draft, n_ff, false);
    }
    Ok(())
}
