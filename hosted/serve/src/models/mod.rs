//! The models of a server: which ones exist, which are in memory, and which requests use them.
//!
//! A request [acquires](Models::acquire) a model and waits while it is loaded; other requests continue meanwhile. The
//! least recently used of the unused models may be unloaded to make room for another one.

mod lease;
mod loaded;
mod options;

pub(crate) use lease::Lease;
pub(crate) use loaded::Loaded;
pub use options::{ModelsOptions, NamedModel};

use crate::adapters::Adapters;
use crate::api::ApiError;
use crate::engine::EngineHandle;
use crate::metrics::Metrics;
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loaded::{LoadFailure, loading_team};
use options::{Listed, find, listed};
use sluice::Team;
use sluice::model::ModelSource;
use sluice_core::team::StopFlag;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, Semaphore, watch};

/// The models of a server.
pub(crate) struct Models {
    engine: EngineHandle,
    team: Team,
    options: ModelsOptions,
    listed: Vec<Listed>,
    entries: Vec<Entry>,
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
    /// The number of requests that wait for it.
    waiting: AtomicUsize,
}

/// The state of a model.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Unloaded,
    Loading,
    Loaded(Arc<Loaded>),
    Failed(String),
}

impl Models {
    /// The team of threads that computes.
    pub(crate) const fn team(&self) -> &Team {
        &self.team
    }

