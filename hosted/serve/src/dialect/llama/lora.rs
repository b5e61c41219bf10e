//! `POST /lora-adapters`: the adapters that apply to all requests.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::{Fields, wrong};
use crate::adapters::{Entry, SCALE_MAX};
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::{Request, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /lora-adapters`: sets the factors for requests that name no adapter. Adapters that are not listed get 0, but for
/// those that the key may not use.
pub(super) async fn set(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let posted = body(&mut context, request, &[]).await?;
    context.key.check_adapters()?;
    let adapters = context.app.models().adapters();
    let is_usable = |entry: &Entry| context.key.may_use([&*entry.name].into_iter());
    let Value::Array(list) = &posted else {
        return Err(wrong("body", &posted, "a list of {id, scale}"));
    };
    let mut scales = Vec::new();
    for (i, part) in list.iter().enumerate() {
        if !part.is_object() {
            return Err(wrong(&format!("[{i}]"), part, "an object"));
        }
        let fields = Fields::of_body(part)?;
        let id = fields.count("id", 0..=usize::MAX >> 1)?;
        let entry = id.and_then(|id| adapters.numbered(id));
        let entry = entry.filter(|entry| is_usable(entry));
        let unknown = || ApiError::field(format!("[{i}].id"), "no such adapter");
        let scale = fields.float("scale", -SCALE_MAX..=SCALE_MAX)?;
        let scale = scale.ok_or_else(|| ApiError::field(format!("[{i}].scale"), "is missing"))?;
        let entry = entry.ok_or_else(unknown)?;
        if scales
            .iter()
            .any(|(named, _): &(Arc<Entry>, f32)| named.id == entry.id)
        {
            return Err(ApiError::field(format!("[{i}].id"), "is listed twice"));
        }
        scales.push((entry, scale));
    }
    for entry in adapters.all().iter().filter(|entry| is_usable(entry)) {
        let scale = scales.iter().find(|(named, _)| named.id == entry.id);
        entry.set_scale(scale.map_or(0.0, |(_, scale)| *scale));
    }
    Ok(json_reply(&json!({"success": true})))
}
