//! A request's answer as a stream.

use super::{Run, Shape};
use crate::http::sse::{Said, Source};
use core::task::{Context, Poll, ready};

/// Turns events into chunks when they are asked for.
pub(crate) struct Written<S: Shape> {
    run: Run<S>,
    is_over: bool,
}

impl<S: Shape> Written<S> {
    pub(super) const fn new(run: Run<S>) -> Self {
        Self {
            run,
            is_over: false,
        }
    }
}

impl<S: Shape> Source for Written<S> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Said> {
        let event = ready!(self.run.poll_event(context));
        let (end, word) = match event {
            Some((job, event)) => match self.run.take(job, event) {
                Ok(chunks) => return Poll::Ready(Said::Chunks(chunks)),
                Err(error) => (Err(error), "failed"),
            },
            None => (self.run.finish(), "done"),
        };
        self.is_over = true;
        self.run.tell(word);
        Poll::Ready(Said::End(end))
    }

    fn says_done(&self) -> bool {
        self.run.says_done()
    }
}

impl<S: Shape> Drop for Written<S> {
    fn drop(&mut self) {
        if !self.is_over {
            self.run.tell("left");
        }
    }
}
