//! The server's state: `/health`, `/props`, `/metrics`. These routes do not wait for a step or a model.

use super::super::error::json_reply;
use super::super::openai::add_experts;
use super::super::sampling::shown_settings;
use super::query;
use crate::answer::{Context, StreamFigures};
use crate::api::ApiError;
use crate::http::{Request, Response, reply};
use crate::metrics;
use crate::models::{Lease, Outline, State};
use hyper::header::HeaderName;
use serde_json::{Value, json};

pub(super) async fn health(context: Context) -> Result<Response, ApiError> {
    if context.app.models().is_starting() {
        return Err(ApiError::unavailable("Loading model"));
    }
    Ok(json_reply(&json!({"status": "ok"})))
}

/// The model named by `?model=`, or the first one, if it is in memory.
pub(super) fn present(context: &Context, request: &Request) -> Result<Lease, ApiError> {
    let models = context.app.models();
    let name = query(request, "model");
    let name = name.as_deref();
    context.check_allowed(name, &[])?;
    let adapter = name.and_then(|name| models.adapters().find(name));
    let base = adapter.map(|adapter| models.name_of(adapter.model));
    let lease = models.present(base.or(name))?;
    lease.ok_or_else(|| ApiError::unavailable("the model is not loaded"))
}

pub(super) async fn props(context: Context, request: Request) -> Result<Response, ApiError> {
    let models = context.app.models();
    let name = query(&request, "model");
    let name = name.as_deref();
    if name.is_none() && models.is_router() {
        return Ok(json_reply(&json!({
            "role": "router",
            "max_instances": models.max(),
            "models_autoload": models.autoloads(),
            "build_info": BUILD,
        })));
    }
    context.check_allowed(name, &[])?;
    let adapter = name.and_then(|name| models.adapters().find(name));
    let base = adapter.map(|adapter| models.name_of(adapter.model));
    // Neither wakes a model nor keeps it awake.
    let state = models.state(base.or(name))?;
    let mut props = match &state {
        State::Loaded(loaded) => shown_props(&context, &Outline::of(loaded)),
        State::Sleeping(outline) => shown_props(&context, outline),
        _ => return Err(ApiError::unavailable("the model is not loaded")),
    };
    props["is_sleeping"] = matches!(state, State::Sleeping(_)).into();
    if let State::Loaded(loaded) = &state {
        add_experts(&mut props, loaded.model());
    }
    Ok(json_reply(&props))
}

fn shown_props(context: &Context, model: &Outline) -> Value {
    let defaults = context.app.defaults_named(Some(&model.name));
    let mut params = shown_settings(&defaults.sampling);
    // Each request draws its own seed.
    let seed = defaults
        .seed
        .map_or(-1, |seed| i64::try_from(seed).unwrap_or(i64::MAX));
    params.insert("seed".into(), seed.into());
    let n_predict = defaults
        .n_predict
        .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    params.insert("n_predict".into(), n_predict.into());
    let [bos, eos] = &model.ends;
    let path = context.app.models().path(&model.name);
    json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": model.n_ctx,
            "speculative": model.speculates,
            "is_processing": false,
            "params": params,
        },
        "total_slots": model.n_seq,
        "model_alias": model.name,
        "model_path": path.map(|path| context.key.path(path)),
        "chat_template": model.template,
        "bos_token": bos,
        "eos_token": eos,
        "modalities": {"vision": false, "audio": false},
        "build_info": BUILD,
        "sparse": model.sparse,
        "system_fingerprint": model.fingerprint,
    })
}

/// What is known of streams that can be taken up again.
fn format_streams(figures: StreamFigures) -> String {
    let counters = [
        (
            "streams_continued_total",
            "Number of streams that broke and went on from what was kept.",
            figures.n_continued,
        ),
        (
            "streams_repeated_total",
            "Number of streams that broke and were computed again.",
            figures.n_repeated,
        ),
        (
            "streams_continued_steps_total",
            "Number of steps from when the engine was given a broken stream to its first new token, of all that went on.",
            figures.n_steps,
        ),
    ];
    let gauges = [
        (
            "streams_kept",
            "Number of streams without a client that can go on.",
            figures.n_kept,
        ),
        (
            "streams_kept_bytes",
            "Size of the texts kept of streams.",
            figures.n_bytes,
        ),
    ];
    let counters = counters.map(|(name, help, n)| metrics::counter(name, help, n));
    let gauges = gauges.map(|(name, help, n)| metrics::gauge(name, help, n));
    counters.concat() + &gauges.concat()
}

pub(super) async fn metrics(context: Context) -> Result<Response, ApiError> {
    let options = context.app.options();
    if !options.metrics {
        let message = "This server does not support metrics endpoint. Start it with `--metrics`";
        return Err(ApiError::unsupported(message));
    }
    let (models, key) = (context.app.models(), &context.key);
    let metrics = models.metrics();
    let seen = metrics.into_iter().enumerate();
    let seen = seen.filter(|(index, _)| key.may_use(models.names_of(*index)));
    let seen: Vec<_> = seen.map(|(_, metrics)| metrics).collect();
    // A key that may use all is shown which adapters are in use.
    let names_adapters = models.adapters().are_on() && key.may_use([].into_iter());
    let max_adapters = names_adapters.then_some(options.max_adapters);
    let mut text = metrics::format(&seen, &options.isa, max_adapters);
    text += &metrics::format_keys(&context.app.keys().figures(key));
    text += &metrics::counter(
        "billing_lines_total",
        "Number of conversations whose system text began with a line that changes with every request.",
        context.app.billing().n_removed(),
    );
    text += &format_streams(context.app.streams().figures());
    let mut response = reply(metrics::CONTENT_TYPE, text);
    // llama-server's header.
    let name = HeaderName::from_static("process-start-time-unix");
    let started = context.app.started();
    response.headers_mut().insert(name, started.into());
    Ok(response)
}

const BUILD: &str = concat!("sluice ", env!("CARGO_PKG_VERSION"));
