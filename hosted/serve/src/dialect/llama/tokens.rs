//! `POST /tokenize`, `/detokenize` and `/apply-template`, `GET /tokenizer_info`: llama-server's routes, which also
//! accept vLLM's fields (`prompt` instead of llama-server's `content`).

use super::super::drive::{body, read};
use super::super::error::json_reply;
use super::super::fields::{Fields, token, wrong};
use super::super::openai::read_messages;
use super::query;
use crate::answer::{self, Context, text_of};
use crate::api::{ApiError, ChatPrompt, ChatRequest, Defaults, token_bytes};
use crate::http::{Request, Response};
use crate::models::Lease;
use serde_json::{Value, json};
use sluice_core::tokenizer::EncodeOptions;

type Result<T> = core::result::Result<T, ApiError>;

pub(super) async fn tokenize(context: Context, request: Request) -> Result<Response> {
    tell(context, request, |lease, fields| {
        for name in ["messages", "return_token_strs"] {
            if fields
                .value(name)
                .is_some_and(|value| value != &Value::Bool(false))
            {
                return Err(ApiError::field(name, "is not supported"));
            }
        }
        let name = fields.first(&["content", "prompt"]).unwrap_or("content");
        let text = fields
            .str(name)?
            .ok_or_else(|| ApiError::field(name, "is missing"))?;
        let is_vllm = name == "prompt";
        let add_special = match is_vllm {
            true => fields.bool("add_special_tokens")?.unwrap_or(true),
            false => fields.bool("add_special")?.unwrap_or(false),
        };
        let options = EncodeOptions {
            add_special,
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokens = lease.model().encode_with(text, options);
        let tokens = tokens.map_err(|error| ApiError::field(name, error.to_string()))?;
        if is_vllm {
            let (count, n_ctx) = (tokens.len(), lease.n_ctx());
            return Ok(json!({"tokens": tokens, "count": count, "max_model_len": n_ctx}));
        }
        if !with_pieces {
            return Ok(json!({"tokens": tokens}));
        }
        let piece = |id: u32| match String::from_utf8(token_bytes(lease.model(), id)) {
            Ok(text) => json!({"id": id, "piece": text}),
            // A part of a character is not valid UTF-8 by itself.
            Err(error) => json!({"id": id, "piece": error.into_bytes()}),
        };
        let pieces: Vec<_> = tokens.into_iter().map(piece).collect();
        Ok(json!({"tokens": pieces}))
    })
    .await
}

pub(super) async fn detokenize(context: Context, request: Request) -> Result<Response> {
    tell(context, request, |lease, fields| {
        let list = match fields.value("tokens") {
            Some(Value::Array(list)) => list,
            None => return Err(ApiError::field("tokens", "is missing")),
            Some(other) => return Err(wrong("tokens", other, "a list of token ids")),
        };
        let n_vocab = lease.model().tokenizer().n_vocab();
        let token = |value| {
            let token = token("tokens", value)?;
            match token < n_vocab {
                true => Ok(token),
                false => Err(wrong("tokens", value, "a token id of this model")),
            }
        };
        let tokens = list.iter().map(token).collect::<Result<Vec<_>>>()?;
        let text = text_of(&tokens, lease.model());
        Ok(json!({"content": text, "prompt": text}))
    })
    .await
}

/// Names of tokens and the template, for clients that count tokens themselves.
pub(super) async fn info(context: Context, request: Request) -> Result<Response> {
    let name = query(&request, "model");
    drop(request);
    let lease = context.model(name.as_deref()).await?;
    let (bos, eos) = lease.prompts().ends();
    Ok(json_reply(&json!({
        "tokenizer_class": lease.model().gguf().str("tokenizer.ggml.model").ok(),
        "bos_token": bos,
        "eos_token": eos,
        "add_bos_token": lease.model().tokenizer().adds_bos(),
        "chat_template": lease.prompts().source(),
        "model_max_length": lease.n_ctx(),
    })))
}

pub(super) async fn apply_template(context: Context, request: Request) -> Result<Response> {
    let (prompt, returns_tokens) = chat_prompt(context, request).await?;
    let mut reply = json!({"prompt": prompt.text});
    if returns_tokens {
        reply["tokens"] = prompt.tokens.into();
        // The text that ends a turn if no token does.
        reply["stop"] = prompt.stop.into();
    }
    Ok(json_reply(&reply))
}

/// The number of tokens of a conversation's prompt.
pub(super) async fn count(context: Context, request: Request) -> Result<Response> {
    let (prompt, _) = chat_prompt(context, request).await?;
    let object = "response.input_tokens";
    Ok(json_reply(
        &json!({"object": object, "input_tokens": prompt.tokens.len()}),
    ))
}

/// The prompt of a chat request, and whether its tokens are asked for.
async fn chat_prompt(mut context: Context, request: Request) -> Result<(ChatPrompt, bool)> {
    let parse = |body: &Value, defaults: &Defaults| {
        let fields = Fields::of_body(body)?;
        let mut request = ChatRequest::new(defaults);
        request.model.name = fields.str("model")?.map(str::to_owned);
        read_messages(fields, &mut request)?;
        Ok((request, fields.bool("return_tokens")?.unwrap_or(false)))
    };
    let (request, returns_tokens) = read(&mut context, request, parse).await?;
    Ok((answer::prompt(&context, request).await?, returns_tokens))
}

/// Answers a request that needs a model's tokenizer or template, but no step of the engine.
async fn tell(
    mut context: Context,
    request: Request,
    work: impl FnOnce(Lease, Fields<'_>) -> Result<Value> + Send + 'static,
) -> Result<Response> {
    let posted = body(&mut context, request, &["content", "prompt", "tokens"]).await?;
    let name = match posted.is_object() {
        true => Fields::of_body(&posted)?.str("model")?.map(str::to_owned),
        false => None,
    };
    let lease = context.model(name.as_deref()).await?;
    let work = move || work(lease, Fields::of_body(&posted)?);
    Ok(json_reply(&context.work(work).await??))
}
