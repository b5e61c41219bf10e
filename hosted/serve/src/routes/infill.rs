//! `POST /infill`: what stands between two texts.

use super::completion::prepare_native;
use crate::api::error::ApiError;
use crate::api::fields::{Fields, wrong};
use crate::http::Context;
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use serde_json::Value;
use sluice::Model;
use sluice_core::tokenizer::EncodeOptions;

type Result<T> = core::result::Result<T, ApiError>;

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    super::write(context, request, |lease, fields, context| {
        let tokens = tokens(fields, lease.model())?;
        prepare_native(lease, fields, (vec![tokens], false), context)
    })
    .await
}

/// The prompt of the fields `input_prefix`, `input_suffix`, `input_extra` and `prompt`.
fn tokens(fields: Fields<'_>, model: &Model) -> Result<Vec<u32>> {
    let prefix = fields.str("input_prefix")?.unwrap_or_default();
    let suffix = fields.str("input_suffix")?.unwrap_or_default();
    let begun = fields.str("prompt")?.unwrap_or_default();
    let filled = fill("input_suffix", model, &format!("{prefix}{begun}"), suffix)?;
    let mut before = extra(fields, model)?;
    if before.is_empty() {
        return Ok(filled);
    }
    // The token that begins texts stays the first.
    let bos = model
        .tokenizer()
        .bos()
        .filter(|bos| filled.first() == Some(bos));
    before.splice(0..0, bos);
    before.extend(&filled[usize::from(bos.is_some())..]);
    Ok(before)
}

/// Other files, between the model's tokens for them.
fn extra(fields: Fields<'_>, model: &Model) -> Result<Vec<u32>> {
    let list = match fields.value("input_extra") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("input_extra", other, "a list of files")),
    };
    let special = model.tokenizer().special_tokens();
    let mut tokens = Vec::new();
    for (i, file) in list.iter().enumerate() {
        let field = format!("input_extra[{i}]");
        let text = |name: &str| match file.get(name) {
            Some(Value::String(text)) => Ok(text.as_str()),
            other => {
                let other = other.cloned().unwrap_or_default();
                Err(wrong(&format!("{field}.{name}"), &other, "a text"))
            }
        };
        let (name, text) = (text("filename")?, text("text")?);
        match special.fim_sep {
            Some(separator) => {
                tokens.push(separator);
                tokens.extend(encode(&field, model, &format!("{name}\n{text}"))?);
            }
            None => tokens.extend(encode(
                &field,
                model,
                &format!("\n\n--- {name} ---\n{text}"),
            )?),
        }
    }
    Ok(tokens)
}

/// The prompt for the text between `prefix` and `suffix`. Neither has control tokens.
pub(super) fn fill(field: &str, model: &Model, prefix: &str, suffix: &str) -> Result<Vec<u32>> {
    let tokenizer = model.tokenizer();
    let special = tokenizer.special_tokens();
    let marks = (special.fim_pre, special.fim_suf, special.fim_mid);
    let (Some(pre), Some(suf), Some(mid)) = marks else {
        let what = "the model has no tokens for filling in the middle";
        return Err(ApiError::field(field, what));
    };
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let mut tokens: Vec<u32> = bos.into_iter().collect();
    tokens.push(pre);
    tokens.extend(encode(field, model, prefix)?);
    tokens.push(suf);
    tokens.extend(encode(field, model, suffix)?);
    tokens.push(mid);
    Ok(tokens)
}

fn encode(field: &str, model: &Model, text: &str) -> Result<Vec<u32>> {
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let tokens = model.encode_with(text, options);
    tokens.map_err(|error| ApiError::field(field, error.to_string()))
}
