//! OpenAI's Responses API.
//!
//! A request becomes the same typed request as that of Chat Completions, and its answer is written from the same events.
//! Responses are not stored. Source: OpenAI's API reference and the types of its Python package, 3.57.

mod input;
mod items;
mod output;
mod reasoning;
mod request;
mod response;
mod tools;
mod writer;

use super::drive::read;
use super::error::json_reply;
use super::openai::{EVENTS, error_value};
use super::seam::{Action, Dialect, ErrorOf, Framing, Route, post};
use super::stream::named_event;
use crate::answer::{self, Context};
use crate::api::{ApiError, FieldName};
use crate::http::{Request, Response};
use serde_json::{Value, json};

/// The routes of responses.
pub(crate) struct Responses;

impl Dialect for Responses {
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
        error_value(error, of.status)
    }

    fn names(&self) -> &'static [FieldName] {
        const NAMES: &[FieldName] = &[
            FieldName::new("messages", "input"),
            FieldName::new("grammar", "text.format"),
            FieldName::new("adapters", "lora"),
        ];
        NAMES
    }
}

/// The number of tokens of a request's prompt.
async fn count(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let parse = |body: &Value, defaults: &_| {
        request::conversation(body, defaults).map(|(request, _)| request)
    };
    let request = read(&mut context, request, parse).await?;
    let prompt = answer::prompt(&context, request).await?;
    let object = "response.input_tokens";
    Ok(json_reply(
        &json!({"object": object, "input_tokens": prompt.tokens.len()}),
    ))
}

const ROUTES: &[Route] = &[
    post("/responses", Action::Chat(request::parse)),
    post("/v1/responses", Action::Chat(request::parse)),
    post("/responses/input_tokens", COUNT),
    post("/v1/responses/input_tokens", COUNT),
];
const COUNT: Action = Action::Other(|context, body| Box::pin(count(context, body)));
