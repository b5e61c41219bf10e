//! What another thread makes, for a caller that has signals to look at meanwhile.

use super::server::ServeError;
use core::time::Duration;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

/// What a thread of its own is making. Dropped, that goes on, and what comes of it is dropped, too.
#[derive(Debug)]
pub struct Making<T>(Receiver<Result<T, ServeError>>);

impl<T: Send + 'static> Making<T> {
    pub(super) fn start<F>(name: &str, make: F) -> io::Result<Self>
    where
        F: FnOnce() -> Result<T, ServeError> + Send + 'static,
    {
        let (sender, made) = sync_channel(1);
        let thread = std::thread::Builder::new().name(name.to_owned());
        // Nobody waits for it where this fails.
        thread.spawn(move || drop(sender.send(make())))?;
        Ok(Self(made))
    }

    /// Waits for at most `patience`; `None` if it is not there yet.
    ///
    /// # Errors
    /// [`ServeError`]: it cannot be made.
    #[must_use]
    pub fn wait(&mut self, patience: Duration) -> Option<Result<T, ServeError>> {
        match self.0.recv_timeout(patience) {
            Ok(made) => Some(made),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(ServeError::Model("its thread panicked".to_owned())))
            }
        }
    }
}
