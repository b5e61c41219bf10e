//! How types with exact sums over 256 columns unpack.

use super::{add_bit, halves, line, nibbles};
use crate::blocks::iq4_xs;
use crate::panel::{self, PANEL_ROWS, PanelFormat};
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};
use core::arch::x86_64::*;

/// A number for each sub-block and row; types with sub-blocks of 32 columns have eight.
pub(crate) type PerSubBlock = [[i32; PANEL_ROWS]; 16];

/// A type with small codes that sums exactly over a group.
pub(crate) trait SuperBlock: PanelFormat {
    /// Columns that share a scale: 16 or 32.
    const SUB_COLS: usize;
    /// How much the codes are too large.
    const OFFSET: i16;
    /// Whether sub-blocks have a minimum beside the scale.
    const MIN: bool;
    /// Bytes of a super-block.
    const BYTES: usize;

    /// Offset of super-block `g` of a panel.
    fn start(n_cols: usize, g: usize) -> usize;

    /// Byte lines of columns `32 * run..32 * run + 32` of the super-block at `p`.
    ///
    /// # Safety
    /// - A super-block is readable at `p`; the CPU has the Ice Lake set.
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8];

    /// Scales and minima of the super-block.
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock);

    /// `d` and `dmin` of super-block `g`; `dmin` is anything where there are no minima.
    ///
    /// # Safety
    /// - `panel` is readable as a whole panel of `n_cols` columns; the CPU has the Ice Lake set.
    unsafe fn d(panel: *const u8, n_cols: usize, g: usize) -> (__m512, __m512);
}

/// Scales and minima of Q4_K and Q5_K.
#[inline(always)]
fn six_bits(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
    let head = super_block.first_chunk().expect("whole super-blocks");
    for s in 0..8 {
        for row in 0..PANEL_ROWS {
            let (scale, min) = q4_k::scale_min(head, s, row);
            scales[s][row] = i32::from(scale);
            mins[s][row] = i32::from(min);
        }
    }
}

impl SuperBlock for panel::Q4K {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q4_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q4_k::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller.
        unsafe { nibbles(p.add(q4_k::LINES + 256 * run)) }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        six_bits(super_block, scales, mins);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, n_cols: usize, g: usize) -> (__m512, __m512) {
        let p = panel.wrapping_add(Self::start(n_cols, g));
        // SAFETY: by the caller.
        unsafe { (halves(p), halves(p.add(q4_k::DMIN))) }
    }
}

impl SuperBlock for panel::Q5K {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q5_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q5_k::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let p = p.wrapping_add(q4_k::LINES + q5_k::SUB_BLOCK * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (nibbles(p), line(p.add(q5_k::HIGH))) };
        add_bit(high, 16, &mut lines);
        lines
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        six_bits(super_block, scales, mins);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, n_cols: usize, g: usize) -> (__m512, __m512) {
        let p = panel.wrapping_add(Self::start(n_cols, g));
        // SAFETY: by the caller.
        unsafe { (halves(p), halves(p.add(q4_k::DMIN))) }
    }
}

impl SuperBlock for panel::Q6K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 32;
    const MIN: bool = false;
    const BYTES: usize = q6_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(n_cols: usize, g: usize) -> usize {
        Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let upper = _mm512_set1_epi8(0x30);
        let mut out = [upper; 8];
        for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let p = p.wrapping_add(q6_k::LINES + q6_k::SUB_BLOCK * (2 * run + half));
            // SAFETY: by the caller.
            let (low, high) = unsafe { (nibbles::<4>(p), line(p.add(q6_k::HIGH))) };
            let high = [
                _mm512_slli_epi16::<4>(high),
                _mm512_slli_epi16::<2>(high),
                high,
                _mm512_srli_epi16::<2>(high),
            ];
            for (out, (low, high)) in out.iter_mut().zip(low.into_iter().zip(high)) {
                // low | (high & upper)
                *out = _mm512_ternarylogic_epi32::<0xf8>(low, high, upper);
            }
        }
        out
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        for (scales, bytes) in scales.iter_mut().zip(super_block.as_chunks::<16>().0) {
            *scales = bytes.map(|scale| i32::from(scale.cast_signed()));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, _: usize, g: usize) -> (__m512, __m512) {
        // SAFETY: by the caller.
        (
            unsafe { halves(panel.add(2 * PANEL_ROWS * g)) },
            _mm512_setzero_ps(),
        )
    }
}

