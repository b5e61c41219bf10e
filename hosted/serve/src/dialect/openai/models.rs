//! `GET /v1/models`, with llama-server's additional fields.

use super::super::seam::{ModelInfo, ModelStatus};
use super::catalog::entry;
use crate::models::FileProgress;
use serde_json::{Map, Value, json};
use sluice::Model;

/// All models.
pub(super) fn list(models: &[ModelInfo<'_>]) -> Value {
    let data: Vec<_> = models.iter().map(shown).collect();
    // Codex may use each of these.
    let there = models.iter().filter(|model| !model.is_downloading());
    let entries: Vec<_> = there.map(entry).collect();
    json!({"object": "list", "data": data, "models": entries})
}

/// One model, or an adapter.
pub(super) fn shown(info: &ModelInfo<'_>) -> Value {
    let mut model = Map::new();
    model.insert("id".into(), info.name.into());
    model.insert("object".into(), "model".into());
    model.insert("created".into(), info.created.into());
    model.insert("owned_by".into(), "sluice".into());
    if info.base.is_none() {
        model.insert("aliases".into(), info.aliases.clone().into());
    }
    model.insert("root".into(), info.base.unwrap_or(info.name).into());
    model.insert("parent".into(), info.base.into());
    model.insert("status".into(), status(&info.status));
    if let Some(loaded) = info.loaded {
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
    model.into()
}

/// The state of a model or an adapter.
pub(in super::super) fn status(status: &ModelStatus) -> Value {
    match status {
        ModelStatus::Unloaded => json!({"value": "unloaded"}),
        ModelStatus::Loading => json!({"value": "loading"}),
        ModelStatus::Loaded => json!({"value": "loaded"}),
        ModelStatus::Sleeping => json!({"value": "sleeping"}),
        ModelStatus::Downloading(files) => {
            json!({"value": "downloading", "progress": progress(files)})
        }
        ModelStatus::Failed(why) => json!({"value": "unloaded", "failed": true, "reason": why}),
    }
}

/// How much of each file of a download is there.
pub(in super::super) fn progress(files: &[FileProgress]) -> Value {
    let each = files.iter().map(|file| {
        let shown = json!({"done": file.done_bytes, "total": file.total_bytes});
        (file.path.clone(), shown)
    });
    Value::Object(each.collect())
}

/// Adds how a model's experts are read from disk, with statistics.
pub(in super::super) fn add_experts(about: &mut Value, model: &Model) {
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
