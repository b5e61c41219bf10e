//! The adapters of a server: which ones exist, which are in memory, and which requests use them.
//!
//! Requests select an adapter by name, as they select a model. A request [pins](Adapters::pin) its adapters; those that
//! are not in memory are read from disk while the engine continues. At most `--max-cpu-loras` are in memory: the least
//! recently used of the unused ones is evicted to make room. If all are in use, requests wait in order of arrival,
//! whichever adapters they need, so that no request starves.
//!
//! Publishing, replacing and withdrawing change a table of pointers. Running requests keep the adapters they pinned.

mod asked;
mod entry;
mod folder;
mod loading;
mod options;

pub(crate) use asked::{SCALE_MAX, WantedAdapter};
pub(crate) use entry::{Entry, Origin, Pin, State};
pub use options::{AdapterPart, AdaptersOptions, NamedAdapter};

use crate::api::LATEST;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// The adapters of a server.
pub(crate) struct Adapters {
    options: AdaptersOptions,
    table: Mutex<Table>,
    /// One permit for each adapter that may be in use at once.
    places: Arc<Semaphore>,
    /// Held while waiting for a place, so that later requests queue up.
    line: tokio::sync::Mutex<()>,
    /// Limits how many adapters are read at once.
    reading: Semaphore,
    /// A counter of uses, for finding the least recently used adapter.
    clock: AtomicU64,
    log: crate::Log,
}

#[derive(Default)]
struct Table {
    /// Sorted by number.
    entries: Vec<Arc<Entry>>,
    n_ever: usize,
}

impl Adapters {
    /// The adapters named on the command line. `models` finds a model by name.
    ///
    /// # Errors
    /// Two adapters have the same name, or a model does not exist.
    pub(crate) fn new(
        options: AdaptersOptions,
        models: &dyn Fn(Option<&str>) -> Option<usize>,
        log: crate::Log,
    ) -> Result<Self, String> {
        let n = options.max_in_memory.clamp(1, Semaphore::MAX_PERMITS);
        let adapters = Self {
            table: Mutex::default(),
            places: Arc::new(Semaphore::new(n)),
            line: tokio::sync::Mutex::new(()),
            reading: Semaphore::new(READING),
            clock: AtomicU64::new(1),
            options,
            log,
        };
        for named in adapters.options.named.clone() {
            let Some(model) = models(named.model.as_deref()) else {
                let of = named.model.as_deref().unwrap_or_default();
                return Err(format!("adapter {:?}: unknown model {of:?}", named.name));
            };
            if models(Some(&named.name)).is_some() {
                return Err(format!(
                    "adapter {:?} has the same name as a model",
                    named.name
                ));
            }
            let scale = named.scale.unwrap_or(0.0);
            let parts = named.parts.clone();
            let entry = adapters.add(&named.name, parts, model, Origin::Named)?;
            entry.set_scale(scale);
        }
        Ok(adapters)
    }

    /// Whether sessions reserve room for adapters.
    pub(crate) const fn are_on(&self) -> bool {
        self.options.rank > 0
    }

    /// Whether requests may load and unload adapters.
    pub(crate) const fn may_change(&self) -> bool {
        self.options.updates
    }

    /// All adapters, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().entries.clone()
    }

    /// The adapter called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        let table = self.lock();
        let of = |name: &str| table.entries.iter().find(|entry| &*entry.name == name);
        let usual = || name.strip_suffix(LATEST).and_then(of);
        of(name).or_else(usual).cloned()
    }

    /// The adapter with the number `id`.
    pub(crate) fn numbered(&self, id: usize) -> Option<Arc<Entry>> {
        let table = self.lock();
        table.entries.iter().find(|entry| entry.id == id).cloned()
    }

    /// Publishes an adapter. It is read on first use.
    ///
    /// # Errors
    /// The name is taken.
    pub(crate) fn add(
        &self,
        name: &str,
        parts: Vec<AdapterPart>,
        model: usize,
        origin: Origin,
    ) -> Result<Arc<Entry>, String> {
        let entry = self.unlisted(name, parts, model, origin);
        self.publish(&entry)?;
        Ok(entry)
    }

    /// Makes an adapter with a new number. It cannot be found until it is published.
    pub(crate) fn unlisted(
        &self,
        name: &str,
        parts: Vec<AdapterPart>,
        model: usize,
        origin: Origin,
    ) -> Arc<Entry> {
        let mut table = self.lock();
        let id = table.n_ever;
        table.n_ever += 1;
        Arc::new(Entry::new(id, name, parts, model, origin))
    }

    /// # Errors
    /// The name is taken.
    pub(crate) fn publish(&self, entry: &Arc<Entry>) -> Result<(), String> {
        let mut table = self.lock();
        let name = &entry.name;
        if table.entries.iter().any(|other| other.name == *name) {
            return Err(format!(
                "The lora adapter {name:?} has already been loaded."
            ));
        }
        table.entries.push(Arc::clone(entry));
        Ok(())
    }

    /// Replaces `old` by `new`, which gets its name, number and scale. Requests that use the old one keep it. False if
    /// `old` has been withdrawn.
    pub(crate) fn replace(&self, old: &Arc<Entry>, new: &Arc<Entry>) -> bool {
        new.set_scale(old.scale());
        let mut table = self.lock();
        let place = table.entries.iter_mut();
        let place = place.into_iter().find(|entry| Arc::ptr_eq(entry, old));
        let is_there = place.map(|entry| *entry = Arc::clone(new));
        is_there.is_some()
    }

    /// Withdraws an adapter. Requests that use it keep it.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut table = self.lock();
        table.entries.retain(|other| !Arc::ptr_eq(other, entry));
    }

    /// Drops the packed adapters of a model that is being unloaded.
    pub(crate) fn forget(&self, model: usize) {
        for entry in self.all() {
            if entry.model == model && !entry.is_pinned() {
                entry.state.send_replace(State::Cold);
            }
        }
    }

    /// Ends all waiting for adapters.
    pub(crate) fn stop(&self) {
        self.places.close();
        self.reading.close();
    }

    fn touch(&self, entry: &Entry) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        entry.used.store(now, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapters")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The default name of an adapter: the stem of its file or folder.
pub(crate) fn stem(path: &Path) -> String {
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Maximum number of adapters read at once: enough to keep a disk busy, while most cores stay with the engine.
const READING: usize = 1;
