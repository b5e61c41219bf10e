//! Llama and the families that are closest to it, with or without experts.

use super::attention::{
    ATTENTION_BIAS, HEAD_NORMS, NO_BIAS, PAIRED_ATTENTION, WIDE_NORMS, attention,
};
use super::context::narrow;
use super::description::Description;
use super::keys::{EPSILON, Key, Or, Said};
use super::rope::{RopeTraits, ScalingKind};
use super::rows::{
    EXPERTS, MIXTRAL_EXPERTS, NORMS, Need, ROUTER, SWIGLU, always, block, n_embd, n_expert, n_ff,
    n_ff_exp, n_kv, n_q, row, sparse,
};
use super::shape::{ExpertSizes, HeadDim};
use super::traits::{Means, Traits, VocabularyTraits, Words, means, must_say};
use super::{pooling, reranker, windows};
use crate::HfError;
use crate::unread::Neutral;

/// Llama, which has no windows, whatever config.json says.
pub(super) const LLAMA: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    head_dim: HeadDim::Share,
    keys: &[EPSILON],
    means: &[CAUSAL],
    ..Traits::LLAMA_TABLES
};

pub(super) const MISTRAL: Traits = Traits {
    keys: &[EPSILON, Key::By(windows::in_all)],
    ..LLAMA
};

/// Bamboo and TurboSparse-Mistral, which has Bamboo's class: its code applies ReLU to gate and up.
pub(super) const BAMBOO: Traits = Traits {
    keys: &[
        EPSILON,
        Key::By(windows::in_all),
        Key::Always("activation", Said::Text("drelu")),
    ],
    rename: without_predictors,
    activations: &["relu", "drelu"],
    ..LLAMA
};

/// Predictors of active neurons, which TurboSparse's folders hold as well, change no result of the whole network.
fn without_predictors(name: &str) -> Option<String> {
    (!name.contains(".predictor.")).then(|| name.into())
}

/// The engine reads texts from left to right.
const CAUSAL: Means = means("is_causal", Neutral::On);

pub(super) const N_USED: Key = Key::Count("num_experts_per_tok", "expert_used_count", Or::Missing);

pub(super) const MIXTRAL: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(PAIRED_ATTENTION),
        sparse(
            always,
            &[row(
                "ffn_gate_inp",
                "block_sparse_moe.gate",
                &[n_expert, n_embd],
            )],
            MIXTRAL_EXPERTS,
        ),
    ],
    rope: RopeTraits {
        base: 1e6,
        ..RopeTraits::DIVIDED
    },
    experts: ExpertSizes::Always(""),
    keys: &[EPSILON, N_USED, Key::By(windows::in_all)],
    means: &[CAUSAL],
    ..Traits::LLAMA_TABLES
};

/// TurboSparse-Mixtral: Mixtral with ReLU of gates and ups.
pub(super) const TURBOSPARSE_MIXTRAL: Traits = Traits {
    keys: &[
        EPSILON,
        N_USED,
        Key::By(windows::in_all),
        Key::Always("activation", Said::Text("drelu")),
    ],
    rename: without_predictors,
    activations: &["relu", "drelu"],
    ..MIXTRAL
};

pub(super) const QWEN2: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(Need::Always, NO_BIAS)),
        block(SWIGLU),
    ],
    keys: &[EPSILON, Key::By(pooling::write), Key::By(windows::in_late)],
    means: &[CAUSAL],
    ..Traits::TABLES
};

/// Qwen3 without experts.
pub(super) const QWEN3: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(ATTENTION_BIAS, ATTENTION_BIAS)),
        block(HEAD_NORMS),
        block(SWIGLU),
    ],
    head_dim: HeadDim::Of(128),
    keys: &[
        EPSILON,
        Key::By(pooling::write),
        Key::By(reranker::write),
        Key::By(windows::in_late),
    ],
    means: &[CAUSAL],
    ..Traits::TABLES
};

pub(super) const QWEN3_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(ATTENTION_BIAS, ATTENTION_BIAS)),
        block(HEAD_NORMS),
        sparse(always, ROUTER, EXPERTS),
    ],
    head_dim: HeadDim::Of(128),
    experts: ExpertSizes::Always("moe_intermediate_size"),
    keys: &[
        EPSILON,
        N_USED,
        EXPERT_WIDTH_OR_OWN,
        Key::By(windows::in_all_if_used),
    ],
    // The engine always normalises.
    means: &[CAUSAL, must_say("norm_topk_prob", Neutral::On)],
    ..Traits::TABLES
};

/// Columns of an expert, or of a feed-forward network.
pub(super) const EXPERT_WIDTH_OR_OWN: Key = Key::By(|out| {
    out.set_size("expert_feed_forward_length", n_ff_exp(out.shape));
    Ok(())
});

pub(super) const OLMOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(ATTENTION_BIAS, ATTENTION_BIAS)),
        block(WIDE_NORMS),
        sparse(always, ROUTER, EXPERTS),
    ],
    experts: ExpertSizes::Always(""),
    keys: &[
        Key::Number(
            "rms_norm_eps",
            "attention.layer_norm_rms_epsilon",
            Or::Default(1e-5),
        ),
        N_USED,
    ],
    means: &[CAUSAL, means("norm_topk_prob", Neutral::Off)],
    ..Traits::TABLES
};

/// Phi-3, whose projections are fused into one matrix.
pub(super) const PHI3: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&[
            row("attn_output", "self_attn.o_proj", &[n_embd, n_q]),
            row(
                "attn_qkv",
                "self_attn.qkv_proj",
                &[|shape| n_q(shape) + 2 * n_kv(shape), n_embd],
            ),
            row(
                "ffn_up",
                "mlp.gate_up_proj",
                &[|shape| 2 * n_ff(shape), n_embd],
            ),
            row("ffn_down", "mlp.down_proj", &[n_embd, n_ff]),
        ]),
    ],
    head_dim: HeadDim::Hidden,
    rope: RopeTraits {
        kinds: &[ScalingKind::LongRope],
        ..RopeTraits::PLAIN
    },
    vocabulary: VocabularyTraits::of(Words::Phi3),
    write: write_phi3,
    ..Traits::TABLES
};

fn write_phi3(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, shape, rope) = (out.config, out.shape, out.rope);
    let n_ctx = config.count(&["max_position_embeddings"])?;
    let n_ctx_original = rope.original_context().unwrap_or(n_ctx);
    out.set("context_length", n_ctx);
    out.set("rope.scaling.original_context_length", n_ctx_original);
    out.set("embedding_length", shape.n_embd);
    out.set("feed_forward_length", shape.n_ff);
    out.set("block_count", shape.n_layer);
    out.set("attention.head_count", shape.n_head);
    out.set("attention.head_count_kv", shape.n_head_kv);
    let epsilon = narrow(config.number(&["rms_norm_eps"])?);
    out.set("attention.layer_norm_rms_epsilon", epsilon);
    out.set("rope.dimension_count", rope.n_rot(shape)?);
    out.set("rope.freq_base", rope.freq_base);
    out.header.set("general.file_type", out.file_type);
    // Zero distinguishes Phi-4, which has no window, from the family's other models.
    let window = config.maybe_count(&["sliding_window"])?.unwrap_or(0);
    out.set("attention.sliding_window", window);
    Ok(())
}
