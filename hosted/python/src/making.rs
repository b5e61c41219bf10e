//! Waiting for what another thread makes, while Python's other threads and handlers of signals run.

use core::time::Duration;
use pyo3::prelude::*;
use sluice_serve::{Making, ServeError};

/// Time between two looks for a signal of Python.
pub(crate) const SIGNALS: Duration = Duration::from_millis(50);

/// The result of `making`. Where a handler of a signal raises, `stop` is called, and its exception is returned.
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
