//! What is wrong with an input, by name, place and value.

use core::fmt;

/// Why an input of [`crate::sparse`] is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SparsityError {
    /// A slice has another length than the rest asks for.
    Length {
        /// The slice.
        what: &'static str,
        /// Elements it should have.
        expected: usize,
        /// Elements it has.
        found: usize,
    },
    /// A number is NaN or infinite.
    NotFinite {
        /// The slice or value.
        what: &'static str,
        /// Its place in the slice; 0 for a single value.
        index: usize,
        /// The number.
        value: f32,
    },
    /// A number is too large for the type that it is stored in.
    TooLarge {
        /// The slice.
        what: &'static str,
        /// Its place.
        index: usize,
        /// The number.
        value: f32,
        /// The largest magnitude of the type.
        most: f32,
    },
    /// A list names a neuron that does not exist.
    Neuron {
        /// Its place in the list.
        index: usize,
        /// The neuron.
        neuron: usize,
        /// Number of neurons.
        n_neurons: usize,
    },
    /// A list of neurons is not in ascending order, or names one twice.
    Order {
        /// Place in the list of the neuron that should come later.
        index: usize,
        /// The neuron.
        neuron: usize,
    },
    /// No neuron is selected.
    NoneSelected,
    /// A setting is out of range.
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// None of the settings that select neurons is set.
    NothingSelects,
    /// A fixed threshold for a target has not been calibrated.
    NotCalibrated,
    /// A width is not a multiple of a block.
    Width {
        /// The row.
        what: &'static str,
        /// Its elements.
        width: usize,
        /// Elements of a block.
        block: usize,
    },
    /// A slice has no elements.
    Empty {
        /// The slice.
        what: &'static str,
    },
    /// All numbers are 0.
    Zeros {
        /// The slice.
        what: &'static str,
    },
    /// Nothing has been recorded yet.
    EmptyHistory {
        /// What is asked.
        what: &'static str,
    },
}

impl fmt::Display for SparsityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length {
                what,
                expected,
                found,
            } => write!(f, "{what} has {found} elements: expected {expected}"),
            Self::NotFinite { what, index, value } => {
                write!(f, "{what}[{index}] is {value}: expected a finite number")
            }
            Self::TooLarge {
                what,
                index,
                value,
                most,
            } => write!(f, "{what}[{index}] is {value}: expected at most {most} in size"),
            Self::Neuron {
                index,
                neuron,
                n_neurons,
            } => write!(
                f,
                "active[{index}] is neuron {neuron}: there are {n_neurons}"
            ),
            Self::Order { index, neuron } => write!(
                f,
                "active[{index}] is neuron {neuron}: expected ascending neurons, each once"
            ),
            Self::NoneSelected => f.write_str("no active neurons: lower the threshold, or set top_k"),
            Self::Setting {
                name,
                value,
                expected,
            } => write!(f, "{name} is {value}: expected {expected}"),
            Self::NothingSelects => f.write_str("set threshold, top_k or target_sparsity"),
            Self::NotCalibrated => f.write_str(
                "target_sparsity without adaptive_threshold needs a calibrated threshold: calibrate, or set adaptive_threshold",
            ),
            Self::Width { what, width, block } => {
                write!(f, "{what} has {width} elements: expected a multiple of {block}")
            }
            Self::Empty { what } => write!(f, "{what} is empty: expected at least 1 element"),
            Self::Zeros { what } => write!(f, "{what}: all numbers are 0: expected others"),
            Self::EmptyHistory { what } => write!(f, "{what}: nothing has been recorded yet"),
        }
    }
}

impl core::error::Error for SparsityError {}

/// A setting that is out of range.
pub(super) const fn setting(
    name: &'static str,
    value: f64,
    expected: &'static str,
) -> SparsityError {
    SparsityError::Setting {
        name,
        value,
        expected,
    }
}

/// Compares a length.
///
/// # Errors
/// [`SparsityError::Length`]: it is another one.
pub const fn check_len(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), SparsityError> {
    match found == expected {
        true => Ok(()),
        false => Err(SparsityError::Length {
            what,
            expected,
            found,
        }),
    }
}

/// Looks for numbers that are not finite.
///
/// # Errors
/// [`SparsityError::NotFinite`]: the first of them.
pub fn check_finite(what: &'static str, values: &[f32]) -> Result<(), SparsityError> {
    // A count without branches, which compilers make vectors of; the place is looked for only then.
    let n: u32 = values.iter().map(|x| u32::from(!x.is_finite())).sum();
    if n == 0 {
        return Ok(());
    }
    match values.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(SparsityError::NotFinite {
            what,
            index,
            value: values[index],
        }),
        None => Ok(()),
    }
}

/// Looks for numbers that a type cannot hold, of which the largest magnitude is `most`.
///
/// # Errors
/// [`SparsityError::NotFinite`] and [`SparsityError::TooLarge`]: the first of them.
pub fn check_within(what: &'static str, values: &[f32], most: f32) -> Result<(), SparsityError> {
    check_finite(what, values)?;
    match values.iter().position(|x| x.abs() > most) {
        Some(index) => Err(SparsityError::TooLarge {
            what,
            index,
            value: values[index],
            most,
        }),
        None => Ok(()),
    }
}
