//! The scalings of residue-protocol for arrays.

use super::arrays::{samples, whole};
use super::judge::{by_parts, computed, frame_length};
use super::{InTurn, gate, kernels, narrow};
use numpy::PyArray1;
use pyo3::prelude::*;
use sluice::core::gate::{GateConfig, Policy};
use sluice::core::kernels::frame::scans_by_frames;
use sluice::core::kernels::{FpEnv, FrameKernels};

/// Scalings as in residue-protocol 4.2.4, for single frames and arrays, with and without its gate.
///
/// Calls from other threads wait until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Controller(InTurn<Scorer>);

#[derive(Clone, Debug)]
struct Scorer {
    kernels: &'static FrameKernels,
    /// Scores every frame. The check for silent frames comes first, because gated and ungated calls share this state.
    gate: sluice::core::gate::Gate,
    /// The last scaling.
    scaling: f32,
    processed: u64,
    skipped: u64,
    /// Number of consecutive active frames so far.
    run: usize,
    by_frames: bool,
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
            kernels: kernels(),
            gate: gate(config)?,
            scaling: 1.0,
            processed: 0,
            skipped: 0,
            run: 0,
            by_frames: scans_by_frames(),
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
        by_parts(
            py,
            &mut *scorer,
            array,
            frame_len,
            |scorer, part, behind| {
                if gated {
                    scorer.gated(part, behind, frame_len, &mut scalings);
                } else {
                    scorer.all(part, frame_len, &mut scalings);
                }
            },
        )?;
        Ok(PyArray1::from_vec(py, scalings))
    }

    /// Resets the scaling to 1, the counts to 0, and forgets all frames.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let mut scorer = self.0.lock(py)?;
        scorer.gate.reset();
        (scorer.scaling, scorer.processed, scorer.skipped, scorer.run) = (1.0, 0, 0, 0);
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
        self.scaling = self.gate.process_in(env, frame).scaling;
        self.processed += 1;
        self.run += 1;
        self.scaling
    }

    /// Appends the scaling of each whole frame.
    fn all(&mut self, part: &[f32], frame_len: usize, scalings: &mut Vec<f32>) {
        self.processed += self.gate.process_all(part, frame_len, |_, _, decision| {
            scalings.push(decision.scaling);
        }) as u64;
        self.scaling = scalings.last().copied().unwrap_or(self.scaling);
    }

    /// Appends the scaling of each whole frame of `part`; a silent frame repeats the last scaling. `behind` is the data
    /// after the part.
    fn gated(&mut self, part: &[f32], behind: &[f32], frame_len: usize, scalings: &mut Vec<f32>) {
        let env = FpEnv::enter();
        let mut rest = part;
        while let Some((frame, later)) = rest.split_at_checked(frame_len) {
            if self.run >= RUN {
                let n = self.run.min(RUN_MAX).min(rest.len() / frame_len);
                let (frames, later) = rest.split_at(n * frame_len);
                if self.venture(frames, frame_len, scalings) {
                    rest = later;
                    continue;
                }
            }
            rest = later;
            // The scan prefetches a frame that a later scan reads.
            let later = if later.is_empty() { behind } else { later };
            let soon = match self.by_frames {
                true => later.get(frame_len..).unwrap_or_default(),
                false => later,
            };
            // NaN counts as signal.
            if self.kernels.max_abs_before(frame, soon) < WALL {
                self.skip();
            } else {
                self.score(&env, frame);
            }
            scalings.push(self.scaling);
        }
    }

    /// Scores frames on the assumption that all are active, as they usually are after other active frames: this is much
    /// faster than one by one. If one is silent, the state is restored and the result is false.
    fn venture(&mut self, frames: &[f32], frame_len: usize, scalings: &mut Vec<f32>) -> bool {
        let (before, n_before) = (self.gate.clone(), scalings.len());
        let mut is_silent = false;
        let n = self.gate.process_all(frames, frame_len, |_, _, decision| {
            is_silent |= decision.max_abs < WALL;
            scalings.push(decision.scaling);
        });
        if is_silent {
            self.gate = before;
            scalings.truncate(n_before);
            self.run = 0;
            return false;
        }
        self.processed += n as u64;
        self.run += n;
        self.scaling = scalings.last().copied().unwrap_or(self.scaling);
        true
    }

    #[inline]
    fn skip(&mut self) {
        self.processed += 1;
        self.skipped += 1;
        self.run = 0;
    }
}

/// Below this, residue-protocol treats a frame as silent.
const WALL: f32 = 1e-5;
/// After this many consecutive active frames, the next ones are likely to be active.
const RUN: usize = 64;
/// Maximum number of frames that are scored on that assumption.
const RUN_MAX: usize = 256;
