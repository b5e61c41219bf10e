//! vLLM's routes for adapters, which are listed, loaded and unloaded while the server runs.

use super::super::drive::{body, status_of_adapter};
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::models::status;
use crate::adapters::{Entry, Origin};
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::{Request, Response, text_reply};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// `GET /lora-adapters`, `GET /v1/lora_adapters`.
pub(super) async fn list(context: Context) -> Result<Response, ApiError> {
    let models = context.app.models();
    let all = models.adapters().all();
    let shown = all.iter().map(|entry| {
        json!({
            "id": entry.id,
            "name": &*entry.name,
            "path": entry.path(),
            "scale": entry.scale(),
            "model": models.name_of(entry.model),
            "status": status(&status_of_adapter(entry)),
        })
    });
    Ok(json_reply(&shown.collect::<Value>()))
}

/// `POST /v1/load_lora_adapter`: reads an adapter and publishes it.
pub(super) async fn load(context: Context, request: Request) -> Result<Response, ApiError> {
    let posted = body(&context, request).await?;
    let models = context.app.models();
    let adapters = models.adapters();
    may_change(&context)?;
    let fields = Fields::of_body(&posted.value)?;
    let name = needed(fields, "lora_name")?;
    let path = PathBuf::from(needed(fields, "lora_path")?);
    let base = fields.str("base_model_name")?;
    let base = base.filter(|name| !name.is_empty());
    let in_place = fields.bool("load_inplace")?.unwrap_or(false);
    if models.find(name).is_ok() {
        return Err(ApiError::field("lora_name", "is the name of a model"));
    }
    let old = adapters.find(name);
    let model = match (&old, base) {
        (Some(old), None) => old.model,
        (_, base) => models.find(base.unwrap_or_default())?,
    };
    let parts = vec![path.into()];
    // Published only once it is in memory: until then, requests use the old one.
    let entry = match &old {
        None => adapters.unlisted(name, parts, model, Origin::Request),
        Some(old) if !in_place => {
            let what = format!("The lora adapter {:?} has already been loaded.", old.name);
            return Err(ApiError::field("lora_name", what));
        }
        Some(old) if old.model != model => {
            let what = format!(
                "the adapter {name:?} was made for {:?}",
                models.name_of(old.model)
            );
            return Err(ApiError::field("base_model_name", what));
        }
        Some(old) => Arc::new(Entry::new(old.id, name, parts, model, Origin::Request)),
    };
    let lease = models.acquire(Some(models.name_of(model))).await?;
    let pins = adapters.pin(core::slice::from_ref(&entry)).await?;
    let [pin] = &pins[..] else {
        return Err(ApiError::internal("an adapter has one place"));
    };
    adapters.ready(pin, lease.model()).await?;
    match &old {
        None => {
            let published = adapters.publish(&entry);
            published.map_err(|why| ApiError::field("lora_name", why))?;
        }
        Some(old) if !adapters.replace(old, &entry) => {
            return Err(ApiError::field(
                "lora_name",
                "was removed while it was loading",
            ));
        }
        Some(_) => {}
    }
    adapters.make_room(&entry);
    Ok(text_reply(format!(
        "Success: LoRA adapter '{name}' added successfully."
    )))
}

/// `POST /v1/unload_lora_adapter`. Running requests keep the adapter.
pub(super) async fn unload(context: Context, request: Request) -> Result<Response, ApiError> {
    let posted = body(&context, request).await?;
    let adapters = context.app.models().adapters();
    may_change(&context)?;
    let name = needed(Fields::of_body(&posted.value)?, "lora_name")?;
    let entry = adapters
        .find(name)
        .ok_or_else(|| ApiError::no_model(name, &[]))?;
    if let Origin::Folder(_) = entry.origin {
        let what = "is in the folder of --lora-dir; delete its file to unload it";
        return Err(ApiError::field("lora_name", what));
    }
    adapters.remove(&entry);
    Ok(text_reply(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    )))
}

fn may_change(context: &Context) -> Result<(), ApiError> {
    let adapters = context.app.models().adapters();
    if adapters.may_change() && adapters.are_on() {
        return Ok(());
    }
    Err(ApiError::unsupported(
        "loading and unloading adapters is disabled; start the server with --allow-lora-updates or with \
         VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    ))
}

fn needed<'f>(fields: Fields<'f>, name: &str) -> Result<&'f str, ApiError> {
    let value = fields.str(name)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| ApiError::field(name, "is missing"))
}
