//! Q5_K panels: per super-block of 256 columns 2816 bytes, exactly GGUF's size:
//!
//! ```text
//!    0  d, dmin, scales and mins   as in Q4_K
//!  256  8 × [4 nibble lines, 1 high line]    one sub-block each, columns 32s..32s+32
//! ```
//!
//! Bit s of byte 4r+j of a high line is the fifth bit of column 4s+j of its sub-block, so that
//! one line serves eight steps.

use super::q4_k::{LINES, pack_head, unpack_head};
use super::{LINE_BYTES, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q5_k;

pub(crate) struct Q5K;

/// Bytes of a super-block of 16 rows.
pub(crate) const SUPER_BLOCK: usize = 2816;
/// Bytes of one sub-block of 32 columns.
pub(crate) const SUB_BLOCK: usize = 5 * LINE_BYTES;
/// Where the high line of a sub-block is.
pub(crate) const HIGH: usize = 4 * LINE_BYTES;

const _: () = assert!(SUPER_BLOCK == LINES + 8 * SUB_BLOCK);
const _: () = assert!(SUPER_BLOCK == 16 * 176);

impl PanelFormat for Q5K {
    const TYPE: WeightType = WeightType::Q5_K;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        let out = &mut panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        pack_head(out, row, block);
        let codes = q5_k::codes(block);
        let subs = out[LINES..].chunks_exact_mut(SUB_BLOCK);
        for (sub, codes) in subs.zip(codes.as_chunks::<32>().0) {
            set_codes::<4>(sub, row, codes, 0);
            set_codes::<1>(&mut sub[HIGH..], row, codes, 4);
        }
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        let from = &panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        unpack_head(from, row, block);
        let codes = core::array::from_fn(|col| {
            let sub = &from[LINES + col / 32 * SUB_BLOCK..][..SUB_BLOCK];
            code::<4>(sub, row, col % 32) | code::<1>(&sub[HIGH..], row, col % 32) << 4
        });
        q5_k::set_codes(&codes, block);
    }
}
