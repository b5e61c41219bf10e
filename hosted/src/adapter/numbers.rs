//! The numbers of an adapter.

use super::error::AdapterLoadError;
use sluice_core::kernels::lora::largest_magnitude;
use std::path::Path;

/// Checks that all numbers of a tensor are finite.
///
/// # Errors
/// [`AdapterLoadError::Tensor`].
pub fn check_finite(path: &Path, tensor: &str, numbers: &[f32]) -> Result<(), AdapterLoadError> {
    if largest_magnitude(numbers).is_finite() {
        return Ok(());
    }
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let what = format!("has a number that is not finite ({} at {at})", numbers[at]);
            Err(AdapterLoadError::tensor(path, tensor, what))
        }
    }
}

/// Checks that `n` copies of a matrix of `len` numbers stay within a limit above any real adapter's size.
///
/// # Errors
/// [`AdapterLoadError::Tensor`].
pub fn check_copies(path: &Path, tensor: &str, n: u64, len: usize) -> Result<(), AdapterLoadError> {
    match n.checked_mul(len as u64) {
        Some(total) if total <= NUMBERS_MAX => Ok(()),
        _ => {
            let what = format!("has too many numbers: a matrix of {len}, times {n} matrices");
            Err(AdapterLoadError::tensor(path, tensor, what))
        }
    }
}

/// 1 GiB of f32.
const NUMBERS_MAX: u64 = 1 << 28;

/// Transposes `x`, (`n_rows`, columns).
#[must_use]
pub fn transposed(x: &[f32], n_rows: usize) -> Vec<f32> {
    let n_cols = x.len() / n_rows.max(1);
    let mut out = Vec::with_capacity(x.len());
    for column in 0..n_cols {
        out.extend(x.iter().skip(column).step_by(n_cols));
    }
    out
}

/// Converts a tensor's size, which the file's length bounds.
pub(super) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("the tensor is in a file, and in memory soon")
}
