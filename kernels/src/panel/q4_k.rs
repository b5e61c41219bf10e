//! Q4_K panels: per super-block of 256 columns 2304 bytes, exactly GGUF's size:
//!
//! ```text
//!    0  d[16], dmin[16]            f16, one line
//!   64  low[8][16]                 sub-block s, row r: scale bits 0..4, min bits 0..4 above them
//!  192  high[4][16]                byte t: bits 4..6 of scale t, scale t+4, min t, min t+4
//!  256  32 nibble lines
//! ```
//!
//! Scales and mins stay 6-bit: in decode, bytes are time. A vector of 64 bytes unpacks four
//! sub-blocks of 16 rows with a mask, a shift and an or. Q5_K has the same head.

use super::{LINE_BYTES, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q4_k;

pub(crate) struct Q4K;

/// Bytes of a super-block of 16 rows.
pub(crate) const SUPER_BLOCK: usize = 2304;
pub(crate) const DMIN: usize = 32;
/// Where the packed scales and minima start.
pub(crate) const LOW: usize = 64;
const HIGH: usize = 192;
/// Where the lines start: the bytes of the head.
pub(crate) const LINES: usize = 256;

const _: () = assert!(SUPER_BLOCK == LINES + 32 * LINE_BYTES);
const _: () = assert!(SUPER_BLOCK == 16 * 144);

/// Scale and min, 0..64, of sub-block `s` of lane `row`.
#[inline(always)]
pub(crate) fn scale_min(head: &[u8; LINES], s: usize, row: usize) -> (u8, u8) {
    let low = head[LOW + s * 16 + row];
    let high = head[HIGH + s % 4 * 16 + row] >> (s / 4 * 2);
    (
        (low & 0xf) | (high & 3) << 4,
        (low >> 4) | (high >> 4 & 3) << 4,
    )
}

/// Writes `d`, `dmin`, scales and mins of a block.
pub(super) fn pack_head(out: &mut [u8], row: usize, block: &[u8]) {
    out[2 * row..][..2].copy_from_slice(&block[..2]);
    out[DMIN + 2 * row..][..2].copy_from_slice(&block[2..4]);
    let (scales, mins) = q4_k::scales(block);
    for s in 0..8 {
        out[LOW + s * 16 + row] = (scales[s] & 0xf) | (mins[s] & 0xf) << 4;
    }
    for t in 0..4 {
        let highs = [scales[t], scales[t + 4], mins[t], mins[t + 4]];
        out[HIGH + t * 16 + row] = (0..4).fold(0, |h, i| h | (highs[i] >> 4) << (2 * i));
    }
}

/// The inverse of [`pack_head`].
pub(super) fn unpack_head(from: &[u8], row: usize, block: &mut [u8]) {
    let head = from.first_chunk().expect("super-blocks are whole");
    block[..2].copy_from_slice(&head[2 * row..][..2]);
    block[2..4].copy_from_slice(&head[DMIN + 2 * row..][..2]);
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for s in 0..8 {
        (scales[s], mins[s]) = scale_min(head, s, row);
    }
    q4_k::set_scales(&scales, &mins, block);
}

impl PanelFormat for Q4K {
    const TYPE: WeightType = WeightType::Q4_K;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        let out = &mut panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        pack_head(out, row, block);
        set_codes::<4>(&mut out[LINES..], row, &q4_k::codes(block), 0);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        let from = &panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        unpack_head(from, row, block);
        let codes = core::array::from_fn(|col| code::<4>(&from[LINES..], row, col));
        q4_k::set_codes(&codes, block);
    }
}
