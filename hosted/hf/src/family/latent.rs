//! DeepSeek-V2 and V3, Kimi-K2 and GLM-4.7-Flash: attention to a latent vector, from which the keys and values of all
//! heads are computed.

use super::context::narrow;
use super::description::Description;
use super::glm::GLM_VOCABULARY;
use super::keys::{EXPERT_WIDTH, Key, Or, write_nextn};
use super::rows::{
    EXPERTS, NORMS, Row, SWIGLU, Size, block, block_when, is_dense, is_nextn, is_sparse, n_embd,
    n_head, of_each, row, sparse,
};
use super::shape::{ExpertSizes, HeadDim, Nextn};
use super::sparse::{BIASED_ROUTER, NEXTN, SHARED, shares};
use super::traits::{Means, NotSpelled, Traits, means};
use super::wanted::Change;
use super::{Object, Shape};
use crate::HfError;
use crate::unread::Neutral;
use serde_json::Value;

// Columns of a head that rotate, columns that do not, columns of its values; sizes of the latent vectors.

fn dim_rope(shape: &Shape) -> u64 {
    shape.size("qk_rope_head_dim")
}

fn dim_nope(shape: &Shape) -> u64 {
    shape.size("qk_nope_head_dim")
}

fn dim_v(shape: &Shape) -> u64 {
    shape.size("v_head_dim")
}

fn rank(shape: &Shape) -> u64 {
    shape.size("kv_lora_rank")
}

fn rank_q(shape: &Shape) -> u64 {
    shape.size("q_lora_rank")
}

fn all_queries(shape: &Shape) -> u64 {
    n_head(shape) * (dim_nope(shape) + dim_rope(shape))
}

/// Rows of the matrix that computes both keys and values.
fn both(shape: &Shape) -> u64 {
    n_head(shape) * (dim_nope(shape) + dim_v(shape))
}

const BOTH: &[Size] = &[both, rank];

const ATTENTION: &[Row] = &[
    row(
        "attn_kv_a_mqa",
        "self_attn.kv_a_proj_with_mqa",
        &[|shape| rank(shape) + dim_rope(shape), n_embd],
    ),
    row("attn_kv_a_norm", "self_attn.kv_a_layernorm", &[rank]),
    // The transposed keys, by which a query is multiplied.
    row("attn_k_b", "self_attn.kv_b_proj", &[n_head, rank, dim_nope]).of(BOTH, |shape| {
        Change::Turned {
            start: 0,
            step: 1,
            of: dim_nope(shape) + dim_v(shape),
        }
    }),
    row("attn_v_b", "self_attn.kv_b_proj", &[n_head, dim_v, rank]).of(BOTH, |shape| {
        let slice = [dim_nope(shape), dim_v(shape)];
        of_each(n_head(shape), slice, dim_nope(shape) + dim_v(shape))
    }),
    row(
        "attn_output",
        "self_attn.o_proj",
        &[n_embd, |shape| n_head(shape) * dim_v(shape)],
    ),
];

const QUERIES: &[Row] = &[row("attn_q", "self_attn.q_proj", &[all_queries, n_embd])];

const LATENT_QUERIES: &[Row] = &[
    row("attn_q_a", "self_attn.q_a_proj", &[rank_q, n_embd]),
    row("attn_q_a_norm", "self_attn.q_a_layernorm", &[rank_q]),
    row("attn_q_b", "self_attn.q_b_proj", &[all_queries, rank_q]),
];

