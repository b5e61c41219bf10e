//! The one way in which models are unloaded, for one of several reasons.

use super::{Models, Outline, State};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, PoisonError};

/// Why a model is unloaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    /// Another model needs its place.
    Room,
    /// The time that a request named is over, after the use with this number.
    KeepAlive { used: u64 },
    /// It was idle for this long, and sleeps.
    Idle(Duration),
    /// A request asked for it; its texts end if they have had time enough.
    Asked {
        patience: Duration,
        ends_texts: bool,
    },
}

impl Models {
    /// Unloads a model if the reason holds: requests must not use it, except where they are ended. Returns whether it
    /// did.
    pub(super) fn unload_for(&self, index: usize, reason: Reason) -> bool {
        let entry = &self.entries[index];
        let table = self.lock();
        let State::Loaded(loaded) = entry.state.borrow().clone() else {
            return false;
        };
        let (is_idle, place) = (entry.is_idle(), entry.place());
        let holds = match reason {
            Reason::Room => is_idle,
            Reason::KeepAlive { used } => is_idle && entry.used.load(Ordering::Relaxed) == used,
            Reason::Idle(limit) => {
                let used_at = entry.used_at.lock().unwrap_or_else(PoisonError::into_inner);
                is_idle && !place.is_unloading() && used_at.elapsed() >= limit
            }
            Reason::Asked { ends_texts, .. } => is_idle || ends_texts,
        };
        // A model that is being parked is unloaded afterwards.
        let is_parked = place.parked.is_some();
        drop(place);
        if !holds || is_parked {
            return false;
        }
        let n_users = entry.users.load(Ordering::Relaxed);
        let next = match reason {
            Reason::Idle(_) => State::Sleeping(Arc::new(Outline::of(&loaded))),
            _ => State::Unloaded,
        };
        self.engine.remove(loaded.id);
        let unloaded = self.unload(index, next);
        // Unlock first: freeing weights takes time, and the log's reader may request a model.
        drop(table);
        drop((loaded, unloaded));
        let name = &self.listed[index].name;
        (self.log)(&format!("model {name:?} {}", reason.said(n_users)));
        true
    }
}

impl Reason {
    fn said(self, n_users: usize) -> String {
        match self {
            Self::Room => "unloaded".to_owned(),
            Self::KeepAlive { .. } => "unloaded as a request's keep_alive asked for".to_owned(),
            Self::Idle(limit) => format!("sleeps after {} s without a request", limit.as_secs()),
            Self::Asked { .. } if n_users == 0 => "unloaded by a request".to_owned(),
            Self::Asked { patience, .. } => format!(
                "unloaded by a request, which ended {n_users} others after {} s",
                patience.as_secs()
            ),
        }
    }
}
