//! Metadata keys of a file that its architecture does not read.
//!
//! Readers list the keys that they use. Of the remaining keys under the architecture's name, one that is known to
//! change what a model computes is refused unless its value has no effect; the caller can report
//! the others.
//!
//! Meanings of keys: llama.cpp, `src/llama-arch.cpp` and `src/llama-model.cpp`.

use super::Keys;
use crate::gguf::{Gguf, Value};
use crate::kernels::words;
use crate::model::config::ModelConfig;
use crate::model::error::ModelError;

impl ModelConfig {
    /// The metadata keys under the architecture's name that nothing reads, in the file's order. They may have
    /// no effect: [`Self::from_gguf`] refuses all but neutral values of keys that are known to have
    /// one.
    pub fn unread_keys<'a>(&self, gguf: &Gguf<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
        let name = self.architecture.name();
        let own = self.architecture.family().keys;
        gguf.metadata().filter_map(move |(key, _)| {
            let rest = key.strip_prefix(name)?.strip_prefix('.')?;
            let is_known = [READ, own, WITHOUT_EFFECT]
                .iter()
                .any(|keys| keys.contains(&rest));
            let has_meaning = CHANGING.iter().any(|(known, _)| *known == rest);
            (!is_known && !has_meaning).then_some(key)
        })
    }
}

/// Refuses values that change what a model computes, for keys that this family does not read.
pub(super) fn refuse_unread(
    keys: &Keys<'_, '_>,
    own: &'static [&'static str],
) -> Result<(), ModelError> {
    for (key, neutral) in CHANGING {
        let value = keys.gguf().get(keys.name(key).as_str());
        let changes = value.is_some_and(|value| !neutral.holds(value));
        if changes && !own.contains(key) {
            return Err(ModelError::NotImplemented {
                what: "a setting of other architectures",
                name: keys.name(key),
            });
        }
    }
    Ok(())
}

/// Which values have no effect.
#[derive(Clone, Copy, Debug)]
enum Neutral {
    /// 0, or false.
    Zero,
    /// 0, which means none, and the factor 1; or an array of these.
    ZeroOrOne,
}

impl Neutral {
    fn holds(self, value: Value<'_>) -> bool {
        let number = value.as_f32().or_else(|| {
            let whole = value.as_i64().or(value.as_bool().map(i64::from));
            #[expect(clippy::cast_precision_loss, reason = "0 and 1 are exact")]
            whole.map(|whole| whole as f32)
        });
        // Lists are by layer.
        let Some(number) = number else {
            let mut values = value.as_array().into_iter().flat_map(|array| array.iter());
            return value.as_array().is_some() && values.all(|value| self.holds(value));
        };
        let bits = number.abs().to_bits();
        bits == 0 || matches!(self, Self::ZeroOrOne) && number.to_bits() == 1_f32.to_bits()
    }
}

/// Read for every family: `read.rs`, and poolings.
const READ: &[&str] = words!(
    "activation activation_threshold attention.head_count attention.head_count_kv attention.key_length \
     attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.value_length \
     block_count classifier.output_labels context_length embedding_length expert_count \
     expert_used_count feed_forward_length nextn_predict_layers pooling_type rope.dimension_count \
     rope.freq_base rope.scale_linear rope.scaling.attn_factor rope.scaling.factor \
     rope.scaling.original_context_length rope.scaling.type rope.scaling.yarn_attn_factor \
     rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor \
     rope.scaling.yarn_log_multiplier rope.scaling.yarn_truncate"
);

/// Describes the file or its making, or repeats what the shapes of tensors say.
const WITHOUT_EFFECT: &[&str] = words!(
    "embedding_length_out expert_feed_forward_length hot_neuron_count neuron_order \
     rope.scaling.finetuned tensor_data_layout vocab_size"
);

/// Settings that other architectures use.
const CHANGING: &[(&str, Neutral)] = &[
    ("attention.clamp_kqv", Neutral::Zero),
    ("attention.kv_lora_rank", Neutral::Zero),
    ("attention.max_alibi_bias", Neutral::Zero),
    ("attention.output_scale", Neutral::ZeroOrOne),
    ("attention.q_lora_rank", Neutral::Zero),
    ("attention.scale", Neutral::Zero),
    ("attention.shared_kv_layers", Neutral::Zero),
    ("attention.sliding_window", Neutral::Zero),
    ("attention.temperature_length", Neutral::Zero),
    ("attention.temperature_scale", Neutral::Zero),
    ("attention.value_scale", Neutral::ZeroOrOne),
    ("attn_logit_softcapping", Neutral::Zero),
    ("embedding_scale", Neutral::ZeroOrOne),
    ("expert_chunk_feed_forward_length", Neutral::Zero),
    ("expert_gating_func", Neutral::ZeroOrOne),
    ("expert_group_count", Neutral::ZeroOrOne),
    ("expert_shared_count", Neutral::Zero),
    ("expert_shared_feed_forward_length", Neutral::Zero),
    ("expert_weights_scale", Neutral::ZeroOrOne),
    ("final_logit_softcapping", Neutral::Zero),
    ("interleave_moe_layer_step", Neutral::ZeroOrOne),
    ("leading_dense_block_count", Neutral::Zero),
    ("logit_scale", Neutral::ZeroOrOne),
    ("moe_every_n_layers", Neutral::ZeroOrOne),
    ("no_rope_layer_step", Neutral::Zero),
    ("rescale_every_n_layers", Neutral::Zero),
    ("residual_scale", Neutral::ZeroOrOne),
    ("rope.dimension_sections", Neutral::Zero),
    ("router_logit_softcapping", Neutral::Zero),
    ("swin_norm", Neutral::Zero),
    ("use_parallel_residual", Neutral::Zero),
];

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::FAMILIES;
    use super::*;
    use std::fs;

    /// A key that is read but not listed would be reported as unread.
    #[test]
    fn every_key_that_is_read_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/model/arch");
        let paths = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        // This file lists keys that others do not read.
        let sources = paths.filter(|path| !path.ends_with("unread.rs"));
        let mut n_found = 0;
        for path in sources {
            let source = fs::read_to_string(path).unwrap();
            for (before, after) in source.match_indices('"').map(|(at, _)| source.split_at(at)) {
                let Some((key, _)) = after[1..].split_once('"') else {
                    continue;
                };
                let call = before.trim_end().strip_suffix('(').unwrap_or("");
                let is_read = call.rsplit_once("keys.").is_some_and(|(_, method)| {
                    method
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                });
                let is_read = is_read
                    || before.trim_end().ends_with("(keys,")
                    || ["rope.", "attention."]
                        .iter()
                        .any(|part| key.starts_with(part));
                if !is_read || key.is_empty() || key.contains(' ') {
                    continue;
                }
                n_found += 1;
                let known =
                    READ.contains(&key) || FAMILIES.iter().any(|family| family.keys.contains(&key));
                assert!(known, "{key} is read, and in no list");
            }
        }
        assert!(n_found > 40, "{n_found}");
    }

    #[test]
    fn neutral_values() {
        assert!(Neutral::Zero.holds(Value::F32(0.0)));
        assert!(Neutral::Zero.holds(Value::Bool(false)));
        assert!(!Neutral::Zero.holds(Value::U32(1)));
        assert!(Neutral::ZeroOrOne.holds(Value::U32(1)));
        assert!(Neutral::ZeroOrOne.holds(Value::F32(1.0)));
        assert!(!Neutral::ZeroOrOne.holds(Value::F32(0.5)));
        assert!(!Neutral::ZeroOrOne.holds(Value::F32(f32::NAN)));
    }
}