pub(super) const DEEPSEEK2: Traits = Traits {
    blocks: &[
        block(NORMS),
        block_when(|shape, _| rank_q(shape) == 0, QUERIES),
        block_when(|shape, _| rank_q(shape) > 0, LATENT_QUERIES),
        block(ATTENTION),
        block_when(is_dense, SWIGLU),
        sparse(is_sparse, BIASED_ROUTER, EXPERTS),
        block_when(shares, SHARED),
        block_when(is_nextn, NEXTN),
    ],
    keys: &[
        Key::By(write_latent),
        EXPERT_WIDTH,
        Key::Count("n_shared_experts", "expert_shared_count", Or::Default(0)),
        Key::Number("routed_scaling_factor", "expert_weights_scale", Or::Nothing),
        Key::By(write_norm_of_weights),
        Key::Count("qk_rope_head_dim", "rope.dimension_count", Or::Missing),
        Key::By(write_multiplier),
        Key::By(write_nextn),
    ],
    sizes: &[
        ("first_k_dense_replace", Some(0)),
        ("n_shared_experts", Some(0)),
        ("kv_lora_rank", Some(512)),
        ("q_lora_rank", Some(0)),
        ("qk_nope_head_dim", None),
        ("qk_rope_head_dim", None),
        ("v_head_dim", None),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    nextn: Nextn::Dropped,
    head_dim: HeadDim::Of(64),
    is_wrapped: true,
    defaults: r#"{"scoring_func": "softmax"}"#,
    means: &[
        ROPE_INTERLEAVE,
        means(
            "topk_method",
            Neutral::Text(&["greedy", "group_limited_greedy"]),
        ),
        means("scoring_func", Neutral::Text(&["softmax"])),
        means("norm_topk_prob", Neutral::Off),
    ],
    ..Traits::TABLES
};

const ROPE_INTERLEAVE: Means = means("rope_interleave", Neutral::On);

/// DeepSeek-V3 and Kimi: whatever config.json says of it, the class scores experts by sigmoid.
pub(super) const DEEPSEEK3: Traits = Traits {
    defaults: r#"{"scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 8,
        "topk_group": 4}"#,
    means: &[
        ROPE_INTERLEAVE,
        means("topk_method", Neutral::Text(&["noaux_tc"])),
        means("scoring_func", Neutral::Text(&["sigmoid"])),
    ],
    ..DEEPSEEK2
};

/// GLM-4.7-Flash.
pub(super) const GLM4_MOE_LITE: Traits = Traits {
    nextn: Nextn::Counted,
    respell: respell_layers,
    head_dim: HeadDim::IfGiven,
    vocabulary: GLM_VOCABULARY,
    defaults: r#"{"scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 1.8}"#,
    ..DEEPSEEK3
};

/// transformers 5 lists which layers have experts.
fn respell_layers(config: &mut Object) -> Result<(), NotSpelled> {
    const KEY: &str = "mlp_layer_types";
    let Some(Value::Array(types)) = config.remove(KEY) else {
        return Ok(());
    };
    let n_dense = types.iter().take_while(|ty| *ty == "dense").count();
    if types[n_dense..].iter().any(|ty| ty != "sparse") {
        let what = "is not some layers without experts and then layers with them".into();
        return Err(NotSpelled { key: KEY, what });
    }
    config.insert("first_k_dense_replace".into(), n_dense.into());
    Ok(())
}

/// One key head for all queries: the latent vector and the rotated columns.
fn write_latent(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    out.set("attention.head_count_kv", 1_u32);
    let n_dense = shape.size("first_k_dense_replace");
    out.set_size("leading_dense_block_count", n_dense);
    out.set("vocab_size", shape.n_vocab);
    if rank_q(shape) > 0 {
        out.set_size("attention.q_lora_rank", rank_q(shape));
    }
    let both = rank(shape) + dim_rope(shape);
    out.set_size("attention.kv_lora_rank", rank(shape));
    out.set_size("attention.key_length", both);
    out.set_size("attention.value_length", rank(shape));
    let all = dim_nope(shape) + dim_rope(shape);
    out.set_size("attention.key_length_mla", all);
    out.set_size("attention.value_length_mla", dim_v(shape));
    Ok(())
}

/// Writes the normalisation of expert weights if it is on.
fn write_norm_of_weights(out: &mut Description<'_>) -> Result<(), HfError> {
    if out.config.bool("norm_topk_prob") == Some(true) {
        out.set("expert_weights_norm", true);
    }
    Ok(())
}

/// How scores grow with the context. Files store a tenth of the number, and readers expect that.
fn write_multiplier(out: &mut Description<'_>) -> Result<(), HfError> {
    let scaling = out.rope.scaling();
    let Some(all) = scaling.maybe_number(&["mscale_all_dim"])? else {
        return Ok(());
    };
    let own = scaling.maybe_number(&["mscale"])?;
    if own.map(|own| narrow(own).to_bits()) != Some(narrow(all).to_bits()) {
        let own = own.map_or_else(|| "missing".into(), |own| own.to_string());
        let what = format!("is {own}, but deepseek2 in GGUF implies that of mscale_all_dim, {all}");
        return Err(scaling.error(&["mscale"], &what));
    }
    out.set("rope.scaling.yarn_log_multiplier", narrow(0.1 * all));
    Ok(())
}
