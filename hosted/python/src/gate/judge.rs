//! Gates over arrays, without threads.

use super::arrays::{ColumnArrays, Columns, samples, whole};
use super::{GateSettings, InTurn, gate, kernels, narrow};
use numpy::PyArray1;
use pyo3::prelude::*;
use sluice::core::gate::{GateConfig, Policy};
use sluice::core::kernels::frame::scans_by_frames;
use sluice::core::kernels::{FpEnv, FrameKernels};

/// A stream's gate: each call goes on where the last one ended.
///
/// A call from another thread waits until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Gate(InTurn<sluice::core::gate::Gate>);

#[pymethods]
impl Gate {
    #[new]
    fn new(settings: &GateSettings) -> PyResult<Self> {
        Ok(Self(InTurn::new(gate(settings.0)?)))
    }

    /// Decides about every whole frame of `frame_size` samples; without it the array is one frame.
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
        by_parts(py, &mut *gate, array, frame_len, |gate, part, _| {
            gate.process_all(part, frame_len, |_, _, decision| columns.add(&decision));
        })?;
        columns.into_arrays(py)
    }

    /// Goes back to the start of a stream.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.lock(py)?.reset();
        Ok(())
    }
}

/// Scalings as residue-protocol 4.2.4 has them, of frames one by one and of arrays, with its gate and without.
///
/// A call from another thread waits until it is free.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct Controller(InTurn<Scorer>);

#[derive(Clone, Debug)]
struct Scorer {
    kernels: &'static FrameKernels,
    /// Scores whatever it gets. The gate stands before it, because calls with it and without it share this state.
    gate: sluice::core::gate::Gate,
    /// The last scaling.
    scaling: f32,
    processed: u64,
    skipped: u64,
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
            by_frames: scans_by_frames(),
        })))
    }

    /// The scaling of an array that is one frame; 1 for no samples, which change nothing.
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

    /// The scaling of every whole frame: float32 (len / frame_size). With `gated` a silent frame keeps the last one.
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

    /// Scaling 1, nothing counted, no frames before.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let mut scorer = self.0.lock(py)?;
        scorer.gate.reset();
        (scorer.scaling, scorer.processed, scorer.skipped) = (1.0, 0, 0);
        Ok(())
    }

    /// Frames processed, those among them that were skipped, and the last scaling.
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
        self.scaling
    }

    /// Appends the scaling of every whole frame.
    fn all(&mut self, part: &[f32], frame_len: usize, scalings: &mut Vec<f32>) {
        self.processed += self.gate.process_all(part, frame_len, |_, _, decision| {
            scalings.push(decision.scaling);
        }) as u64;
        self.scaling = scalings.last().copied().unwrap_or(self.scaling);
    }

    /// Appends the scaling of every whole frame of `part`, that of a silent one being the last. `behind` is what
    /// follows the part.
    fn gated(&mut self, part: &[f32], behind: &[f32], frame_len: usize, scalings: &mut Vec<f32>) {
        let env = FpEnv::enter();
        let mut rest = part;
        // Active frames in a row.
        let mut run = 0;
        while let Some((frame, later)) = rest.split_at_checked(frame_len) {
            if run >= RUN {
                let n = run.min(RUN_MAX).min(rest.len() / frame_len);
                let (frames, later) = rest.split_at(n * frame_len);
                if self.run(frames, frame_len, scalings) {
                    (rest, run) = (later, run + n);
                    continue;
                }
                run = 0;
            }
            rest = later;
            // One scan prefetches a frame that a later one reads.
            let later = if later.is_empty() { behind } else { later };
            let soon = match self.by_frames {
                true => later.get(frame_len..).unwrap_or_default(),
                false => later,
            };
            // NaN is signal.
            if self.kernels.max_abs_before(frame, soon) < WALL {
                self.processed += 1;
                self.skipped += 1;
                run = 0;
            } else {
                self.score(&env, frame);
                run += 1;
            }
            scalings.push(self.scaling);
        }
    }

    /// Scores frames that are all active, as they usually are behind others: so much faster than one by one that it
    /// is tried. Where one is silent after all nothing has happened, and the answer is false.
    fn run(&mut self, frames: &[f32], frame_len: usize, scalings: &mut Vec<f32>) -> bool {
        let (before, n_before) = (self.gate.clone(), scalings.len());
        let mut is_silent = false;
        let n = self.gate.process_all(frames, frame_len, |_, _, decision| {
            is_silent |= decision.max_abs < WALL;
            scalings.push(decision.scaling);
        });
        if is_silent {
            self.gate = before;
            scalings.truncate(n_before);
            return false;
        }
        self.processed += n as u64;
        self.scaling = scalings.last().copied().unwrap_or(self.scaling);
        true
    }
}

/// # Errors
/// ValueError: a frame has 1 to 2^31 - 1 samples.
pub(super) fn frame_length(frame_size: &Bound<'_, PyAny>) -> PyResult<usize> {
    Ok(whole("frame_size", frame_size, 1..=i32::MAX)?.unsigned_abs() as usize)
}

/// Hands `work` the whole frames of an array in parts, with what lies behind each, while other threads of Python
/// run. Ctrl-C ends it between two parts, and then nothing has happened to `state`.
fn by_parts<S: Clone + Send>(
    py: Python<'_>,
    state: &mut S,
    array: &[f32],
    frame_len: usize,
    mut work: impl FnMut(&mut S, &[f32], &[f32]) + Send,
) -> PyResult<()> {
    let part_len = (PART / frame_len).max(1) * frame_len;
    let before = (array.len() > part_len).then(|| state.clone());
    let mut rest = array;
    loop {
        let (part, later) = rest.split_at(part_len.min(rest.len()));
        computed(py, part.len(), || work(state, part, later));
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

/// What `work` computes of `n` samples. Others of Python run meanwhile, unless it takes less time than handing over
/// to them and coming back.
fn computed<R: Send>(py: Python<'_>, n: usize, work: impl FnOnce() -> R + Send) -> R {
    if n < DETACHES {
        work()
    } else {
        py.detach(work)
    }
}

/// Below it a frame is silent for residue-protocol.
const WALL: f32 = 1e-5;
/// So many active frames in a row make it likely that the next ones are.
const RUN: usize = 64;
/// Most frames that are scored at a venture.
const RUN_MAX: usize = 1024;
/// Samples between two looks for Ctrl-C: about ten milliseconds of work.
const PART: usize = 1 << 24;
/// Samples from which on other threads run: about ten microseconds of work.
const DETACHES: usize = 1 << 14;
