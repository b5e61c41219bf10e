//! `generation_config.json`: end-of-text tokens, suppressed tokens, sampling.

use super::ConvertError;
use super::vocabulary::Vocabulary;
use serde_json::{Map, Value};
use sluice::file::{GgufHeader, MetaValue};
use sluice_core::kernels::words;
use sluice_hf::{Config, HfError, narrow, read_object_if_there, warn_of_rest};
use std::path::Path;

/// Reads the file; an empty object if it does not exist. Some published files are malformed, which Hugging Face's
/// loader ignores and we report as a warning.
pub(super) fn read_generation(
    folder: &Path,
    warnings: &mut Vec<String>,
) -> Result<Config, ConvertError> {
    let path = folder.join("generation_config.json");
    let map = match read_object_if_there(&path) {
        Err(error @ HfError::Json { .. }) => {
            warnings.push(format!("{error}: the file is ignored"));
            Map::new()
        }
        read => read?,
    };
    Ok(Config::new(&path, map))
}

/// The tokens that end a text, from generation_config.json or else from config.json.
pub(super) fn end_tokens(generation: &Config, config: &Config) -> Vec<Value> {
    let list = |config: &Config| match config.find(&["eos_token_id"]) {
        Some(Value::Array(list)) => list.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    };
    let (own, other) = (list(generation), list(config));
    if own.is_empty() { other } else { own }
}

/// The sampling that the model's authors recommend.
pub(super) fn write_sampling(
    header: &mut GgufHeader,
    generation: &Config,
    warnings: &mut Vec<String>,
) {
    let integer = generation.find(&["top_k"]).and_then(Value::as_i64);
    if let Some(k) = integer.and_then(|n| i32::try_from(n).ok()) {
        header.set("general.sampling.top_k", k);
    }
    for (from, to) in [
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("temperature", "temp"),
    ] {
        if let Some(x) = lenient(generation, &[from], warnings) {
            header.set(&format!("general.sampling.{to}"), x);
        }
    }
    let penalty = ["penalty_repeat", "repetition_penalty"];
    if let Some(x) = lenient(generation, &penalty, warnings) {
        header.set("general.sampling.penalty_repeat", x);
    }
}

/// The tokens that are never chosen.
pub(super) fn write_suppressed(
    header: &mut GgufHeader,
    generation: &Config,
    vocabulary: &Vocabulary,
    warnings: &mut Vec<String>,
) -> Result<(), ConvertError> {
    if let Some(value) = generation.find(&["suppress_tokens"]) {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let ids = list
            .iter()
            .map(|id| i32::try_from(vocabulary.id_of(id)?).ok());
        let ids: Option<Vec<i32>> = ids.collect();
        let what = "is not a list of token ids of the vocabulary";
        let ids = ids.filter(|_| value.is_array());
        let ids = ids.ok_or_else(|| generation.error(&["suppress_tokens"], what))?;
        if !ids.is_empty() {
            header.set("tokenizer.ggml.suppress_tokens", MetaValue::i32s(&ids));
        }
    }
    warn_of_rest(generation, &HARMLESS, warnings);
    Ok(())
}

/// Returns a number, or warns if it is something else: no output depends on it.
fn lenient(generation: &Config, keys: &[&str], warnings: &mut Vec<String>) -> Option<f32> {
    match generation.maybe_number(keys) {
        Ok(number) => number.map(narrow),
        Err(error) => {
            warnings.push(format!("{error}: ignored"));
            None
        }
    }
}

/// About lengths, caches, output and training; roles are read from other files.
const HARMLESS: [&str; 24] = words(
    "assistant_confidence_threshold assistant_lookbehind bos_token_id cache_config \
     cache_implementation chat_format decoder_start_token_id do_sample eos_token_id max_length \
     max_matching_ngram_size max_new_tokens max_time max_window_size num_assistant_tokens \
     num_assistant_tokens_schedule output_attentions output_hidden_states pad_token_id \
     prompt_lookup_num_tokens target_lookbehind transformers_version trust_remote_code use_cache",
);
