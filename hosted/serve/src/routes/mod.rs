//! The routes, as OpenAI and llama-server spell them.

mod absent;
mod chat;
mod completion;
mod embeddings;
mod infill;
mod lora;
mod prepare;
mod prompts;
mod rerank;
mod slots;
mod state;
mod tokens;

use crate::answer::{Prompted, Run, Shape};
use crate::api::error::{ApiError, json_reply};
use crate::api::fields::Fields;
use crate::api::request::{Asked, Kind};
use crate::chat::answer::Constraint;
use crate::engine::ScoreJob;
use crate::http::{App, Context, body};
use crate::models::Lease;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::Value;
use sluice::sequence::Choose;
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// All of them.
pub(crate) fn router() -> Router {
    let mut router = Router::new();
    for path in ["/health", "/v1/health"] {
        router = router.route(path, get(state::health));
    }
    for path in ["/models", "/v1/models"] {
        router = router.route(path, get(state::models).post(absent::answer));
    }
    for path in ["/models/{name}", "/v1/models/{name}"] {
        router = router.route(path, get(state::model));
    }
    for path in ["/chat/completions", "/v1/chat/completions"] {
        router = router.route(path, post(chat::answer));
    }
    for path in ["/completions", "/v1/completions"] {
        router = router.route(path, post(completion::answer));
    }
    for path in ["/embeddings", "/v1/embeddings", "/embedding"] {
        router = router.route(path, post(embeddings::answer));
    }
    for path in ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"] {
        router = router.route(path, post(rerank::answer));
    }
    router = router
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .route("/v1/lora_adapters", get(lora::list));
    for path in absent::POSTED {
        router = router.route(path, post(absent::answer));
    }
    router
        .route("/completion", post(completion::native))
        .route("/infill", post(infill::answer))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::info))
        .route("/apply-template", post(tokens::apply_template))
        .route("/props", get(state::props).post(absent::answer))
        .route("/slots", get(slots::list))
        .route("/slots/{id}", post(slots::act))
        .route("/metrics", get(state::metrics))
        .route("/lora-adapters", get(lora::list).post(lora::set))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
}

async fn no_route(request: Request) -> ApiError {
    ApiError::no_route(request.uri().path())
}

async fn no_method() -> ApiError {
    ApiError::method()
}

/// The value of a query's field. Values here are names and numbers, which are not escaped.
fn query<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    let mut pairs = request
        .uri()
        .query()?
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// What a route makes of a request for text.
type Prepared<S> = (Lease, Asked, Vec<Prompted>, S);

/// Answers a request for text, which `prepare` reads off the threads that speak with clients: as a stream, or when
/// it is complete.
async fn write<S: Shape>(
    context: Context,
    request: Request,
    prepare: impl FnOnce(Lease, Fields<'_>, &Context) -> Result<Prepared<S>, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let posted = body::json(&context, request).await?;
    let lease = context.decoder(&posted).await?;
    let inner = context.clone();
    let work = move || prepare(lease, Fields::of_body(&posted.value)?, &inner);
    let (lease, asked, prompted, mut shape) = context.app.work().run(work).await??;
    if let Some(n_top) = shape.scores() {
        let prompts = prompted.iter().map(|prompt| prompt.tokens.clone());
        score(
            &context,
            &lease,
            (&asked, prompts.collect()),
            n_top,
            &mut shape,
        )
        .await?;
    }
    let run = Run::submit(lease, &asked, prompted, &context, shape)?;
    if asked.stream {
        return Ok(run.stream(context.app.options().ping).into_response());
    }
    Ok(json_reply(&run.whole().await?))
}

/// Scores the prompts of a request, all of them before any of it is answered.
async fn score<S: Shape>(
    context: &Context,
    lease: &Lease,
    (asked, prompts): (&Asked, Vec<Vec<u32>>),
    n_top: usize,
    shape: &mut S,
) -> Result<(), ApiError> {
    let mut waiting = Vec::with_capacity(prompts.len());
    for tokens in &prompts {
        let (answer, receiver) = oneshot::channel();
        context.app.models().engine().score(ScoreJob {
            model: lease.id(),
            tokens: tokens.clone(),
            n_top,
            adapter: lease.blend().cloned(),
            answer,
        })?;
        waiting.push(receiver);
    }
    for (i, (tokens, receiver)) in prompts.iter().zip(waiting).enumerate() {
        let scores = match asked.deadline {
            None => receiver.await,
            Some(deadline) => {
                let scores = timeout_at(deadline.into(), receiver).await;
                scores.map_err(|_| ApiError::late())?
            }
        };
        let scores = scores.map_err(|_| ApiError::unavailable("the model was unloaded"))??;
        for at in i * asked.n..(i + 1) * asked.n {
            shape.scored(at, tokens, &scores);
        }
    }
    Ok(())
}

/// What chooses the tokens of a request to `/completion`.
pub(crate) fn sampler(
    app: &App,
    lease: &Lease,
    body: &Value,
) -> Result<Box<dyn Choose + Send>, ApiError> {
    let fields = Fields::of_body(body)?;
    let asked = Asked::read(fields, Kind::Native, app.defaults(), lease, Instant::now())?;
    prepare::sampler(lease, &asked, &Constraint::default(), None)
}

/// Answers a request about a model that needs no step of it.
async fn tell(
    context: Context,
    request: Request,
    work: impl FnOnce(Lease, Fields<'_>, &Context) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let posted = body::json(&context, request).await?;
    let lease = context.model(posted.model()?).await?;
    let inner = context.clone();
    let work = move || work(lease, Fields::of_body(&posted.value)?, &inner);
    Ok(json_reply(&context.app.work().run(work).await??))
}
