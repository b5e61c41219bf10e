//! What another thread makes, for a caller that has signals to look at meanwhile.

use super::listen::ServeError;
use core::time::Duration;
use std::io;
use std::thread::JoinHandle;
use std::time::Instant;

/// What a thread of its own is making. Dropped, that goes on, and what comes of it is dropped, too.
#[derive(Debug)]
pub struct Making<T>(Option<JoinHandle<Result<T, ServeError>>>);

impl<T: Send + 'static> Making<T> {
    pub(super) fn start<F>(name: &str, make: F) -> io::Result<Self>
    where
        F: FnOnce() -> Result<T, ServeError> + Send + 'static,
    {
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Self(Some(thread.spawn(make)?)))
    }

    /// Waits for at most `patience`; `None` if it is not there yet. It is had once.
    ///
    /// # Errors
    /// [`ServeError`]: it cannot be made.
    #[must_use]
    pub fn wait(&mut self, patience: Duration) -> Option<Result<T, ServeError>> {
        let thread = self.0.as_ref();
        if thread.is_some_and(|thread| !ends(&|| thread.is_finished(), patience)) {
            return None;
        }
        let made = self.0.take().and_then(|thread| thread.join().ok());
        Some(made.unwrap_or_else(|| Err(ServeError::Model("its thread panicked".to_owned()))))
    }
}

/// Whether a thread ends within `patience`. It cannot be joined with a limit, so it is looked at, less and less often.
fn ends(is_finished: &dyn Fn() -> bool, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_micros(100);
    loop {
        if is_finished() {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::park_timeout(pause.min(left));
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

const PAUSE_MAX: Duration = Duration::from_millis(5);
