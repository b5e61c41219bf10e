//! The adapters of a server: which there are, which are in memory, and who uses them.
//!
//! An adapter has a name, which requests use as a model's. A request [pins](Adapters::pin) its adapters, which are read
//! from disk meanwhile where they are not in memory; the engine goes on. At most `--max-cpu-loras` are in memory: one
//! that nobody uses leaves for another, the one first that was used longest ago. Where all are in use, requests wait
//! in the order of their arrival, whatever they want, so that nobody waits for ever.
//!
//! Publishing, replacing and withdrawing change a table of pointers. Requests that have begun keep what they have.

mod asked;
mod entry;
mod folder;
mod loading;
mod options;

pub(crate) use asked::{SCALE_MAX, WantedAdapter};
pub(crate) use entry::{Entry, Origin, Pin, State};
pub use options::{AdaptersOptions, NamedAdapter};

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// The adapters of a server.
pub(crate) struct Adapters {
    options: AdaptersOptions,
    table: Mutex<Table>,
    /// Adapters that may be in use at once.
    places: Arc<Semaphore>,
    /// Held while a place is waited for: who comes later waits behind.
    line: tokio::sync::Mutex<()>,
    /// So many are read at once.
    reading: Semaphore,
    /// Counts uses.
    clock: AtomicU64,
    log: crate::Log,
}

#[derive(Default)]
struct Table {
    /// By number.
    entries: Vec<Arc<Entry>>,
    n_ever: usize,
}

impl Adapters {
    /// Those of the command line. `models` finds a model by name.
    ///
    /// # Errors
    /// Two have one name, or a model is not there.
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
                return Err(format!(
                    "adapter {:?}: there is no model {of:?}",
                    named.name
                ));
            };
            if models(Some(&named.name)).is_some() {
                return Err(format!("adapter {:?} has the name of a model", named.name));
            }
            let scale = named.scale.unwrap_or(0.0);
            let parts = named.parts.clone();
            let entry = adapters.add(&named.name, parts, model, Origin::Named)?;
            entry.set_scale(scale);
        }
        Ok(adapters)
    }

    /// Whether sessions have room for adapters.
    pub(crate) const fn are_on(&self) -> bool {
        self.options.rank > 0
    }

    /// Whether adapters may be loaded and unloaded by requests.
    pub(crate) const fn may_change(&self) -> bool {
        self.options.updates
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.lock().entries.clone()
    }

    /// The adapter called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Entry>> {
        let table = self.lock();
        let found = table.entries.iter().find(|entry| &*entry.name == name);
        found.cloned()
    }

    /// The adapter of that number.
    pub(crate) fn numbered(&self, id: usize) -> Option<Arc<Entry>> {
        let table = self.lock();
        table.entries.iter().find(|entry| entry.id == id).cloned()
    }

    /// Publishes an adapter. It is read when it is first asked for.
    ///
    /// # Errors
    /// There is one of this name.
    pub(crate) fn add(
        &self,
        name: &str,
        parts: Vec<(std::path::PathBuf, f32)>,
        model: usize,
        origin: Origin,
    ) -> Result<Arc<Entry>, String> {
        let entry = self.unlisted(name, parts, model, origin);
        self.publish(&entry)?;
        Ok(entry)
    }

    /// An adapter of a number of its own, which nobody finds until it is published.
    pub(crate) fn unlisted(
        &self,
        name: &str,
        parts: Vec<(std::path::PathBuf, f32)>,
        model: usize,
        origin: Origin,
    ) -> Arc<Entry> {
        let mut table = self.lock();
        let id = table.n_ever;
        table.n_ever += 1;
        Arc::new(Entry::new(id, name, parts, model, origin))
    }

    /// # Errors
    /// There is one of this name.
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

    /// Puts another in the place of `old`, with its name, number and scale. Who has the old one keeps it. False where
    /// that is no longer there.
    pub(crate) fn replace(&self, old: &Arc<Entry>, new: &Arc<Entry>) -> bool {
        new.set_scale(old.scale());
        let mut table = self.lock();
        let place = table.entries.iter_mut();
        let place = place.into_iter().find(|entry| Arc::ptr_eq(entry, old));
        let is_there = place.map(|entry| *entry = Arc::clone(new));
        is_there.is_some()
    }

    /// Withdraws an adapter. Who has it keeps it.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut table = self.lock();
        table.entries.retain(|other| !Arc::ptr_eq(other, entry));
    }

    /// Forgets what was packed for a model that leaves memory.
    pub(crate) fn forget(&self, model: usize) {
        for entry in self.all() {
            if entry.model == model && !entry.is_pinned() {
                entry.state.send_replace(State::Cold);
            }
        }
    }

    /// Nobody waits for an adapter any more.
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

/// The name of an adapter's file or folder: what it is called where nobody says.
pub(crate) fn stem(path: &Path) -> String {
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Adapters that are read at once: enough to keep a disk busy, few enough to leave cores to the engine.
const READING: usize = 1;
