//! Answers to wait for.

use crate::api::ApiError;
use crate::wait::wait_for;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
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
        wait_for(
            core::pin::pin!(poll_fn(|context| self.poll(context))),
            patience,
        )
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, ApiError>> {
        let answered = ready!(Pin::new(&mut self.receiver).poll(context));
        Poll::Ready(
            answered.unwrap_or_else(|_| Err(ApiError::unavailable("the server is shutting down"))),
        )
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
