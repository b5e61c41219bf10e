//! Client APIs. A [`Dialect`] has routes, parses requests, frames streams, and writes answers, errors and lists of
//! models; it converts from and to the plain values of [`api`](crate::api).
//!
//! To add one, write a module and add it to [`ALL`].

mod anthropic;
mod drive;
mod error;
mod fields;
mod generation;
mod grammar;
mod hub;
mod llama;
mod logprobs;
mod numbered;
mod ollama;
mod openai;
mod prompts;
mod reply;
mod responses;
mod sampling;
mod seam;
mod status;
mod stream;
mod structural;
#[cfg(test)]
mod toy;

use crate::api::{ApiError, Defaults};
use crate::http::Request;
use serde_json::Value;

pub(crate) use drive::answer;
pub(crate) use error::error_reply;
pub use grammar::{json_schema, response_format};
pub use openai::messages;
#[cfg(test)]
pub(crate) use seam::ErrorOf;
pub(crate) use seam::{Action, Dialect, Route};

/// All dialects. Paths that no dialect has are answered by the first one.
pub(crate) const ALL: &[&dyn Dialect] = &[
    &openai::OpenAi,
    &llama::LlamaServer,
    &anthropic::Anthropic,
    &responses::Responses,
    &ollama::Ollama,
    #[cfg(test)]
    &toy::Toy,
];

/// The value of a query parameter, unescaped.
pub(crate) fn query(request: &Request, name: &str) -> Option<String> {
    let mut pairs = request
        .uri()
        .query()?
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .find(|(key, _)| *key == name)
        .map(|(_, value)| unescaped(value))
}

/// A part of an address, with the bytes that it has as `%` and two digits.
fn unescaped(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after
            .get(..2)
            .filter(|hex| first == b'%' && hex.iter().all(u8::is_ascii_hexdigit));
        let escaped = escaped.and_then(|hex| core::str::from_utf8(hex).ok());
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Method and path of every route.
pub(crate) fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let routes = ALL.iter().flat_map(|dialect| dialect.routes());
    routes.map(|route| (route.method.as_str(), route.path))
}

/// Parses a body as the route at `path` does.
pub(crate) fn parse_body(path: &str, body: &Value) -> Option<Result<(), ApiError>> {
    let mut routes = ALL.iter().flat_map(|dialect| dialect.routes());
    let defaults = Defaults::default();
    routes
        .find(|route| route.path == path)
        .and_then(|route| match route.action {
            Action::Chat(parse) => Some(parse(body, &defaults).map(drop)),
            Action::Complete(parse) => Some(parse(body, &defaults).map(drop)),
            Action::Text(parse) => Some(parse(body, &defaults).map(drop)),
            Action::Embed(parse) => Some(parse(body, &defaults).map(drop)),
            Action::Rank(parse) => Some(parse(body, &defaults).map(drop)),
            Action::Models(_) | Action::Model(_) | Action::Other(_) => None,
        })
}
