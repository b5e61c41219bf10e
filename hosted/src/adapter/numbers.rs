//! Checks of an adapter's numbers.
#![forbid(unsafe_code)]

use super::LoraError;
use sluice_core::kernels::lora::largest_magnitude;
use std::path::Path;

/// Checks that all numbers are finite.
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

/// Checks that `n` copies of a matrix stay within the limit, which is above any real adapter's size.
pub(super) fn check_copies(path: &Path, tensor: &str, n: u64, len: usize) -> Result<(), LoraError> {
    match n.checked_mul(len as u64) {
        Some(total) if total <= NUMBERS_MAX => Ok(()),
        _ => {
            let what = format!("has too many numbers: a matrix of {len}, times {n} matrices");
            Err(LoraError::tensor(path, tensor, what))
        }
    }
}

/// 1 GiB of f32.
const NUMBERS_MAX: u64 = 1 << 28;

/// Converts a tensor's size, which the file's length bounds.
pub(super) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("the tensor is in a file, and in memory soon")
}
