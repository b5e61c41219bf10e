//! Which layers have a window, where every family with one has a rule of its own.

use super::description::Description;
use crate::HfError;
use crate::config::Config;
use serde_json::Value;
use sluice::file::MetaValue;

/// Mistral and Mixtral: the window is in every layer.
pub(super) fn in_all(out: &mut Description<'_>) -> Result<(), HfError> {
    // transformers' default for Mistral, alone or within Mistral3ForConditionalGeneration.
    let own = out.config.str("model_type");
    let is_mistral = own.map_or(out.family.is_llama(), |own| own == "mistral");
    let window = given(out.config, is_mistral.then_some(4096))?;
    let listed = out.shape.windows();
    if !listed.is_empty() && listed.iter().any(|has| *has != window.is_some()) {
        let told = out.config.named("layer_types");
        out.warnings.push(format!(
            "{told} is ignored, as in transformers: all layers are alike"
        ));
    }
    if let Some(window) = window {
        out.set("attention.sliding_window", window);
    }
    Ok(())
}

/// Qwen3 with experts: `use_sliding_window` puts the window into every layer.
pub(super) fn in_all_if_used(out: &mut Description<'_>) -> Result<(), HfError> {
    if let Some(window) = used(out, Some(4096))? {
        out.set("attention.sliding_window", window);
    }
    Ok(())
}

/// SmolLM3: in the layers that `layer_types` lists, or else in those without rotation, every fourth one.
pub(super) fn in_unrotated(out: &mut Description<'_>) -> Result<(), HfError> {
    in_some(out, None, |layer, _| layer % 4 == 3)
}

/// Qwen 2 and Qwen3: in the layers that `layer_types` lists, or else in those from `max_window_layers` on.
pub(super) fn in_late(out: &mut Description<'_>) -> Result<(), HfError> {
    in_some(out, Some(4096), |layer, first| layer >= first)
}

/// Qwen 2 with experts: in the layers that `layer_types` lists, or else in every other one before
/// `max_window_layers`.
pub(super) fn in_early(out: &mut Description<'_>) -> Result<(), HfError> {
    in_some(out, Some(4096), |layer, end| {
        layer.is_multiple_of(2) && layer < end
    })
}

/// `default` is the window of a configuration without the key.
fn in_some(
    out: &mut Description<'_>,
    default: Option<u32>,
    by_rule: fn(u32, u32) -> bool,
) -> Result<(), HfError> {
    let (config, n_layer) = (out.config, out.shape.n_layer);
    let bound = config.maybe_whole(&["max_window_layers"])?.unwrap_or(28);
    let mut has_window = out.shape.windows();
    let Some(window) = used(out, default)? else {
        return match has_window.contains(&true) {
            true => Err(config.error(&["layer_types"], NOT_USED)),
            false => Ok(()),
        };
    };
    if has_window.is_empty() {
        has_window.extend((0..n_layer).map(|layer| by_rule(layer, bound)));
    }
    write(out, window, &has_window);
    Ok(())
}

const NOT_USED: &str = "lists sliding_attention, but use_sliding_window is not true";

/// Writes the window and the layers that have it, if there are any.
fn write(out: &mut Description<'_>, window: u32, has_window: &[bool]) {
    if !has_window.contains(&true) {
        return;
    }
    out.set("attention.sliding_window", window);
    if has_window.contains(&false) {
        let pattern = MetaValue::bools(has_window);
        out.set("attention.sliding_window_pattern", pattern);
    }
}

/// The window, where `use_sliding_window` asks for it.
fn used(out: &Description<'_>, default: Option<u32>) -> Result<Option<u32>, HfError> {
    let window = given(out.config, default)?;
    let uses = out.config.bool("use_sliding_window") == Some(true);
    Ok(window.filter(|_| uses))
}

/// The window in config.json, where null and 0 mean none; `default` if the key is absent.
fn given(config: &Config, default: Option<u32>) -> Result<Option<u32>, HfError> {
    const KEY: &str = "sliding_window";
    let found = match config.map().get(KEY) {
        None => default,
        Some(Value::Null) => None,
        Some(_) => config.maybe_whole(&[KEY])?,
    };
    Ok(found.filter(|window| *window > 0))
}
