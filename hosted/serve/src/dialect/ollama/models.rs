//! `GET /api/tags` and `GET /api/ps`.

use super::super::error::json_reply;
use super::details::{capabilities, details};
use super::{listed_name, timestamp};
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::Response;
use crate::models::State;
use core::time::Duration;
use serde_json::{Value, json};
use std::time::SystemTime;

/// All models, followed by all adapters, as far as the key may use them.
pub(super) async fn tags(context: Context) -> Result<Response, ApiError> {
    let models = context.app.models();
    let mut all = Vec::new();
    for name in visible(&context) {
        all.push(listed(&context, &name, &name, "").await);
    }
    for entry in models.adapters().all() {
        let base = models.name_of(entry.model);
        if context.key.may_use([&*entry.name].into_iter()) {
            all.push(listed(&context, &entry.name, base, base).await);
        }
    }
    Ok(json_reply(&json!({"models": all})))
}

/// The models in memory.
pub(super) async fn running(context: Context) -> Result<Response, ApiError> {
    let models = context.app.models();
    let in_memory: Vec<_> = models
        .all()
        .filter_map(|model| {
            let is_visible = context.key.may_use(model.names());
            match model.state {
                State::Loaded(loaded) if is_visible => {
                    Some((model.name.to_owned(), loaded.n_ctx()))
                }
                _ => None,
            }
        })
        .collect();
    let mut all = Vec::new();
    for (name, n_ctx) in in_memory {
        let expires = models.expires(&name);
        let mut model = listed(&context, &name, &name, "").await;
        // As long as another model does not need its place: a time that does not come.
        let expires = expires.unwrap_or_else(|| SystemTime::now() + FOREVER);
        if let Some(model) = model.as_object_mut() {
            model.remove("modified_at");
            model.remove("capabilities");
            model.insert("expires_at".into(), timestamp(expires).into());
            // Nothing is on a GPU.
            model.insert("size_vram".into(), 0.into());
            model.insert("context_length".into(), n_ctx.into());
        }
        all.push(model);
    }
    Ok(json_reply(&json!({"models": all})))
}

/// The names of the models that the key may use.
fn visible(context: &Context) -> Vec<String> {
    let all = context.app.models().all();
    let visible = all.filter(|model| context.key.may_use(model.names()));
    visible.map(|model| model.name.to_owned()).collect()
}

/// The model called `name`, whose file is `base`'s. A file that cannot be read is listed without details.
async fn listed(context: &Context, name: &str, base: &str, parent: &str) -> Value {
    let shown = listed_name(name);
    let mut model = json!({"name": shown, "model": shown});
    let Some(summary) = context.app.models().summary(base).await else {
        model["modified_at"] = timestamp(SystemTime::UNIX_EPOCH).into();
        model["size"] = 0.into();
        model["digest"] = "0".repeat(64).into();
        model["details"] = json!({"parent_model": parent, "format": "gguf", "family": "",
            "families": [], "parameter_size": "", "quantization_level": ""});
        return model;
    };
    model["modified_at"] = timestamp(summary.modified).into();
    model["size"] = summary.size_bytes.into();
    model["digest"] = summary.digest.to_string().into();
    model["details"] = details(&summary, parent);
    model["capabilities"] = capabilities(summary.can).into();
    model
}

/// Ollama's own: as many nanoseconds as fit into a signed number.
const FOREVER: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());
