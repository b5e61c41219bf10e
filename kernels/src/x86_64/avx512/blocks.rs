//! How types with a scale per 32 columns unpack.

use super::{add_bit, halves, line, nibbles};
use crate::panel::small::{Codes, HIGH, Small, SmallBlock};
use crate::panel::{LINE_BYTES, PANEL_ROWS, PanelFormat, Q8_0};
use core::arch::x86_64::*;

/// A type with small codes and one scale, and perhaps one minimum, per 32 columns.
pub(crate) trait Block: PanelFormat {
    /// How much the codes are too large.
    const OFFSET: i16;
    /// Whether values have a minimum beside the scale.
    const MIN: bool;
    /// Bytes of the lines of a block.
    const LINES: usize;

    /// Offsets of the numbers and of the lines of block `index`.
    fn offsets(n_cols: usize, index: usize) -> (usize, usize);

    /// Byte lines of the block whose lines are at `p`.
    ///
    /// # Safety
    /// - [`Self::LINES`] bytes are readable at `p`; the CPU has the Ice Lake set.
    unsafe fn lines(p: *const u8) -> [__m512i; 8];

    /// Scales of the block whose numbers are at `p`.
    ///
    /// # Safety
    /// - The numbers are readable at `p`; the CPU has the Ice Lake set.
    unsafe fn scales(p: *const u8) -> __m512;
}

impl Block for Q8_0 {
    const OFFSET: i16 = 128;
    const MIN: bool = false;
    const LINES: usize = 8 * LINE_BYTES;

    #[inline(always)]
    fn offsets(n_cols: usize, index: usize) -> (usize, usize) {
        Self::at(n_cols, index)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8) -> [__m512i; 8] {
        let mut out = [_mm512_setzero_si512(); 8];
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: by the caller.
            *out = unsafe { line(p.add(64 * i)) };
        }
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn scales(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe { halves(p) }
    }
}

impl<B: SmallBlock> Block for Small<B> {
    #[expect(clippy::cast_possible_truncation, reason = "offsets are 0, 8 and 16")]
    const OFFSET: i16 = match B::CODES {
        Codes::Offset(offset) => offset as i16,
        Codes::Table(_) => 128,
    };
    const MIN: bool = B::N_NUMBERS == 2;
    const LINES: usize = Self::LINES;

    #[inline(always)]
    fn offsets(n_cols: usize, index: usize) -> (usize, usize) {
        Self::at(n_cols, index)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8) -> [__m512i; 8] {
        // SAFETY: by the caller.
        let mut lines = unsafe { nibbles::<8>(p) };
        if B::HIGH {
            // SAFETY: by the caller; the high line is the last.
            add_bit(unsafe { line(p.add(HIGH)) }, 16, &mut lines);
        }
        if let Some(table) = &Self::TABLE {
            // SAFETY: the table has 16 bytes.
            let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
            for line in &mut lines {
                *line = _mm512_shuffle_epi8(table, *line);
            }
        }
        lines
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn scales(p: *const u8) -> __m512 {
        if B::NUMBER_BYTES == 2 {
            // SAFETY: by the caller.
            return unsafe { halves(p) };
        }
        // Powers of two: E8M0 exponents as ggml halves them (see `blocks::mxfp4::scale`).
        // SAFETY: by the caller; one byte a row.
        let bytes = unsafe { p.cast::<[u8; PANEL_ROWS]>().read_unaligned() };
        let scales = bytes.map(crate::blocks::mxfp4::scale);
        // SAFETY: 16 floats.
        unsafe { _mm512_loadu_ps(scales.as_ptr()) }
    }
}
