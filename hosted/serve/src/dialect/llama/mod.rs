//! llama-server's own routes.

mod completion;
mod lora;
mod models;
mod slots;
mod state;
mod tokens;

use super::generation::NAMES;
use super::openai::{EVENTS, LIST_ADAPTERS, error_value};
use super::query;
use super::seam::{Action, Dialect, ErrorOf, Framing, Route, delete, get, post};
use super::stream::server_sent;
use crate::api::{ApiError, FieldName};
use crate::http::Response;
use serde_json::Value;

/// llama-server's routes.
pub(crate) struct LlamaServer;

impl Dialect for LlamaServer {
    fn routes(&self) -> &'static [Route] {
        ROUTES
    }

    fn framing(&self) -> &'static Framing {
        &Framing {
            kind: EVENTS,
            frame: server_sent,
            end: "",
        }
    }

    fn error(&self, error: &ApiError, of: ErrorOf<'_>) -> Value {
        error_value(error, of.status)
    }

    fn names(&self) -> &'static [FieldName] {
        NAMES
    }
}

const ROUTES: &[Route] = &[
    get("/health", HEALTH),
    get("/v1/health", HEALTH),
    post("/completion", Action::Complete(completion::parse)),
    post("/infill", Action::Complete(completion::parse_infill)),
    post("/tokenize", TOKENIZE),
    post("/detokenize", DETOKENIZE),
    get("/tokenizer_info", INFO),
    post("/apply-template", TEMPLATE),
    post("/chat/completions/input_tokens", COUNT),
    post("/v1/chat/completions/input_tokens", COUNT),
    get("/props", PROPS),
    post("/props", SET_PROPS),
    post("/models", DOWNLOAD),
    post("/v1/models", DOWNLOAD),
    delete("/models", DELETE),
    post("/models/load", LOAD),
    post("/models/unload", UNLOAD),
    get("/models/sse", CHANGES),
    get("/slots", SLOTS),
    post("/slots/{id}", SLOT),
    get("/metrics", METRICS),
    get("/lora-adapters", LIST_ADAPTERS),
    post("/lora-adapters", SET_ADAPTERS),
];

const HEALTH: Action = Action::Other(|context, _| Box::pin(state::health(context)));
const PROPS: Action = Action::Other(|context, request| Box::pin(state::props(context, request)));
const METRICS: Action = Action::Other(|context, _| Box::pin(state::metrics(context)));
const TOKENIZE: Action = Action::Other(|context, body| Box::pin(tokens::tokenize(context, body)));
const DETOKENIZE: Action =
    Action::Other(|context, body| Box::pin(tokens::detokenize(context, body)));
const INFO: Action = Action::Other(|context, request| Box::pin(tokens::info(context, request)));
const TEMPLATE: Action =
    Action::Other(|context, body| Box::pin(tokens::apply_template(context, body)));
const COUNT: Action = Action::Other(|context, body| Box::pin(tokens::count(context, body)));
const SLOTS: Action = Action::Other(|context, request| Box::pin(slots::list(context, request)));
const SLOT: Action = Action::Other(|context, request| Box::pin(slots::act(context, request)));
const SET_ADAPTERS: Action = Action::Other(|context, body| Box::pin(lora::set(context, body)));
const LOAD: Action = Action::Other(|context, body| Box::pin(models::load(context, body)));
const UNLOAD: Action = Action::Other(|context, body| Box::pin(models::unload(context, body)));
const CHANGES: Action = Action::Other(|context, _| Box::pin(models::changes(context)));
const DOWNLOAD: Action = Action::Other(|context, body| Box::pin(models::download(context, body)));
const DELETE: Action = Action::Other(|context, request| Box::pin(models::delete(context, request)));
const SET_PROPS: Action = Action::Other(|_, _| Box::pin(set_props()));

/// `POST /props`, which is not supported.
async fn set_props() -> Result<Response, ApiError> {
    let what = "/props: set properties on the command line";
    Err(ApiError::unsupported(what))
}
