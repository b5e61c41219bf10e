//! Who waits for whom: an engine waits for the callbacks that it calls, so one that asks the same engine would wait for
//! itself.

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;
use std::sync::{Mutex, PoisonError};

/// An engine, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engine(usize);

/// A callback of an engine is running on this thread, as long as it lives.
pub(crate) struct Inside(Option<Engine>);

/// An engine waits for an answer of another one, as long as it lives.
#[derive(Debug)]
pub(crate) struct Asking(Option<Wait>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    engine: Engine,
    waits_for: Engine,
}

static WAITS: Mutex<Vec<Wait>> = Mutex::new(Vec::new());
static N_INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLED_BY: Cell<Option<Engine>> = const { Cell::new(None) };
}

impl Engine {
    /// The next number.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Marks this thread as running one of its callbacks.
    pub(crate) fn enter(self) -> Inside {
        N_INSIDE.fetch_add(1, Ordering::Relaxed);
        Inside(CALLED_BY.replace(Some(self)))
    }

    /// Whether one of its callbacks runs on this thread.
    pub(crate) fn is_calling(self) -> bool {
        CALLED_BY.get() == Some(self)
    }

    /// Allows to wait for an answer.
    ///
    /// # Errors
    /// RuntimeError in a callback that this engine waits for, itself or by way of others.
    pub(crate) fn ask(self) -> PyResult<Asking> {
        let Some(engine) = CALLED_BY.get() else {
            return Ok(Asking(None));
        };
        let mut waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reached = vec![self];
        while let Some(at) = reached.pop() {
            if at == engine {
                return Err(PyRuntimeError::new_err(MESSAGE));
            }
            let next = waits.iter().filter(|wait| wait.engine == at);
            reached.extend(next.map(|wait| wait.waits_for));
        }
        let wait = Wait {
            engine,
            waits_for: self,
        };
        waits.push(wait);
        Ok(Asking(Some(wait)))
    }
}

/// Whether a callback is running, on any thread.
pub(crate) fn is_any_inside() -> bool {
    N_INSIDE.load(Ordering::Relaxed) > 0
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLED_BY.set(self.0);
        N_INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Some(wait) = self.0 else {
            return;
        };
        let mut waits = WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = waits.iter().position(|&known| known == wait) {
            waits.swap_remove(at);
        }
    }
}

const MESSAGE: &str = "a callback asked the model that is waiting for this callback: ask before or after the answer, or \
     load the model a second time for it";
