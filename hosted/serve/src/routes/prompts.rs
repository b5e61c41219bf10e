//! Prompts in the forms in which they may come: a text, tokens, both mixed, or a list of those.

use crate::api::error::ApiError;
use crate::api::fields::{Fields, token, wrong};
use serde_json::Value;
use sluice::Model;
use sluice_core::tokenizer::{Detokenizer, EncodeOptions};

type Result<T> = core::result::Result<T, ApiError>;

/// The tokens of all prompts in the field `name`, and whether they came as a list.
pub(super) fn prompts(
    fields: Fields<'_>,
    name: &str,
    model: &Model,
) -> Result<(Vec<Vec<u32>>, bool)> {
    let Some(value) = fields.value(name) else {
        return Err(ApiError::field(name, "is missing"));
    };
    let Value::Array(list) = value else {
        return Ok((vec![one(value, name, model)?], false));
    };
    if list.is_empty() {
        return Err(ApiError::field(name, "is an empty list"));
    }
    if list.len() > PROMPTS_MAX && !list.iter().any(Value::is_number) {
        let what = format!("{} prompts; at most {PROMPTS_MAX} are allowed", list.len());
        return Err(ApiError::field(name, what));
    }
    // A list with numbers is one prompt, of tokens or mixed with texts.
    if list.iter().any(Value::is_number) {
        return Ok((vec![one(value, name, model)?], false));
    }
    let each = list.iter().enumerate();
    let all = each.map(|(i, value)| one(value, &format!("{name}[{i}]"), model));
    Ok((all.collect::<Result<_>>()?, true))
}

fn one(value: &Value, name: &str, model: &Model) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer();
    let encode = |text: &str, add_special| {
        let options = EncodeOptions {
            add_special,
            parse_special: true,
        };
        let tokens = model.encode_with(text, options);
        tokens.map_err(|error| ApiError::field(name, error.to_string()))
    };
    let mut tokens = match value {
        Value::String(text) => encode(text, true)?,
        Value::Array(parts) => {
            let mut tokens = Vec::with_capacity(parts.len());
            for (i, part) in parts.iter().enumerate() {
                match part {
                    Value::String(text) => tokens.extend(encode(text, i == 0)?),
                    part => tokens.push(token(&format!("{name}[{i}]"), part, tokenizer.n_vocab())?),
                }
            }
            tokens
        }
        other => return Err(wrong(name, other, "a text, or a list of tokens")),
    };
    // The end that a vocabulary puts behind texts would end the answer before it begins.
    if value.is_string() && tokenizer.adds_eos() && tokens.last().copied() == tokenizer.eos() {
        tokens.pop();
    }
    if tokens.is_empty() {
        let first = tokenizer.bos().or_else(|| tokenizer.eos());
        tokens.push(first.ok_or_else(|| ApiError::field(name, "is empty"))?);
    }
    Ok(tokens)
}

/// The text of a prompt.
pub(super) fn text_of(tokens: &[u32], model: &Model) -> String {
    let tokenizer = model.tokenizer();
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer);
    for &token in tokens {
        // All of them are in the vocabulary.
        let _pushed = detokenizer.push(tokenizer, token, |piece| text.push_str(piece));
    }
    detokenizer.finish(|piece| text.push_str(piece));
    text
}

const PROMPTS_MAX: usize = 1024;
