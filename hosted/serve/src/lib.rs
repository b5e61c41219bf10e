//! The server: OpenAI's routes over one engine.
//!
//! One thread steps ([`engine`]); it knows nothing of HTTP. Those that speak HTTP tokenise, render templates and
//! compile grammars, hand the engine a [`Job`](engine::Job) and get its events through a bounded channel.
//! Whatever runs beside a request, and whatever of it was computed before, its answer is the same.
//!
//! ```text
//! client ── http: connection, key, body ── routes ── api, chat: what is asked ──▶ engine
//!    ▲                                       │ models: which, loaded?               │
//!    └── http::sse or one reply ◀── answer: how a route writes it ◀── events ◀──────┘
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod answer;
mod api;
mod chat;
pub mod engine;
mod http;
pub mod metrics;
mod models;
mod routes;

pub use adapters::{AdaptersOptions, NamedAdapter};
pub use api::request::Defaults;
pub use http::{
    Call, Loading, Making, Part, Reply, Service, VectorKind, VectorSlot, Vectors, WrapSampler,
};
pub use http::{Ended, HttpOptions, Listen, ServeError, Server, ServerOptions, serve};
pub use models::{ModelsOptions, NamedModel};

use std::sync::Arc;

/// Is told what happens, a line at a time, from any thread.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
