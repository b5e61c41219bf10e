//! `ernie4_5` and `ernie4_5-moe` (ERNIE 4.5): llama; experts chosen by scores with a bias, and a shared expert.
//!
//! Source: llama.cpp, `src/models/ernie4-5.cpp`, `ernie4-5-moe.cpp`.

use super::draft::Draft;
use super::experts::{NORMALIZED, n_ff_of_experts, read_expert_layers, read_experts, share_expert};
use super::{Family, Keys, layers};
use crate::kernels::table::RopePairing;
use crate::kernels::words;
use crate::model::error::ModelError;
use crate::model::shape::Router;

pub(super) static ERNIE4_5: Family = Family {
    name: "ernie4_5",
    layer: layers::DENSE,
    rope_pairing: RopePairing::Interleaved,
    ..Family::PLAIN
};

pub(super) static ERNIE4_5_MOE: Family = Family {
    name: "ernie4_5-moe",
    layer: layers::EXPERTS,
    rope_pairing: RopePairing::Interleaved,
    keys: words!(
        "expert_feed_forward_length expert_shared_count expert_shared_feed_forward_length \
         interleave_moe_layer_step leading_dense_block_count"
    ),
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let n_ff = n_ff_of_experts(keys, draft, None)?;
    read_expert_layers(keys, draft)?;
    draft.expert_layers.step = keys.size("interleave_moe_layer_step")?.max(1);
    let gguf = keys.gguf();
    let has_bias = gguf
        .tensors()
        .any(|tensor| tensor.name.ends_with("exp_probs_b.bias"));
    let router = Router {
        has_bias,
        ..NORMALIZED
    };
    read_experts(keys, draft, router, Some(n_ff))?;
    let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
    share_expert(draft, n_ff, false);
    Ok(())
}
