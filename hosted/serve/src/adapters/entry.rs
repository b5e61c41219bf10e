//! One adapter: its files, its state, and its users.

use super::options::AdapterPart;
use crate::api::NotLoaded;
use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice::adapter::AdapterBlend;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// An adapter that requests can use.
pub(crate) struct Entry {
    /// Its number, for llama.cpp's routes.
    pub(crate) id: usize,
    pub(crate) name: Arc<str>,
    pub(crate) parts: Vec<AdapterPart>,
    /// The number of its model.
    pub(crate) model: usize,
    pub(crate) origin: Origin,
    pub(crate) state: watch::Sender<State>,
    users: Mutex<Users>,
    /// When it was last used, by the table's clock.
    pub(super) used: AtomicU64,
    /// The factor for requests that name its model: the bits of an f32.
    scale: AtomicU32,
    /// What its files ask for without effect, a sentence each; known once it has been read.
    warnings: Mutex<Vec<String>>,
}

/// The origin of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Named,
    /// A request.
    Request,
    /// The watched folder; the number is the hash of its files' state.
    Folder(u64),
}

/// The state of an adapter.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// On disk.
    Cold,
    /// Being read.
    Loading,
    /// In memory.
    Ready(AdapterBlend),
    /// It could not be read; the next request tries again.
    Failed(NotLoaded),
}

#[derive(Default)]
struct Users {
    n: usize,
    /// Held while the adapter is in use.
    place: Option<OwnedSemaphorePermit>,
}

impl Entry {
    pub(crate) fn new(
        id: usize,
        name: &str,
        parts: Vec<AdapterPart>,
        model: usize,
        origin: Origin,
    ) -> Self {
        Self {
            id,
            name: name.into(),
            parts,
            model,
            origin,
            state: watch::Sender::new(State::Cold),
            users: Mutex::default(),
            used: AtomicU64::new(0),
            scale: AtomicU32::new(0),
            warnings: Mutex::default(),
        }
    }

    /// What its files ask for without effect, a sentence each; empty until it has been read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warnings = self.warnings.lock();
        warnings.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_warnings(&self, warnings: Vec<String>) {
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    /// The factor for requests that name its model.
    pub(crate) fn scale(&self) -> f32 {
        f32::from_bits(self.scale.load(Ordering::Relaxed))
    }

    pub(crate) fn set_scale(&self, scale: f32) {
        self.scale.store(scale.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.users().n > 0
    }

    /// Adds a user, if there already are users.
    pub(super) fn join(self: &Arc<Self>) -> Option<Pin> {
        let mut users = self.users();
        (users.n > 0).then(|| {
            users.n += 1;
            Pin(Arc::clone(self))
        })
    }

    /// Adds the first user, which brings a place.
    pub(super) fn open(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Pin {
        let mut users = self.users();
        users.n += 1;
        users.place.get_or_insert(place);
        Pin(Arc::clone(self))
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A use of an adapter, which stays in memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Entry>);

impl Pin {
    pub(crate) const fn entry(&self) -> &Arc<Entry> {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut users = self.0.users();
        users.n -= 1;
        if users.n == 0 {
            users.place = None;
        }
    }
}
