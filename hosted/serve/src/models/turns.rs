//! Models take turns in memory: first come, first served.
//!
//! A model that waits for room picks one that leaves. New requests for that one wait in the same line; it is unloaded
//! when its last text has ended, or after [`ModelsOptions::turn`](super::ModelsOptions) with its texts parked, which go
//! on at its next turn.

use super::loaded::{LoadFailure, Loaded, loading_team};
use super::unload::Reason;
use super::{Entry, Models, State};
use crate::api::NotLoaded;
use crate::engine::ModelId;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::timeout;

/// A model's place in memory and in the line.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Whether it leaves as soon as its texts have ended, because another model waits for its place.
    pub(super) is_leaving: bool,
    /// Whether it is in the line.
    is_queued: bool,
    /// The number of its turns so far.
    n_turns: u64,
    /// Requests that waited for this turn and have not begun, and those that wait for the next.
    n_due: usize,
    n_next: usize,
    /// The engine's number of it, while its texts are parked and it is not in memory.
    pub(super) parked: Option<ModelId>,
    pub(super) unloading: Unloading,
    /// Where to unload it when the last request that uses it has ended, if a request asked for that.
    pub(super) unloads_unused: Option<Handle>,
}

/// Whether a request has asked to unload a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unloading {
    #[default]
    No,
    /// As soon as it is in memory.
    Asked,
    /// Its texts may end; new requests wait until it is loaded again.
    Begun,
}

impl Place {
    /// Whether new requests may use the model: they do not if they have to wait for its next turn.
    pub(super) fn is_open(&self) -> bool {
        !self.is_leaving && !self.is_unloading()
    }

    pub(super) fn is_unloading(&self) -> bool {
        self.unloading == Unloading::Begun
    }

    /// How long the model stays after a request that asked for `keep_for`, and where to wait for that.
    pub(super) fn keep_after(
        &mut self,
        keep_for: Option<(Duration, Handle)>,
        is_last: bool,
    ) -> Option<(Duration, Handle)> {
        if keep_for.is_some() {
            self.unloads_unused = None;
            return keep_for;
        }
        let runtime = &mut self.unloads_unused;
        let runtime = runtime.take_if(|_| is_last && self.n_due == 0)?;
        Some((Duration::ZERO, runtime))
    }
}

/// A request that waits for its model.
pub(super) struct Waiting<'e> {
    entry: &'e Entry,
    /// The turn that it waits for.
    turn: u64,
}

impl<'e> Waiting<'e> {
    pub(super) fn new(entry: &'e Entry) -> Self {
        let n = entry.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        entry.metrics.loading(n);
        let mut place = entry.place();
        place.n_next += 1;
        Self {
            entry,
            turn: place.n_turns + 1,
        }
    }

    /// Whether it may use the model if that is in memory: its turn has come, or no other model waits for the place.
    pub(super) fn may_use(&self) -> bool {
        let place = self.entry.place();
        place.is_open() || place.n_turns >= self.turn
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let n = self.entry.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
        self.entry.metrics.loading(n);
        let mut place = self.entry.place();
        // After its turn it is not counted any more.
        if place.n_turns == self.turn {
            place.n_due = place.n_due.saturating_sub(1);
        } else if place.n_turns < self.turn {
            place.n_next = place.n_next.saturating_sub(1);
        }
    }
}

