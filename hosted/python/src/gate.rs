//! The gate: on arrays, and as streams with their own thread.
//!
//! [`Gate`](judge::Gate) judges the frames of arrays, [`Controller`](controller::Controller) computes the scalings of
//! residue-protocol, [`GateStream`](stream::GateStream) has a thread that takes frames from a ring. The public API is
//! in Python, in `sluice.gate` and `sluice.residue`.

mod arrays;
mod controller;
mod judge;
mod machine;
mod outputs;
mod stream;

use arrays::whole;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::wrap_pyfunction;
use sluice::core::gate::{GateConfig, GateError, Measure, NoiseFloor, Policy, Sense};
use sluice::core::kernels::FrameKernels;
use sluice::host::isa;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Adds the classes and functions of these files.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<GateSettings>()?;
    module.add_class::<judge::Gate>()?;
    module.add_class::<controller::Controller>()?;
    module.add_class::<stream::GateStream>()?;
    module.add_class::<stream::GateTelemetry>()?;
    module.add_function(wrap_pyfunction!(machine::isolation_report, module)?)?;
    module.add_function(wrap_pyfunction!(machine::cache_topology, module)?)?;
    module.add_function(wrap_pyfunction!(machine::plot, module)?)
}

/// How frames are judged.
#[pyclass(frozen, module = "sluice._native")]
pub(crate) struct GateSettings(GateConfig);

#[pymethods]
impl GateSettings {
    #[new]
    #[pyo3(signature = (*, measure, threshold, at_most, hysteresis, hang_over, noise_floor, wall, score, num_bins,
                        l1_threshold, ema_alpha))]
    #[expect(
        clippy::too_many_arguments,
        reason = "Python's keywords, all of them given"
    )]
    fn new(
        measure: &str,
        threshold: f64,
        at_most: bool,
        hysteresis: f64,
        hang_over: &Bound<'_, PyAny>,
        noise_floor: Option<(f64, f64, f64)>,
        wall: f64,
        score: bool,
        num_bins: &Bound<'_, PyAny>,
        l1_threshold: f64,
        ema_alpha: f64,
    ) -> PyResult<Self> {
        let unknown = || {
            let names: Vec<_> = Measure::all().map(Measure::name).collect();
            let names = names.join(", ");
            PyValueError::new_err(format!("measure is {measure:?}, expected one of {names}"))
        };
        let config = GateConfig {
            wall: narrow(wall),
            policy: Policy {
                measure: Measure::by_name(measure).ok_or_else(unknown)?,
                sense: if at_most {
                    Sense::AtMost
                } else {
                    Sense::AtLeast
                },
                threshold: narrow(threshold),
                hysteresis: narrow(hysteresis),
                hang_over_frames: whole("hang_over", hang_over, 0..=u32::MAX)?,
                noise_floor: noise_floor.map(|(ratio, fall, rise)| NoiseFloor {
                    ratio: narrow(ratio),
                    fall: narrow(fall),
                    rise: narrow(rise),
                }),
            },
            score,
            num_bins: whole("num_bins", num_bins, 1..=u32::MAX)? as usize,
            l1_threshold: narrow(l1_threshold),
            ema_alpha: narrow(ema_alpha),
        };
        gate(config)?;
        Ok(Self(config))
    }
}

/// The fastest kernels for this CPU.
fn kernels() -> &'static FrameKernels {
    FrameKernels::best(isa::features())
}

/// # Errors
/// ValueError with the setting and its range.
fn gate(config: GateConfig) -> PyResult<sluice::core::gate::Gate> {
    sluice::core::gate::Gate::new(config, kernels()).map_err(|error| refused(&error, &config))
}

fn refused(error: &GateError, config: &GateConfig) -> PyErr {
    let policy = &config.policy;
    PyValueError::new_err(match error {
        GateError::NoBins => "num_bins is 0, expected at least 1".to_owned(),
        GateError::EmaAlpha => format!("ema_alpha is {}, expected 0 to 1", config.ema_alpha),
        GateError::L1Threshold => "l1_threshold is nan, expected a number".to_owned(),
        GateError::Wall => format!("wall is {}, expected at least 0", config.wall),
        GateError::Threshold => format!("threshold is {}, expected at least 0", policy.threshold),
        GateError::Hysteresis => {
            format!(
                "hysteresis is {}, expected above 0 and at most 1",
                policy.hysteresis
            )
        }
        GateError::NoiseFloor => {
            "noise_floor: ratio must be at least 1, fall and rise 0 to 1".to_owned()
        }
        GateError::NoiseFloorAtMost => {
            "noise_floor: not available for frames that pass below the threshold".to_owned()
        }
        other => other.to_string(),
    })
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

/// A value for one Python thread at a time. It is usable in the child of a fork, too, unless a thread of the parent
/// held it during the fork.
#[derive(Debug)]
struct InTurn<T> {
    value: Mutex<T>,
    process: u32,
}

impl<T> InTurn<T> {
    fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            process: std::process::id(),
        }
    }

    /// The value; other Python threads run while this one waits.
    ///
    /// # Errors
    /// RuntimeError in the child of a fork, if a thread of the parent held it: it would never be released.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, T>> {
        if self.process == std::process::id() {
            let locked = self.value.lock_py_attached(py);
            return Ok(locked.unwrap_or_else(PoisonError::into_inner));
        }
        match self.value.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread was using it when the process forked: create a new one in the child";
                Err(PyRuntimeError::new_err(message))
            }
        }
    }
}
