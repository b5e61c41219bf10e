//! Loads adapters on request.

use super::app::Context;
use crate::adapters::{Entry, Origin};
use crate::api::{AdapterRequest, ApiError, FieldName};
use std::sync::Arc;

/// Reads an adapter and publishes it; returns warnings, a sentence each. Until it is in memory, requests use the one that
/// it replaces.
pub(crate) async fn load_adapter(
    context: &Context,
    request: AdapterRequest,
) -> Result<Vec<String>, ApiError> {
    let models = context.app.models();
    let adapters = models.adapters();
    let name = &*request.name;
    if models.find(name).is_ok() {
        return Err(ApiError::field("name", "is the name of a model"));
    }
    if let Some(base) = &request.model {
        context.check_allowed(Some(base), &[])?;
    }
    let old = adapters.find(name);
    let model = match (&old, &request.model) {
        (Some(old), None) => old.model,
        (_, base) => models.find(base.as_deref().unwrap_or_default())?,
    };
    // An adapter must not lead to a model that its key may not use, nor be one that the key could not use, scale or unload.
    context.check_allowed(Some(models.name_of(model)), &[])?;
    let named = context.check_name(name);
    named.map_err(|error| error.renamed(&[FieldName::new("model", "name")]))?;
    let parts = vec![request.path.into()];
    let entry = match &old {
        None => adapters.unlisted(name, parts, model, Origin::Request),
        Some(old) if !request.replaces => {
            let what = format!("The lora adapter {:?} has already been loaded.", old.name);
            return Err(ApiError::field("name", what));
        }
        Some(old) if old.model != model => {
            let base = models.name_of(old.model);
            let what = format!("the adapter {name:?} was made for {base:?}");
            return Err(ApiError::field("model", what));
        }
        Some(old) => Arc::new(Entry::new(old.id, name, parts, model, Origin::Request)),
    };
    let lease = models.acquire(Some(models.name_of(model))).await?;
    let pins = adapters.pin(core::slice::from_ref(&entry)).await?;
    let [pin] = &pins[..] else {
        return Err(ApiError::internal("an adapter has one place"));
    };
    let ready = adapters.ready(pin, lease.model()).await;
    ready.map_err(|error| error.renamed(&[FieldName::new("model", "path")]))?;
    match &old {
        None => {
            let published = adapters.publish(&entry);
            published.map_err(|why| ApiError::field("name", why))?;
        }
        Some(old) if !adapters.replace(old, &entry) => {
            return Err(ApiError::field("name", "was removed while it was loading"));
        }
        Some(_) => {}
    }
    adapters.make_room(&entry);
    Ok(entry.warnings())
}