    /// The models of a server, whose files [`ModelsOptions::open`] has opened.
    ///
    /// # Errors
    /// The folder of models cannot be read, or two models have the same name.
    pub(crate) fn new(
        engine: EngineHandle,
        options: ModelsOptions,
        opened: Vec<ModelSource>,
        log: crate::Log,
    ) -> io::Result<Self> {
        let team = engine.team().clone();
        let mut opened = opened.into_iter();
        let listed = listed(&options)?;
        let number = |name: Option<&str>| find(&listed, name).ok();
        let adapters = Adapters::new(options.adapters.clone(), &number, log.clone());
        let adapters = Arc::new(adapters.map_err(io::Error::other)?);
        let entries = listed.iter().map(|model| Entry {
            state: watch::Sender::new(State::Unloaded),
            metrics: Arc::new(Metrics::new(&model.name)),
            users: AtomicUsize::new(0),
            opened: Mutex::new(opened.next()),
            used: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        });
        Ok(Self {
            entries: entries.collect(),
            engine,
            team,
            options,
            listed,
            table: Mutex::new(()),
            loading: Semaphore::new(1),
            released: Notify::new(),
            clock: AtomicU64::new(1),
            stop: StopFlag::new(),
            log,
            adapters,
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

    /// Name, other names and state of each model.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &[String], State)> {
        let both = self.listed.iter().zip(&self.entries);
        both.map(|(listed, entry)| (&*listed.name, &*listed.others, entry.state.borrow().clone()))
    }

    /// The name of the model with number `index`.
    pub(crate) fn name_of(&self, index: usize) -> &str {
        self.listed.get(index).map_or("", |listed| &listed.name)
    }

    /// The number of the model called `name`.
    pub(crate) fn find(&self, name: &str) -> Result<usize, ApiError> {
        find(&self.listed, Some(name))
    }

    /// The file of the model called `name`.
    pub(crate) fn path(&self, name: &str) -> Option<String> {
        let found = self.listed.iter().find(|listed| listed.name == name);
        found.map(|listed| listed.path.display().to_string())
    }

    /// Whether models that were named on the command line are still being loaded.
    pub(crate) fn is_starting(&self) -> bool {
        let both = self.listed.iter().zip(&self.entries);
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
            self.wait_for(index).await?;
            // Load the adapters that apply to all requests now, so that a bad one is reported at startup; unless a
            // request has already replaced the model.
            if let Some(lease) = self.take(index) {
                let lease = self.with_usual_adapters(lease).await;
                lease.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// The model called `name`, loaded if necessary; without a name, the first model.
    pub(crate) async fn acquire(self: &Arc<Self>, name: Option<&str>) -> Result<Lease, ApiError> {
        let index = find(&self.listed, name)?;
        loop {
            if let Some(lease) = self.take(index) {
                return Ok(lease);
            }
            let loaded = self.wait_for(index).await;
            loaded.map_err(|why| {
                ApiError::unavailable(format!("the model could not be loaded: {why}"))
            })?;
        }
    }

    /// The model called `name`, if it is in memory.
    pub(crate) fn present(self: &Arc<Self>, name: Option<&str>) -> Result<Option<Lease>, ApiError> {
        Ok(self.take(find(&self.listed, name)?))
    }

    /// Stops loading models.
    pub(crate) fn stop(&self) {
        self.stop.stop();
        self.loading.close();
        self.adapters.stop();
    }

    fn take(self: &Arc<Self>, index: usize) -> Option<Lease> {
        let _table = self.lock();
        let entry = &self.entries[index];
        let State::Loaded(loaded) = entry.state.borrow().clone() else {
            return None;
        };
        entry.users.fetch_add(1, Ordering::Relaxed);
        self.touch(entry);
        Some(Lease {
            models: self.clone(),
            index,
            loaded,
            adapter: None,
        })
    }

    /// Waits until the model is loaded, and starts loading it if that has not been done.
    async fn wait_for(self: &Arc<Self>, index: usize) -> Result<(), String> {
        let entry = &self.entries[index];
        let _waiting = Waiting::new(entry);
        let mut states = entry.state.subscribe();
        {
            let _table = self.lock();
            let is_idle = matches!(*entry.state.borrow(), State::Unloaded | State::Failed(_));
            if is_idle {
                entry.state.send_replace(State::Loading);
                let models = self.clone();
                tokio::spawn(async move { models.load(index).await });
            }
        }
        let state = states
            .wait_for(|state| !matches!(state, State::Loading))
            .await;
        match state.as_deref() {
            Ok(State::Failed(why)) => Err(why.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err("the server is shutting down".to_owned()),
        }
    }

    /// Loads a model, unloading others if necessary.
    async fn load(self: Arc<Self>, index: usize) {
        let state = match self.loading.acquire().await {
            Ok(_permit) => loop {
                self.make_room().await;
                match self.load_now(index).await {
                    Ok(loaded) => break State::Loaded(Arc::new(loaded)),
                    Err(failure) if failure.is_memory && self.unload_one() => {}
                    Err(failure) => break State::Failed(failure.message),
                }
            },
            Err(_) => State::Failed("the server is shutting down".to_owned()),
        };
        // An error at startup ends the server, which reports it; it is not logged twice.
        let ends_it = self.listed[index].eager && self.is_starting();
        if let (State::Failed(why), false) = (&state, ends_it) {
            (self.log)(&format!(
                "model {:?} could not be loaded: {why}",
                self.listed[index].name
            ));
        }
        let _table = self.lock();
        self.touch(&self.entries[index]);
        self.entries[index].state.send_replace(state);
    }

    async fn load_now(self: &Arc<Self>, index: usize) -> Result<Loaded, LoadFailure> {
        let begun = Instant::now();
        let models = self.clone();
        let loaded = tokio::task::spawn_blocking(move || {
            let plain = |message| LoadFailure {
                message,
                is_memory: false,
            };
            // While no other model is loaded, the team is idle and can load this one.
            let team = if models.n_loaded() == 0 {
                models.team.clone()
            } else {
                loading_team(&models.team).map_err(|error| plain(error.to_string()))?
            };
            let (listed, entry) = (&models.listed[index], &models.entries[index]);
            let opened = entry.opened.lock().unwrap_or_else(PoisonError::into_inner);
            let opened = { opened }.take();
            let (options, stop) = (&models.options, &models.stop);
            let (engine, metrics) = (&models.engine, &entry.metrics);
            Loaded::load(listed, opened, options, engine, &team, metrics, stop)
        });
        let loaded = loaded.await.unwrap_or_else(|_| {
            Err(LoadFailure {
                message: "loading failed".to_owned(),
                is_memory: false,
            })
        })?;
        let (name, time) = (&self.listed[index].name, begun.elapsed());
        (self.log)(&format!(
            "model {name:?} loaded in {:.2} s",
            time.as_secs_f64()
        ));
        loaded.say_experts(&self.log);
        let (log, model) = (self.log.clone(), name.clone());
        let log = move |text: &str| log(&format!("model {model:?}: {text}"));
        loaded.model().identify_when_idle(log);
        if self.options.experts.is_some() && loaded.model().experts().is_none() {
            (self.log)(&format!(
                "model {name:?} has no experts to keep on disk: --expert-cache has no effect"
            ));
        }
        let why_not = loaded.model().config().why_not_remove();
        if let Some(reason) = why_not.filter(|_| self.options.context_shift) {
            (self.log)(&format!(
                "model {name:?} {reason}: --context-shift has no effect, and answers end when the context is full"
            ));
        }
        Ok(loaded)
    }

    /// Waits until there is room for one more model.
    async fn make_room(&self) {
        loop {
            let released = self.released.notified();
            if self.options.max == 0 || self.n_loaded() < self.options.max || self.unload_one() {
                return;
            }
            released.await;
        }
    }

    fn n_loaded(&self) -> usize {
        let states = self.entries.iter().map(|entry| entry.state.borrow());
        states
            .filter(|state| matches!(**state, State::Loaded(_)))
            .count()
    }

    /// Unloads the least recently used of the unused models. Returns whether there was one.
    fn unload_one(&self) -> bool {
        let table = self.lock();
        let idle = self.entries.iter().enumerate().filter(|(_, entry)| {
            let is_loaded = matches!(*entry.state.borrow(), State::Loaded(_));
            is_loaded && entry.users.load(Ordering::Relaxed) == 0
        });
        let oldest = idle.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
        let Some((index, entry)) = oldest else {
            return false;
        };
        if let State::Loaded(loaded) = entry.state.send_replace(State::Unloaded) {
            self.engine.remove(loaded.id);
        }
        self.adapters.forget(index);
        // Unlock first: the log's reader may request a model.
        drop(table);
        (self.log)(&format!("model {:?} unloaded", self.listed[index].name));
        true
    }

    fn touch(&self, entry: &Entry) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        entry.used.store(now, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a request that waits for its model.
struct Waiting<'e>(&'e Entry);

impl<'e> Waiting<'e> {
    fn new(entry: &'e Entry) -> Self {
        let n = entry.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        entry.metrics.loading(n);
        Self(entry)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let n = self.0.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
        self.0.metrics.loading(n);
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
