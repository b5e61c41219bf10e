//! Models that have been idle for some time sleep: their memory is freed until the next request.

use super::{Models, Outline, State};
use core::time::Duration;
use std::sync::{Arc, PoisonError};

impl Models {
    /// Puts models to sleep when they have been idle for long enough. Ends only if no model ever sleeps.
    pub(crate) async fn watch_idle(self: Arc<Self>) {
        let limit = |index: usize| self.listed[index].options(&self.options).sleep_after;
        if (0..self.listed.len()).all(|index| limit(index).is_none()) {
            return;
        }
        loop {
            let mut next = LOOK_AGAIN;
            for index in 0..self.listed.len() {
                if let Some(limit) = limit(index) {
                    next = next.min(self.sleep_if_idle(index, limit));
                }
            }
            tokio::time::sleep(next.max(LOOK_AGAIN_MIN)).await;
        }
    }

    /// Puts a model to sleep that has been idle for `limit`. Returns when to look at it again.
    fn sleep_if_idle(&self, index: usize, limit: Duration) -> Duration {
        let entry = &self.entries[index];
        let table = self.lock();
        let State::Loaded(loaded) = entry.state.borrow().clone() else {
            return limit;
        };
        let used_at = *entry.used_at.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = used_at.elapsed();
        if !entry.is_idle() || idle < limit {
            return limit.saturating_sub(idle);
        }
        let outline = Arc::new(Outline::of(&loaded));
        self.engine.remove(loaded.id);
        let unloaded = self.unload(index, State::Sleeping(outline));
        // Unlock first: freeing weights takes time.
        drop(table);
        drop((loaded, unloaded));
        let (name, limit_s) = (&self.listed[index].name, limit.as_secs());
        (self.log)(&format!(
            "model {name:?} sleeps after {limit_s} s without a request"
        ));
        limit
    }
}

/// Maximum time until idle models are looked for again: one may have been loaded meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(50);
