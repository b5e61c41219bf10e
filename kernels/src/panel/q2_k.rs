//! Q2_K panels: per super-block of 256 columns 1344 bytes, exactly GGUF's size:
//!
//! ```text
//!    0  d[16], dmin[16]            f16, one line
//!   64  scales[16][16]             sub-block s of 16 columns, row r: scale (low nibble), min (high)
//!  320  16 code lines              one sub-block each
//! ```
//!
//! Bits 2s..2s+2 of byte 4r+j of a code line are the code of column 4s+j of its sub-block, so
//! that one line serves four steps.

use super::{LINE_BYTES, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q2_k;

pub(crate) struct Q2K;

/// Bytes of a super-block of 16 rows.
pub(crate) const SUPER_BLOCK: usize = 1344;
pub(crate) const DMIN: usize = 32;
pub(crate) const SCALES: usize = 64;
pub(crate) const LINES: usize = 320;

const _: () = assert!(SUPER_BLOCK == LINES + 16 * LINE_BYTES);
const _: () = assert!(SUPER_BLOCK == 16 * 84);

impl PanelFormat for Q2K {
    const TYPE: WeightType = WeightType::Q2_K;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        let out = &mut panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        out[2 * row..][..2].copy_from_slice(&block[q2_k::D..][..2]);
        out[DMIN + 2 * row..][..2].copy_from_slice(&block[q2_k::D + 2..][..2]);
        for (s, scales) in block[..q2_k::QS].iter().enumerate() {
            out[SCALES + s * 16 + row] = *scales;
        }
        set_codes::<2>(&mut out[LINES..], row, &q2_k::codes(block), 0);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        let from = &panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        block[q2_k::D..][..2].copy_from_slice(&from[2 * row..][..2]);
        block[q2_k::D + 2..][..2].copy_from_slice(&from[DMIN + 2 * row..][..2]);
        for (s, scales) in block[..q2_k::QS].iter_mut().enumerate() {
            *scales = from[SCALES + s * 16 + row];
        }
        let codes = core::array::from_fn(|col| code::<2>(&from[LINES..], row, col));
        q2_k::set_codes(&codes, block);
    }
}
