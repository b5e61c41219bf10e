//! Ollama's API.
//!
//! A request becomes the same typed request as OpenAI's, and its answer is written from the same events. Source: Ollama's
//! own API documentation and types (version 0.33), and its Python and JavaScript packages.

mod details;
mod embed;
mod messages;
mod models;
mod options;
mod pull;
mod request;
mod root;
mod show;
mod writer;

use super::seam::{Action, Dialect, ErrorOf, Framing, Route, get, post};
use super::status::status_of;
use super::stream::line;
use crate::answer::Context;
use crate::api::{ApiError, ErrorKind, FieldName};
use crate::http::{Request, Response, StreamKind};
use core::time::Duration;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use sluice_text::chat_template::strftime;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ollama's routes.
pub(crate) struct Ollama;

impl Dialect for Ollama {
    fn routes(&self) -> &'static [Route] {
        ROUTES
    }

    fn framing(&self) -> &'static Framing {
        &Framing {
            kind: LINES,
            frame: line,
            end: "",
        }
    }

    fn error(&self, error: &ApiError, _: ErrorOf<'_>) -> Value {
        error_value(error)
    }

    fn status(&self, kind: ErrorKind) -> StatusCode {
        match kind {
            // As Ollama answers when its queue is full.
            ErrorKind::Busy => StatusCode::SERVICE_UNAVAILABLE,
            kind => status_of(kind),
        }
    }

    fn prefix(&self) -> Option<&'static str> {
        Some("/api/")
    }

    fn names(&self) -> &'static [FieldName] {
        const NAMES: &[FieldName] = &[
            FieldName::new("stop", "options.stop"),
            FieldName::new("logit_bias", "options.logit_bias"),
            FieldName::new("allowed_tokens", "options.allowed_token_ids"),
            FieldName::new("grammar", "format"),
            FieldName::new("context_shift", "shift"),
            FieldName::new("must_reason", "think"),
            FieldName::new("logprobs", "top_logprobs"),
            FieldName::new("prompts[0]", "prompt"),
            FieldName::new("adapters", "lora"),
        ];
        NAMES
    }
}

/// Lines of JSON. Clients parse every line, so that none can keep a silent connection alive.
const LINES: StreamKind = StreamKind {
    content_type: "application/x-ndjson",
    keep_alive: "",
    silence_max: Duration::MAX,
};

/// `{"error": ".."}`.
fn error_value(error: &ApiError) -> Value {
    let is_of_model = error.field.as_deref() == Some("model");
    let message = match error.kind {
        // Clients look for these words before they offer to pull a model.
        ErrorKind::NotFound if is_of_model => format!("model not found: {error}"),
        // Ollama would have cut it without a word.
        ErrorKind::TooLong { .. } => {
            format!(
                "{error}; \"truncate\": true leaves out what does not fit, -c sets a longer context"
            )
        }
        _ => error.to_string(),
    };
    json!({"error": message})
}

/// A time as Ollama writes it: UTC, with nanoseconds.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = UNIX_EPOCH + Duration::from_secs(since.as_secs());
    let nanos = since.subsec_nanos();
    format!("{}.{nanos:09}Z", strftime("%Y-%m-%dT%H:%M:%S", seconds))
}

/// A name as Ollama lists it: with a variant, which is the usual one if the name has none.
fn listed_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.contains(':') {
        true => name.to_owned(),
        false => format!("{name}{}", crate::api::LATEST),
    }
}

/// Routes of Ollama that are not supported.
async fn absent(request: Request) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let why = match path {
        "/api/create" => {
            "models are files: `sluice quantize`, `sluice convert` and `sluice lora merge` make them"
        }
        "/api/copy" => "the server's own flags name models: -m NAME=FILE or --alias",
        "/api/delete" => "the server does not delete files: remove the file itself",
        "/api/push" => "the server uploads nothing",
        _ => "files are not uploaded: put models into the folder of --models-dir",
    };
    Err(ApiError::unsupported(format!("{path}: {why}")))
}

const fn delete(path: &'static str, action: Action) -> Route {
    Route {
        method: Method::DELETE,
        path,
        header: None,
        action,
    }
}

const ROUTES: &[Route] = &[
    get("/", ROOT),
    get("/api/version", VERSION),
    get("/api/tags", TAGS),
    get("/api/ps", PS),
    post("/api/show", SHOW),
    post("/api/chat", Action::Text(request::chat)),
    post("/api/generate", Action::Text(request::generate)),
    post("/api/embed", Action::Embed(embed::parse)),
    post("/api/embeddings", Action::Embed(embed::parse_single)),
    post("/api/pull", PULL),
    post("/api/create", ABSENT),
    post("/api/push", ABSENT),
    post("/api/copy", ABSENT),
    delete("/api/delete", ABSENT),
    get("/api/blobs/{digest}", ABSENT),
    post("/api/blobs/{digest}", ABSENT),
];

type Made = super::seam::PendingReply;

const ROOT: Action = Action::Other(|_, _| -> Made { Box::pin(root::root()) });
const VERSION: Action = Action::Other(|_, _| -> Made { Box::pin(root::version()) });
const TAGS: Action = Action::Other(|context, _| -> Made { Box::pin(models::tags(context)) });
const PS: Action = Action::Other(|context, _| -> Made { Box::pin(models::running(context)) });
const SHOW: Action =
    Action::Other(|context, request| -> Made { Box::pin(show::show(context, request)) });
const PULL: Action =
    Action::Other(|context, request| -> Made { Box::pin(pull::pull(context, request)) });
const ABSENT: Action = Action::Other(|_: Context, request| -> Made { Box::pin(absent(request)) });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_variant() {
        for (name, listed) in [
            ("tale", "tale:latest"),
            ("a:8b", "a:8b"),
            ("hf.co/u/m", "hf.co/u/m:latest"),
            ("hf.co/u/m:Q4_0", "hf.co/u/m:Q4_0"),
        ] {
            assert_eq!(listed_name(name), listed);
        }
    }

    #[test]
    fn times_have_nanoseconds() {
        let time = UNIX_EPOCH + Duration::new(1_700_000_000, 5_000_000);
        assert_eq!(timestamp(time), "2023-11-14T22:13:20.005000000Z");
    }
}
