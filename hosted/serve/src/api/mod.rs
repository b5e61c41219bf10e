//! Requests to a server and its answers, as plain values, independent of HTTP, JSON and the names of any client API.
//!
//! Dialects parse these from their clients' requests and write their events. A program that embeds the server
//! ([`Service`](crate::Service)) constructs them itself.

mod adapter;
mod chat;
mod completion;
mod embedding;
mod error;
mod event;
mod generation;
mod rerank;
mod stream;

pub use adapter::AdapterRequest;
pub use chat::{ChatPrompt, ChatRequest, InputGrammar};
pub use completion::{CompletionPrompt, CompletionRequest, Infill, InfillFile, PromptPart};
pub use embedding::{EmbeddingRequest, VectorKind, Vectors};
pub(crate) use error::NotLoaded;
pub use error::{ApiError, ErrorKind, FieldName};
pub use event::{
    AnswerEvent, AnswerPiece, End, PromptInfo, PromptProgress, Reason, Start, Total, Usage,
    token_bytes,
};
pub(crate) use generation::LATEST;
pub use generation::{
    AdapterChoice, AdapterName, Bias, Biased, Defaults, Generation, ModelChoice, TOP_MAX,
};
pub use rerank::{Ranking, RerankRequest};
pub use stream::StreamId;
pub(crate) use stream::{EventId, LAST_EVENT_ID};