/// The four byte lines of a line of 2-bit codes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn two_bits(codes: __m512i) -> [__m512i; 4] {
    let mask = _mm512_set1_epi8(3);
    [
        _mm512_and_si512(codes, mask),
        _mm512_and_si512(_mm512_srli_epi16::<2>(codes), mask),
        _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask),
        _mm512_and_si512(_mm512_srli_epi16::<6>(codes), mask),
    ]
}

/// The eight byte lines of two lines of 2-bit codes at `p`.
///
/// # Safety
/// - Two lines are readable at `p`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn two_lines(p: *const u8) -> [__m512i; 8] {
    // SAFETY: by the caller.
    let [a, b] = unsafe { [two_bits(line(p)), two_bits(line(p.add(64)))] };
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

impl SuperBlock for panel::Q3K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 4;
    const MIN: bool = false;
    const BYTES: usize = q3_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(n_cols: usize, g: usize) -> usize {
        Self::head_bytes(n_cols) + g * q3_k::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let p = p.wrapping_add(q3_k::LINES + q3_k::RUN * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (two_lines(p), line(p.add(q3_k::HIGH))) };
        add_bit(high, 4, &mut lines);
        lines
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        let packed = super_block.first_chunk().expect("whole super-blocks");
        for (s, scales) in scales.iter_mut().enumerate() {
            for (row, scale) in scales.iter_mut().enumerate() {
                *scale = Self::scale(packed, s, row);
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, _: usize, g: usize) -> (__m512, __m512) {
        // SAFETY: by the caller.
        (
            unsafe { halves(panel.add(2 * PANEL_ROWS * g)) },
            _mm512_setzero_ps(),
        )
    }
}

impl SuperBlock for panel::Q2K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q2_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q2_k::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller.
        unsafe { two_lines(p.add(q2_k::LINES + 128 * run)) }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        let (packed, _) = super_block[q2_k::SCALES..].as_chunks::<PANEL_ROWS>();
        for ((scales, mins), packed) in scales.iter_mut().zip(mins).zip(packed) {
            *scales = packed.map(|b| i32::from(b & 0xf));
            *mins = packed.map(|b| i32::from(b >> 4));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, n_cols: usize, g: usize) -> (__m512, __m512) {
        let p = panel.wrapping_add(Self::start(n_cols, g));
        // SAFETY: by the caller.
        unsafe { (halves(p), halves(p.add(q2_k::DMIN))) }
    }
}

impl SuperBlock for panel::Iq4Xs {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 128;
    const MIN: bool = false;
    const BYTES: usize = iq4_xs_panel::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * iq4_xs_panel::SUPER_BLOCK
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller; the table has 16 bytes.
        let (mut lines, table) = unsafe {
            let lines = nibbles::<8>(p.add(iq4_xs_panel::LINES + 256 * run));
            (lines, _mm_loadu_si128(iq4_xs::VALUES.as_ptr().cast()))
        };
        let table = _mm_xor_si128(table, _mm_set1_epi8(-128));
        let table = _mm512_broadcast_i32x4(table);
        for line in &mut lines {
            *line = _mm512_shuffle_epi8(table, *line);
        }
        lines
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        let head = super_block.first_chunk().expect("whole super-blocks");
        for (s, scales) in scales[..8].iter_mut().enumerate() {
            for (row, scale) in scales.iter_mut().enumerate() {
                *scale = Self::scale(head, s, row);
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn d(panel: *const u8, n_cols: usize, g: usize) -> (__m512, __m512) {
        let p = panel.wrapping_add(Self::start(n_cols, g));
        // SAFETY: by the caller.
        (unsafe { halves(p) }, _mm512_setzero_ps())
    }
}
