//! What a dialect says.

use crate::answer::Context;
use crate::api::{
    AnswerEvent, ApiError, ChatRequest, CompletionRequest, Defaults, EmbeddingRequest, FieldName,
    Ranking, RerankRequest, Start, Total, Vectors,
};
use crate::http::{Request, Response, StreamKind};
use core::pin::Pin;
use hyper::Method;
use serde_json::Value;

/// The language of one kind of clients: their routes, and how requests are read and answers written.
pub(crate) trait Dialect: Sync {
    /// The routes.
    fn routes(&self) -> &'static [Route];

    /// How streams are framed.
    fn framing(&self) -> &'static Framing;

    /// The body of an error, as a reply and within a stream; `status` is HTTP's.
    fn error(&self, error: &ApiError, status: u16) -> Value;

    /// What clients call the fields of requests, where it is not what [`api`](crate::api) calls them.
    fn names(&self) -> &'static [FieldName] {
        &[]
    }
}

/// A route.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Its path; a part in braces stands for any.
    pub(crate) path: &'static str,
    pub(crate) action: Action,
}

/// What a route does.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Chat(Parse<ChatRequest, WriteText>),
    Complete(Parse<CompletionRequest, WriteText>),
    Embed(Parse<EmbeddingRequest, WriteVectors>),
    Rank(Parse<RerankRequest, WriteRanking>),
    /// Lists all models.
    Models(fn(&[ModelInfo<'_>]) -> Value),
    /// Shows the model that the last part of the path names.
    Model(fn(&ModelInfo<'_>) -> Value),
    /// Whatever no other dialect has.
    Other(fn(Context, Request) -> PendingReply),
}

/// Reads the body of a request.
pub(crate) type Parse<R, W> = fn(&Value, &Defaults) -> Result<Exchange<R, W>, ApiError>;
/// Makes what writes an answer of what it begins with.
pub(crate) type WriteText = Box<dyn FnOnce(&Start) -> Box<dyn TextWriter> + Send>;
/// Writes vectors.
pub(crate) type WriteVectors = Box<dyn FnOnce(Vectors) -> Value + Send>;
/// Writes scores.
pub(crate) type WriteRanking = Box<dyn FnOnce(Ranking) -> Value + Send>;
/// A reply that is being made.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// A request, and how its answer is written.
pub(crate) struct Exchange<R, W> {
    pub(crate) request: R,
    /// What this request calls fields, before the names of its dialect.
    pub(crate) names: Vec<FieldName>,
    /// Writes the answer.
    pub(crate) writer: W,
}

/// How a stream is framed.
pub(crate) struct Framing {
    pub(crate) kind: StreamKind,
    /// Writes a chunk.
    pub(crate) frame: fn(&mut String, &Value),
    /// What stands at the end.
    pub(crate) end: &'static str,
}

/// Writes an answer. In a stream all chunks are sent; else [`Self::whole`] makes the reply of what was written.
pub(crate) trait TextWriter: Send {
    /// The chunks of an event.
    fn write(&mut self, event: AnswerEvent) -> Vec<Value>;

    /// The last chunks.
    fn last(&mut self, total: &Total) -> Vec<Value>;

    /// The reply where it comes whole.
    fn whole(&mut self, total: &Total) -> Value;
}

/// A model, or an adapter, as lists of models show it.
pub(crate) struct ModelInfo<'m> {
    pub(crate) name: &'m str,
    /// Other names.
    pub(crate) aliases: Vec<&'m str>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model of an adapter.
    pub(crate) base: Option<&'m str>,
    pub(crate) status: ModelStatus,
    /// What is known of a model in memory.
    pub(crate) loaded: Option<&'m crate::models::Loaded>,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelStatus {
    Unloaded,
    Loading,
    Loaded,
    Failed(String),
}
