//! Servers: they accept connections, check, answer and log requests, or take calls from the same process.

mod connection;
mod connections;
mod listen;
mod loading;
mod making;
mod pending;
mod reader;
mod routing;
mod service;

pub use listen::{ServeError, Server, ServerEnd, StopSignal, serve};
pub use loading::Loading;
pub use making::Making;
pub use pending::Pending;
pub use reader::{AnswerPart, AnswerParts, AnswerReader};
pub use service::Service;
