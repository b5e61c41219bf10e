//! Which adapters a request asks for.

use super::Adapters;
use super::entry::Entry;
use crate::api::error::ApiError;
use crate::api::fields::{Fields, shown, wrong};
use serde_json::Value;
use std::sync::Arc;

/// Adapters and their factors, in the order in which they are added.
pub(crate) type Wanted = Vec<(Arc<Entry>, f32)>;

impl Adapters {
    /// What a request to `model` is computed with: what its `lora` says, the adapter that it names as its model, or
    /// those that are always on.
    ///
    /// # Errors
    /// A wrong field, an adapter that is not there or another model's.
    pub(crate) fn wanted(
        &self,
        model: usize,
        named: Option<Arc<Entry>>,
        lora: Option<&Value>,
    ) -> Result<Wanted, ApiError> {
        let asked = match lora {
            None | Some(Value::Null) => None,
            Some(Value::Array(list)) => Some(list),
            Some(other) => return Err(wrong("lora", other, "a list of {id, scale}")),
        };
        match (named, asked) {
            (Some(_), Some(list)) if !list.is_empty() => Err(ApiError::field(
                "lora",
                "the model that is named is an adapter already; name its base to mix adapters",
            )),
            (Some(named), _) => Ok(vec![(named, 1.0)]),
            (None, Some(list)) if self.are_on() => {
                let parts = list.iter().enumerate();
                let parts = parts.map(|(i, part)| self.part(model, i, part));
                let parts: Wanted = parts.collect::<Result<_, _>>()?;
                Ok(parts
                    .into_iter()
                    .filter(|(_, scale)| *scale != 0.0)
                    .collect())
            }
            (None, Some(list)) if !list.is_empty() => Err(ApiError::field(
                "lora",
                "the server has no adapters (--lora, --lora-modules, --lora-dir, --enable-lora)",
            )),
            (None, _) => {
                let all = self.all().into_iter();
                let own = all.filter(|entry| entry.model == model && entry.scale() != 0.0);
                Ok(own
                    .map(|entry| (Arc::clone(&entry), entry.scale()))
                    .collect())
            }
        }
    }

    /// One of a request's adapters: `{id, scale}`, or with a name for the number.
    fn part(&self, model: usize, i: usize, part: &Value) -> Result<(Arc<Entry>, f32), ApiError> {
        let field = format!("lora[{i}]");
        let fields = match part.is_object() {
            true => Fields::of_body(part)?,
            false => return Err(wrong(&field, part, "an object")),
        };
        let entry = match (part.get("id"), part.get("name")) {
            (Some(Value::String(name)), None) | (None, Some(Value::String(name))) => {
                self.find(name)
            }
            (Some(Value::Number(id)), None) => {
                let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
                id.and_then(|id| self.numbered(id))
            }
            (Some(other), None) | (None, Some(other)) => {
                return Err(wrong(&field, other, "an adapter's number or name"));
            }
            _ => return Err(ApiError::field(field, "needs an id, or a name")),
        };
        let told = part.get("id").or_else(|| part.get("name"));
        let entry = entry.filter(|entry| entry.model == model).ok_or_else(|| {
            let told = told.map(shown).unwrap_or_default();
            ApiError::field(field, format!("the model has no adapter {told}"))
        })?;
        let scale = fields
            .float("scale", -SCALE_MAX..=SCALE_MAX)?
            .unwrap_or(1.0);
        Ok((entry, scale))
    }
}

/// Largest factor of an adapter.
pub(crate) const SCALE_MAX: f32 = 1e6;
