//! Metadata that families write.

use super::context::{context, epsilon, narrow};
use super::parts::Parts;
use super::{Kind, labels, pooling, reranker};
use crate::HfError;
use sluice::file::GgufHeader;

/// The metadata of Llama and most other families.
pub(super) fn write(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    let Parts {
        family,
        config,
        shape,
        rope,
        ..
    } = *parts;
    let architecture = family.architecture;
    let key = |name: &str| format!("{architecture}.{name}");
    header.set(&key("block_count"), shape.n_layer);
    let n_ctx = context(family, config, shape, warnings)?;
    header.set(&key("context_length"), n_ctx);
    header.set(&key("embedding_length"), shape.n_embd);
    header.set(&key("feed_forward_length"), shape.n_ff);
    header.set(&key("attention.head_count"), shape.n_head);
    header.set(&key("attention.head_count_kv"), shape.n_head_kv);
    rope.write(header, architecture);
    let epsilon = match family.kind {
        Kind::Olmoe => epsilon(config, &["rms_norm_eps"], 1e-5)?,
        _ => narrow(config.number(&["rms_norm_eps"])?),
    };
    header.set(&key("attention.layer_norm_rms_epsilon"), epsilon);
    if let Some(n_expert) = shape.n_expert {
        header.set(&key("expert_count"), n_expert);
        let n_used = config.count(&["num_experts_per_tok"])?;
        header.set(&key("expert_used_count"), n_used);
    }
    if shape.says_head_dim {
        header.set(&key("attention.key_length"), shape.head_dim);
        header.set(&key("attention.value_length"), shape.head_dim);
    }
    header.set("general.file_type", parts.file_type);
    if family.is_llama() {
        header.set(&key("vocab_size"), shape.n_vocab);
        header.set(&key("rope.dimension_count"), shape.head_dim);
    }
    if let Kind::Qwen2 | Kind::Qwen3 = family.kind
        && let Some(pooling) = pooling::read(parts.folder, family, warnings)?
    {
        header.set(&key("pooling_type"), pooling);
    }
    if shape.answers.is_some() {
        reranker::write(header, architecture);
    }
    if let (Kind::Qwen3Moe, Some(n_ff)) = (family.kind, shape.n_ff_exp) {
        header.set(&key("expert_feed_forward_length"), n_ff);
    }
    Ok(())
}

pub(super) fn write_phi3(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    let Parts {
        config,
        shape,
        rope,
        ..
    } = *parts;
    let n_ctx = config.count(&["max_position_embeddings"])?;
    let n_ctx_original = rope.original_context().unwrap_or(n_ctx);
    header.set("phi3.context_length", n_ctx);
    header.set("phi3.rope.scaling.original_context_length", n_ctx_original);
    header.set("phi3.embedding_length", shape.n_embd);
    header.set("phi3.feed_forward_length", shape.n_ff);
    header.set("phi3.block_count", shape.n_layer);
    header.set("phi3.attention.head_count", shape.n_head);
    header.set("phi3.attention.head_count_kv", shape.n_head_kv);
    let epsilon = narrow(config.number(&["rms_norm_eps"])?);
    header.set("phi3.attention.layer_norm_rms_epsilon", epsilon);
    header.set("phi3.rope.dimension_count", rope.n_rot(shape)?);
    header.set("phi3.rope.freq_base", rope.freq_base);
    header.set("general.file_type", parts.file_type);
    // Zero distinguishes Phi-4, which has no window, from the family's other models.
    let window = config.maybe_count(&["sliding_window"])?.unwrap_or(0);
    header.set("phi3.attention.sliding_window", window);
    Ok(())
}

pub(super) fn write_bert(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    let Parts {
        folder,
        config,
        shape,
        ..
    } = *parts;
    let [n_rows, n_skipped, n_types] = shape.positions;
    header.set("bert.block_count", shape.n_layer);
    header.set("bert.context_length", n_rows - n_skipped);
    header.set("bert.embedding_length", shape.n_embd);
    header.set("bert.feed_forward_length", shape.n_ff);
    header.set("bert.attention.head_count", shape.n_head);
    let epsilon = epsilon(config, &["layer_norm_eps"], 1e-12)?;
    header.set("bert.attention.layer_norm_epsilon", epsilon);
    header.set("general.file_type", parts.file_type);
    header.set("bert.attention.causal", false);
    if let Some(pooling) = pooling::read(folder, parts.family, warnings)? {
        header.set("bert.pooling_type", pooling);
    }
    labels::write(header, parts)?;
    header.set("tokenizer.ggml.token_type_count", n_types);
    Ok(())
}
