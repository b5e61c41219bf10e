//! CPU-bound work, kept off the threads that serve clients.

use crate::api::ApiError;
use core::num::NonZero;
use sluice::Team;
use sluice::host::topology::bind_current_thread;
use sluice_text::sampling::Helper;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Limits how much of this work runs at once.
#[derive(Debug)]
pub(crate) struct Work {
    light: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    /// For the masks of texts that are being written; `None` if the engine uses all CPUs.
    masks: Option<Arc<Semaphore>>,
}

/// Which work waits for which: what takes long waits only for its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lane {
    #[default]
    Light,
    Heavy,
}

impl Work {
    pub(crate) fn new(threads: usize, team: &Team) -> Self {
        let n_masks = n_free(team).min(THREADS_MAX);
        Self {
            light: Arc::new(Semaphore::new(threads.clamp(1, THREADS_MAX))),
            heavy: Arc::new(Semaphore::new((threads / 2).clamp(1, THREADS_MAX))),
            masks: (n_masks > 0).then(|| Arc::new(Semaphore::new(n_masks))),
        }
    }

    /// Runs `work` when it is its turn.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permits = match lane {
            Lane::Light => &self.light,
            Lane::Heavy => &self.heavy,
        };
        let permit = Arc::clone(permits).acquire_owned().await;
        let permit = permit.map_err(|_| ApiError::unavailable("the server is shutting down"))?;
        // A client that leaves does not end the work, which keeps its turn.
        let held = move || (work(), drop(permit)).0;
        let done = tokio::task::spawn_blocking(held).await;
        done.map_err(|_| ApiError::internal("the request could not be prepared"))
    }

    /// Makes masks while the engine reads tokens, on CPUs that the engine does not use. Without such a CPU, or if all
    /// of them are busy, the engine makes the masks itself: waiting for help would only delay it.
    pub(crate) fn helper(&self) -> Option<Helper> {
        let (masks, threads) = (
            Arc::clone(self.masks.as_ref()?),
            Handle::try_current().ok()?,
        );
        Some(Arc::new(move |mask| {
            if let Ok(permit) = Arc::clone(&masks).try_acquire_owned() {
                drop(threads.spawn_blocking(move || {
                    mask();
                    drop(permit);
                }));
            }
        }))
    }
}

/// The number of CPUs available to the process, container quota included, that the engine does not use.
fn n_free(team: &Team) -> usize {
    let cpus = team.cpus_before();
    let count = || {
        // The caller may be bound to the CPU of a rank.
        let _bound = (!cpus.is_empty()).then(|| bind_current_thread(&cpus));
        std::thread::available_parallelism().map_or(1, NonZero::get)
    };
    let n = std::thread::scope(|scope| scope.spawn(count).join());
    n.unwrap_or(1).saturating_sub(team.count())
}

const THREADS_MAX: usize = 256;
