//! The interface of a dialect.

use super::status::status_of;
use crate::answer::Context;
use crate::api::{
    AnswerEvent, ApiError, ChatRequest, CompletionRequest, Defaults, EmbeddingRequest, ErrorKind,
    FieldName, ModelChoice, Ranking, RerankRequest, Start, Total, Vectors,
};
use crate::http::{Request, Response, StreamKind};
use crate::models::{FileProgress, State};
use core::pin::Pin;
use hyper::{Method, StatusCode};
use serde_json::Value;

/// A client API: its routes, how to parse requests, and how to write answers.
pub(crate) trait Dialect: Sync {
    /// The routes.
    fn routes(&self) -> &'static [Route];

    /// How streams are framed.
    fn framing(&self) -> &'static Framing;

    /// The body of an error of a request, in a reply or within a stream.
    fn error(&self, error: &ApiError, of: ErrorOf<'_>) -> Value;

    /// The header in which its clients expect the id of a request, besides `x-request-id`.
    fn id_header(&self) -> Option<&'static str> {
        None
    }

    /// The HTTP status of an error of this kind.
    fn status(&self, kind: ErrorKind) -> StatusCode {
        status_of(kind)
    }

    /// What all its paths begin with, if unknown ones are its own, too.
    fn prefix(&self) -> Option<&'static str> {
        None
    }

    /// The API's names of request fields, if they differ from the names in [`api`](crate::api).
    fn names(&self) -> &'static [FieldName] {
        &[]
    }
}

/// What a dialect may say about an error besides the error itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorOf<'r> {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The id of the request.
    pub(crate) request: &'r str,
}

/// A route.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Its path; a segment in braces matches anything.
    pub(crate) path: &'static str,
    /// The header that requests for it have, if another dialect has the same path.
    pub(crate) header: Option<&'static str>,
    pub(crate) action: Action,
}

pub(super) const fn post(path: &'static str, action: Action) -> Route {
    Route {
        method: Method::POST,
        path,
        header: None,
        action,
    }
}

pub(super) const fn delete(path: &'static str, action: Action) -> Route {
    Route {
        method: Method::DELETE,
        path,
        header: None,
        action,
    }
}

pub(super) const fn get(path: &'static str, action: Action) -> Route {
    Route {
        method: Method::GET,
        path,
        header: None,
        action,
    }
}

/// What a route does.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Chat(Parse<ChatRequest, WriteText>),
    Complete(Parse<CompletionRequest, WriteText>),
    /// Answers conversations and continues texts, or changes which models are in memory.
    Text(Parse<TextRequest, WriteText>),
    Embed(Parse<EmbeddingRequest, WriteVectors>),
    Rank(Parse<RerankRequest, WriteRanking>),
    /// List all models.
    Models(fn(&[ModelInfo<'_>]) -> Value),
    /// Show the model named by the last segment of the path.
    Model(fn(&ModelInfo<'_>) -> Value),
    /// Any other request.
    Other(fn(Context, Request) -> PendingReply),
}

/// A request to a route that has several kinds of them.
pub(crate) enum TextRequest {
    Chat(ChatRequest),
    Complete(CompletionRequest),
    Memory(MemoryRequest),
}

/// A request to load a model, or to unload it unless others use it.
pub(crate) struct MemoryRequest {
    pub(crate) model: ModelChoice,
    pub(crate) loads: bool,
    /// What is replied then.
    pub(crate) reply: Value,
    /// What of the request has no effect, for the log.
    pub(crate) left_out: Vec<String>,
}

/// Parses the body of a request.
pub(crate) type Parse<R, W> = fn(&Value, &Defaults) -> Result<Exchange<R, W>, ApiError>;
/// Makes the writer of an answer from its start event.
pub(crate) type WriteText = Box<dyn FnOnce(&Start) -> Box<dyn TextWriter> + Send>;
/// Writes the chunks of a stream that fails before it begins.
pub(crate) type WriteFailure = Box<dyn FnOnce(&ApiError) -> Vec<Value> + Send>;
/// Writes vectors.
pub(crate) type WriteVectors = Box<dyn FnOnce(Vectors) -> Value + Send>;
/// Writes scores.
pub(crate) type WriteRanking = Box<dyn FnOnce(Ranking) -> Value + Send>;
/// A reply that is being made.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// A request, and how its answer is written.
pub(crate) struct Exchange<R, W> {
    pub(crate) request: R,
    /// Names of fields that are specific to this request; they take precedence over the dialect's.
    pub(crate) names: Vec<FieldName>,
    /// Writes the answer.
    pub(crate) writer: W,
    /// Writes a stream that says that the prompt is too long; by default that is an error reply.
    pub(crate) too_long: Option<WriteFailure>,
}

/// How a stream is framed.
pub(crate) struct Framing {
    pub(crate) kind: StreamKind,
    /// Writes a chunk.
    pub(crate) frame: fn(&mut String, &Value),
    /// The text at the end of a stream.
    pub(crate) end: &'static str,
}

/// Writes an answer. When streaming, all chunks are sent; otherwise [`Self::whole`] makes one reply of them. Chunks depend
/// on the tokens of a text, not on when they come: a stream that is taken up again leaves out those that the client has.
pub(crate) trait TextWriter: Send {
    /// The first chunks of a stream, before any event.
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// The chunks of a stream before an event's own, if it is a text's first.
    fn open(&mut self, _event: &AnswerEvent) -> Vec<Value> {
        Vec::new()
    }

    /// The chunks of an event.
    fn write(&mut self, event: AnswerEvent) -> Vec<Value>;

    /// The last chunks.
    fn last(&mut self, total: &Total) -> Vec<Value>;

    /// The last chunks of a stream that fails, if they are not the dialect's error.
    fn failed(&mut self, _error: &ApiError) -> Option<Vec<Value>> {
        None
    }

    /// The reply when not streaming.
    fn whole(&mut self, total: &Total) -> Value;
}

/// A model, or an adapter, for lists of models.
pub(crate) struct ModelInfo<'m> {
    pub(crate) name: &'m str,
    /// Other names.
    pub(crate) aliases: Vec<&'m str>,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// For an adapter, its model.
    pub(crate) base: Option<&'m str>,
    pub(crate) status: ModelStatus,
    /// Details of a model in memory.
    pub(crate) loaded: Option<&'m crate::models::Loaded>,
}

impl ModelInfo<'_> {
    /// Whether it cannot be used yet.
    pub(super) const fn is_downloading(&self) -> bool {
        matches!(self.status, ModelStatus::Downloading(_))
    }
}

/// The state of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelStatus {
    Unloaded,
    Loading,
    Loaded,
    /// Freed after it was idle, until the next request.
    Sleeping,
    Failed(&'static str),
    /// Being downloaded: how much of each file is there.
    Downloading(Vec<FileProgress>),
}

impl ModelStatus {
    pub(super) const fn of(state: &State) -> Self {
        match state {
            State::Unloaded => Self::Unloaded,
            State::Loading => Self::Loading,
            State::Loaded(_) => Self::Loaded,
            State::Sleeping(_) => Self::Sleeping,
            State::Failed(why) => Self::Failed(why.shown),
        }
    }
}
