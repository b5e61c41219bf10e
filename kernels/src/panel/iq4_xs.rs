//! IQ4_XS panels: per super-block of 256 columns 2176 bytes, exactly GGUF's size:
//!
//! ```text
//!    0  d[16]                      f16
//!   32  scales[6][16]              GGUF's six bytes of packed 6-bit scales, row r
//!  128  32 nibble lines            codes, to be looked up in the table of IQ4_NL
//! ```

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::iq4_xs;

pub(crate) struct Iq4Xs;

/// Bytes of a super-block of 16 rows.
pub(crate) const SUPER_BLOCK: usize = 2176;
/// Where the packed scales start.
pub(crate) const SCALES: usize = 32;
/// Where the lines start: the bytes of the head.
pub(crate) const LINES: usize = 128;

const _: () = assert!(LINES == SCALES + iq4_xs::SCALE_BYTES * PANEL_ROWS);
const _: () = assert!(SUPER_BLOCK == LINES + 32 * LINE_BYTES);
const _: () = assert!(SUPER_BLOCK == 16 * 136);

impl PanelFormat for Iq4Xs {
    const TYPE: WeightType = WeightType::IQ4_XS;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        let out = &mut panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        out[2 * row..][..2].copy_from_slice(&block[..2]);
        for (i, byte) in block[iq4_xs::SCALES..iq4_xs::QS].iter().enumerate() {
            out[SCALES + i * PANEL_ROWS + row] = *byte;
        }
        set_codes::<4>(&mut out[LINES..], row, &iq4_xs::codes(block), 0);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        let from = &panel[index * SUPER_BLOCK..][..SUPER_BLOCK];
        block[..2].copy_from_slice(&from[2 * row..][..2]);
        for (i, byte) in block[iq4_xs::SCALES..iq4_xs::QS].iter_mut().enumerate() {
            *byte = from[SCALES + i * PANEL_ROWS + row];
        }
        let codes = core::array::from_fn(|col| code::<4>(&from[LINES..], row, col));
        iq4_xs::set_codes(&codes, block);
    }
}
