//! A connection with a write timeout.

use core::future::Future as _;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Returns an error when no byte could be written for some time. (Clients that do not send are subject to the timeouts
/// for headers and bodies.)
pub(crate) struct Patient<T> {
    io: T,
    patience: Duration,
    /// Runs while a write is pending.
    timer: Option<Pin<Box<Sleep>>>,
    sent: Sent,
}

/// Since when all has been sent that was written to a connection; `None` while some has not.
#[derive(Clone, Debug)]
pub(crate) struct Sent(Arc<Mutex<Option<Instant>>>);

impl Sent {
    pub(crate) fn new(since: Instant) -> Self {
        Self(Arc::new(Mutex::new(Some(since))))
    }

    pub(crate) fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, is_sent: bool) {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A flush of nothing is no news.
        if since.is_some() != is_sent {
            *since = is_sent.then(Instant::now);
        }
    }
}

impl<T> Patient<T> {
    pub(crate) const fn new(io: T, patience: Duration, sent: Sent) -> Self {
        Self {
            io,
            patience,
            timer: None,
            sent,
        }
    }

    /// Handles the result `done` of a write.
    fn settle<R>(
        &mut self,
        done: Poll<io::Result<R>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.timer = None;
            return done;
        }
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sent.set(false);
        let done = Pin::new(&mut self.io).poll_write(context, bytes);
        self.settle(done, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sent.set(false);
        let done = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        self.settle(done, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_flush(context);
        if done.is_ready() {
            self.sent.set(true);
        }
        self.settle(done, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.io).poll_shutdown(context);
        self.settle(done, context)
    }
}
