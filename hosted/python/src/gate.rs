//! The gate: arrays, and streams with a thread of their own.

use pyo3::prelude::*;

/// Adds the classes of this file.
pub(crate) fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
