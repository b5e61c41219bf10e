//! Models that have been idle for some time sleep: their memory is freed until the next request.

use super::Models;
use super::unload::Reason;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, PoisonError};

impl Models {
    /// Puts models to sleep when they have been idle for long enough. Ends if no model ever sleeps, until the list of
    /// models is read again, and where it runs already.
    pub(crate) async fn watch_idle(self: Arc<Self>) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let limit = |index: usize| self.listed[index].options(&self.options).sleep_after;
        let all_stay = (0..self.listed.len()).all(|index| limit(index).is_none());
        if all_stay && self.options.sleep_after.is_none() {
            self.is_watched.store(false, Ordering::Relaxed);
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
        if !entry.is_loaded() || self.unload_for(index, Reason::Idle(limit)) {
            return limit;
        }
        let used_at = *entry.used_at.lock().unwrap_or_else(PoisonError::into_inner);
        limit.saturating_sub(used_at.elapsed())
    }
}

/// Maximum time until idle models are looked for again: one may have been loaded meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(50);
