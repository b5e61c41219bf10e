//! Products of types with exact sums over 256 columns, which lines of bytes unpack.

use super::line::Bytes;
use super::words;
use crate::contract::{GROUP, fma};
use crate::scalar::matmul::{Lanes, PanelProduct};
use crate::vector::unpack::{SuperBlock, UnpackedSuperBlock, unpack_super_block};

/// A [`PanelFn`](crate::scalar::matmul::PanelFn). Scales of even groups are unpacked as pairs, of odd
/// ones as words.
pub(crate) fn panel_product<B: SuperBlock>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    let (panel, n_cols) = (product.panel, product.n_cols);
    let mut w = UnpackedSuperBlock::EMPTY;
    for g in 0..n_cols / GROUP {
        // SAFETY: the panel is whole.
        unsafe {
            match g % 2 {
                0 => unpack_super_block::<B, Bytes, false>(panel, n_cols, g, &mut w),
                _ => unpack_super_block::<B, Bytes, true>(panel, n_cols, g, &mut w),
            }
        }
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let (numbers, q) = product.layout.int8_256(row, g);
            for (r, acc) in acc.iter_mut().enumerate() {
                let total = total::<B>(&w, q, r, g % 2 == 0);
                *acc = fma(numbers.d, total, *acc);
            }
        }
    }
}

/// The product of row `r` of a super-block with a group of codes.
fn total<B: SuperBlock>(w: &UnpackedSuperBlock, q: &[i8; GROUP], r: usize, pairs: bool) -> f32 {
    let (mut sum, mut min_sum) = (0, 0);
    for s in 0..GROUP / B::SUB_COLS {
        let of_pair = |pairs: &[[i32; 16]]| words(pairs[s / 2][r].cast_unsigned())[s % 2];
        let scale = match pairs {
            true => of_pair(&w.scales),
            false => words(w.scales[s][r].cast_unsigned())[s % 2],
        };
        let cols = s * B::SUB_COLS..(s + 1) * B::SUB_COLS;
        for (col, q) in cols.clone().zip(&q[cols]) {
            let code = i32::from(w.lines[col / 4][4 * r + col % 4]);
            sum += scale * (code - i32::from(B::OFFSET)) * i32::from(*q);
            if B::MIN {
                min_sum += of_pair(&w.min_pairs) * i32::from(*q);
            }
        }
    }
    let total = fma(w.d[r], sum as f32, 0.0);
    match B::MIN {
        true => fma(-w.dmin[r], min_sum as f32, total),
        false => total,
    }
}
