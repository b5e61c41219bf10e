//! Metadata of families with tables: first the common keys, in one order, then the family's own [`Key`]s.

use super::context::{CONTEXT, context, narrow};
use super::parts::Parts;
use super::shape::ExpertSizes;
use crate::HfError;
use serde_json::Value;
use sluice::file::{GgufHeader, MetaValue};

/// A GGUF key that belongs to one family.
pub(super) enum Key {
    /// The name in config.json, the name in GGUF.
    Count(&'static str, &'static str, Or<u32>),
    Number(&'static str, &'static str, Or<f64>),
    Flag(&'static str, &'static str, Or<bool>),
    /// A value that is the same in every model.
    Always(&'static str, Said),
    /// `rope.dimension_count`: the share of a head's columns from config.json, or this default.
    Rotates(f64),
    /// Several keys, or one computed from several settings.
    By(Writes),
}

/// Writes metadata that does not fit a row of a table.
pub(super) type Writes = fn(&mut GgufHeader, &Parts<'_>, &mut Vec<String>) -> Result<(), HfError>;

/// The value to write if config.json does not have the key.
#[derive(Clone, Copy)]
pub(super) enum Or<T> {
    /// A missing key is an error.
    Missing,
    Nothing,
    Default(T),
}

/// A constant value.
#[derive(Clone, Copy)]
pub(super) enum Said {
    Number(u32),
    Flag(bool),
    Text(&'static str),
}

impl<T> Or<T> {
    fn take(self, found: Option<T>, error: impl Fn() -> HfError) -> Result<Option<T>, HfError> {
        match (found, self) {
            (Some(found), _) => Ok(Some(found)),
            (None, Self::Missing) => Err(error()),
            (None, Self::Nothing) => Ok(None),
            (None, Self::Default(default)) => Ok(Some(default)),
        }
    }
}

/// Writes all metadata of a family with tables.
pub(super) fn write(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    write_common(header, parts, warnings)?;
    for key in parts.family.traits.keys {
        key.write(header, parts, warnings)?;
    }
    Ok(())
}

impl Key {
    fn write(
        &self,
        header: &mut GgufHeader,
        parts: &Parts<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<(), HfError> {
        let config = parts.config;
        let named = |to: &str| format!("{}.{to}", parts.family.architecture);
        match *self {
            Self::Count(from, to, or) => {
                let found = config.maybe_whole(&[from])?;
                if let Some(n) = or.take(found, || config.error(&[from], "is missing"))? {
                    header.set(&named(to), n);
                }
            }
            Self::Number(from, to, or) => {
                let found = config.maybe_number(&[from])?;
                if let Some(x) = or.take(found, || config.error(&[from], "is missing"))? {
                    header.set(&named(to), narrow(x));
                }
            }
            Self::Flag(from, to, or) => {
                let found = config.bool(from);
                if let Some(flag) = or.take(found, || config.error(&[from], "is missing"))? {
                    header.set(&named(to), flag);
                }
            }
            Self::Always(to, Said::Number(n)) => header.set(&named(to), n),
            Self::Always(to, Said::Flag(flag)) => header.set(&named(to), flag),
            Self::Always(to, Said::Text(text)) => header.set(&named(to), text),
            Self::Rotates(default) => {
                let n_rot = parts.rope.rotated(config, parts.shape.head_dim, default)?;
                header.set(&named("rope.dimension_count"), n_rot);
            }
            Self::By(writes) => writes(header, parts, warnings)?,
        }
        Ok(())
    }
}

/// The keys that most text models have, in the order of llama.cpp's converter.
fn write_common(
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
    let traits = family.traits;
    let key = |name: &str| format!("{}.{name}", family.architecture);
    header.set(&key("block_count"), shape.n_layer + shape.n_nextn);
    let n_ctx = match traits.has_windows {
        true => Some(config.count(CONTEXT)?),
        false => Some(context(family, config, shape, warnings)?),
    };
    if let Some(n_ctx) = n_ctx {
        header.set(&key("context_length"), n_ctx);
    }
    header.set(&key("embedding_length"), shape.n_embd);
    if shape.n_ff > 0 {
        header.set(&key("feed_forward_length"), shape.n_ff);
    }
    header.set(&key("attention.head_count"), shape.n_head);
    if !traits.is_encoder || config.find(&["num_key_value_heads"]).is_some() {
        header.set(&key("attention.head_count_kv"), shape.n_head_kv);
    }
    if config.bool("is_causal") == Some(false) {
        header.set(&key("attention.causal"), false);
    }
    rope.write(header, family.architecture);
    for (names, to) in [(RMS_NORM, "rms"), (LAYER_NORM, "")] {
        if let Some(epsilon) = config.maybe_number(names)? {
            let to = match to {
                "" => "attention.layer_norm_epsilon",
                _ => "attention.layer_norm_rms_epsilon",
            };
            header.set(&key(to), narrow(epsilon));
        }
    }
    write_experts(header, parts)?;
    if shape.says_head_dim {
        header.set(&key("attention.key_length"), shape.head_dim);
        header.set(&key("attention.value_length"), shape.head_dim);
    }
    header.set("general.file_type", parts.file_type);
    if family.is_llama() {
        header.set(&key("vocab_size"), shape.n_vocab);
        header.set(&key("rope.dimension_count"), shape.head_dim);
    }
    Ok(())
}

const RMS_NORM: &[&str] = &["rms_norm_eps", "norm_eps"];
const LAYER_NORM: &[&str] = &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

const N_EXPERT: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];
const N_USED: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
];

/// Writes the number of experts, how many are used per token, and how they are scored.
fn write_experts(header: &mut GgufHeader, parts: &Parts<'_>) -> Result<(), HfError> {
    let Parts { family, config, .. } = *parts;
    let key = |name: &str| format!("{}.{name}", family.architecture);
    if let ExpertSizes::Never = family.traits.experts {
        return Ok(());
    }
    // Also written if config.json sets it to 0.
    for (names, to) in [(N_EXPERT, "expert_count"), (N_USED, "expert_used_count")] {
        if let Some(n) = config.maybe_whole(names)? {
            header.set(&key(to), n);
        }
    }
    let has_groups = config.maybe_count(&["n_group"])?.is_some_and(|n| n > 1);
    let method = config.find(&["topk_method"]).and_then(Value::as_str);
    for (from, to) in [
        ("n_group", "expert_group_count"),
        ("topk_group", "expert_group_used_count"),
    ] {
        // The method that chooses among all experts does not use groups, whatever their number.
        let n = config.maybe_count(&[from])?;
        if let Some(n) = n.filter(|_| !has_groups || method != Some("greedy")) {
            header.set(&key(to), n);
        }
    }
    let wanted = match method {
        Some("group_limited_greedy") => "softmax",
        _ => "sigmoid",
    };
    let scores = config.find(&["scoring_func", "score_func"]);
    let is_other = scores.is_some_and(|own| own != wanted);
    if has_groups && method.is_some_and(|method| method != "greedy") && is_other {
        let what = format!("selects groups of experts by {wanted}, but scoring_func differs");
        return Err(config.error(&["topk_method"], &what));
    }
    let Some(scores) = scores else {
        return Ok(());
    };
    let number: u32 = match scores.as_str() {
        Some("softmax") => 1,
        Some("sigmoid") => 2,
        _ => {
            let what = format!("is {scores}, not softmax or sigmoid");
            return Err(config.error(&["scoring_func"], &what));
        }
    };
    header.set(&key("expert_gating_func"), number);
    Ok(())
}

/// Writes which layers have a window, from `layer_types`, and the window's length.
pub(super) fn write_windows(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    let config = parts.config;
    let named = |to: &str| format!("{}.attention.{to}", parts.family.architecture);
    let Some(n) = config.maybe_whole(&["sliding_window"])? else {
        return Ok(());
    };
    header.set(&named("sliding_window"), n);
    let has_window: Vec<bool> = parts.shape.windows();
    if !has_window.is_empty() {
        header.set(
            &named("sliding_window_pattern"),
            MetaValue::bools(&has_window),
        );
    }
    Ok(())
}

/// Writes the number of MTP blocks after the layers.
pub(super) fn write_nextn(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    if parts.shape.n_nextn > 0 {
        let key = format!("{}.nextn_predict_layers", parts.family.architecture);
        header.set(&key, parts.shape.n_nextn);
    }
    Ok(())
}
