//! A gate for arrays.

use super::arrays::{ColumnArrays, Columns, samples, whole};
use super::{GateSettings, InTurn, gate};
use pyo3::prelude::*;

/// A stream's gate: each call continues where the last one ended.
///
/// Calls from other threads wait until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Gate(InTurn<sluice::core::gate::Gate>);

#[pymethods]
impl Gate {
    #[new]
    fn new(settings: &GateSettings) -> PyResult<Self> {
        Ok(Self(InTurn::new(gate(settings.0)?)))
    }

    /// Judges each whole frame of `frame_size` samples; without `frame_size`, the array is one frame.
    #[pyo3(signature = (array, frame_size=None))]
    fn decide<'p>(
        &self,
        array: &Bound<'p, PyAny>,
        frame_size: Option<&Bound<'p, PyAny>>,
    ) -> PyResult<ColumnArrays<'p>> {
        let py = array.py();
        let array = samples(array)?;
        let array = array.as_slice()?;
        let Some(frame_size) = frame_size else {
            let mut gate = self.0.lock(py)?;
            let gate = &mut *gate;
            let mut columns = Columns::with_capacity(1);
            columns.add(&computed(py, array.len(), || gate.process(array)));
            return columns.into_arrays(py);
        };
        let frame_len: usize = frame_length(frame_size)?;
        let mut columns = Columns::with_capacity(array.len() / frame_len);
        let mut gate = self.0.lock(py)?;
        by_parts(py, &mut *gate, array, frame_len, |gate, part| {
            gate.process_all(part, frame_len, |_, _, decision| columns.add(&decision));
        })?;
        columns.into_arrays(py)
    }

    /// Returns to the start of a stream.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.lock(py)?.reset();
        Ok(())
    }
}

/// # Errors
/// ValueError unless a frame has 1 to 2^31 - 1 samples.
pub(super) fn frame_length(frame_size: &Bound<'_, PyAny>) -> PyResult<usize> {
    Ok(whole("frame_size", frame_size, 1..=i32::MAX)?.unsigned_abs() as usize)
}

/// Passes the whole frames of an array to `work` in parts, while other Python threads run. Ctrl-C stops it between two parts and leaves `state` unchanged.
pub(super) fn by_parts<S: Clone + Send>(
    py: Python<'_>,
    state: &mut S,
    array: &[f32],
    frame_len: usize,
    mut work: impl FnMut(&mut S, &[f32]) + Send,
) -> PyResult<()> {
    let part_len = (PART / frame_len).max(1) * frame_len;
    let before = (array.len() > part_len).then(|| state.clone());
    let mut rest = array;
    loop {
        let (part, later) = rest.split_at(part_len.min(rest.len()));
        computed(py, part.len(), || work(state, part));
        rest = later;
        let Some(before) = before.as_ref().filter(|_| !rest.is_empty()) else {
            return Ok(());
        };
        if let Err(interrupt) = py.check_signals() {
            state.clone_from(before);
            return Err(interrupt);
        }
    }
}

/// The result of `work` on `n` samples. Other Python threads run meanwhile, unless the work takes less time than
/// switching to them and back.
pub(super) fn computed<R: Send>(py: Python<'_>, n: usize, work: impl FnOnce() -> R + Send) -> R {
    if n < DETACHES {
        work()
    } else {
        py.detach(work)
    }
}

/// Samples between two checks for Ctrl-C: about ten milliseconds of work.
const PART: usize = 1 << 24;
/// Number of samples above which other threads may run: about ten microseconds of work.
const DETACHES: usize = 1 << 14;
