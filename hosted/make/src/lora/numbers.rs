//! The numbers of an adapter, checked.
#![forbid(unsafe_code)]

use super::LoraError;
use sluice_core::kernels::lora::largest_magnitude;
use std::path::Path;

/// Whether all numbers are finite.
pub(super) fn check_finite(path: &Path, tensor: &str, numbers: &[f32]) -> Result<(), LoraError> {
    if largest_magnitude(numbers).is_finite() {
        return Ok(());
    }
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let what = format!("has a number that is not finite ({} at {at})", numbers[at]);
            Err(LoraError::tensor(path, tensor, what))
        }
    }
}

/// Whether a matrix may stand for so many: no honest adapter has as many numbers when each has its own.
pub(super) fn check_copies(path: &Path, tensor: &str, n: u64, len: usize) -> Result<(), LoraError> {
    match n.checked_mul(len as u64) {
        Some(total) if total <= NUMBERS_MAX => Ok(()),
        _ => {
            let what = format!("has a matrix of {len} numbers for {n} matrices, which is too many");
            Err(LoraError::tensor(path, tensor, what))
        }
    }
}

/// A GiB of f32.
const NUMBERS_MAX: u64 = 1 << 28;

/// A tensor's place in memory: a file's length bounds it.
pub(super) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("the tensor is in a file, and in memory soon")
}
