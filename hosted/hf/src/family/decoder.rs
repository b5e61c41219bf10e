//! The layers of Llama and similar models: norms before attention and before the feed-forward network, or experts
//! instead of the network.

use super::parameters::write_phi3;
use super::parts::Model;
use super::reranker;
use super::shape::ExpertSizes;
use super::traits::{Traits, VocabularyTraits, Words, means, must_say};
use super::wanted::{Change, Wanted, one, with_bias};
use super::{Family, Kind, Shape};
use crate::unread::Neutral;

/// Llama and Mistral.
pub(super) const LLAMA: Traits = Traits {
    is_llama: true,
    has_rope_factors: true,
    ..Traits::LLAMA
};

/// Qwen2 and OLMoE, whose metadata does not state a head size.
pub(super) const QWEN2: Traits = Traits {
    has_qkv_bias: true,
    head_dim: |_, _| None,
    ..Traits::LLAMA
};

/// Qwen3 without experts.
pub(super) const QWEN3: Traits = Traits {
    head_dim: |_, _| Some(128),
    ..Traits::LLAMA
};

pub(super) const MIXTRAL: Traits = Traits {
    has_qkv_bias: false,
    rope_base: 1e6,
    is_llama: true,
    has_rope_factors: true,
    experts: ExpertSizes::Always(""),
    ..QWEN2
};

pub(super) const OLMOE: Traits = Traits {
    experts: ExpertSizes::Always(""),
    means: &[means("norm_topk_prob", Neutral::Off)],
    has_qkv_bias: false,
    ..QWEN2
};

pub(super) const QWEN3_MOE: Traits = Traits {
    experts: ExpertSizes::Always("moe_intermediate_size"),
    // The engine always normalises.
    means: &[must_say("norm_topk_prob", Neutral::On)],
    ..QWEN3
};

/// Phi-3, whose projections are fused into one matrix.
pub(super) const PHI3: Traits = Traits {
    has_qkv_bias: false,
    write: write_phi3,
    vocabulary: VocabularyTraits {
        words: Words::Phi3,
        ..VocabularyTraits::PLAIN
    },
    hides_head_dim: true,
    ..QWEN2
};

/// The embedding, the last norm, and the output matrix.
pub(super) fn first(model: &Model<'_>) -> Vec<Wanted> {
    let shape = model.shape;
    let (n_embd, n_vocab) = (u64::from(shape.n_embd), u64::from(shape.n_vocab));
    let embedding = "model.embed_tokens.weight";
    let [name, source] = model.family.traits.last_norm;
    let mut all = vec![
        one("token_embd.weight", embedding, &[n_vocab, n_embd]),
        one(name, source, &[n_embd]),
    ];
    if let Some(answers) = shape.answers {
        all.insert(0, reranker::head(model, answers));
    } else if !shape.is_tied {
        all.push(one("output.weight", "lm_head.weight", &[n_vocab, n_embd]));
    }
    all
}

pub(super) fn layer(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let Model { family, shape, .. } = *model;
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let n_embd = u64::from(shape.n_embd);
    let n_q = u64::from(shape.n_head) * u64::from(shape.head_dim);
    let n_kv = u64::from(shape.n_head_kv) * u64::from(shape.head_dim);
    let mut add = |name: &str, source: &str, dims: &[u64]| {
        all.push(one(
            &format!("{to}{name}"),
            &format!("{from}{source}"),
            dims,
        ));
    };
    add("attn_norm.weight", "input_layernorm.weight", &[n_embd]);
    add(
        "ffn_norm.weight",
        "post_attention_layernorm.weight",
        &[n_embd],
    );
    add(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        &[n_embd, n_q],
    );
    if family.kind == Kind::Phi3 {
        let n_ff = u64::from(shape.n_ff);
        add(
            "attn_qkv.weight",
            "self_attn.qkv_proj.weight",
            &[n_q + 2 * n_kv, n_embd],
        );
        add(
            "ffn_up.weight",
            "mlp.gate_up_proj.weight",
            &[2 * n_ff, n_embd],
        );
        add("ffn_down.weight", "mlp.down_proj.weight", &[n_embd, n_ff]);
        return;
    }
    attention_tensors(family, shape, layer, all);
    if shape.n_expert.is_some() {
        expert_tensors(family, shape, layer, all);
        return;
    }
    let n_ff = u64::from(shape.n_ff);
    let projections = [
        ("gate", n_ff, n_embd),
        ("up", n_ff, n_embd),
        ("down", n_embd, n_ff),
    ];
    for (part, rows, columns) in projections {
        let source = format!("{from}mlp.{part}_proj");
        let [weight, mut bias] = with_bias(&format!("{to}ffn_{part}"), &source, &[rows, columns]);
        bias.is_optional = !shape.has_mlp_bias;
        all.extend([weight, bias]);
    }
}

