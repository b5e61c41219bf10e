//! Kernels in AVX-512 with VNNI and the rest of the Ice Lake set.
//!
//! A vector is 16 rows of weights: one line of a panel, whose four bytes a row `vpdpbusd`
//! multiplies with four columns of one token, broadcast from memory. Two families of integer
//! types (`block`, `super_block`) have each
//!
//! - a product with one token, which unpacks lines in registers as it goes, and
//! - a product with several, which unpacks 256 columns of four panels into a buffer in the L1
//!   cache and multiplies it with tiles of up to six tokens: weights are read once, and only the
//!   unpacking is compiled type by type.
//!
//! How a type unpacks is in `blocks` and `super_blocks`. Outputs are the running sums between
//! groups of columns.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

pub(crate) mod attention;
mod block;
mod blocks;
mod float;
mod super_block;
mod super_blocks;

pub(crate) use block::{
    Scales as BlockScales, Unpacked as UnpackedBlocks, matmul as block_matmul,
    unpack as unpack_blocks,
};
pub(crate) use blocks::Block;
pub(crate) use float::{bf16_matmul, matmul as float_matmul};
pub(crate) use super_block::{
    Scales as SuperBlockScales, Unpacked as UnpackedSuperBlock, matmul as super_block_matmul,
    min_sum, scaled, scaled_less_min, unpack as unpack_super_block,
};
pub(crate) use super_blocks::SuperBlock;

use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use core::arch::x86_64::*;

/// Tokens and panels of a tile: its 24 sums, lines of all panels and a broadcast fill the
/// registers, and running results are in the L1 cache. A load of weights serves six tokens and one
/// of activations four panels; loads are what limits smaller tiles.
const TILE_TOKENS: usize = 6;
/// See [`TILE_TOKENS`].
const TILE_PANELS: usize = 4;

/// Int8 rows of activations, by pointer.
#[derive(Clone, Copy)]
pub(crate) struct Int8Rows {
    pub(crate) q: *const u8,
    pub(crate) d: *const u8,
    pub(crate) sums: *const u8,
    /// Bytes from a row to the next.
    pub(crate) stride: usize,
}

impl Int8Rows {
    /// The rows from token `token` on; `per_32`: those with a scale per 32 columns.
    pub(crate) fn new(args: &Matmul<'_>, token: usize, per_32: bool) -> Self {
        let layout = &args.activations.layout;
        let stride = layout.row_bytes();
        let row = args.activations.bytes[token * stride..].as_ptr();
        let (q, d, sums) = layout.int8_offsets(per_32);
        Self {
            q: row.wrapping_add(q),
            d: row.wrapping_add(d),
            sums: row.wrapping_add(sums),
            stride,
        }
    }

    /// Later columns: so many codes, scales and bytes of sums on.
    #[inline(always)]
    pub(crate) fn skip(self, codes: usize, scales: usize) -> Self {
        Self {
            q: self.q.wrapping_add(codes),
            d: self.d.wrapping_add(4 * scales),
            sums: self.sums.wrapping_add(codes / 8),
            ..self
        }
    }

    /// Asks for a group of the next `n` tokens: rows are far apart, so the prefetcher of the CPU
    /// does not see what comes.
    #[inline(always)]
    pub(crate) fn prefetch(self, n: usize) {
        for t in 0..n {
            let x = self.tokens(t);
            for at in (0..GROUP).step_by(LINE_BYTES) {
                prefetch_line(x.q.wrapping_add(at));
            }
            prefetch_line(x.d);
            prefetch_line(x.sums);
        }
    }

    /// The same columns `n` tokens on.
    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(n * self.stride),
            d: self.d.wrapping_add(n * self.stride),
            sums: self.sums.wrapping_add(n * self.stride),
            ..self
        }
    }
}

/// Where the outputs of up to 16 rows and some tokens go.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) at: *mut f32,
    pub(crate) stride: usize,
    /// Rows that there are.
    pub(crate) mask: __mmask16,
}

impl Out {
    /// Outputs of panel rows from `row` on (none past the end of `args.rows`), first token.
    pub(crate) fn new(args: &Matmul<'_>, row: usize) -> Self {
        let n_rows = args.rows.end.saturating_sub(row).min(PANEL_ROWS);
        Self {
            at: args.out.wrapping_add(row - args.rows.start),
            stride: args.out_stride,
            mask: u16::try_from((1u32 << n_rows) - 1).expect("16 rows"),
        }
    }

    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            at: self.at.wrapping_add(n * self.stride),
            ..self
        }
    }

    /// The running sums of token `t`.
    ///
    /// # Safety
    /// - The outputs are readable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn load(self, t: usize) -> __m512 {
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: masked lanes are not accessed; the caller vouches for the others.
        unsafe { _mm512_maskz_loadu_ps(self.mask, at) }
    }

    /// # Safety
    /// - The outputs are writable and nobody else's.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn store(self, t: usize, sums: __m512) {
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: as in `load`.
        unsafe { _mm512_mask_storeu_ps(at, self.mask, sums) };
    }
}

/// Four bytes in all lanes.
///
/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast(p: *const u8) -> __m512i {
    // SAFETY: by the caller.
    _mm512_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// Adds the dots of `n` byte lines of four panels, from `lines` on, with columns of some tokens.
///
/// # Safety
/// - `n` lines are readable at each of `lines`, and as many columns at each of `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_dots<const T: usize>(
    sums: &mut [[__m512i; TILE_PANELS]; T],
    n: usize,
    lines: [*const u8; TILE_PANELS],
    x: [*const u8; T],
) {
    for i in 0..n {
        // SAFETY: by the caller.
        unsafe {
            let w = lines.map(|lines| line(lines.add(LINE_BYTES * i)));
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = broadcast(x.add(4 * i));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = _mm512_dpbusd_epi32(*sum, w, x);
                }
            }
        }
    }
}

/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast_float(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_set1_ps(unsafe { p.cast::<f32>().read_unaligned() })
}

/// # Safety
/// - 64 bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn line(p: *const u8) -> __m512i {
    // SAFETY: by the caller.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// 16 halves as f32.
///
/// # Safety
/// - 32 bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
}

/// Asks for the `bytes` from `p` on, so that a stream of panels does not stop where the
/// prefetcher of the CPU does, at the end of a page.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefetch(p: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        prefetch_line(p.wrapping_add(at));
    }
}

#[inline(always)]
fn prefetch_line(p: *const u8) {
    // SAFETY: a hint; it may point anywhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
}

/// How far ahead of a product with one token its weights are asked for, in bytes.
const PREFETCH_AHEAD: usize = 4096;

/// Nibble lines as pairs of byte lines.
///
/// # Safety
/// - 64 bytes are readable for each line from `p` on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn nibbles<const BYTE_LINES: usize>(p: *const u8) -> [__m512i; BYTE_LINES] {
    let mask = _mm512_set1_epi8(0xf);
    let mut out = [mask; BYTE_LINES];
    for (i, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: by the caller.
        let codes = unsafe { line(p.add(64 * i)) };
        pair[0] = _mm512_and_si512(codes, mask);
        pair[1] = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask);
    }
    out
}

/// Adds bit `s` of every byte of `high` to byte line s, `1 << shift` up.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn add_bit(high: __m512i, value: i8, lines: &mut [__m512i; 8]) {
    let value = _mm512_set1_epi8(value);
    for (line, bit) in lines.iter_mut().zip([1, 2, 4, 8, 16, 32, 64, -128]) {
        let set = _mm512_test_epi8_mask(high, _mm512_set1_epi8(bit));
        *line = _mm512_mask_add_epi8(*line, set, *line, value);
    }
}
