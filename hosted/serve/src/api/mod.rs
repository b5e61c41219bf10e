//! Requests to a server and its answers, as plain values, independent of HTTP, JSON and the names of any client API.
//!
//! Dialects parse these from their clients' requests and write their events. A program that embeds the server
//! ([`Service`](crate::Service)) constructs them itself.

mod chat;
mod completion;
mod embedding;
mod error;
mod event;
mod generation;
mod rerank;

pub use chat::ChatRequest;
pub use completion::{CompletionPrompt, CompletionRequest, Infill, InfillFile, PromptPart};
pub use embedding::{EmbeddingInput, EmbeddingRequest, VectorKind, Vectors};
pub use error::{ApiError, ErrorKind};
pub use event::{
    AnswerEvent, AnswerPiece, End, PromptInfo, PromptProgress, Reason, Start, Total, Usage,
};
pub use generation::{AdapterChoice, AdapterName, Bias, Biased, Defaults, Generation, ModelChoice};
pub use rerank::{Ranking, RerankRequest};

pub(crate) use error::FieldName;
pub(crate) use generation::TOP_MAX;
