//! Work that takes a processor: off the threads that speak with clients.

use crate::api::error::ApiError;
use tokio::sync::Semaphore;

/// A bound on how much of it goes on at once.
#[derive(Debug)]
pub(crate) struct Work {
    permits: Semaphore,
}

impl Work {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            permits: Semaphore::new(threads.clamp(1, THREADS_MAX)),
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
}

const THREADS_MAX: usize = 256;
