//! A gate with its own thread and ring.

use super::arrays::{ColumnArrays, Columns, samples, whole};
use super::judge::frame_length;
use super::machine::{Row, rows};
use super::outputs::{Collector, Decided, Outputs, Until, deadline};
use super::{GateSettings, kernels};
use crate::fork::OfProcess;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use numpy::{PyArray1, PyArray2, PyArrayMethods as _};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use sluice::core::gate::Telemetry;
use sluice_gate::isolation::IsolationRequest;
use sluice_gate::{Backpressure, FrameObserver, Intake, ObserverConfig, ObserverError, Snapshot};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A gate that judges pushed samples on its own thread. Any thread may call it; pushes of several threads do not
/// interleave.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct GateStream(OfProcess<Stream>);

#[derive(Debug)]
struct Stream {
    config: ObserverConfig,
    /// When locking both, lock this before `intake`.
    run: Mutex<Run>,
    /// `None` while it is not running.
    intake: Mutex<Option<Intake>>,
    /// Set when pushes have to end.
    stops: AtomicBool,
    outputs: Arc<Outputs>,
    keeps_frames: bool,
}

/// The running stream, and what is known about it when it is stopped.
#[derive(Debug)]
struct Run {
    observer: Option<FrameObserver<Collector>>,
    /// The last snapshot, while it is stopped.
    last: Snapshot,
    /// The counters at the last reset of the telemetry.
    zero: Telemetry,
    isolation: Vec<Row>,
}

/// The state of a stream. Counters are in frames, and each snapshot is consistent:
/// `pushed == processed + queued + dropped`.
#[pyclass(frozen, get_all, module = "sluice._native")]
pub(crate) struct GateTelemetry {
    /// Frames pushed and not refused; an incomplete frame counts.
    pushed: u64,
    /// Frames judged.
    processed: u64,
    /// Frames processed and found silent.
    skipped: u64,
    /// Frames lost for lack of room.
    dropped: u64,
    /// Frames in the ring; an incomplete frame counts.
    queued: u64,
    /// Samples in the ring.
    queued_samples: usize,
    /// Decisions that have not been pulled yet.
    outputs: usize,
    /// Decisions lost for lack of room. Their frames were processed.
    outputs_lost: u64,
    frames_per_second: f64,
    sparsity_pct: f64,
    buffer_fill_pct: f64,
    is_running: bool,
    isolation_active: bool,
    backpressure_active: bool,
}

/// Numbers (n) uint64, columns, and samples (number of frames that passed, frame_size) float32 if they are kept.
type Pulled<'p> = (
    Bound<'p, PyArray1<u64>>,
    ColumnArrays<'p>,
    Option<Bound<'p, PyArray2<f32>>>,
);

#[pymethods]
impl GateStream {
    #[new]
    #[pyo3(signature = (settings, *, frame_size, capacity, on_full, outputs, keep_frames, isolate))]
    fn new(
        settings: &GateSettings,
        frame_size: &Bound<'_, PyAny>,
        capacity: &Bound<'_, PyAny>,
        on_full: &str,
        outputs: &Bound<'_, PyAny>,
        keep_frames: bool,
        isolate: bool,
    ) -> PyResult<Self> {
        let frame_len = frame_length(frame_size)?;
        let capacity_frames: i64 = whole("capacity", capacity, 1..=i64::MAX)?;
        let bytes = frame_len as u128 * u128::from(capacity_frames.unsigned_abs()) * 4;
        if bytes > RING_MAX {
            let message = format!(
                "capacity is {capacity_frames}: that many frames of {frame_len} samples do not fit in memory"
            );
            return Err(PyValueError::new_err(message));
        }
        let backpressure = match on_full {
            "block" => Backpressure::Block,
            "return" => Backpressure::Return,
            "drop_newest" => Backpressure::DropNewest,
            "drop_oldest" => Backpressure::DropOldest,
            _ => {
                let message = format!(
                    "on_full is {on_full:?}, expected one of block, return, drop_newest, drop_oldest"
                );
                return Err(PyValueError::new_err(message));
            }
        };
        let config = ObserverConfig {
            gate: settings.0,
            frame_len,
            capacity_frames: usize::try_from(capacity_frames).unwrap_or(usize::MAX),
            backpressure,
            isolation: if isolate {
                IsolationRequest::all()
            } else {
                IsolationRequest::none()
            },
            ..ObserverConfig::default()
        };
        Ok(Self(OfProcess::new(Stream {
            config,
            run: Mutex::new(Run {
                observer: None,
                last: nothing(),
                zero: Telemetry::default(),
                isolation: Vec::new(),
            }),
            intake: Mutex::new(None),
            stops: AtomicBool::new(false),
            outputs: Arc::new(Outputs::new(
                whole("outputs", outputs, 1..=u32::MAX)? as usize
            )),
            keeps_frames: keep_frames,
        })))
    }

