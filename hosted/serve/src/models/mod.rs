//! The models of a server: which ones exist, which are in memory, and which requests use them.
//!
//! A request [acquires](Models::acquire) a model and waits while it is loaded; other requests continue meanwhile. The
//! least recently used of the unused models may be unloaded to make room for another one. If all are in use, models take
//! turns (`turns`).

mod added;
mod changes;
mod keep;
mod lease;
mod loaded;
mod names;
mod options;
mod outline;
mod reload;
mod requested;
mod roster;
mod sleep;
mod summary;
mod turns;
mod unload;

pub(crate) use changes::{DownloadStep, FileProgress, ModelChange};
pub(crate) use lease::{Lease, ModelUse};
pub(crate) use loaded::Loaded;
pub(crate) use names::means;
pub use options::{ModelLists, ModelPreset, ModelsOptions, NamedModel, ReadLists, models_of};
pub(crate) use outline::Outline;
pub(crate) use summary::{Capabilities, Summary};

use crate::adapters::Adapters;
use crate::api::{ApiError, Defaults, ErrorKind, NotLoaded};
use crate::engine::EngineHandle;
use crate::metrics::Metrics;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use keep::Expiry;
use lease::ModelUser;
use names::{find, offered};
use options::{Listed, listed};
use roster::Roster;
use sluice::Team;
use sluice::model::ModelSource;
use sluice_core::team::StopFlag;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use summary::Summaries;
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use turns::{Place, Waiting};

/// The models of a server.
pub(crate) struct Models {
    engine: EngineHandle,
    team: Team,
    options: ModelsOptions,
    /// Models may be added, replaced and withdrawn; an entry is added before its model is listed.
    listed: Roster<Listed>,
    /// Reads again which models there are.
    lists: Option<ReadLists>,
    /// Held while that is done.
    reloading: tokio::sync::Mutex<()>,
    /// Whether idle models are looked for.
    is_watched: AtomicBool,
    entries: Roster<Entry>,
    /// Held while a model is taken for use or unloaded.
    table: Mutex<()>,
    /// Models are loaded one at a time.
    loading: Semaphore,
    /// Notified when a model becomes unused.
    released: Notify,
    /// A counter of uses, for finding the least recently used model.
    clock: AtomicU64,
    stop: StopFlag,
    log: crate::Log,
    adapters: Arc<Adapters>,
    /// Tells who listens what changes.
    changes: broadcast::Sender<ModelChange>,
    summaries: Summaries,
}

struct Entry {
    state: watch::Sender<State>,
    metrics: Arc<Metrics>,
    /// The number of requests that use it.
    users: AtomicUsize,
    /// Its file, until it is first loaded.
    opened: Mutex<Option<ModelSource>>,
    /// When it was last used, by [`Models::clock`].
    used: AtomicU64,
    /// When it was last used.
    used_at: Mutex<Instant>,
    /// The number of requests that wait for it.
    waiting: AtomicUsize,
    place: Mutex<Place>,
    /// When it is unloaded, if the last request that used it said so.
    expiry: watch::Sender<Option<Expiry>>,
}

/// A model that requests may name.
pub(crate) struct OfferedModel<'m> {
    pub(crate) index: usize,
    pub(crate) name: &'m str,
    /// Other names.
    pub(crate) others: &'m [String],
    pub(crate) state: State,
}

impl<'m> OfferedModel<'m> {
    /// All its names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'m str> {
        let others = self.others.iter().map(String::as_str);
        others.chain([self.name])
    }
}

/// The state of a model.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Unloaded,
    Loading,
    Loaded(Arc<Loaded>),
    /// Unloaded after it was idle, until the next request.
    Sleeping(Arc<Outline>),
    Failed(NotLoaded),
}

impl Entry {
    /// An entry for the model called `name`, whose file may be open already.
    fn new(name: &str, opened: Option<ModelSource>) -> Self {
        Self {
            state: watch::Sender::new(State::Unloaded),
            metrics: Arc::new(Metrics::new(name)),
            users: AtomicUsize::new(0),
            opened: Mutex::new(opened),
            used: AtomicU64::new(0),
            used_at: Mutex::new(Instant::now()),
            waiting: AtomicUsize::new(0),
            place: Mutex::default(),
            expiry: watch::Sender::new(None),
        }
    }
}

impl Models {
    /// The team of threads that computes.
    pub(crate) const fn team(&self) -> &Team {
        &self.team
    }

