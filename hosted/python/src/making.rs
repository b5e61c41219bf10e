//! Waits for results of another thread, while Python's other threads and signal handlers run.

use core::time::Duration;
use pyo3::prelude::*;
use sluice_serve::{Making, ServeError};

/// Interval between checks for Python signals.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// The result of `making`. If a signal handler raises an exception, `stop` is called, and the exception is returned.
pub(crate) fn made<T: Send + 'static>(
    py: Python<'_>,
    mut making: Making<T>,
    stop: impl FnOnce(&mut Making<T>) + Send,
) -> PyResult<Result<T, ServeError>> {
    loop {
        if let Some(made) = py.detach(|| making.wait(SIGNALS)) {
            return Ok(made);
        }
        if let Err(raised) = py.check_signals() {
            py.detach(|| stop(&mut making));
            return Err(raised);
        }
    }
}