    /// Starts a stream at its first sample, with counters at 0. Does nothing if it is running.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.0.get()?;
        let mut run = stream.run(py);
        if run.observer.is_some() {
            return Ok(());
        }
        stream.outputs.queue().lost = 0;
        let sink = Collector {
            outputs: Arc::clone(&stream.outputs),
            keeps_frames: stream.keeps_frames,
        };
        let started = py.detach(|| FrameObserver::start(&stream.config, kernels(), sink));
        let (observer, intake) = started.map_err(|error| match error {
            ObserverError::Memory(_) => PyMemoryError::new_err(error.to_string()),
            ObserverError::Thread(_) => PyRuntimeError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        })?;
        run.isolation = rows(observer.isolation());
        run.zero = Telemetry::default();
        run.observer = Some(observer);
        stream.stops.store(false, Ordering::SeqCst);
        *stream.intake(py) = Some(intake);
        Ok(())
    }

    /// Stops the stream once every whole pushed frame has been judged. Does nothing if it is not running.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.0.get()?;
        let mut run = stream.run(py);
        if run.observer.is_none() {
            return Ok(());
        }
        // No push begins after this, so the last count is final.
        stream.stops.store(true, Ordering::SeqCst);
        let intake = stream.intake(py).take();
        if let Some(observer) = run.observer.take() {
            let finished = py.detach(|| observer.finish());
            let capacity = capacity(&stream.config);
            let fill = percent(finished.counts.queued_samples, capacity);
            run.last = Snapshot {
                counts: finished.counts,
                frames_per_second: 0.0,
                buffer_fill_pct: fill,
                is_running: false,
                isolation_active: false,
                backpressure_active: fill > 90.0,
            };
        }
        drop(intake);
        Ok(())
    }

    /// Pushes samples and returns how many were taken; `None` if the stream is not running.
    fn push(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let stream = self.0.get()?;
        let array = samples(array)?;
        let array = array.as_slice()?;
        let mut intake = stream.intake(py);
        let Some(intake) = &mut *intake else {
            return Ok(None);
        };
        let mut taken = 0;
        for part in array.chunks(intake.recommended_push_size()) {
            if stream.stops.load(Ordering::SeqCst) {
                break;
            }
            match py.detach(|| intake.push(part)) {
                Ok(n) => {
                    taken += n;
                    if n < part.len() {
                        break;
                    }
                }
                Err(stopped) => {
                    taken += stopped.taken;
                    break;
                }
            }
            py.check_signals()?;
        }
        Ok(Some(taken))
    }

    /// Decisions, oldest first: their numbers, columns, and the samples (n, frame_size) of frames that passed, if
    /// samples are kept. While the stream runs, waits up to `timeout` seconds for the first one; with `None`, without
    /// limit.
    fn pull<'p>(
        &self,
        py: Python<'p>,
        n_max: &Bound<'p, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Pulled<'p>> {
        let stream = self.0.get()?;
        let n_max = whole("max_frames", n_max, 0..=i64::MAX)?.unsigned_abs();
        let n_max = usize::try_from(n_max).unwrap_or(usize::MAX);
        let decided = stream.decided(py, n_max, timeout)?;
        let (mut index, mut columns) = (Vec::new(), Columns::with_capacity(decided.len()));
        let mut kept = Vec::new();
        for one in &decided {
            index.push(one.index);
            columns.add(&one.decision);
            kept.extend_from_slice(one.samples.as_deref().unwrap_or_default());
        }
        let frame_len = stream.config.frame_len;
        let kept = stream.keeps_frames.then(|| {
            let n = kept.len() / frame_len;
            PyArray1::from_vec(py, kept).reshape([n, frame_len])
        });
        Ok((
            PyArray1::from_vec(py, index),
            columns.into_arrays(py)?,
            kept.transpose()?,
        ))
    }

    /// The scalings of up to `n_max` decisions, oldest first.
    fn scalings<'p>(
        &self,
        py: Python<'p>,
        n_max: &Bound<'p, PyAny>,
    ) -> PyResult<Bound<'p, PyArray1<f32>>> {
        let n_max = whole("max_count", n_max, 0..=i64::MAX)?.unsigned_abs();
        let decided = self.0.get()?;
        let decided =
            decided.decided(py, usize::try_from(n_max).unwrap_or(usize::MAX), Some(0.0))?;
        let scalings = decided.iter().map(|one| one.decision.scaling).collect();
        Ok(PyArray1::from_vec(py, scalings))
    }

    /// Waits until every whole pushed frame has been judged; returns whether that took no more than `timeout` seconds.
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let stream = self.0.get()?;
        let until = deadline(timeout)?;
        loop {
            let now = stream.run(py).snapshot();
            if now.counts.queued_samples < stream.config.frame_len || !now.is_running {
                return Ok(true);
            }
            if until.left().is_zero() {
                return Ok(false);
            }
            py.detach(|| std::thread::park_timeout(LOOK));
            py.check_signals()?;
        }
    }

    /// The current state.
    fn telemetry(&self, py: Python<'_>) -> PyResult<GateTelemetry> {
        let stream = self.0.get()?;
        let run = stream.run(py);
        let snapshot = run.snapshot();
        let counts = snapshot.counts.since(&run.zero);
        let queue = stream.outputs.queue();
        Ok(GateTelemetry {
            pushed: counts.pushed,
            processed: counts.processed,
            skipped: counts.skipped,
            dropped: counts.dropped,
            queued: counts.queued,
            queued_samples: counts.queued_samples,
            outputs: queue.decided.len(),
            outputs_lost: queue.lost,
            frames_per_second: snapshot.frames_per_second,
            sparsity_pct: counts.sparsity_pct(),
            buffer_fill_pct: snapshot.buffer_fill_pct,
            is_running: snapshot.is_running,
            isolation_active: snapshot.isolation_active && !run.isolation.is_empty(),
            backpressure_active: snapshot.backpressure_active,
        })
    }

    /// Resets the counters to 0. Queued frames count as pushed since then.
    fn reset_telemetry(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.0.get()?;
        let mut run = stream.run(py);
        run.zero = run.snapshot().counts;
        stream.outputs.queue().lost = 0;
        Ok(())
    }

    /// What the thread requested from the kernel at the last start, and what it got.
    fn isolation(&self, py: Python<'_>) -> PyResult<Vec<Row>> {
        Ok(self.0.get()?.run(py).isolation.clone())
    }
}

