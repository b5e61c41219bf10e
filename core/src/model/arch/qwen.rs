//! `qwen2` (Qwen 2 and 2.5: biases of Q, K and V), `qwen3` (a norm of every query and key head instead) and `qwen2moe`
//! (Qwen 1.5 and 2 with experts, and a gated shared expert). Halves of a head rotate together.
//!
//! `qwen2vl`, `qwen3vl` and `qwen3vlmoe` are the text models of vision models, whose heads are split into sections that
//! rotate by time, height and width. In a text the three are equal, so they are `qwen2`, `qwen3` and `qwen3moe`.

use super::draft::WINDOW_KEYS;
use super::experts::{QWEN3MOE, n_ff_of_experts, read_experts, share_expert};
use super::{Family, layers};
use crate::kernels::words;
use crate::model::shape::{QkNorm, Router};

pub(super) static QWEN2: Family = Family {
    name: "qwen2",
    layer: layers::DENSE,
    keys: WINDOW_KEYS,
    adjust: |keys, draft| draft.read_windows(keys),
    ..Family::PLAIN
};

pub(super) static QWEN3: Family = Family {
    name: "qwen3",
    layer: layers::DENSE_QK,
    qk_norm: QkNorm::Head,
    keys: WINDOW_KEYS,
    adjust: |keys, draft| draft.read_windows(keys),
    ..Family::PLAIN
};

pub(super) static QWEN2_VL: Family = Family {
    name: "qwen2vl",
    keys: VISION,
    ..QWEN2
};

pub(super) static QWEN3_VL: Family = Family {
    name: "qwen3vl",
    keys: VISION,
    ..QWEN3
};

pub(super) static QWEN3_VL_MOE: Family = Family {
    name: "qwen3vlmoe",
    keys: VISION,
    ..QWEN3MOE
};

/// The keys of windows, and what describes pictures only.
const VISION: &[&str] = words!(
    "attention.sliding_window attention.sliding_window_pattern n_deepstack_layers \
     rope.dimension_sections"
);

pub(super) static QWEN2MOE: Family = Family {
    name: "qwen2moe",
    layer: layers::EXPERTS,
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
    ],
    adjust: |keys, draft| {
        draft.read_windows(keys)?;
        let n_used = keys.size("expert_used_count")?.max(1);
        let n_ff = n_ff_of_experts(keys, draft, Some(draft.ffn.n_ff / n_used))?;
        read_experts(keys, draft, Router::SOFTMAX, Some(n_ff))?;
        let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
        let n_ff = if n_ff == 0 { draft.ffn.n_ff } else { n_ff };
        share_expert(draft, n_ff, true);
        Ok(())
    },
    ..Family::PLAIN
};
