//! Connections: accepted, limited, checked, answered, logged.

mod app;
mod auth;
pub(crate) mod body;
mod connection;
mod making;
mod options;
mod patient;
mod server;
mod service;
pub(crate) mod sse;
mod vectors;
mod work;

pub(crate) use app::{App, Context, unique};
pub use making::Making;
pub use options::{HttpOptions, Listen, ServerOptions};
pub use server::{Ended, ServeError, Server, serve};
pub use service::{Call, Loading, Part, Reply, Service, WrapSampler};
pub use vectors::{VectorKind, VectorSlot, Vectors};