    /// The models of a server, whose files [`ModelsOptions::open`] has opened. `lists` reads again which ones there are.
    ///
    /// # Errors
    /// The folder of models cannot be read, two models have the same name, or an adapter cannot be used.
    pub(crate) fn new(
        engine: EngineHandle,
        options: ModelsOptions,
        lists: Option<ReadLists>,
        opened: Vec<ModelSource>,
        log: crate::Log,
    ) -> io::Result<Self> {
        let team = engine.team().clone();
        let listed = Roster::new(listed(&options, &log)?);
        let number = |name: Option<&str>| find(&listed, name).ok();
        let adapters = Adapters::new(options.adapters.clone(), &number, log.clone());
        let adapters = Arc::new(adapters.map_err(io::Error::other)?);
        let source = |index: usize| match opened.get(index) {
            Some(source) => Ok(source.clone()),
            None => {
                let listed = &listed[index];
                let source = listed.options(&options).open_file(&listed.path);
                source.map_err(|error| error.to_string())
            }
        };
        adapters.check(&source).map_err(io::Error::other)?;
        let mut opened = opened.into_iter();
        let entries = listed
            .iter()
            .map(|model| Entry::new(&model.name, opened.next()));
        Ok(Self {
            entries: Roster::new(entries.collect()),
            engine,
            team,
            options,
            listed,
            lists,
            reloading: tokio::sync::Mutex::new(()),
            is_watched: AtomicBool::new(false),
            table: Mutex::new(()),
            loading: Semaphore::new(1),
            released: Notify::new(),
            clock: AtomicU64::new(1),
            stop: StopFlag::new(),
            log,
            adapters,
            changes: broadcast::Sender::new(CHANGES),
            summaries: Summaries::default(),
        })
    }

    /// The adapters of all models.
    pub(crate) const fn adapters(&self) -> &Arc<Adapters> {
        &self.adapters
    }

    /// The engine that runs the models.
    pub(crate) const fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// The metrics of all models.
    pub(crate) fn metrics(&self) -> Vec<Arc<Metrics>> {
        let entries = self.entries.iter().map(|entry| {
            if let State::Loaded(loaded) = &*entry.state.borrow() {
                loaded.count_experts();
            }
            entry.metrics.clone()
        });
        entries.collect()
    }