impl Entry {
    /// The number under which its work waits in the engine. Nothing stays locked.
    pub(super) fn parked(&self) -> Option<ModelId> {
        self.place().parked
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_loaded(&self) -> bool {
        matches!(*self.state.borrow(), State::Loaded(_))
    }

    /// Whether no request uses it, or is about to.
    pub(super) fn is_idle(&self) -> bool {
        self.is_loaded() && self.users.load(Ordering::Relaxed) == 0 && self.place().n_due == 0
    }
}

impl Models {
    /// Waits until the model is loaded and may be used, and puts it into the line if it is not there.
    pub(super) async fn wait_for(
        self: &Arc<Self>,
        index: usize,
        waiting: &Waiting<'_>,
    ) -> Result<(), NotLoaded> {
        let entry = &self.entries[index];
        let mut states = entry.state.subscribe();
        {
            let _table = self.lock();
            if !entry.is_loaded() || !waiting.may_use() {
                self.queue(index);
            }
        }
        let state = states
            .wait_for(|state| match state {
                State::Loading => false,
                State::Loaded(_) => waiting.may_use(),
                State::Unloaded | State::Sleeping(_) | State::Failed(_) => true,
            })
            .await;
        match state.as_deref() {
            Ok(State::Failed(why)) => Err(why.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(NotLoaded::stopping()),
        }
    }

    /// Puts a model into the line. The table must be locked.
    pub(super) fn queue(self: &Arc<Self>, index: usize) {
        let entry = &self.entries[index];
        if core::mem::replace(&mut entry.place().is_queued, true) {
            return;
        }
        if !entry.is_loaded() {
            self.change(index, State::Loading);
        }
        let models = self.clone();
        tokio::spawn(async move { models.load(index).await });
    }

    /// Waits for the model's turn and loads it, for which others may have to leave.
    async fn load(self: Arc<Self>, index: usize) {
        let entry = &self.entries[index];
        let permit = self.wait_in_line(entry).await;
        let state = match &permit {
            // Another model left instead of this one.
            Ok(_) if entry.is_loaded() => None,
            Ok(_) if self.is_abandoned(index) => Some(State::Unloaded),
            Ok(_) => Some(self.load_in_turn(index).await),
            Err(_) => Some(State::Failed(NotLoaded::stopping())),
        };
        // An error at startup ends the server, which reports it; it is not logged twice.
        let ends_it = self.listed[index].eager && self.is_starting();
        if let (Some(State::Failed(why)), false) = (&state, ends_it) {
            (self.log)(&format!(
                "model {:?} could not be loaded: {}",
                self.listed[index].name, why.whole
            ));
        }
        let _table = self.lock();
        self.touch(entry);
        let mut place = entry.place();
        place.is_queued = false;
        if let (Some(parked), Some(State::Unloaded | State::Failed(_))) = (place.parked, &state) {
            self.engine.remove(parked);
        }
        place.parked = None;
        if matches!(state, None | Some(State::Loaded(_))) {
            place.n_turns += 1;
            place.n_due = core::mem::take(&mut place.n_next);
        }
        drop(place);
        if let Some(state) = state {
            self.change(index, state);
        }
    }

    /// Waits for a model's place in the line, which it has only when it is not being unloaded.
    async fn wait_in_line(&self, entry: &Entry) -> Result<SemaphorePermit<'_>, AcquireError> {
        let mut states = entry.state.subscribe();
        loop {
            drop(states.wait_for(|_| !entry.place().is_unloading()).await);
            // The semaphore is fair.
            let permit = self.loading.acquire().await?;
            if !entry.place().is_unloading() {
                return Ok(permit);
            }
        }
    }

    /// Whether no request waits any longer for a model whose texts were parked.
    fn is_abandoned(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        let place = entry.place();
        let n_users = entry.users.load(Ordering::Relaxed);
        place.parked.is_some() && n_users == 0 && place.n_next == 0
    }

    async fn load_in_turn(self: &Arc<Self>, index: usize) -> State {
        let state = loop {
            if !self.make_room().await {
                break State::Failed(NotLoaded::stopping());
            }
            match self.load_now(index).await {
                Ok(loaded) => break State::Loaded(Arc::new(loaded)),
                Err(failure) if failure.is_memory && self.unload_idle() => {}
                Err(failure) => break State::Failed(failure.told()),
            }
        };
        self.keep_leaving();
        state
    }

