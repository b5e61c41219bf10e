//! Metadata of families: first the common keys, in one order, then the family's own [`Key`]s.

use super::context::{CONTEXT, narrow};
use super::description::Description;
use super::shape::ExpertSizes;
use crate::HfError;
use serde_json::Value;
use sluice::file::MetaValue;

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
pub(super) type Writes = fn(&mut Description<'_>) -> Result<(), HfError>;

/// The epsilon of norms, which must be given.
pub(super) const EPSILON: Key = Key::Number(
    "rms_norm_eps",
    "attention.layer_norm_rms_epsilon",
    Or::Missing,
);

/// Columns of an expert, which must be given.
pub(super) const EXPERT_WIDTH: Key = Key::Count(
    "moe_intermediate_size",
    "expert_feed_forward_length",
    Or::Missing,
);

/// Columns of an expert, if they are given.
pub(super) const MAYBE_EXPERT_WIDTH: Key = Key::Count(
    "moe_intermediate_size",
    "expert_feed_forward_length",
    Or::Nothing,
);

/// The number of tokens.
pub(super) const N_VOCAB: Key = Key::Count("vocab_size", "vocab_size", Or::Missing);

/// States that rotary frequencies are not scaled, where they are not.
pub(super) const UNSCALED: Key = Key::By(|out| {
    if !out.rope.is_scaled() {
        out.set("rope.scaling.type", "none");
    }
    Ok(())
});

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

impl Description<'_> {
    /// Writes the family's metadata.
    ///
    /// # Errors
    /// [`HfError`], with the file and the key.
    pub fn write(&mut self) -> Result<(), HfError> {
        let traits = self.family.traits;
        (traits.write)(self)?;
        write_relu(self)?;
        traits.keys.iter().try_for_each(|key| key.write(self))
    }
}

impl Key {
    fn write(&self, out: &mut Description<'_>) -> Result<(), HfError> {
        let config = out.config;
        match *self {
            Self::Count(from, to, or) => {
                let found = config.maybe_whole(&[from])?;
                if let Some(n) = or.take(found, || config.error(&[from], "is missing"))? {
                    out.set(to, n);
                }
            }
            Self::Number(from, to, or) => {
                let found = config.maybe_number(&[from])?;
                if let Some(x) = or.take(found, || config.error(&[from], "is missing"))? {
                    out.set(to, narrow(x));
                }
            }
            Self::Flag(from, to, or) => {
                let found = config.bool(from);
                if let Some(flag) = or.take(found, || config.error(&[from], "is missing"))? {
                    out.set(to, flag);
                }
            }
            Self::Always(to, Said::Number(n)) => out.set(to, n),
            Self::Always(to, Said::Text(text)) => out.set(to, text),
            Self::Always(to, Said::Flag(flag)) => out.set(to, flag),
            Self::Rotates(default) => {
                let n_rot = out.rope.rotated(config, out.shape.head_dim, default)?;
                out.set("rope.dimension_count", n_rot);
            }
            Self::By(writes) => writes(out)?,
        }
        Ok(())
    }
}

/// Writes the keys that most models have, in the order of llama.cpp's converter.
pub(super) fn write(out: &mut Description<'_>) -> Result<(), HfError> {
    let (family, config, shape) = (out.family, out.config, out.shape);
    let traits = family.traits;
    out.set("block_count", shape.n_layer + shape.n_nextn);
    out.set("context_length", config.count(CONTEXT)?);
    out.set("embedding_length", shape.n_embd);
    if shape.n_ff > 0 {
        out.set("feed_forward_length", shape.n_ff);
    }
    out.set("attention.head_count", shape.n_head);
    if !traits.is_encoder || config.find(&["num_key_value_heads"]).is_some() {
        out.set("attention.head_count_kv", shape.n_head_kv);
    }
    if config.bool("is_causal") == Some(false) {
        out.set("attention.causal", false);
    }
    out.rope.write(out.header, family.architecture);
    for (names, to) in [
        (RMS_NORM, "attention.layer_norm_rms_epsilon"),
        (LAYER_NORM, "attention.layer_norm_epsilon"),
    ] {
        if let Some(epsilon) = config.maybe_number(names)? {
            out.set(to, narrow(epsilon));
        }
    }
    write_experts(out)?;
    if shape.says_head_dim {
        out.set("attention.key_length", shape.head_dim);
        out.set("attention.value_length", shape.head_dim);
    }
    out.header.set("general.file_type", out.file_type);
    if family.is_llama() {
        out.set("vocab_size", shape.n_vocab);
        out.set("rope.dimension_count", shape.head_dim);
    }
    Ok(())
}

/// Writes an activation with zeros, which the architecture's name does not say.
fn write_relu(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    let name = config.find(HIDDEN_ACT).and_then(Value::as_str);
    let Some(name @ ("relu" | "fatrelu" | "drelu")) = name else {
        return Ok(());
    };
    out.set("activation", name);
    if name == "fatrelu" {
        // ProSparse's key.
        let threshold = config.maybe_number(&["hidden_act_param"])?.unwrap_or(0.0);
        if threshold < 0.0 {
            return Err(config.error(&["hidden_act_param"], "is negative"));
        }
        out.set("activation_threshold", narrow(threshold));
    }
    Ok(())
}

/// The activation of feed-forward networks, and its older name.
pub(super) const HIDDEN_ACT: &[&str] = &["hidden_act", "hidden_activation"];

const RMS_NORM: &[&str] = &["rms_norm_eps", "norm_eps"];
const LAYER_NORM: &[&str] = &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];

const N_EXPERT: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];
const N_USED: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
];

/// Writes the number of experts, how many are used per token, and how they are scored.
fn write_experts(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    if let ExpertSizes::Never = out.family.traits.experts {
        return Ok(());
    }
    // Also written if config.json sets it to 0.
    for (names, to) in [(N_EXPERT, "expert_count"), (N_USED, "expert_used_count")] {
        if let Some(n) = config.maybe_whole(names)? {
            out.set(to, n);
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
            out.set(to, n);
        }
    }
    let Some(scores) = config.find(&["scoring_func", "score_func"]) else {
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
    out.set("expert_gating_func", number);
    Ok(())
}

/// Writes which layers have a window, from `layer_types`, and the window's length.
pub(super) fn write_windows(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    let Some(n) = config.maybe_whole(&["sliding_window"])? else {
        return Ok(());
    };
    out.set("attention.sliding_window", n);
    let has_window = out.shape.windows();
    if !has_window.is_empty() {
        let pattern = MetaValue::bools(&has_window);
        out.set("attention.sliding_window_pattern", pattern);
    }
    Ok(())
}

/// Writes the number of MTP blocks after the layers.
pub(super) fn write_nextn(out: &mut Description<'_>) -> Result<(), HfError> {
    if out.shape.n_nextn > 0 {
        out.set("nextn_predict_layers", out.shape.n_nextn);
    }
    Ok(())
}

/// Writes the numbers of column pairs that rotate by time, height and width. In a text the three are equal.
pub(super) fn write_sections(out: &mut Description<'_>, default: [i32; 4]) -> Result<(), HfError> {
    let key = format!("{}.rope.dimension_sections", out.family.architecture);
    if !out.header.contains(&key) {
        out.header.set(&key, MetaValue::i32s(&default));
    }
    Ok(())
}
