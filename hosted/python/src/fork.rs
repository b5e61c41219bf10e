//! Ties an object with threads to its process.

use core::mem::ManuallyDrop;
use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// An object with threads. In the child of a fork the threads do not exist: there, access is refused, and
/// the object is not dropped.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            process: std::process::id(),
        }
    }

    /// # Errors
    /// RuntimeError in a child of the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.is_here() {
            return Ok(&self.value);
        }
        let message = "it was created before a fork, and its threads are in the parent: create a new one in the \
             child, or start processes with multiprocessing's 'spawn'";
        Err(PyRuntimeError::new_err(message))
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: this is the only place that drops it.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
