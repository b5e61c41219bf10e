//! Mixtures of experts: Mixtral (a `llama` file with experts), `olmoe` (norms over whole queries
//! and keys, the router's weights used as they are) and `qwen3moe` (a norm of every query and key head,
//! weights that add up to 1). Every layer has routed experts and no shared one.

use super::draft::{Draft, PerLayer, WINDOW_KEYS, optional_size};
use super::{Family, Keys, layers};
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;
use crate::model::shape::{Experts, QkNorm, Router, RouterScore, SharedExpert};

pub(super) static MIXTRAL: Family = Family {
    name: "llama",
    layer: layers::EXPERTS,
    rope_pairing: RopePairing::Interleaved,
    keys: WINDOW_KEYS,
    adjust: |keys, draft| {
        draft.read_windows(keys)?;
        read_experts(keys, draft, NORMALIZED, None)
    },
    ..Family::PLAIN
};

pub(super) static OLMOE: Family = Family {
    name: "olmoe",
    layer: layers::EXPERTS_QK,
    qk_norm: QkNorm::Row,
    adjust: |keys, draft| read_experts(keys, draft, Router::SOFTMAX, None),
    ..Family::PLAIN
};

pub(super) static QWEN3MOE: Family = Family {
    name: "qwen3moe",
    layer: layers::EXPERTS_QK,
    qk_norm: QkNorm::Head,
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
    ],
    adjust: |keys, draft| {
        draft.read_windows(keys)?;
        let n_ff = optional_size(keys, "expert_feed_forward_length")?;
        // As in llama.cpp: experts without a width of their own have the layer's.
        let n_used = keys.size("expert_used_count")?.max(1);
        let n_ff = n_ff.unwrap_or(draft.n_ff.of(0) / n_used);
        read_experts(keys, draft, NORMALIZED, Some(n_ff))
    },
    ..Family::PLAIN
};

/// The defaults of most families with experts.
pub(super) const NORMALIZED: Router = Router {
    is_normalized: true,
    ..Router::SOFTMAX
};

/// Gives layers experts of `n_ff` neurons, or of the layer's own number.
pub(super) fn read_experts(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    router: Router,
    n_ff: Option<usize>,
) -> Result<(), ModelError> {
    let n_expert = keys.size("expert_count")?;
    if n_expert == 0 {
        return Err(keys.refuse("expert_count", 0.0, "1 to 1024"));
    }
    draft.experts = Some(Experts {
        n_ff: n_ff.unwrap_or(draft.ffn.n_ff),
        n_expert,
        n_expert_used: keys.size("expert_used_count")?,
        router,
        is_gated: draft.ffn.is_gated,
        activation: draft.ffn.activation,
        shared: None,
        has_norms: false,
        n_latent: 0,
        routes_input: false,
    });
    Ok(())
}

/// Neurons of an expert: `expert_feed_forward_length`, a number, or an array of one per block, all equal.
pub(super) fn n_ff_of_experts(
    keys: &Keys<'_, '_>,
    draft: &Draft<'_>,
    default: Option<usize>,
) -> Result<usize, ModelError> {
    const KEY: &str = "expert_feed_forward_length";
    let each = PerLayer::read(keys, KEY, default, draft.n_block)?;
    let first = (0..draft.n_layer).map(|layer| each.of(layer)).max();
    let first = first.unwrap_or(0);
    let is_same = |layer: usize| [0, first].contains(&each.of(layer));
    if !(0..draft.n_layer).all(is_same) {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        return Err(keys.refuse(KEY, first as f64, "the same in all layers"));
    }
    Ok(first)
}

/// The router as the file describes it; `default` for what the file does not set.
pub(super) fn read_router(keys: &Keys<'_, '_>, default: Router) -> Result<Router, ModelError> {
    const SCORE: &str = "expert_gating_func";
    let score = match keys.size_or(SCORE, 0)? {
        0 => default.score,
        1 => RouterScore::Softmax,
        2 => RouterScore::Sigmoid,
        3 => RouterScore::SoftmaxOfChosen,
        other => {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            return Err(keys.refuse(SCORE, other as f64, "1 to 3"));
        }
    };
    let scale = keys.f32_or("expert_weights_scale", default.scale)?;
    let n_group = keys.size_or("expert_group_count", 1)?.max(1);
    let n_group_used = match n_group {
        1 => 1,
        _ => keys.size("expert_group_used_count")?,
    };
    Ok(Router {
        score,
        is_normalized: keys.bool_or("expert_weights_norm", default.is_normalized)?,
        // 0 means no factor.
        scale: if scale == 0.0 { 1.0 } else { scale },
        n_group,
        n_group_used,
        ..default
    })
}

/// Adds the shared expert, which works on every token, if the file has one.
pub(super) fn share_expert(draft: &mut Draft<'_>, n_ff: usize, has_gate: bool) {
    if let Some(experts) = &mut draft.experts
        && n_ff > 0
    {
        experts.shared = Some(SharedExpert { n_ff, has_gate });
    }
}

/// The number of leading layers without experts, if the file has any.
pub(super) fn read_expert_layers(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
) -> Result<(), ModelError> {
    draft.expert_layers.n_leading = keys.size_or("leading_dense_block_count", 0)?;
    Ok(())
}