/// Q, K and V with their biases and norms, and the output's bias.
fn attention_tensors(family: &Family, shape: &Shape, layer: u32, all: &mut Vec<Wanted>) {
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let n_embd = u64::from(shape.n_embd);
    let head_dim = u64::from(shape.head_dim);
    let (n_q, n_kv) = (
        u64::from(shape.n_head) * head_dim,
        u64::from(shape.n_head_kv) * head_dim,
    );
    let norms = match family.kind {
        Kind::Qwen3 | Kind::Qwen3Moe => Some([("q", head_dim), ("k", head_dim)]),
        Kind::Olmoe => Some([("q", n_q), ("k", n_kv)]),
        _ => None,
    };
    for (letter, columns) in norms.into_iter().flatten() {
        let name = format!("{to}attn_{letter}_norm.weight");
        let source = format!("{from}self_attn.{letter}_norm.weight");
        all.push(one(&name, &source, &[columns]));
    }
    let heads = [
        ("q", n_q, shape.n_head),
        ("k", n_kv, shape.n_head_kv),
        ("v", n_kv, 0),
    ];
    for (letter, rows, n_head) in heads {
        let name = format!("{to}attn_{letter}");
        let source = format!("{from}self_attn.{letter}_proj");
        let change = match family.permutes() && n_head > 0 {
            true => Change::PairRows(n_head),
            false => Change::None,
        };
        let [mut weight, mut bias] = with_bias(&name, &source, &[rows, n_embd]);
        bias.is_optional = !shape.has_attention_bias;
        (weight.change, bias.change) = (change.clone(), change);
        all.extend([weight, bias]);
    }
    let name = format!("{to}attn_output");
    let [_, mut bias] = with_bias(&name, &format!("{from}self_attn.o_proj"), &[n_embd, n_q]);
    // Qwen2 has biases on Q, K and V alone.
    bias.is_optional = !shape.has_attention_bias || family.kind == Kind::Qwen2;
    all.push(bias);
}

fn expert_tensors(family: &Family, shape: &Shape, layer: u32, all: &mut Vec<Wanted>) {
    let (Some(n_expert), Some(n_ff)) = (shape.n_expert, shape.n_ff_exp) else {
        return;
    };
    let (n_embd, n_ff) = (u64::from(shape.n_embd), u64::from(n_ff));
    let (module, projections) = match family.kind {
        Kind::Mixtral => ("block_sparse_moe", ["w1", "w2", "w3"]),
        _ => ("mlp", ["down_proj", "gate_proj", "up_proj"]),
    };
    let from = format!("model.layers.{layer}.{module}");
    let router = format!("blk.{layer}.ffn_gate_inp.weight");
    let source = format!("{from}.gate.weight");
    all.push(one(&router, &source, &[u64::from(n_expert), n_embd]));
    for projection in projections {
        let (part, dims) = match projection {
            "w1" | "gate_proj" => ("gate", [n_ff, n_embd]),
            "w2" | "down_proj" => ("down", [n_embd, n_ff]),
            _ => ("up", [n_ff, n_embd]),
        };
        let mut stacked = one(&format!("blk.{layer}.ffn_{part}_exps.weight"), "", &dims);
        let experts = 0..n_expert;
        stacked.parts = experts
            .map(|expert| format!("{from}.experts.{expert}.{projection}.weight"))
            .collect();
        all.push(stacked);
    }
}
