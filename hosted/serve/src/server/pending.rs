//! Answers to wait for.

use crate::api::ApiError;
use crate::wait::wait_for;
use core::pin::Pin;
use core::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// An answer that is not streamed. Dropping it cancels the request.
#[derive(Debug)]
pub struct Pending<T> {
    pub(super) receiver: oneshot::Receiver<Result<T, ApiError>>,
    pub(super) task: JoinHandle<()>,
}

impl<T> Pending<T> {
    /// Waits up to `patience`; `None` if it is not ready yet.
    ///
    /// # Errors
    /// The request was refused or failed.
    #[must_use]
    pub fn wait(&mut self, patience: Duration) -> Option<Result<T, ApiError>> {
        let answered = wait_for(Pin::new(&mut self.receiver), patience)?;
        Some(answered.unwrap_or_else(|_| Err(ApiError::unavailable("the server is shutting down"))))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
