//! How the server is: `/health`, `/models`, `/props`, `/metrics`. None of them waits for a step or for a model.

use super::query;
use crate::adapters::Entry;
use crate::api::error::{ApiError, json_reply};
use crate::api::sampling::shown_settings;
use crate::http::Context;
use crate::metrics;
use crate::models::{Lease, State};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use sluice::Model;

pub(super) async fn health(Extension(context): Extension<Context>) -> Result<Response, ApiError> {
    if context.app.models().is_starting() {
        return Err(ApiError::unavailable("Loading model"));
    }
    Ok(json_reply(&json!({"status": "ok"})))
}

pub(super) async fn models(Extension(context): Extension<Context>) -> Response {
    json_reply(&json!({"object": "list", "data": listed(&context)}))
}

/// One model, by a name of it.
pub(super) async fn model(
    Extension(context): Extension<Context>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    if let Some(entry) = context.app.models().adapters().find(&name) {
        return Ok(json_reply(&adapter(&context, &entry)));
    }
    let at = context.app.models().find(&name)?;
    Ok(json_reply(listed(&context).get(at).unwrap_or(&Value::Null)))
}

/// An adapter as a model.
fn adapter(context: &Context, entry: &Entry) -> Value {
    let base = context.app.models().name_of(entry.model);
    json!({
        "id": &*entry.name,
        "object": "model",
        "created": context.app.started(),
        "owned_by": "sluice",
        "root": base,
        "parent": base,
        "status": super::lora::status(entry),
    })
}

fn listed(context: &Context) -> Vec<Value> {
    let created = context.app.started();
    let all = context.app.models().all().map(|(name, others, state)| {
        let mut model = Map::new();
        model.insert("id".into(), name.into());
        model.insert("object".into(), "model".into());
        model.insert("created".into(), created.into());
        model.insert("owned_by".into(), "sluice".into());
        model.insert("aliases".into(), aliases(others).into());
        model.insert("root".into(), name.into());
        model.insert("parent".into(), Value::Null);
        let status = match &state {
            State::Unloaded => json!({"value": "unloaded"}),
            State::Loading => json!({"value": "loading"}),
            State::Loaded(_) => json!({"value": "loaded"}),
            State::Failed(why) => json!({"value": "unloaded", "failed": true, "reason": why}),
        };
        model.insert("status".into(), status);
        if let State::Loaded(loaded) = &state {
            let config = loaded.model().config();
            model.insert("max_model_len".into(), loaded.n_ctx().into());
            model.insert("system_fingerprint".into(), loaded.fingerprint().into());
            let tensors = loaded.model().gguf().tensors();
            let (n_params, size) = tensors.fold((0, 0), |(n, bytes), tensor| {
                (n + tensor.n_elements(), bytes + tensor.len_bytes)
            });
            let mut meta = json!({
                "n_vocab": config.n_vocab,
                "n_ctx": loaded.n_ctx(),
                "n_ctx_train": config.n_ctx_train,
                "n_embd": config.n_embd,
                "n_params": n_params,
                "size": size,
            });
            add_experts(&mut meta, loaded.model());
            model.insert("meta".into(), meta);
        }
        Value::Object(model)
    });
    let adapters = context.app.models().adapters().all();
    let adapters = adapters.iter().map(|entry| adapter(context, entry));
    all.chain(adapters).collect()
}

/// Other names of a model; where its file lies is nobody's business.
fn aliases(names: &[String]) -> Vec<&str> {
    let names = names.iter().map(String::as_str);
    names.filter(|name| !name.contains('/')).collect()
}

/// How a model's experts are read that stay on disk, and how well that goes; nothing where all are in memory.
fn add_experts(about: &mut Value, model: &Model) {
    let (Some(about), Some(experts)) = (about.as_object_mut(), model.experts()) else {
        return;
    };
    let stats = experts.stats();
    let shown = json!({
        "io": experts.io_name(),
        "policy": experts.policy().name(),
        "n_experts": stats.n_experts,
        "n_slots": stats.n_slots,
        "total_bytes": experts.total_bytes(),
        "cache_bytes": experts.memory_bytes(),
        "hits": stats.hits,
        "misses": stats.needed - stats.hits,
        "hit_rate": (stats.needed > 0).then(|| stats.hit_rate()),
        "evictions": stats.evictions,
        "read_bytes": stats.read_bytes,
        "read_failures": stats.failures,
        "stall_seconds": stats.stall.as_secs_f64(),
    });
    about.insert("experts".into(), shown);
}

/// The model that `?model=` names, or the first, if it is in memory.
pub(super) fn present(context: &Context, request: &Request) -> Result<Lease, ApiError> {
    let models = context.app.models();
    let name = query(request, "model");
    let adapter = name.and_then(|name| models.adapters().find(name));
    let base = adapter.map(|adapter| models.name_of(adapter.model));
    let lease = models.present(base.or(name))?;
    lease.ok_or_else(|| ApiError::unavailable("the model is not loaded"))
}

pub(super) async fn props(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, ApiError> {
    let lease = present(&context, &request)?;
    let defaults = context.app.defaults();
    let mut params = shown_settings(&defaults.sampling);
    // Each request draws its own.
    let seed = defaults
        .seed
        .map_or(-1, |seed| i64::try_from(seed).unwrap_or(i64::MAX));
    params.insert("seed".into(), seed.into());
    let n_predict = defaults
        .n_predict
        .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    params.insert("n_predict".into(), n_predict.into());
    let (bos, eos) = lease.prompts().ends();
    let mut props = json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": lease.n_ctx(),
            "speculative": lease.speculates(),
            "is_processing": false,
            "params": params,
        },
        "total_slots": lease.n_seq(),
        "model_alias": lease.name(),
        "model_path": context.app.models().path(lease.name()),
        "chat_template": lease.prompts().source(),
        "bos_token": bos,
        "eos_token": eos,
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("sluice ", env!("CARGO_PKG_VERSION")),
        "system_fingerprint": lease.fingerprint(),
        "is_sleeping": false,
    });
    add_experts(&mut props, lease.model());
    Ok(json_reply(&props))
}

pub(super) async fn metrics(Extension(context): Extension<Context>) -> Result<Response, ApiError> {
    let options = context.app.options();
    if !options.metrics {
        let message = "This server does not support metrics endpoint. Start it with `--metrics`";
        return Err(ApiError::unsupported(message));
    }
    let models = context.app.models();
    let max_adapters = models.adapters().are_on().then_some(options.max_adapters);
    let text = metrics::format(&models.metrics(), &options.isa, max_adapters);
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}