    /// All models that requests may name.
    pub(crate) fn all(&self) -> impl Iterator<Item = OfferedModel<'_>> {
        offered(&self.listed).map(|(index, listed)| OfferedModel {
            index,
            name: &listed.name,
            others: &listed.others,
            state: self.entries[index].state.borrow().clone(),
        })
    }

    /// The name of the model with number `index`.
    pub(crate) fn name_of(&self, index: usize) -> &str {
        self.listed.get(index).map_or("", |listed| &listed.name)
    }

    /// All names of the model with number `index`.
    pub(crate) fn names_of(&self, index: usize) -> impl Iterator<Item = &str> {
        let listed = self.listed.get(index);
        let names = listed.map(|listed| listed.others.iter().chain([&listed.name]));
        names.into_iter().flatten().map(String::as_str)
    }

    /// The number of the model called `name`; the error lists the adapters as well, which are named like models.
    pub(crate) fn find(&self, name: &str) -> Result<usize, ApiError> {
        find(&self.listed, Some(name)).map_err(|error| match error.kind {
            ErrorKind::NotFound => {
                let adapters = self.adapters.all();
                let models = offered(&self.listed).map(|(_, listed)| &*listed.name);
                let names = models.chain(adapters.iter().map(|entry| &*entry.name));
                ApiError::no_model(name, &names.collect::<Vec<_>>())
            }
            _ => error,
        })
    }

    /// The number of the model that a request names: the first one without a name, and for an unknown one if the
    /// server answers to any name.
    pub(crate) fn asked(&self, name: Option<&str>) -> Result<usize, ApiError> {
        match self.find(name.unwrap_or_default()) {
            Err(error) if error.kind == ErrorKind::NotFound && self.options.any_name => {
                find(&self.listed, None)
            }
            found => found,
        }
    }

    /// Values for the fields that requests for the model or the adapter called `name` leave out, if they are the
    /// model's own.
    pub(crate) fn defaults(&self, name: Option<&str>) -> Option<&Defaults> {
        let adapter = name.and_then(|name| self.adapters.find(name));
        let index = adapter.map_or_else(|| self.asked(name).ok(), |adapter| Some(adapter.model))?;
        self.listed.get(index)?.defaults()
    }

    /// The file of the model called `name`.
    pub(crate) fn path(&self, name: &str) -> Option<&Path> {
        let found = offered(&self.listed).find(|(_, listed)| listed.name == name);
        found.map(|(_, listed)| &*listed.path)
    }

    /// Whether models that were named on the command line are still being loaded.
    pub(crate) fn is_starting(&self) -> bool {
        let both = self.listed.iter().zip(self.entries.iter());
        let mut eager = both
            .filter(|(listed, _)| listed.eager)
            .take(self.options.eager_max());
        // A model counts as used when loading ends.
        eager.any(|(_, entry)| entry.used.load(Ordering::Relaxed) == 0)
    }

    /// Loads the models named on the command line, as many as fit, and the adapters that apply to all requests.
    ///
    /// # Errors
    /// Why one of them was not loaded.
    pub(crate) async fn load_named(self: &Arc<Self>) -> Result<(), String> {
        let eager: Vec<_> = self.listed.iter().filter(|listed| listed.eager).collect();
        for listed in eager.into_iter().take(self.options.eager_max()) {
            let index = find(&self.listed, Some(&listed.name)).map_err(|_| "no such model")?;
            let waiting = Waiting::new(&self.entries[index]);
            let loaded = self.wait_for(index, &waiting).await;
            loaded.map_err(|why| why.whole)?;
            // Load the adapters that apply to all requests now, so that a bad one is reported at startup; unless a
            // request has already replaced the model.
            if let Some(lease) = self.take(index, Some(&waiting)) {
                let lease = self.with_usual_adapters(lease).await;
                lease.map_err(|error| error.in_full())?;
            }
        }
        Ok(())
    }

    /// The model called `name`, loaded if necessary; without a name, the first model.
    pub(crate) async fn acquire(self: &Arc<Self>, name: Option<&str>) -> Result<Lease, ApiError> {
        let index = self.asked(name)?;
        loop {
            if let Some(lease) = self.take(index, None) {
                return Ok(lease);
            }
            let waiting = Waiting::new(&self.entries[index]);
            let loaded = self.wait_for(index, &waiting).await;
            loaded.map_err(|why| {
                let what = |why: &str| format!("the model could not be loaded: {why}");
                ApiError {
                    detail: Some(what(&why.whole)),
                    ..ApiError::unavailable(what(why.shown))
                }
            })?;
            if let Some(lease) = self.take(index, Some(&waiting)) {
                return Ok(lease);
            }
        }
    }

    /// The model called `name`, if it is in memory. To look at it does not count as a use.
    pub(crate) fn present(self: &Arc<Self>, name: Option<&str>) -> Result<Option<Lease>, ApiError> {
        let index = self.asked(name)?;
        let table = self.lock();
        let lease = self.lease(index);
        drop(table);
        Ok(lease.ok().map(|mut lease| {
            lease.in_use.user.is_look = true;
            lease
        }))
    }

    /// Stops loading models, unless texts wait for their model's next turn: then they go on until [`Self::end`].
    pub(crate) fn stop(&self) {
        self.adapters.stop();
        let _table = self.lock();
        if self.entries.iter().all(|entry| entry.parked().is_none()) {
            self.end();
        }
    }

    /// Stops loading models.
    pub(crate) fn end(&self) {
        self.stop.stop();
        self.loading.close();
    }

    /// The model, if it is in memory and it is the request's turn: others may wait for its place, and then only those
    /// requests use it that waited for it before.
    fn take(self: &Arc<Self>, index: usize, waited: Option<&Waiting<'_>>) -> Option<Lease> {
        let table = self.lock();
        let entry = &self.entries[index];
        let is_allowed = match waited {
            Some(waited) => waited.may_use(),
            None => entry.place().is_open(),
        };
        let lease = is_allowed.then(|| self.lease(index));
        if let Some(Ok(_)) = lease {
            self.touch(entry);
        }
        drop(table);
        lease?.ok()
    }

    /// The model, if it is in memory and works. The table must be locked, and unlocked before what was lost is dropped:
    /// that frees its weights.
    fn lease(self: &Arc<Self>, index: usize) -> Result<Lease, Option<Arc<Loaded>>> {
        let entry = &self.entries[index];
        let State::Loaded(loaded) = entry.state.borrow().clone() else {
            return Err(None);
        };
        if !self.engine.has(loaded.id) {
            // The engine panicked with it: it is loaded again.
            drop(self.unload(index, State::Unloaded));
            self.engine.remove(loaded.id);
            return Err(Some(loaded));
        }
        entry.users.fetch_add(1, Ordering::Relaxed);
        let user = ModelUser {
            models: self.clone(),
            index,
            keep_for: None,
            is_look: false,
        };
        let in_use = ModelUse {
            id: loaded.id,
            user,
            adapter: None,
        };
        Ok(Lease { in_use, loaded })
    }

    /// Counts a use, and returns its number.
    fn touch(&self, entry: &Entry) -> u64 {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        entry.used.store(now, Ordering::Relaxed);
        *entry.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        now
    }

    /// Gives a model another state, and returns the one that it had.
    fn change(&self, index: usize, state: State) -> State {
        let before = self.entries[index].state.send_replace(state);
        self.tell(ModelChange::State(index));
        before
    }

    /// Tells who listens of a change.
    pub(crate) fn tell(&self, change: ModelChange) {
        // There may be no listener.
        let _sent = self.changes.send(change);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.listed.iter().map(|listed| &listed.name).collect();
        f.debug_struct("Models")
            .field("names", &names)
            .finish_non_exhaustive()
    }
}

/// Maximum number of changes of models' states that a listener may be behind.
const CHANGES: usize = 256;