impl Stream {
    fn run(&self, py: Python<'_>) -> MutexGuard<'_, Run> {
        let locked = self.run.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    fn intake(&self, py: Python<'_>) -> MutexGuard<'_, Option<Intake>> {
        let locked = self.intake.lock_py_attached(py);
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `n_max` decisions; waits for the first one.
    fn decided(
        &self,
        py: Python<'_>,
        n_max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Decided>> {
        let until = deadline(timeout)?;
        loop {
            // Checked before taking decisions, so that none of a thread that has just ended are missed.
            let is_running = until != Until::Now && self.run(py).snapshot().is_running;
            let decided = self.outputs.take(n_max);
            let left = until.left();
            if !decided.is_empty() || n_max == 0 || !is_running || left.is_zero() {
                return Ok(decided);
            }
            py.detach(|| self.outputs.wait(left.min(SIGNALS)));
            py.check_signals()?;
        }
    }
}

impl Run {
    fn snapshot(&self) -> Snapshot {
        self.observer
            .as_ref()
            .map_or(self.last, FrameObserver::snapshot)
    }
}

const fn capacity(config: &ObserverConfig) -> usize {
    config.frame_len * config.capacity_frames
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn percent(n: usize, of: usize) -> f64 {
    100.0 * n as f64 / of as f64
}

/// The snapshot before the first start.
fn nothing() -> Snapshot {
    Snapshot {
        counts: Telemetry::default(),
        frames_per_second: 0.0,
        buffer_fill_pct: 0.0,
        is_running: false,
        isolation_active: false,
        backpressure_active: false,
    }
}

/// Interval between two checks whether all frames have been judged.
const LOOK: Duration = Duration::from_micros(200);
/// Maximum delay of Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);
/// Maximum size of the ring in bytes.
const RING_MAX: u128 = isize::MAX as u128;
