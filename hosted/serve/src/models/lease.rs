//! A model in use, with what a request is computed with.

use super::{Loaded, Models};
use crate::adapters::{Pin, Wanted};
use crate::api::error::ApiError;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use sluice::adapter::Blend;
use std::sync::Arc;

/// A model in use, and the adapters: they stay in memory while this is there.
pub(crate) struct Lease {
    pub(super) models: Arc<Models>,
    pub(super) index: usize,
    pub(super) loaded: Arc<Loaded>,
    /// What the request is computed with.
    pub(super) adapter: Option<LeasedAdapter>,
}

/// The adapters of a request.
pub(super) struct LeasedAdapter {
    /// What replies call the model.
    name: Arc<str>,
    /// Where the name is that of the adapter.
    names_model: bool,
    blend: Blend,
    fingerprint: String,
    _pins: Vec<Pin>,
}

impl Models {
    /// The model called `name`, or that of the adapter called so, with what it is computed with: that adapter, those
    /// of the request's `lora`, or those that are always on.
    pub(crate) async fn acquire_with(
        self: &Arc<Self>,
        name: Option<&str>,
        lora: Option<&serde_json::Value>,
    ) -> Result<Lease, ApiError> {
        let named = name.and_then(|name| self.adapters.find(name));
        let lease = match &named {
            Some(entry) => self.acquire(Some(self.name_of(entry.model))).await?,
            None => self.acquire(name).await?,
        };
        let names_model = named.is_some();
        let is_asked = names_model || lora.is_some_and(|lora| !lora.is_null());
        let wanted = self.adapters.wanted(lease.index, named, lora)?;
        let leased = self.with_adapters(lease, &wanted, names_model).await;
        leased.map_err(|error| if is_asked { error } else { error.of_server() })
    }

    /// A model with the adapters that are on for all.
    pub(super) async fn with_usual_adapters(&self, lease: Lease) -> Result<Lease, ApiError> {
        let wanted = self.adapters.wanted(lease.index, None, None)?;
        self.with_adapters(lease, &wanted, false).await
    }

    async fn with_adapters(
        &self,
        mut lease: Lease,
        wanted: &Wanted,
        names_model: bool,
    ) -> Result<Lease, ApiError> {
        let Some((first, _)) = wanted.first() else {
            return Ok(lease);
        };
        let name = match &**wanted {
            [_] => Arc::clone(&first.name),
            all => {
                let names: Vec<_> = all.iter().map(|(entry, _)| &*entry.name).collect();
                names.join("+").into()
            }
        };
        let entries: Vec<_> = wanted.iter().map(|(entry, _)| Arc::clone(entry)).collect();
        let pins = self.adapters.pin(&entries).await?;
        let mut parts = Vec::with_capacity(pins.len());
        for (pin, (_, scale)) in pins.iter().zip(wanted) {
            parts.push((self.adapters.ready(pin, lease.model()).await?, *scale));
        }
        let blend = Blend::sum(&parts);
        let (rank, max) = (blend.rank(), self.options.adapters.rank);
        if rank > max {
            let what = format!(
                "{name} needs room for a rank of {rank}, the server has {max} (--max-lora-rank)"
            );
            return Err(ApiError::field("lora", what));
        }
        lease.adapter = Some(LeasedAdapter {
            fingerprint: format!(
                "{}-a{:016x}",
                lease.loaded.fingerprint(),
                blend.fingerprint()
            ),
            name,
            names_model,
            blend,
            _pins: pins,
        });
        Ok(lease)
    }
}

impl Lease {
    /// What the request called it: the model, or an adapter of it.
    pub(crate) fn name(&self) -> &str {
        match &self.adapter {
            Some(adapter) if adapter.names_model => &adapter.name,
            _ => self.loaded.name(),
        }
    }

    /// Equal for equal weights, adapters and rules of arithmetic.
    pub(crate) fn fingerprint(&self) -> &str {
        match &self.adapter {
            Some(adapter) => &adapter.fingerprint,
            None => self.loaded.fingerprint(),
        }
    }

    /// What the request is computed with.
    pub(crate) fn blend(&self) -> Option<&Blend> {
        self.adapter.as_ref().map(|adapter| &adapter.blend)
    }

    /// The names of its adapters.
    pub(crate) fn adapter_name(&self) -> Option<&Arc<str>> {
        self.adapter.as_ref().map(|adapter| &adapter.name)
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let entry = &self.models.entries[self.index];
        self.models.touch(entry);
        if entry.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.models.released.notify_one();
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("model", &self.loaded.name())
            .finish_non_exhaustive()
    }
}
