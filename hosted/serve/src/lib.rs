//! The server: clients' languages over one engine.
//!
//! One thread steps ([`engine`]); it knows nothing of HTTP. Clients' requests become plain values ([`api`]), which are
//! turned into jobs of the engine: texts to tokens, conversations through templates, grammars compiled. Its events
//! reach whoever reads the answer through a bounded channel, and are written in the client's language there.
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
mod http;
pub mod metrics;
mod models;
mod server;
mod wait;
mod work;

pub use adapters::{AdaptersOptions, NamedAdapter};
pub use answer::{TextAnswer, WrapSampler};
pub use api::Defaults;
pub use config::{HttpOptions, Listen, ServerConfig};
pub use models::{ModelsOptions, NamedModel};
pub use server::{Call, Loading, Making, Pending, Reply, ReplyPart, Service};
pub use server::{ServeError, Server, ServerEnd, serve};

use std::sync::Arc;

/// Called with each line of the log, from any thread.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;
