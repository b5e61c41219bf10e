//! Work that takes a processor: off the threads that speak with clients.

use crate::api::error::ApiError;
use sluice_text::sampling::Helper;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// A bound on how much of it goes on at once.
#[derive(Debug)]
pub(crate) struct Work {
    permits: Semaphore,
    /// Of masks for texts that are being written.
    masks: Arc<Semaphore>,
}

impl Work {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            permits: Semaphore::new(threads.clamp(1, THREADS_MAX)),
            masks: Arc::new(Semaphore::new(threads.clamp(1, THREADS_MAX))),
        }
    }

    /// Does `work` when it is its turn.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|_| ApiError::unavailable("the server ends"))?;
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|_| ApiError::internal("the request could not be prepared"))
    }

    /// What makes masks while the engine reads tokens. Those that all threads are too busy for are left to the engine.
    pub(crate) fn helper(&self) -> Option<Helper> {
        let (masks, threads) = (Arc::clone(&self.masks), Handle::try_current().ok()?);
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

const THREADS_MAX: usize = 256;
