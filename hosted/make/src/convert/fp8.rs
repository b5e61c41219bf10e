//! 8-bit weights (E4M3) with separate scales: per block, per row, or a single one.

use super::ConvertError;
use super::folder::{Tensor, Weights};
use sluice_hf::decode;
use sluice_hf::safetensors::Dtype;

/// The factors of a matrix's numbers.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// (block rows, block columns), row-major.
    values: Vec<f32>,
    /// Blocks side by side.
    n_across: u64,
    /// Rows and columns of a block.
    block: [u64; 2],
}

impl Scale {
    /// Possible names of a weight's scales.
    pub(super) fn names(weight: &str) -> [String; 3] {
        let inner = weight.strip_suffix("weight").unwrap_or(weight);
        [
            format!("{weight}_scale_inv"),
            format!("{weight}_scale"),
            format!("{inner}scale_weight"),
        ]
    }

    /// Reads the scales in tensor `scale`, and finds the block that each applies to: `block` holds the rows and columns
    /// of a block, if config.json gives them (`weight_block_size`).
    ///
    /// # Errors
    /// Scales whose type or shape does not fit the matrix.
    pub(super) fn read(
        weights: &Weights,
        matrix: &Tensor,
        scale: usize,
        block: Option<[u64; 2]>,
    ) -> Result<Self, ConvertError> {
        let tensor = &weights.tensors[scale];
        let dtype = tensor.entry.dtype;
        if !matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(ConvertError::UnsupportedDtype {
                path: weights.path_of(tensor).into(),
                tensor: tensor.entry.name.clone(),
                dtype,
            });
        }
        let wrong = || ConvertError::WrongShape {
            path: weights.path_of(tensor).into(),
            tensor: tensor.entry.name.clone(),
            found: tensor.entry.shape.clone(),
            expected: matrix.entry.shape.clone(),
        };
        let [rows, columns] = *matrix.entry.shape else {
            return Err(wrong());
        };
        let [n_down, n_across] = match *tensor.entry.shape {
            [] | [1] => [1, 1],
            [n] if n == rows => [rows, 1],
            [down, across] if down > 0 && across > 0 && down <= rows && across <= columns => {
                [down, across]
            }
            _ => return Err(wrong()),
        };
        let given = block.map_or([None; 2], |block| block.map(Some));
        let down = block_len(rows, n_down, given[0]).ok_or_else(wrong)?;
        let across = block_len(columns, n_across, given[1]).ok_or_else(wrong)?;
        let len = usize::try_from(tensor.entry.len_bytes).map_err(|_| wrong())?;
        let mut bytes = vec![0; len];
        weights.read(scale, 0, &mut bytes)?;
        let mut values = Vec::new();
        decode(dtype, &bytes, &mut values);
        Ok(Self {
            values,
            n_across,
            block: [down, across],
        })
    }

    /// Multiplies the rows from `row` on. `x`: (rows, `columns`), row-major.
    pub(super) fn apply(&self, x: &mut [f32], row: u64, columns: usize) {
        let width = usize::try_from(self.block[1]).unwrap_or(usize::MAX);
        for (row, x) in (row..).zip(x.chunks_exact_mut(columns)) {
            let first = row / self.block[0] * self.n_across;
            let first = usize::try_from(first).expect("the scales are in memory");
            for (x, scale) in x.chunks_mut(width).zip(&self.values[first..]) {
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// Block length along a dimension that `n` blocks cover: as given, or 128, or equal shares. `None` if no such length
/// results in `n` blocks.
fn block_len(len: u64, n: u64, given: Option<u64>) -> Option<u64> {
    let shares = len.is_multiple_of(n).then(|| len / n);
    let fitting = given
        .into_iter()
        .chain([128])
        .find(|&block| block > 0 && len.div_ceil(block) == n);
    match n {
        1 => Some(len),
        _ => fitting.or(shares),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_at_the_edge_are_cut() {
        let scale = Scale {
            values: vec![2.0, 3.0, 5.0, 7.0],
            n_across: 2,
            block: [2, 2],
        };
        let mut x = [1.0; 9];
        scale.apply(&mut x, 0, 3);
        let expected = [2.0_f32, 2.0, 3.0, 2.0, 2.0, 3.0, 5.0, 5.0, 7.0];
        assert_eq!(x.map(f32::to_bits), expected.map(f32::to_bits));
        let lens = [
            (200, 2, None),
            (200, 200, None),
            (200, 1, None),
            (330, 11, Some(32)),
            (10, 3, None),
        ];
        let blocks = lens.map(|(len, n, given)| block_len(len, n, given));
        assert_eq!(blocks, [Some(128), Some(1), Some(200), Some(32), None]);
    }
}
