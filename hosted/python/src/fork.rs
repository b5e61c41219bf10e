//! The process that an object with threads belongs to.

use core::mem::ManuallyDrop;
use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// Something with threads. In a child that a fork made of its process they do not exist: there it is refused, and
/// not taken apart.
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
        let message = "it was made before a fork, and its threads are in the parent: make a new one in the child, or \
                       start processes with multiprocessing's 'spawn'";
        Err(PyRuntimeError::new_err(message))
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped here alone.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
