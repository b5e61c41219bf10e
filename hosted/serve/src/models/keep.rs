//! Models that are unloaded at the time that the last request which used them named.

use super::{Models, State};
use crate::api::ApiError;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, Weak};
use std::time::SystemTime;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// When a model is unloaded, unless it is used again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    at: Instant,
    /// The same time, for clients.
    shown: SystemTime,
    /// The use that it follows.
    used: u64,
}

impl Expiry {
    /// In `time` from now, after the use `used`.
    pub(super) fn after(time: Duration, used: u64) -> Self {
        let time = time.min(TIME_MAX);
        Self {
            at: Instant::now() + time,
            shown: SystemTime::now() + time,
            used,
        }
    }
}

impl Models {
    /// Unloads a model at a time, unless it is used before; another request's time replaces this one.
    pub(super) fn expire(self: &Arc<Self>, index: usize, expiry: Expiry, runtime: &Handle) {
        let _table = self.lock();
        let sender = &self.entries[index].expiry;
        let has_waiter = sender.receiver_count() > 0;
        sender.send_replace(Some(expiry));
        if !has_waiter {
            let expiries = sender.subscribe();
            runtime.spawn(wait(Arc::downgrade(self), index, expiries));
        }
    }

    /// Unloads the model called `name`, or the first one, unless requests use it. Does not wait.
    ///
    /// # Errors
    /// The model does not exist, or requests may not load it again.
    pub(crate) fn unload_unused(self: &Arc<Self>, name: Option<&str>) -> Result<(), ApiError> {
        if !self.autoloads() {
            let what =
                "0 is not supported: POST /models/unload unloads a model (--no-models-autoload)";
            return Err(ApiError::field("keep_alive", what));
        }
        let adapter = name.and_then(|name| self.adapters.find(name));
        let index = adapter.map_or_else(|| self.asked(name), |adapter| Ok(adapter.model))?;
        let used = self.entries[index].used.load(Ordering::Relaxed);
        let now = Expiry::after(Duration::ZERO, used);
        self.expire(index, now, &Handle::current());
        Ok(())
    }

    /// When the model called `name` is unloaded; `None` if it stays until another one needs its place.
    pub(crate) fn expires(&self, name: &str) -> Option<SystemTime> {
        let entry = &self.entries[self.find(name).ok()?];
        let expiry = (*entry.expiry.borrow())?;
        let is_due = expiry.used == entry.used.load(Ordering::Relaxed);
        is_due.then_some(expiry.shown)
    }

    /// Unloads a model if its time has come and no request has used it since.
    fn unload_expired(&self, index: usize, expiry: Expiry) {
        let entry = &self.entries[index];
        let table = self.lock();
        if entry.used.load(Ordering::Relaxed) != expiry.used || !entry.is_idle() {
            return;
        }
        let unloaded = self.unload(index, State::Unloaded);
        if let Some(loaded) = &unloaded {
            self.engine.remove(loaded.id);
        }
        // Unlock first: freeing weights takes time.
        drop(table);
        drop(unloaded);
        let name = &self.listed[index].name;
        (self.log)(&format!(
            "model {name:?} unloaded as a request's keep_alive asked for"
        ));
    }
}

/// Waits for the times of a model, as long as it has one.
async fn wait(models: Weak<Models>, index: usize, mut expiries: watch::Receiver<Option<Expiry>>) {
    loop {
        let expiry = *expiries.borrow_and_update();
        let Some(expiry) = expiry else { return };
        tokio::select! {
            changed = expiries.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            () = sleep_until(expiry.at) => {}
        }
        let Some(models) = models.upgrade() else {
            return;
        };
        models.unload_expired(index, expiry);
        let _table = models.lock();
        // Another request may have named a later time.
        let is_over = !expiries.has_changed().unwrap_or(false);
        if is_over {
            drop(expiries);
            return;
        }
    }
}

/// Longer times than this one are this one: a year.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);
