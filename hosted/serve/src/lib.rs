//! An HTTP server that offers several client APIs on one engine.
//!
//! One thread runs the steps ([`engine`]) and is independent of HTTP. Requests are parsed into plain values ([`api`]),
//! which become jobs of the engine: texts are tokenized, conversations rendered with templates, grammars compiled. The
//! engine's events are sent to the connection through a bounded channel and formatted for the client's API there.
//! The answer never depends on concurrent requests or cache hits.
//!
//! ```text
//! client ── server: connection, key, route ── dialect: JSON to ── api ── answer: tokens, samplers ──▶ engine
//!    ▲                                          │                           │ models: which, loaded?      │
//!    └────── http: stream, or one reply ◀── dialect: JSON of ◀── api ◀── answer: events ◀────────────────┘
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod answer;
pub mod api;
mod chat;
mod config;
mod dialect;
pub mod engine;
#[cfg(test)]
mod few_files;
mod http;
mod keys;
pub mod metrics;
mod models;
mod page;
mod pulls;
mod server;
mod wait;
mod work;

pub use adapters::{AdapterPart, AdaptersOptions, NamedAdapter};
pub use answer::WrapSampler;
pub use api::Defaults;
pub use config::{HttpOptions, Listen, ServerConfig};
pub use http::{CorsOrigins, CorsOriginsError, TrustedProxies, TrustedProxiesError};
pub use keys::{CacheScope, CacheScopeError, Keys, KeysError, KeysOptions};
pub use models::{ModelLists, ModelPreset, ModelsOptions, NamedModel, ReadLists, models_of};
pub use pulls::PullOptions;
pub use server::{AnswerPart, AnswerParts, AnswerReader, Loading, Making, Pending, Service};
pub use server::{ServeError, Server, ServerEnd, StopSignal, serve};

use std::sync::Arc;

/// Values in OpenAI's format, for programs that get them as JSON.
pub mod openai {
    pub use crate::dialect::{json_schema, messages, response_format};
}

/// Method and path of every route, for fuzzing; a part in braces matches anything.
#[doc(hidden)]
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    dialect::routes()
}

/// Parses `body` as the route at `path` does, for fuzzing; `None` if no route at `path` has a body that is parsed whole.
#[doc(hidden)]
pub fn parse_body(path: &str, body: &serde_json::Value) -> Option<Result<(), api::ApiError>> {
    dialect::parse_body(path, body)
}

/// Called with each line of the log, from any thread.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
