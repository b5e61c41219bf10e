//! The scalings of residue-protocol for arrays.

use super::arrays::{samples, whole};
use super::judge::{by_parts, computed, frame_length};
use super::{InTurn, gate, narrow};
use numpy::PyArray1;
use pyo3::prelude::*;
use sluice::core::gate::{GateConfig, Policy};
use sluice::core::kernels::FpEnv;

/// Scalings as in residue-protocol 4.2.4, for single frames and arrays, with and without its gate.
///
/// Calls from other threads wait until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Controller(InTurn<Scorer>);

#[derive(Clone, Debug)]
struct Scorer {
    /// Gated and ungated calls share this state; its wall is that of the call.
    gate: sluice::core::gate::Gate,
    /// The last scaling.
    scaling: f32,
    processed: u64,
    skipped: u64,
}

#[pymethods]
impl Controller {
    #[new]
    fn new(num_bins: &Bound<'_, PyAny>, l1_threshold: f64, ema_alpha: f64) -> PyResult<Self> {
        let config = GateConfig {
            wall: 0.0,
            policy: Policy {
                threshold: 0.0,
                ..Policy::default()
            },
            score: true,
            num_bins: whole("num_bins", num_bins, 1..=u32::MAX)? as usize,
            l1_threshold: narrow(l1_threshold),
            ema_alpha: narrow(ema_alpha),
        };
        Ok(Self(InTurn::new(Scorer {
            gate: gate(config)?,
            scaling: 1.0,
            processed: 0,
            skipped: 0,
        })))
    }

    /// The scaling of an array that is one frame; 1 for an empty array, which changes nothing.
    fn single(&self, array: &Bound<'_, PyAny>) -> PyResult<f32> {
        let py = array.py();
        let array = samples(array)?;
        let array = array.as_slice()?;
        if array.is_empty() {
            return Ok(1.0);
        }
        let mut scorer = self.0.lock(py)?;
        let scorer = &mut *scorer;
        Ok(computed(py, array.len(), || {
            scorer.score(&FpEnv::enter(), array)
        }))
    }

    /// The scaling of each whole frame: float32 (len / frame_size). With `gated`, a silent frame repeats the last
    /// scaling.
    fn batch<'p>(
        &self,
        array: &Bound<'p, PyAny>,
        frame_size: &Bound<'p, PyAny>,
        gated: bool,
    ) -> PyResult<Bound<'p, PyArray1<f32>>> {
        let py = array.py();
        let array = samples(array)?;
        let array = array.as_slice()?;
        let frame_len = frame_length(frame_size)?;
        let mut scalings = Vec::with_capacity(array.len() / frame_len);
        let mut scorer = self.0.lock(py)?;
        let wall = if gated { WALL } else { 0.0 };
        by_parts(py, &mut *scorer, array, frame_len, |scorer, part| {
            scorer.all(part, frame_len, wall, &mut scalings);
        })?;
        Ok(PyArray1::from_vec(py, scalings))
    }

    /// Resets the scaling to 1, the counts to 0, and forgets all frames.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let mut scorer = self.0.lock(py)?;
        scorer.gate.reset();
        (scorer.scaling, scorer.processed, scorer.skipped) = (1.0, 0, 0);
        Ok(())
    }

    /// The number of frames processed, the number of those skipped, and the last scaling.
    fn state(&self, py: Python<'_>) -> PyResult<(u64, u64, f32)> {
        let scorer = self.0.lock(py)?;
        Ok((scorer.processed, scorer.skipped, scorer.scaling))
    }
}

impl Scorer {
    #[inline]
    fn score(&mut self, env: &FpEnv, frame: &[f32]) -> f32 {
        self.gate.set_wall(0.0).expect("a constant in range");
        self.scaling = self.gate.process_in(env, frame).scaling;
        self.processed += 1;
        self.scaling
    }

    /// Appends the scaling of each whole frame; a frame below `wall` is skipped, and repeats the last scaling.
    fn all(&mut self, part: &[f32], frame_len: usize, wall: f32, scalings: &mut Vec<f32>) {
        self.gate.set_wall(wall).expect("a constant in range");
        let mut n_skipped = 0;
        let n = self.gate.process_all(part, frame_len, |_, _, decision| {
            // NaN counts as signal.
            n_skipped += u64::from(decision.max_abs < wall);
            scalings.push(decision.scaling);
        });
        self.processed += n as u64;
        self.skipped += n_skipped;
        self.scaling = scalings.last().copied().unwrap_or(self.scaling);
    }
}

/// Below this, residue-protocol treats a frame as silent.
const WALL: f32 = 1e-5;
