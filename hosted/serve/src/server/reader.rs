//! Answers for threads and tasks that read them.

use super::pending::Pending;
use crate::answer::TextAnswer;
use crate::api::{AnswerEvent, ApiError, Start, Total};
use crate::wait::wait_for;
use core::fmt;
use core::future::poll_fn;
use core::mem::{replace, take};
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;

/// The answer to a request for text, as it is generated. Its events are made where they are read: the engine wakes the
/// reader, without a thread in between. Dropping it cancels the request.
pub struct AnswerReader {
    way: Arc<Mutex<Way>>,
    /// The task of the last [`Self::when_read`].
    reading: SyncMutex<Option<AbortHandle>>,
    runtime: Handle,
}

/// A part of an answer.
#[derive(Clone, Debug)]
pub enum AnswerPart {
    /// What is known at the start, once, as the first part.
    Start(Box<Start>),
    /// An event of a text.
    Event(AnswerEvent),
    /// The resources used, once, after the end of the last text.
    Total(Total),
}

/// Parts that were read together.
pub type AnswerParts = Result<Vec<AnswerPart>, ApiError>;

/// The state of an answer.
struct Way {
    state: State,
    /// Parts that no reader has got yet.
    held: Vec<AnswerPart>,
}

enum State {
    Asked(Pending<TextAnswer>),
    Answered(Box<TextAnswer>),
    /// It is over, and the error has not been read.
    Over(Option<ApiError>),
}

impl AnswerReader {
    pub(super) fn new(asked: Pending<TextAnswer>, runtime: Handle) -> Self {
        let way = Way {
            state: State::Asked(asked),
            held: Vec::new(),
        };
        Self {
            way: Arc::new(Mutex::new(way)),
            reading: SyncMutex::new(None),
            runtime,
        }
    }

    /// Waits up to `patience` for the next parts, or with `all` for all that are left; `None` on timeout. There are no
    /// parts after the end. Must not be called from an async task.
    ///
    /// # Errors
    /// The request was refused, or failed.
    #[must_use]
    pub fn read(&self, all: bool, patience: Duration) -> Option<AnswerParts> {
        wait_for(core::pin::pin!(read(&self.way, all)), patience)
    }

    /// As [`Self::read`], but calls `then` on a thread of the service.
    pub fn when_read(&self, all: bool, then: impl FnOnce(AnswerParts) + Send + 'static) {
        let way = Arc::clone(&self.way);
        let mut then = Then(Some(then));
        let task = self
            .runtime
            .spawn(async move { then.call(read(&way, all).await) });
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        *reading = Some(task.abort_handle());
    }
}

async fn read(way: &Mutex<Way>, all: bool) -> AnswerParts {
    let mut way = way.lock().await;
    poll_fn(|context| way.poll(all, context)).await
}

impl Way {
    fn poll(&mut self, all: bool, context: &mut Context<'_>) -> Poll<AnswerParts> {
        loop {
            let next = match &mut self.state {
                State::Asked(asked) => match asked.poll(context) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => State::Over(Some(error)),
                    Poll::Ready(Ok(answer)) => {
                        let start = Box::new(answer.start().clone());
                        self.held.push(AnswerPart::Start(start));
                        State::Answered(Box::new(answer))
                    }
                },
                State::Answered(answer) => match answer.poll_next(context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Err(error))) => State::Over(Some(error)),
                    Poll::Ready(Some(Ok(event))) => {
                        self.held.push(AnswerPart::Event(event));
                        continue;
                    }
                    Poll::Ready(None) => {
                        self.held.push(AnswerPart::Total(*answer.total()));
                        State::Over(None)
                    }
                },
                State::Over(error) => {
                    // What came before an error is read first, unless only the whole answer is of use.
                    let error = error.take_if(|_| all || self.held.is_empty());
                    return Poll::Ready(error.map_or_else(|| Ok(take(&mut self.held)), Err));
                }
            };
            self.state = next;
        }
        if all || self.held.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(take(&mut self.held)))
    }
}

/// Calls a function once. If the task ends early or never starts, the service has ended.
struct Then<F: FnOnce(AnswerParts)>(Option<F>);

impl<F: FnOnce(AnswerParts)> Then<F> {
    fn call(&mut self, parts: AnswerParts) {
        if let Some(then) = self.0.take() {
            then(parts);
        }
    }
}

impl<F: FnOnce(AnswerParts)> Drop for Then<F> {
    fn drop(&mut self) {
        self.call(Err(ApiError::unavailable("the server is shutting down")));
    }
}

impl Drop for AnswerReader {
    fn drop(&mut self) {
        let reading = self.reading.get_mut();
        if let Some(task) = reading.unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        let is_over = |way: &Way| matches!(way.state, State::Over(_));
        if self.way.try_lock().is_ok_and(|way| is_over(&way)) {
            return;
        }
        // Dropping it logs the end, and a log may wait for the thread that drops it.
        let way = Arc::clone(&self.way);
        self.runtime.spawn(async move {
            let mut way = way.lock().await;
            drop(replace(&mut way.state, State::Over(None)));
        });
    }
}

impl fmt::Debug for AnswerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerReader").finish_non_exhaustive()
    }
}
