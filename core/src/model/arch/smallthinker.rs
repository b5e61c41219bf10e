//! `smallthinker` (SmallThinker 4B-A0.6B and 21B-A3B): experts with ReLU as their gate's activation, and a router that
//! reads the layer's input, so that experts are known before attention. In models with a window, the first of every
//! four layers sees all keys and does not rotate.
//!
//! Source: llama.cpp, `src/models/smallthinker.cpp`, which sets every window to 4096, as in the published models;
//! here it is the file's.

use super::draft::{Draft, Pattern, RopeLayers};
use super::experts::{NORMALIZED, n_ff_of_experts, read_experts, read_router};
use super::{Family, Keys, layers};
use crate::kernels::words;
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::shape::{Router, RouterScore};

pub(super) static SMALLTHINKER: Family = Family {
    name: "smallthinker",
    layer: &[layers::ATTENTION, layers::FFN, layers::ROUTED],
    activation: Activation::Relu { threshold: 0.0 },
    keys: words!(
        "attention.rope_pattern attention.sliding_window attention.sliding_window_pattern \
         expert_feed_forward_length expert_gating_func rope.freq_base_swa"
    ),
    adjust,
    ..Family::PLAIN
};

/// Layers of which the first is without a window and a rotation.
const PERIOD: usize = 4;

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.window = keys.size_or("attention.sliding_window", 0)?;
    if draft.window > 0 {
        draft.windows = match Pattern::read(keys, PERIOD, draft.n_block)? {
            Pattern::Period(n) => Pattern::DenseFirst(n),
            listed => listed,
        };
        draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
    }
    draft.rope_layers = match RopeLayers::read(keys, draft.n_block)? {
        RopeLayers::All if draft.window > 0 => RopeLayers::AllButFirst(PERIOD),
        read => read,
    };
    let n_ff = n_ff_of_experts(keys, draft, Some(draft.ffn.n_ff))?;
    let default = Router {
        score: RouterScore::Sigmoid,
        ..NORMALIZED
    };
    read_experts(keys, draft, read_router(keys, default)?, Some(n_ff))?;
    if let Some(experts) = &mut draft.experts {
        experts.routes_input = true;
    }
    Ok(())
}
