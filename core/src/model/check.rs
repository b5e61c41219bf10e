//! Checks that a tensor has the expected shape.

use super::error::{ModelError, Name};
use crate::gguf::TensorInfo;

/// Rows and columns as expected, other dimensions 1.
pub(crate) fn check_shape(
    tensor: &TensorInfo<'_>,
    name: Name,
    shape: [usize; 2],
) -> Result<(), ModelError> {
    let expected = [shape[0] as u64, shape[1] as u64];
    let found = [tensor.n_rows(), tensor.dims[0]];
    if tensor.dims[2..] != [1, 1] {
        let found = tensor.n_dims;
        return Err(ModelError::TensorDimensions { name, found });
    }
    if found == expected {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        name,
        expected,
        found,
    })
}
