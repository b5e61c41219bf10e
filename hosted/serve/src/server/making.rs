//! Results of another thread, for a caller that handles signals meanwhile.

use super::listen::ServeError;
use core::time::Duration;
use std::io;
use std::thread::JoinHandle;
use std::time::Instant;

/// A result that a new thread is computing. If it is dropped, the thread continues, and its result is dropped, too.
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

    /// Waits up to `patience`; `None` if it is not ready yet. The result can be taken once.
    ///
    /// # Errors
    /// [`ServeError`]: making it failed.
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

/// Whether a thread ends within `patience`. std cannot join with a timeout, so it is polled at growing intervals.
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
