//! A model in use by a request, with the request's adapters.

use super::keep::Expiry;
use super::{Loaded, Models};
use crate::adapters::{Pin, WantedAdapter};
use crate::api::{ApiError, ModelChoice};
use crate::engine::ModelId;
use crate::metrics::Metrics;
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sluice::adapter::AdapterBlend;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A model in use, and the adapters: they stay in memory until this is dropped.
pub(crate) struct Lease {
    pub(super) in_use: ModelUse,
    pub(super) loaded: Arc<Loaded>,
}

/// One of the requests that use a model.
pub(super) struct ModelUser {
    pub(super) models: Arc<Models>,
    pub(super) index: usize,
    /// How long the model stays in memory afterwards, and where to wait for that.
    pub(super) keep_for: Option<(Duration, Handle)>,
    /// Whether it only looks at the model, which is not a use.
    pub(super) is_look: bool,
}

/// The use of a model by work of the engine, with its adapters. It keeps none of the model's memory: if other models have
/// waited for too long, the engine parks the work and the model is unloaded until its next turn.
pub(crate) struct ModelUse {
    pub(super) id: ModelId,
    pub(super) user: ModelUser,
    /// The adapters that the request is computed with.
    pub(super) adapter: Option<LeasedAdapter>,
}

/// The adapters of a request.
pub(super) struct LeasedAdapter {
    /// The model name in replies.
    name: Arc<str>,
    /// Whether that name is the adapter's.
    names_model: bool,
    blend: AdapterBlend,
    fingerprint: String,
    _pins: Vec<Pin>,
}

impl Models {
    /// Acquires the model that a request selects, with its adapters: the one that it names as its model, those that it
    /// lists, or those that apply to all requests.
    pub(crate) async fn acquire_with(
        self: &Arc<Self>,
        choice: &ModelChoice,
    ) -> Result<Lease, ApiError> {
        let name = choice.name.as_deref();
        let named = name.and_then(|name| self.adapters.find(name));
        let mut lease = match &named {
            Some(entry) => self.acquire(Some(self.name_of(entry.model))).await?,
            None => self.acquire(name).await?,
        };
        let keep_for = choice.keep_for;
        lease.in_use.user.keep_for = keep_for.map(|time| (time, Handle::current()));
        let names_model = named.is_some();
        let is_asked = names_model || choice.adapters.is_some();
        let adapters = choice.adapters.as_deref();
        let wanted = self
            .adapters
            .wanted(lease.in_use.user.index, named, adapters)?;
        let leased = self.with_adapters(lease, &wanted, names_model).await;
        leased.map_err(|error| if is_asked { error } else { error.of_server() })
    }

    /// A model with the adapters that apply to all requests.
    pub(super) async fn with_usual_adapters(&self, lease: Lease) -> Result<Lease, ApiError> {
        let wanted = self.adapters.wanted(lease.in_use.user.index, None, None)?;
        self.with_adapters(lease, &wanted, false).await
    }

    async fn with_adapters(
        &self,
        mut lease: Lease,
        wanted: &[WantedAdapter],
        names_model: bool,
    ) -> Result<Lease, ApiError> {
        let Some(first) = wanted.first() else {
            return Ok(lease);
        };
        let name = match wanted {
            [_] => Arc::clone(&first.entry.name),
            all => {
                let names: Vec<_> = all.iter().map(|wanted| &*wanted.entry.name).collect();
                names.join("+").into()
            }
        };
        let entries: Vec<_> = wanted
            .iter()
            .map(|wanted| Arc::clone(&wanted.entry))
            .collect();
        let pins = self.adapters.pin(&entries).await?;
        let mut parts = Vec::with_capacity(pins.len());
        for (pin, wanted) in pins.iter().zip(wanted) {
            parts.push((self.adapters.ready(pin, lease.model()).await?, wanted.scale));
        }
        let blend = AdapterBlend::sum(&parts);
        let (rank, max) = (blend.rank(), self.options.adapters.rank);
        if rank > max {
            let what =
                format!("{name} has rank {rank}, but the maximum is {max} (--max-lora-rank)");
            return Err(ApiError::field("adapters", what));
        }
        lease.in_use.adapter = Some(LeasedAdapter {
            fingerprint: format!("{}-a{}", lease.loaded.fingerprint(), blend.identity()),
            name,
            names_model,
            blend,
            _pins: pins,
        });
        Ok(lease)
    }
}

impl Lease {
    /// Gives up the model, once the request is prepared.
    pub(crate) fn into_use(self) -> ModelUse {
        self.in_use
    }

    /// The name the request used: the model's, or an adapter's.
    pub(crate) fn name(&self) -> &str {
        match &self.in_use.adapter {
            Some(adapter) if adapter.names_model => &adapter.name,
            _ => self.loaded.name(),
        }
    }

    /// The model's name, whatever the request used.
    pub(crate) fn model_name(&self) -> &str {
        self.loaded.name()
    }

    /// Equal for equal weights, adapters and rules of arithmetic.
    pub(crate) fn fingerprint(&self) -> &str {
        match &self.in_use.adapter {
            Some(adapter) => &adapter.fingerprint,
            None => self.loaded.fingerprint(),
        }
    }

    /// The adapters that the request is computed with.
    pub(crate) fn blend(&self) -> Option<&AdapterBlend> {
        self.in_use.blend()
    }
}

impl ModelUse {
    /// The model's number in the engine.
    pub(crate) const fn id(&self) -> ModelId {
        self.id
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.user.models.entries[self.user.index].metrics
    }

    /// The adapters that the request is computed with.
    pub(crate) fn blend(&self) -> Option<&AdapterBlend> {
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

impl Drop for ModelUser {
    fn drop(&mut self) {
        let entry = &self.models.entries[self.index];
        let used = match self.is_look {
            true => entry.used.load(Ordering::Relaxed),
            false => self.models.touch(entry),
        };
        let is_last = entry.users.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last {
            self.models.released.notify_one();
        }
        let keep_for = self.keep_for.take();
        // The place is unlocked before the table is locked, which others lock first.
        let kept = entry.place().keep_after(keep_for, is_last);
        if let Some((time, runtime)) = kept {
            let expiry = Expiry::after(time, used);
            self.models.expire(self.index, expiry, &runtime);
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
