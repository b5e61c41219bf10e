//! GLM-4: norms after attention too, and half of a head rotates; and GLM-4.5 with experts.

use super::attention::{ATTENTION_IN, HEAD_NORMS};
use super::keys::{EXPERT_WIDTH, Key, Or, Said, write_nextn};
use super::rows::{
    EXPERTS, SWIGLU, block, block_when, is_dense, is_nextn, is_sparse, n_embd, n_ff, row, sparse,
};
use super::shape::{ExpertSizes, Nextn};
use super::sparse::{BIASED_ROUTER, NEXTN, SHARED, shares};
use super::traits::{Traits, VocabularyTraits, means};
use crate::unread::Neutral;

pub(super) const GLM4: Traits = Traits {
    blocks: &[
        block(&[
            row("attn_norm", "input_layernorm", &[n_embd]),
            row("post_attention_norm", "post_self_attn_layernorm", &[n_embd]),
            row("ffn_norm", "post_attention_layernorm", &[n_embd]),
            row("post_ffw_norm", "post_mlp_layernorm", &[n_embd]),
            // Gates and ups.
            row(
                "ffn_up",
                "mlp.gate_up_proj",
                &[|shape| 2 * n_ff(shape), n_embd],
            ),
            row("ffn_down", "mlp.down_proj", &[n_embd, n_ff]),
        ]),
        block(ATTENTION_IN),
    ],
    keys: &[Key::Rotates(0.5)],
    defaults: r#"{"attention_bias": true}"#,
    vocabulary: VocabularyTraits::with_roles(&[
        ("eos", "<|endoftext|>"),
        ("eot", "<|user|>"),
        ("unk", "<|endoftext|>"),
        ("bos", "<|endoftext|>"),
    ]),
    ..Traits::TABLES
};

pub(super) const GLM4_MOE: Traits = Traits {
    blocks: &[
        block(&[
            row("attn_norm", "input_layernorm", &[n_embd]),
            row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
        ]),
        block(ATTENTION_IN),
        block_when(|shape, _| shape.size("use_qk_norm") > 0, HEAD_NORMS),
        block_when(is_dense, SWIGLU),
        sparse(is_sparse, BIASED_ROUTER, EXPERTS),
        block_when(shares, SHARED),
        block_when(is_nextn, NEXTN),
    ],
    keys: &[
        Key::Rotates(0.5),
        EXPERT_WIDTH,
        Key::Count("n_shared_experts", "expert_shared_count", Or::Nothing),
        Key::Count(
            "first_k_dense_replace",
            "leading_dense_block_count",
            Or::Nothing,
        ),
        Key::Always("expert_gating_func", Said::Number(2)),
        Key::Number("routed_scaling_factor", "expert_weights_scale", Or::Nothing),
        Key::Flag("norm_topk_prob", "expert_weights_norm", Or::Nothing),
        Key::By(write_nextn),
    ],
    sizes: &[
        ("first_k_dense_replace", Some(0)),
        ("n_shared_experts", Some(0)),
        ("use_qk_norm", Some(0)),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    defaults: r#"{"norm_topk_prob": true}"#,
    means: &[means("scoring_func", Neutral::Text(&["sigmoid"]))],
    nextn: Nextn::Counted,
    vocabulary: GLM_VOCABULARY,
    ..Traits::TABLES
};

/// Special tokens of GLM-4.5 and later.
pub(super) const GLM_VOCABULARY: VocabularyTraits = VocabularyTraits::with_roles(&[
    ("bos", "[gMASK]"),
    ("eot", "<|user|>"),
    ("unk", "<|endoftext|>"),
    ("eom", "<|observation|>"),
]);
