//! `POST /tokenize`, `/detokenize` and `/apply-template`.

use super::prompts::text_of;
use crate::api::error::{ApiError, json_reply};
use crate::api::fields::{Fields, token, wrong};
use crate::api::logprobs::token_bytes;
use crate::chat::messages::conversation;
use crate::http::{Context, body};
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};
use sluice_core::tokenizer::EncodeOptions;

type Result<T> = core::result::Result<T, ApiError>;

pub(super) async fn tokenize(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    let posted = body::json(&context, request).await?;
    let lease = context.model(posted.model()?).await?;
    let work = move || {
        let fields = Fields::of_body(&posted.value)?;
        let text = fields
            .str("content")?
            .ok_or_else(|| ApiError::field("content", "is missing"))?;
        let options = EncodeOptions {
            add_special: fields.bool("add_special")?.unwrap_or(false),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokens = lease.model().encode_with(text, options);
        let tokens = tokens.map_err(|error| ApiError::field("content", error.to_string()))?;
        if !with_pieces {
            return Ok::<_, ApiError>(json!({"tokens": tokens}));
        }
        let piece = |id: u32| match String::from_utf8(token_bytes(lease.model(), id)) {
            Ok(text) => json!({"id": id, "piece": text}),
            // A part of a character is no text.
            Err(error) => json!({"id": id, "piece": error.into_bytes()}),
        };
        let pieces: Vec<_> = tokens.into_iter().map(piece).collect();
        Ok(json!({"tokens": pieces}))
    };
    Ok(json_reply(&context.app.work().run(work).await??))
}

pub(super) async fn detokenize(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    let posted = body::json(&context, request).await?;
    let lease = context.model(posted.model()?).await?;
    let work = move || {
        let fields = Fields::of_body(&posted.value)?;
        let list = match fields.value("tokens") {
            Some(Value::Array(list)) => list,
            None => return Err(ApiError::field("tokens", "is missing")),
            Some(other) => return Err(wrong("tokens", other, "a list of tokens")),
        };
        let n_vocab = lease.model().tokenizer().n_vocab();
        let tokens = list.iter().map(|value| token("tokens", value, n_vocab));
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        Ok(json!({"content": text_of(&tokens, lease.model())}))
    };
    Ok(json_reply(&context.app.work().run(work).await??))
}

pub(super) async fn apply_template(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    let posted = body::json(&context, request).await?;
    let lease = context.model(posted.model()?).await?;
    let defaults = context.app.defaults().template_kwargs.clone();
    let work = move || {
        let fields = Fields::of_body(&posted.value)?;
        let conversation = conversation(fields, &defaults)?;
        let prompt = lease.prompts().prompt(lease.model(), &conversation)?;
        Ok::<_, ApiError>(json!({"prompt": prompt.text}))
    };
    Ok(json_reply(&context.app.work().run(work).await??))
}
