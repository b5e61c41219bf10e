//! Models that are unloaded at the time that the last request which used them named.

use super::unload::Reason;
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

    /// Unloads the model called `name`, or the first one, when the last request that uses it has ended. Does not wait.
    ///
    /// # Errors
    /// The model does not exist.
    pub(crate) fn unload_unused(self: &Arc<Self>, name: Option<&str>) -> Result<(), ApiError> {
        let adapter = name.and_then(|name| self.adapters.find(name));
        let index = adapter.map_or_else(|| self.asked(name), |adapter| Ok(adapter.model))?;
        let (entry, runtime) = (&self.entries[index], Handle::current());
        let used = {
            let _table = self.lock();
            if matches!(*entry.state.borrow(), State::Sleeping(_)) {
                self.change(index, State::Unloaded);
                return Ok(());
            }
            // Noted before it is looked for users: the last of them may end at this moment.
            entry.place().unloads_unused = Some(runtime.clone());
            if entry.users.load(Ordering::Relaxed) > 0 || entry.waiting.load(Ordering::Relaxed) > 0
            {
                return Ok(());
            }
            entry.place().unloads_unused = None;
            entry.used.load(Ordering::Relaxed)
        };
        self.expire(index, Expiry::after(Duration::ZERO, used), &runtime);
        Ok(())
    }

    /// When the model called `name` is unloaded; `None` if it stays until another one needs its place.
    pub(crate) fn expires(&self, name: &str) -> Option<SystemTime> {
        let entry = &self.entries[self.find(name).ok()?];
        let expiry = (*entry.expiry.borrow())?;
        let is_due = expiry.used == entry.used.load(Ordering::Relaxed);
        is_due.then_some(expiry.shown)
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
        models.unload_for(index, Reason::KeepAlive { used: expiry.used });
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
