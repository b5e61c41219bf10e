//! `GET /v1/models` as Anthropic's clients read it.

use super::super::seam::ModelInfo;
use core::time::Duration;
use serde_json::{Value, json};
use sluice_text::chat_template::strftime;
use std::time::UNIX_EPOCH;

/// All models, on one page.
pub(super) fn list(models: &[ModelInfo<'_>]) -> Value {
    let there = models.iter().filter(|model| !model.is_downloading());
    let models: Vec<_> = there.collect();
    let id = |model: Option<&&ModelInfo<'_>>| model.map(|model| model.name.to_owned());
    json!({
        "data": models.iter().map(|model| shown(model)).collect::<Vec<_>>(),
        "first_id": id(models.first()),
        "last_id": id(models.last()),
        "has_more": false,
    })
}

/// One model, or an adapter.
pub(super) fn shown(model: &ModelInfo<'_>) -> Value {
    let created = UNIX_EPOCH + Duration::from_secs(model.created);
    json!({
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "lifecycle": "active",
        "created_at": strftime("%Y-%m-%dT%H:%M:%SZ", created),
        "max_input_tokens": model.loaded.map(|loaded| loaded.n_ctx()),
    })
}
