//! The text models of Qwen's vision models. In a text the positions of all axes are equal, so they are Qwen2 and Qwen3
//! with other names.

use super::attention::{ATTENTION_BIAS, HEAD_NORMS, attention};
use super::decoder::{EXPERT_WIDTH_OR_OWN, N_USED, QWEN2, QWEN3, QWEN3_MOE};
use super::description::Description;
use super::keys::{EPSILON, Key, write_sections};
use super::rope::RopeTraits;
use super::rows::{EXPERTS, Experts, NORMS, ROUTER, always, block, sparse};
use super::shape::HeadDim;
use super::traits::{Traits, means};
use super::{pooling, reranker, windows};
use crate::HfError;
use crate::unread::Neutral;
use serde_json::Value;

/// Qwen2-VL and Qwen2.5-VL.
pub(super) const QWEN2_VL: Traits = Traits {
    keys: &[
        EPSILON,
        Key::By(|out| write_sections(out, [16, 24, 24, 0])),
        Key::By(pooling::write),
        Key::By(windows::in_late),
    ],
    rope: RopeTraits {
        has_sections: true,
        ..RopeTraits::of_base(1e6)
    },
    is_wrapped: true,
    defaults: r#"{"max_window_layers": 80}"#,
    ..QWEN2
};

pub(super) const QWEN3_VL: Traits = Traits {
    keys: &[
        EPSILON,
        QWEN3_SECTIONS,
        Key::By(pooling::write),
        Key::By(reranker::write),
        Key::By(write_deep_stack),
    ],
    rope: QWEN3_ROPE,
    is_wrapped: true,
    ..QWEN3
};

const QWEN3_SECTIONS: Key = Key::By(|out| write_sections(out, [24, 20, 20, 0]));

const QWEN3_ROPE: RopeTraits = RopeTraits {
    has_sections: true,
    ..RopeTraits::of_base(5e5)
};

pub(super) const QWEN3_VL_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(ATTENTION_BIAS, ATTENTION_BIAS)),
        block(HEAD_NORMS),
        sparse(
            always,
            ROUTER,
            Experts {
                may_be_turned: true,
                ..EXPERTS
            },
        ),
    ],
    keys: &[
        EPSILON,
        N_USED,
        EXPERT_WIDTH_OR_OWN,
        QWEN3_SECTIONS,
        Key::By(write_deep_stack),
    ],
    head_dim: HeadDim::Share,
    rope: QWEN3_ROPE,
    is_wrapped: true,
    // The class always normalises.
    means: &[
        means("is_causal", Neutral::On),
        means("norm_topk_prob", Neutral::On),
    ],
    ..QWEN3_MOE
};

/// The number of layers after which a picture's features are added.
fn write_deep_stack(out: &mut Description<'_>) -> Result<(), HfError> {
    let vision = out.config.part("vision_config");
    let layers = vision.find(&["deepstack_visual_indexes"]);
    let layers = layers.and_then(Value::as_array).map_or(0, Vec::len);
    out.set_size("n_deepstack_layers", layers as u64);
    Ok(())
}
