//! Resolves the adapters that a request asks for.

use super::Adapters;
use super::entry::Entry;
use crate::api::{AdapterChoice, AdapterName, ApiError};
use std::sync::Arc;

/// An adapter of a request, and its factor.
pub(crate) struct WantedAdapter {
    pub(crate) entry: Arc<Entry>,
    pub(crate) scale: f32,
}

impl Adapters {
    /// The adapters of a request to `model`: those that it `asked` for, the one that it names as its model, or those
    /// that apply to all requests.
    ///
    /// # Errors
    /// A field is invalid, or an adapter does not exist or belongs to another model.
    pub(crate) fn wanted(
        &self,
        model: usize,
        named: Option<Arc<Entry>>,
        asked: Option<&[AdapterChoice]>,
    ) -> Result<Vec<WantedAdapter>, ApiError> {
        match (named, asked) {
            (Some(_), Some(list)) if !list.is_empty() => Err(ApiError::field(
                "adapters",
                "cannot be combined with `model`, which names an adapter: use the name of its base model",
            )),
            (Some(entry), _) => Ok(vec![WantedAdapter { entry, scale: 1.0 }]),
            (None, Some(list)) if self.are_on() => {
                let parts = list.iter().enumerate();
                let parts = parts.map(|(i, part)| self.part(model, i, part));
                let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
                let is_known = |i: usize| {
                    let mut before = parts[..i].iter();
                    before.any(|part: &WantedAdapter| part.entry.id == parts[i].entry.id)
                };
                if let Some(i) = (0..parts.len()).find(|&i| is_known(i)) {
                    let what = "is listed twice";
                    return Err(ApiError::field(format!("adapters[{i}]"), what));
                }
                parts.retain(|part| part.scale != 0.0);
                Ok(parts)
            }
            (None, Some(list)) if !list.is_empty() => Err(ApiError::field(
                "adapters",
                "the server has no adapters (start it with --lora, --lora-modules, --lora-dir or --enable-lora)",
            )),
            (None, _) => {
                let all = self.all().into_iter();
                let own = all.filter(|entry| entry.model == model && entry.scale() != 0.0);
                let wanted = own.map(|entry| WantedAdapter {
                    scale: entry.scale(),
                    entry,
                });
                Ok(wanted.collect())
            }
        }
    }

    /// The adapter that a request refers to.
    pub(crate) fn named(&self, name: &AdapterName) -> Option<Arc<Entry>> {
        match name {
            AdapterName::Name(name) => self.find(name),
            AdapterName::Number(id) => self.numbered(usize::try_from(*id).ok()?),
        }
    }

    /// Resolves one of a request's adapters.
    fn part(
        &self,
        model: usize,
        i: usize,
        part: &AdapterChoice,
    ) -> Result<WantedAdapter, ApiError> {
        let entry = self.named(&part.adapter);
        let entry = entry.filter(|entry| entry.model == model).ok_or_else(|| {
            let shown = match &part.adapter {
                AdapterName::Name(name) => format!("{name:?}"),
                AdapterName::Number(id) => id.to_string(),
            };
            let what = format!("the model has no adapter {shown}");
            ApiError::field(format!("adapters[{i}]"), what)
        })?;
        if !(-SCALE_MAX..=SCALE_MAX).contains(&part.scale) {
            let what = format!("{} is not between -{SCALE_MAX} and {SCALE_MAX}", part.scale);
            return Err(ApiError::field(format!("adapters[{i}].scale"), what));
        }
        let scale = part.scale;
        Ok(WantedAdapter { entry, scale })
    }
}

/// Largest factor of an adapter.
pub(crate) const SCALE_MAX: f32 = 1e6;