    /// Models that were to leave stay: others have left instead.
    fn keep_leaving(&self) {
        let _table = self.lock();
        for entry in &self.entries {
            let was_leaving = core::mem::take(&mut entry.place().is_leaving);
            if was_leaving {
                entry.state.send_modify(|_| ());
            }
        }
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
            let (options, stop) = (listed.options(&models.options), &models.stop);
            Loaded::load(listed, opened, options, &models.engine, &team, entry, stop)
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
        loaded.say_context(&self.log);
        loaded.say_experts(&self.log);
        let (log, model) = (self.log.clone(), name.clone());
        let log = move |text: &str| log(&format!("model {model:?}: {text}"));
        loaded.model().identify_when_idle(log);
        loaded.say_without_effect(self.listed[index].options(&self.options), &self.log);
        Ok(loaded)
    }

    /// Waits until there is room for one more model; false if the server ends before.
    async fn make_room(self: &Arc<Self>) -> bool {
        let begun = Instant::now();
        loop {
            let released = self.released.notified();
            let n_max = self.options.max;
            if self.stop.is_set() {
                return false;
            }
            if n_max == 0 || self.n_loaded() < n_max || self.unload_idle() {
                return true;
            }
            let leaving = self.pick_leaving();
            // A request that was about to use it may have gone without notice.
            let _released = timeout(LOOK_AGAIN, released).await;
            if let Some(index) = leaving.filter(|_| begun.elapsed() >= self.options.turn) {
                self.unload_parked(index).await;
            }
        }
    }

    fn n_loaded(&self) -> usize {
        self.entries
            .iter()
            .filter(|entry| entry.is_loaded())
            .count()
    }

    /// The model that leaves next: the one that was picked already, or else the least recently used one.
    fn pick_leaving(&self) -> Option<usize> {
        let _table = self.lock();
        let loaded = self.entries.iter().enumerate();
        let loaded = loaded.filter(|(_, entry)| entry.is_loaded());
        let next = loaded.min_by_key(|(_, entry)| {
            let used = entry.used.load(Ordering::Relaxed);
            (!entry.place().is_leaving, used)
        });
        let (index, entry) = next?;
        entry.place().is_leaving = true;
        Some(index)
    }

    /// Unloads the least recently used of the unused models. Returns whether there was one.
    fn unload_idle(&self) -> bool {
        let oldest = || {
            let _table = self.lock();
            let idle = self.entries.iter().enumerate();
            let idle = idle.filter(|(_, entry)| entry.is_idle());
            let oldest = idle.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            oldest.map(|(index, _)| index)
        };
        // One that is used again in between stays.
        core::iter::from_fn(oldest).any(|index| self.unload_for(index, Reason::Room))
    }

    /// Unloads a model that is in use: the engine parks its texts until the model's next turn.
    async fn unload_parked(self: &Arc<Self>, index: usize) {
        let entry = &self.entries[index];
        let State::Loaded(loaded) = entry.state.borrow().clone() else {
            return;
        };
        let id = loaded.id;
        drop(loaded);
        {
            let _table = self.lock();
            // Its texts would end if no model were loaded any more.
            if self.stop.is_set() || !entry.is_loaded() {
                return;
            }
            entry.place().parked = Some(id);
        }
        if self.engine.suspend(id).await.is_err() {
            entry.place().parked = None;
            return;
        }
        let table = self.lock();
        let unloaded = self.unload(index, State::Unloaded);
        self.queue(index);
        drop(table);
        drop(unloaded);
        (self.log)(&format!(
            "model {:?} unloaded, its texts wait for its next turn",
            self.listed[index].name
        ));
    }

    /// Takes a model out of the table, which must be locked. It has the state `next` then, unless requests wait for it.
    pub(super) fn unload(&self, index: usize, next: State) -> Option<Arc<Loaded>> {
        let entry = &self.entries[index];
        let mut place = entry.place();
        place.is_leaving = false;
        let next = match place.is_queued {
            true => State::Loading,
            false => next,
        };
        drop(place);
        self.adapters.forget(index);
        match self.change(index, next) {
            State::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }
}

/// Maximum time until a model that waits for room looks for it again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(250);
