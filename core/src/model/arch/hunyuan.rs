//! `hunyuan-dense` and `hunyuan-moe`: norms of query and key heads after the rotation.
//!
//! Source: llama.cpp, `src/models/hunyuan-dense.cpp`, `hunyuan-moe.cpp`.

use super::experts::{NORMALIZED, read_experts, share_expert};
use super::{Family, layers};
use crate::model::shape::QkNorm;

pub(super) static HUNYUAN_DENSE: Family = Family {
    name: "hunyuan-dense",
    layer: layers::DENSE_QK,
    qk_norm: QkNorm::Head,
    adjust: |_, draft| {
        draft.attention.norms_rotated = true;
        Ok(())
    },
    ..Family::PLAIN
};

pub(super) static HUNYUAN_MOE: Family = Family {
    name: "hunyuan-moe",
    layer: layers::EXPERTS_QK,
    qk_norm: QkNorm::Head,
    keys: &["expert_shared_count", "expert_shared_feed_forward_length"],
    adjust: |keys, draft| {
        draft.attention.norms_rotated = true;
        read_experts(keys, draft, NORMALIZED, None)?;
        let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
        let n_ff = if n_ff == 0 { draft.ffn.n_ff } else { n_ff };
        share_expert(draft, n_ff, false);
        Ok(())
    },
    ..Family::PLAIN
};
