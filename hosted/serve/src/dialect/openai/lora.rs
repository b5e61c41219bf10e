//! vLLM's routes for adapters, which are listed, loaded and unloaded while the server runs.

use super::super::drive::{body, status_of_adapter};
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::models::status;
use crate::adapters::Origin;
use crate::answer::{self, Context};
use crate::api::{AdapterRequest, ApiError, FieldName};
use crate::http::{Request, Response, text_reply};
use serde_json::{Value, json};
use sluice_text::sampling::decimal;

/// `GET /lora-adapters`, `GET /v1/lora_adapters`.
pub(super) async fn list(context: Context) -> Result<Response, ApiError> {
    let models = context.app.models();
    let all = models.adapters().all();
    let seen = |name: &str| context.key.may_use([name].into_iter());
    let may_load = context.key.check_adapters().is_ok();
    let shown = all.iter().filter(|entry| seen(&entry.name)).map(|entry| {
        let mut shown = json!({
            "id": entry.id,
            "name": &*entry.name,
            "path": entry.parts.iter().map(|part| context.key.path(&part.path)).collect::<Vec<_>>().join(","),
            "scale": decimal(entry.scale()),
            "model": models.name_of(entry.model),
            "status": status(&status_of_adapter(entry)),
        });
        // They may contain paths.
        let warnings = Some(entry.warnings()).filter(|all| may_load && !all.is_empty());
        if let Some(warnings) = warnings {
            shown["warnings"] = warnings.into();
        }
        shown
    });
    Ok(json_reply(&shown.collect::<Value>()))
}

/// `POST /v1/load_lora_adapter`: reads an adapter and publishes it.
pub(super) async fn load(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let posted = body(&mut context, request, &[]).await?;
    may_change(&context)?;
    let fields = Fields::of_body(&posted)?;
    let name = needed(fields, "lora_name")?;
    let base = fields.str("base_model_name")?;
    let request = AdapterRequest {
        name: name.to_owned(),
        path: needed(fields, "lora_path")?.into(),
        model: base.filter(|name| !name.is_empty()).map(str::to_owned),
        replaces: fields.bool("load_inplace")?.unwrap_or(false),
    };
    let loaded = answer::load_adapter(&context, request).await;
    let warnings = loaded.map_err(|error| error.renamed(&NAMES))?;
    let mut told = format!("Success: LoRA adapter '{name}' added successfully.");
    for warning in warnings {
        told.extend(["\nwarning: ", &warning]);
    }
    Ok(text_reply(told))
}

/// `POST /v1/unload_lora_adapter`. Running requests keep the adapter.
pub(super) async fn unload(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let posted = body(&mut context, request, &[]).await?;
    let adapters = context.app.models().adapters();
    may_change(&context)?;
    let name = needed(Fields::of_body(&posted)?, "lora_name")?;
    let seen = |name: &str| context.key.may_use([name].into_iter());
    let entry = adapters.find(name).filter(|entry| seen(&entry.name));
    let entry = entry.ok_or_else(|| {
        let all = adapters.all();
        let names = all.iter().map(|entry| &*entry.name);
        let names: Vec<_> = names.filter(|name| seen(name)).collect();
        ApiError::no_adapter(name, &names).renamed(&NAMES)
    })?;
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
    context.key.check_adapters()?;
    let adapters = context.app.models().adapters();
    if adapters.may_change() && adapters.are_on() {
        return Ok(());
    }
    Err(ApiError::unsupported(
        "loading and unloading adapters is disabled; start the server with --allow-lora-updates or with \
         VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    ))
}

const NAMES: [FieldName; 3] = [
    FieldName::new("name", "lora_name"),
    FieldName::new("path", "lora_path"),
    FieldName::new("model", "base_model_name"),
];

fn needed<'f>(fields: Fields<'f>, name: &str) -> Result<&'f str, ApiError> {
    let value = fields.str(name)?.filter(|value| !value.is_empty());
    value.ok_or_else(|| ApiError::field(name, "is missing"))
}
