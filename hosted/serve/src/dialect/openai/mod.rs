//! OpenAI's routes, with fields of llama-server and vLLM.

mod catalog;
mod chat;
mod completion;
mod embeddings;
mod lora;
mod messages;
mod models;
mod rerank;

pub use messages::messages;
pub(super) use messages::read as read_messages;
pub(super) use models::{add_experts, progress, status};

use super::generation::NAMES;
use super::seam::{Action, Dialect, ErrorOf, Framing, Route, get, post};
use super::stream::server_sent;
use crate::api::{ApiError, ErrorKind, FieldName};
use crate::http::{Request, Response, StreamKind};
use core::time::Duration;
use serde_json::{Value, json};

/// OpenAI's routes.
pub(crate) struct OpenAi;

impl Dialect for OpenAi {
    fn routes(&self) -> &'static [Route] {
        ROUTES
    }

    fn framing(&self) -> &'static Framing {
        &Framing {
            kind: EVENTS,
            frame: server_sent,
            end: "data: [DONE]\n\n",
        }
    }

    fn error(&self, error: &ApiError, of: ErrorOf<'_>) -> Value {
        error_value(error, of.status)
    }

    fn names(&self) -> &'static [FieldName] {
        NAMES
    }
}

/// Server-sent events, kept alive by comments.
pub(super) const EVENTS: StreamKind = StreamKind {
    content_type: "text/event-stream",
    keep_alive: ":\n\n",
    silence_max: Duration::MAX,
};

/// `{"error": {..}}`.
pub(super) fn error_value(error: &ApiError, status: u16) -> Value {
    let kind = match error.kind {
        ErrorKind::Invalid
        | ErrorKind::Method
        | ErrorKind::TooLarge
        | ErrorKind::HeadTooLarge
        | ErrorKind::Slow => "invalid_request_error",
        ErrorKind::TooLong { .. } => "exceed_context_size_error",
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Conflict => "conflict_error",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unsupported => "not_supported_error",
        ErrorKind::Unavailable => "unavailable_error",
        ErrorKind::Late => "timeout_error",
        ErrorKind::Internal => "server_error",
    };
    let mut shown = json!({
        "message": error.to_string(),
        "type": kind,
        "param": error.field,
        "code": status,
    });
    // llama-server's names: agents shorten their conversations by them.
    if let ErrorKind::TooLong { n_tokens, n_ctx } = error.kind {
        shown["n_prompt_tokens"] = n_tokens.into();
        shown["n_ctx"] = n_ctx.into();
    }
    json!({ "error": shown })
}

const ROUTES: &[Route] = &[
    get("/models", Action::Models(models::list)),
    get("/v1/models", Action::Models(models::list)),
    get("/models/{name}", Action::Model(models::shown)),
    get("/v1/models/{name}", Action::Model(models::shown)),
    post("/chat/completions", Action::Chat(chat::parse)),
    post("/v1/chat/completions", Action::Chat(chat::parse)),
    post("/completions", Action::Complete(completion::parse)),
    post("/v1/completions", Action::Complete(completion::parse)),
    post("/embeddings", Action::Embed(embeddings::parse)),
    post("/v1/embeddings", Action::Embed(embeddings::parse)),
    post("/embedding", Action::Embed(embeddings::parse)),
    post("/rerank", Action::Rank(rerank::parse)),
    post("/v1/rerank", Action::Rank(rerank::parse)),
    post("/reranking", Action::Rank(rerank::parse)),
    post("/v1/reranking", Action::Rank(rerank::parse)),
    get("/v1/lora_adapters", LIST_ADAPTERS),
    post("/v1/load_lora_adapter", LOAD_ADAPTER),
    post("/v1/unload_lora_adapter", UNLOAD_ADAPTER),
    post("/v1/audio/transcriptions", ABSENT),
];

pub(super) const LIST_ADAPTERS: Action = Action::Other(|context, _| Box::pin(lora::list(context)));
const LOAD_ADAPTER: Action =
    Action::Other(|context, request| Box::pin(lora::load(context, request)));
const UNLOAD_ADAPTER: Action =
    Action::Other(|context, request| Box::pin(lora::unload(context, request)));
const ABSENT: Action = Action::Other(|_, request| Box::pin(absent(request)));

/// Routes for what is not text.
async fn absent(request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let what = format!("{path}: this server accepts only text");
    Err(ApiError::unsupported(what))
}
