//! Models that are loaded and unloaded by requests, as with llama-server's router.

use super::turns::{LOOK_AGAIN, Unloading};
use super::unload::Reason;
use super::{ModelChange, Models, State};
use crate::api::{ApiError, ErrorKind};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::broadcast;
use tokio::time::timeout;

impl Models {
    /// Whether the server starts without a model, so that requests name one.
    pub(crate) fn is_router(&self) -> bool {
        self.options.named.is_empty()
    }

    /// Maximum number of models in memory; 0 for no limit.
    pub(crate) const fn max(&self) -> usize {
        self.options.max
    }

    /// Whether requests load the models that they name.
    pub(crate) const fn autoloads(&self) -> bool {
        self.options.autoload
    }

    /// Refuses a request for a model that is not in memory and may not be loaded by it. A model that sleeps wakes up.
    pub(crate) fn check_autoload(&self, name: Option<&str>) -> Result<(), ApiError> {
        let index = self.asked(name)?;
        match *self.entries[index].state.borrow() {
            State::Loaded(_) | State::Loading | State::Sleeping(_) => Ok(()),
            State::Unloaded | State::Failed(_) => {
                let what =
                    "is not loaded, and requests do not load models here: POST /models/load does";
                Err(ApiError::field("model", what))
            }
        }
    }

    /// The state of the model called `name`, or of the first one. Does not count as a use.
    pub(crate) fn state(&self, name: Option<&str>) -> Result<State, ApiError> {
        let index = self.asked(name)?;
        Ok(self.entries[index].state.borrow().clone())
    }

    /// The state of the model with number `index`.
    pub(crate) fn state_of(&self, index: usize) -> Option<State> {
        Some(self.entries.get(index)?.state.borrow().clone())
    }

    /// What changes from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<ModelChange> {
        self.changes.subscribe()
    }

    /// Begins to load the model with number `index`. Does not wait.
    ///
    /// # Errors
    /// It is in memory, or being loaded.
    pub(crate) fn begin_loading(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        let _table = self.lock();
        let state = self.entries[index].state.borrow().clone();
        match state {
            State::Loaded(_) | State::Loading => {
                Err(ApiError::field("model", "is already running"))
            }
            State::Unloaded | State::Sleeping(_) | State::Failed(_) => {
                self.queue(index);
                Ok(())
            }
        }
    }

    /// Begins to unload the model with number `index`. Its texts may continue for some time; new requests wait and load
    /// it again. Does not wait.
    ///
    /// # Errors
    /// It is not in memory, or is being unloaded already.
    pub(crate) fn begin_unloading(self: &Arc<Self>, index: usize) -> Result<(), ApiError> {
        let _table = self.lock();
        let entry = &self.entries[index];
        let state = entry.state.borrow().clone();
        match state {
            State::Loaded(_) | State::Loading => {
                let mut place = entry.place();
                if place.unloading != Unloading::No {
                    return Err(ApiError::field("model", "is being unloaded already"));
                }
                place.unloading = Unloading::Asked;
                drop(place);
                let models = Arc::clone(self);
                tokio::spawn(async move { models.unload_asked(index).await });
                Ok(())
            }
            State::Sleeping(_) => {
                self.change(index, State::Unloaded);
                Ok(())
            }
            State::Unloaded | State::Failed(_) => Err(ApiError {
                kind: ErrorKind::Invalid,
                ..ApiError::field("model", "is not running")
            }),
        }
    }

    /// Unloads a model that may still be in the line. Other models are loaded meanwhile.
    async fn unload_asked(self: Arc<Self>, index: usize) {
        let entry = &self.entries[index];
        let mut states = entry.state.subscribe();
        let is_settled = |state: &State| !matches!(state, State::Loading);
        drop(states.wait_for(is_settled).await);
        {
            let _table = self.lock();
            entry.place().unloading = Unloading::Begun;
        }
        self.end_texts(index).await;
        {
            let _table = self.lock();
            entry.place().unloading = Unloading::No;
        }
        // Those who wait to load it again look.
        entry.state.send_modify(|_| ());
    }

    /// Unloads a model after its texts, or without them when they have had time enough.
    async fn end_texts(&self, index: usize) {
        let entry = &self.entries[index];
        let patience = self.listed[index].options(&self.options).stop_after;
        let begun = Instant::now();
        // A server that ends has a patience of its own.
        while entry.is_loaded() && !self.stop.is_set() {
            let released = self.released.notified();
            let left = patience.saturating_sub(begun.elapsed());
            let reason = Reason::Asked {
                patience,
                ends_texts: left.is_zero(),
            };
            if self.unload_for(index, reason) {
                return;
            }
            let time = match left.is_zero() {
                true => LOOK_AGAIN,
                false => left.min(LOOK_AGAIN),
            };
            let _released = timeout(time, released).await;
        }
    }
}
