//! `minimax-m2`: norms over whole queries and keys, part of each head rotated, experts by sigmoid scores with a bias.
//!
//! Source: llama.cpp, `src/models/minimax-m2.cpp`.

use super::experts::{NORMALIZED, read_experts, read_router};
use super::{Family, layers};
use crate::model::shape::{QkNorm, Router, RouterScore};

pub(super) static MINIMAX_M2: Family = Family {
    name: "minimax-m2",
    layer: layers::EXPERTS_QK,
    qk_norm: QkNorm::Row,
    keys: &["expert_gating_func"],
    adjust: |keys, draft| {
        let default = Router {
            score: RouterScore::Sigmoid,
            has_bias: true,
            ..NORMALIZED
        };
        let Router { score, .. } = read_router(keys, default)?;
        read_experts(keys, draft, Router { score, ..default }, None)
    },
    ..Family::PLAIN
};
