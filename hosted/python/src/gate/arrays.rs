//! Conversion of arrays from and to Python.

use core::fmt::Display;
use core::ops::RangeInclusive;
use numpy::{
    PyArray1, PyArray2, PyArrayDyn, PyArrayMethods as _, PyReadonlyArrayDyn,
    PyUntypedArrayMethods as _,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use sluice::core::gate::{Decision, Feature};

/// The samples of an array of any shape, in C order. float32 in this order is borrowed, other real numbers are
/// converted.
///
/// # Errors
/// TypeError if it is not an array of real numbers.
pub(super) fn samples<'p>(given: &Bound<'p, PyAny>) -> PyResult<PyReadonlyArrayDyn<'p, f32>> {
    if let Ok(array) = given.cast::<PyArrayDyn<f32>>()
        && array.ndim() > 0
        && array.is_c_contiguous()
    {
        let borrowed = array.try_readonly().map_err(PyErr::from)?;
        // Data that is not aligned to four bytes has to be copied.
        if borrowed.as_slice().is_ok() {
            return Ok(borrowed);
        }
    }
    let numpy = given.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (given,))?;
    let dtype = array.getattr("dtype")?;
    let kind: String = dtype.getattr("kind")?.extract()?;
    if !matches!(&*kind, "f" | "i" | "u" | "b") {
        let message = format!(
            "samples have the dtype {}, expected real numbers, preferably float32",
            dtype.str()?
        );
        return Err(PyTypeError::new_err(message));
    }
    if array.getattr("ndim")?.extract::<usize>()? == 0 {
        return Err(PyTypeError::new_err(
            "samples is a single number, expected an array",
        ));
    }
    let array = numpy.call_method1("require", (array, "float32", ["C", "A"]))?;
    let array = array.cast_into::<PyArrayDyn<f32>>().map_err(PyErr::from)?;
    Ok(array.try_readonly()?)
}

/// The integer `value` of the parameter `name`.
///
/// # Errors
/// TypeError for another type, ValueError with the range.
pub(super) fn whole<T: Copy + Display + TryFrom<i64> + PartialOrd>(
    name: &str,
    value: &Bound<'_, PyAny>,
    range: RangeInclusive<T>,
) -> PyResult<T> {
    let outside = || {
        let (low, high) = (range.start(), range.end());
        PyValueError::new_err(format!("{name} is {value}, expected {low} to {high}"))
    };
    let found = match value.extract::<i64>() {
        Ok(found) => found,
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => return Err(outside()),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            let message = format!("{name} is {value}, expected an integer");
            return Err(PyTypeError::new_err(message));
        }
        Err(error) => return Err(error),
    };
    T::try_from(found)
        .ok()
        .filter(|found| range.contains(found))
        .ok_or_else(outside)
}

/// Decisions, stored by column.
#[derive(Debug, Default)]
pub(super) struct Columns {
    verdict: Vec<u8>,
    max_abs: Vec<f32>,
    /// NaN below the wall.
    value: Vec<f32>,
    level: Vec<f32>,
    scaling: Vec<f32>,
    /// (n, 7), NaN where the frame was not evaluated.
    features: Vec<f32>,
}

/// `verdict` (n) uint8, `max_abs`, `value`, `level`, `scaling` (n) float32, `features` (n, 7) float32.
pub(super) type ColumnArrays<'p> = (
    Bound<'p, PyArray1<u8>>,
    Bound<'p, PyArray1<f32>>,
    Bound<'p, PyArray1<f32>>,
    Bound<'p, PyArray1<f32>>,
    Bound<'p, PyArray1<f32>>,
    Bound<'p, PyArray2<f32>>,
);

const N_FEATURES: usize = Feature::ALL.len();

impl Columns {
    /// Columns with room for `n` decisions.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self {
            verdict: Vec::with_capacity(n),
            max_abs: Vec::with_capacity(n),
            value: Vec::with_capacity(n),
            level: Vec::with_capacity(n),
            scaling: Vec::with_capacity(n),
            features: Vec::with_capacity(n * N_FEATURES),
        }
    }

    #[inline]
    pub(super) fn add(&mut self, decision: &Decision) {
        self.verdict.push(decision.verdict as u8);
        self.max_abs.push(decision.max_abs);
        self.value.push(decision.value.unwrap_or(f32::NAN));
        self.level.push(decision.level);
        self.scaling.push(decision.scaling);
        let features = decision.features.map_or([f32::NAN; N_FEATURES], |f| f.0);
        self.features.extend_from_slice(&features);
    }

    pub(super) fn into_arrays(self, py: Python<'_>) -> PyResult<ColumnArrays<'_>> {
        let n = self.verdict.len();
        Ok((
            PyArray1::from_vec(py, self.verdict),
            PyArray1::from_vec(py, self.max_abs),
            PyArray1::from_vec(py, self.value),
            PyArray1::from_vec(py, self.level),
            PyArray1::from_vec(py, self.scaling),
            PyArray1::from_vec(py, self.features).reshape([n, N_FEATURES])?,
        ))
    }
}
