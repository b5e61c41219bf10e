//! Loads adapters from disk into memory while the engine runs.

use super::Adapters;
use super::entry::{Entry, Pin, State};
use super::options::AdapterPart;
use crate::api::{ApiError, NotLoaded};
use core::sync::atomic::Ordering;
use sluice::Model;
use sluice::adapter::{AdapterBlend, AdapterLoadError};
use sluice::model::ModelSource;
use std::sync::Arc;
use std::time::Instant;

impl Adapters {
    /// Pins adapters, waiting until there is a place for each. Requests that wait are served in order of arrival; only
    /// one of them collects places at a time, so that two requests cannot deadlock.
    ///
    /// # Errors
    /// The request names more adapters than there are places.
    pub(crate) async fn pin(&self, entries: &[Arc<Entry>]) -> Result<Vec<Pin>, ApiError> {
        let max = self.options.max_in_memory.max(1);
        if entries.len() > max {
            let what = format!(
                "names {} adapters, but at most {max} are kept in memory (--max-cpu-loras)",
                entries.len()
            );
            return Err(ApiError::field("adapters", what));
        }
        let _line = self.line.lock().await;
        let mut pins = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(pin) = entry.join() {
                pins.push(pin);
                continue;
            }
            let place = Arc::clone(&self.places).acquire_owned().await;
            let place = place.map_err(|_| ApiError::unavailable("the server is shutting down"))?;
            pins.push(entry.open(place));
        }
        Ok(pins)
    }

    /// Returns the adapter once it is in memory, reading it from disk if necessary.
    pub(crate) async fn ready(
        self: &Arc<Self>,
        pin: &Pin,
        model: &Model,
    ) -> Result<AdapterBlend, ApiError> {
        let entry = pin.entry();
        self.touch(entry);
        let mut states = entry.state.subscribe();
        let begins = entry.state.send_if_modified(|state| {
            let is_idle = matches!(state, State::Cold | State::Failed(_));
            if is_idle {
                *state = State::Loading;
            }
            is_idle
        });
        if begins {
            let (adapters, model) = (Arc::clone(self), model.clone());
            // Reading continues if the request is cancelled: another one may be waiting for it.
            let entry = Arc::clone(entry);
            tokio::spawn(async move { adapters.load(&entry, model).await });
        }
        let state = states
            .wait_for(|state| matches!(state, State::Ready(_) | State::Failed(_)))
            .await;
        match state.as_deref() {
            Ok(State::Ready(blend)) => {
                let checked = self.check_rank(blend.clone());
                checked.map_err(|why| ApiError::field("model", format!("{} {why}", entry.name)))
            }
            Ok(State::Failed(why)) => {
                let name = &entry.name;
                let error = ApiError::field("model", format!("{name}: {}", why.shown));
                let detail = Some(format!("model: {name}: {}", why.whole));
                Err(ApiError { detail, ..error })
            }
            _ => Err(ApiError::unavailable("the server is shutting down")),
        }
    }

    /// Reads the adapters that the server starts with once, so that one that cannot work ends the start and not a
    /// client's request. `source` opens the model with a number.
    ///
    /// # Errors
    /// The adapter, and why it cannot be used.
    pub(crate) fn check(
        &self,
        source: &dyn Fn(usize) -> Result<ModelSource, String>,
    ) -> Result<(), String> {
        for entry in self.all() {
            let read = |model: ModelSource| {
                let read = self.read(&entry.parts, &model);
                read.map_err(|error| error.whole)
            };
            let read = source(entry.model).and_then(read);
            let checked = read.and_then(|(blend, warnings)| {
                entry.set_warnings(warnings);
                self.check_rank(blend)
            });
            checked.map_err(|why| format!("adapter {:?}: {why}", &*entry.name))?;
        }
        Ok(())
    }

    fn check_rank(&self, blend: AdapterBlend) -> Result<AdapterBlend, String> {
        let (rank, max) = (blend.rank(), self.options.rank);
        match rank <= max {
            true => Ok(blend),
            false => Err(format!(
                "has rank {rank}, but the maximum is {max} (--max-lora-rank)"
            )),
        }
    }

    async fn load(self: Arc<Self>, entry: &Arc<Entry>, model: Model) {
        let state = match self.reading.acquire().await {
            Err(_) => State::Failed(NotLoaded::stopping()),
            Ok(_permit) => {
                self.make_room(entry);
                let (adapters, parts) = (Arc::clone(&self), entry.parts.clone());
                let begun = Instant::now();
                let read = tokio::task::spawn_blocking(move || adapters.read(&parts, &model));
                match read.await {
                    Ok(Ok((blend, warnings))) => {
                        for warning in &warnings {
                            (self.log)(&format!("adapter {:?}: warning: {warning}", &*entry.name));
                        }
                        entry.set_warnings(warnings);
                        let ms = begun.elapsed().as_secs_f64() * 1e3;
                        (self.log)(&format!("adapter {:?} loaded in {ms:.1} ms", &*entry.name));
                        State::Ready(blend)
                    }
                    Ok(Err(why)) => {
                        (self.log)(&format!(
                            "adapter {:?} could not be loaded: {}",
                            &*entry.name, why.whole
                        ));
                        State::Failed(why)
                    }
                    Err(_) => State::Failed(NotLoaded::plain("reading it failed")),
                }
            }
        };
        self.touch(entry);
        entry.state.send_replace(state);
    }

    /// The sum of all parts, and warnings.
    fn read(
        &self,
        parts: &[AdapterPart],
        model: &ModelSource,
    ) -> Result<(AdapterBlend, Vec<String>), NotLoaded> {
        let (base, precision) = (self.options.base.as_deref(), self.options.precision);
        let mut warnings = Vec::new();
        let parts = parts.iter().map(|AdapterPart { path, scale }| {
            let loaded = sluice_hf::adapter::load(path, base, model, precision);
            let (adapter, said) = loaded.map_err(|error| told(&error))?;
            warnings.extend(said);
            Ok((adapter, *scale))
        });
        let blend = AdapterBlend::new(parts.collect::<Result<_, NotLoaded>>()?);
        Ok((blend, warnings))
    }

    /// Evicts unused adapters, least recently used first, until there is a place for `entry`. This always succeeds:
    /// each pinned adapter holds a place.
    pub(crate) fn make_room(&self, entry: &Arc<Entry>) {
        let all = self.all();
        let is_here = |other: &&Arc<Entry>| {
            let is_here = matches!(*other.state.borrow(), State::Ready(_) | State::Loading);
            is_here && !Arc::ptr_eq(other, entry)
        };
        let mut here: Vec<_> = all.iter().filter(is_here).collect();
        here.sort_by_key(|other| other.used.load(Ordering::Relaxed));
        let mut n = here.len() + 1;
        for other in here {
            if n <= self.options.max_in_memory.max(1) {
                return;
            }
            let left = other.state.send_if_modified(|state| {
                let leaves = matches!(state, State::Ready(_)) && !other.is_pinned();
                if leaves {
                    *state = State::Cold;
                }
                leaves
            });
            n -= usize::from(left);
        }
    }
}

/// What clients read: the same for each path without an adapter.
fn told(error: &AdapterLoadError) -> NotLoaded {
    use AdapterLoadError::{Engine, Family, NoMatrix, Number, Rank, Shape, Twice};
    let shown = match error {
        Family { .. } | NoMatrix { .. } | Shape { .. } => {
            "the adapter does not fit the model; the server's log says why"
        }
        Rank { .. } | Number { .. } | Twice { .. } | Engine { .. } => {
            "the adapter is not valid; the server's log says why"
        }
        _ => "no adapter could be read; the server's log says why",
    };
    NotLoaded {
        shown,
        whole: error.to_string(),
    }
}
