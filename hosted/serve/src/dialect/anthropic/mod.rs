//! Anthropic's Messages API.
//!
//! A request becomes the same typed request as OpenAI's, and its answer is written from the same events. Source:
//! Anthropic's API reference, version 2023-06-01, and the types of its Python and TypeScript packages.

mod blocks;
mod models;
mod request;
mod thinking;
mod tools;
mod writer;

use super::drive::read;
use super::error::json_reply;
use super::seam::{Action, Dialect, ErrorOf, Framing, Route, post};
use super::status::status_of;
use super::stream::named_event;
use crate::answer::{self, Context};
use crate::api::{ApiError, ErrorKind, FieldName};
use crate::http::{Request, Response, StreamKind};
use core::time::Duration;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

/// Anthropic's routes.
pub(crate) struct Anthropic;

impl Dialect for Anthropic {
    fn routes(&self) -> &'static [Route] {
        ROUTES
    }

    fn framing(&self) -> &'static Framing {
        &Framing {
            kind: EVENTS,
            frame: named_event,
            end: "",
        }
    }

    fn error(&self, error: &ApiError, of: ErrorOf<'_>) -> Value {
        json!({
            "type": "error",
            "error": {"type": kind_of(error.kind), "message": message(error)},
            "request_id": of.request,
        })
    }

    fn id_header(&self) -> Option<&'static str> {
        Some("request-id")
    }

    fn status(&self, kind: ErrorKind) -> StatusCode {
        match kind {
            ErrorKind::Unavailable => OVERLOADED,
            kind => status_of(kind),
        }
    }

    fn names(&self) -> &'static [FieldName] {
        const NAMES: &[FieldName] = &[
            FieldName::new("stop", "stop_sequences"),
            FieldName::new("grammar", "output_config.format.schema"),
            FieldName::new("continues_last", "messages"),
            FieldName::new("adapters", "lora"),
        ];
        NAMES
    }
}

/// Server-sent events; clients give up after a minute of silence.
const EVENTS: StreamKind = StreamKind {
    content_type: "text/event-stream",
    keep_alive: "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    silence_max: Duration::from_secs(10),
};

const fn kind_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::TooLong { .. }
        | ErrorKind::Method
        | ErrorKind::Conflict
        | ErrorKind::HeadTooLarge
        | ErrorKind::Slow
        | ErrorKind::Unsupported => "invalid_request_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Late => "timeout_error",
        ErrorKind::Internal => "api_error",
    }
}

/// Clients shorten their conversations when they read these words, and take the numbers from them.
fn message(error: &ApiError) -> String {
    match error.kind {
        ErrorKind::TooLong { n_tokens, n_ctx } => {
            format!("prompt is too long: {n_tokens} tokens > {n_ctx} maximum")
        }
        _ => error.to_string(),
    }
}

/// The number of tokens of a request's prompt.
async fn count(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let request = read(&mut context, request, request::conversation).await?;
    let prompt = answer::prompt(&context, request).await?;
    Ok(json_reply(&json!({"input_tokens": prompt.tokens.len()})))
}

/// Anthropic's status for a server that cannot answer now; its clients try again.
const OVERLOADED: StatusCode = match StatusCode::from_u16(529) {
    Ok(status) => status,
    Err(_) => StatusCode::SERVICE_UNAVAILABLE,
};

/// A route that OpenAI's clients use, too.
const fn get_models(path: &'static str, action: Action) -> Route {
    Route {
        method: Method::GET,
        path,
        header: Some("anthropic-version"),
        action,
    }
}

const ROUTES: &[Route] = &[
    post("/v1/messages", Action::Chat(request::parse)),
    post("/v1/messages/count_tokens", COUNT),
    get_models("/v1/models", Action::Models(models::list)),
    get_models("/v1/models/{name}", Action::Model(models::shown)),
];
const COUNT: Action = Action::Other(|context, body| Box::pin(count(context, body)));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_is_too_long_is_said_in_anthropic_s_words() {
        let error = ApiError::too_long(9000, 3, 2048);
        let shown = Anthropic.error(
            &error,
            ErrorOf {
                status: 400,
                request: "req-7",
            },
        );
        let words = "prompt is too long: 3000 tokens > 2048 maximum";
        assert_eq!(shown["error"]["message"], words);
        assert_eq!(shown["error"]["type"], "invalid_request_error");
        assert_eq!(shown["request_id"], "req-7");
    }

    #[test]
    fn a_server_that_cannot_answer_now_is_overloaded() {
        let error = ApiError::unavailable("the server is shutting down");
        assert_eq!(Anthropic.status(error.kind).as_u16(), 529);
        assert_eq!(kind_of(error.kind), "overloaded_error");
    }
}
