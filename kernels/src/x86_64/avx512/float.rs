//! Products of float weights: a column, or a pair of columns in BF16, is the vector.

use super::halves;
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{self, LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::Out;
use crate::x86_64::avx2;
use core::arch::x86_64::*;
use core::sync::atomic::{AtomicU8, Ordering};

/// Tokens of a tile: with two panels twelve sums.
const TILE_TOKENS: usize = 6;

/// A float type whose columns are vectors.
pub(crate) trait Column {
    /// Bytes of a column of 16 rows.
    const BYTES: usize;

    /// # Safety
    /// - A column is readable at `p`; the CPU has AVX-512.
    unsafe fn load(p: *const u8) -> __m512;
}

impl Column for panel::F32 {
    const BYTES: usize = 4 * PANEL_ROWS;

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
}

impl Column for panel::F16 {
    const BYTES: usize = 2 * PANEL_ROWS;

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe { halves(p) }
    }
}

/// The panels of a pair of rows of panels: the same one twice if the pair is incomplete.
fn panels(args: &Matmul<'_>, row: usize) -> ([*const u8; 2], [Out; 2]) {
    let outs = [0, PANEL_ROWS].map(|r| Out::new(args, row + r));
    let first = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
    let has_second = outs[1].mask != 0;
    let second = first.wrapping_add(usize::from(has_second) * args.layout.panel_bytes());
    ([first, second], outs)
}

/// Compiles products over a kind of tile.
macro_rules! products {
    ($(#[$attribute:meta])* $matmul:ident, $tile:ident $(, $bound:path)?) => {
        /// Rows in panels × all tokens, written to `out`.
        ///
        /// # Safety
        /// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU
        ///   has AVX-512, and what the tile needs beyond. `args.store` is `Set`.
        $(#[$attribute])*
        pub(crate) unsafe fn $matmul$(<C: $bound>)?(args: &Matmul<'_>) {
            for row in (args.rows.start..args.rows.end).step_by(2 * PANEL_ROWS) {
                let (panels, outs) = panels(args, row);
                for token in (args.tokens.start..args.tokens.end).step_by(TILE_TOKENS) {
                    let outs = outs.map(|out| out.tokens(token - args.tokens.start));
                    // SAFETY: by the caller; a tile of at most six of the tokens.
                    unsafe {
                        match (args.tokens.end - token).min(TILE_TOKENS) {
                            1 => products!(@ $tile, 1, $($bound)?)(args, token, panels, outs),
                            2 => products!(@ $tile, 2, $($bound)?)(args, token, panels, outs),
                            3 => products!(@ $tile, 3, $($bound)?)(args, token, panels, outs),
                            4 => products!(@ $tile, 4, $($bound)?)(args, token, panels, outs),
                            5 => products!(@ $tile, 5, $($bound)?)(args, token, panels, outs),
                            _ => products!(@ $tile, TILE_TOKENS, $($bound)?)(
                                args, token, panels, outs,
                            ),
                        }
                    }
                }
            }
        }
    };
    (@ $tile:ident, $n:expr, $bound:path) => { $tile::<C, { $n }> };
    (@ $tile:ident, $n:expr,) => { $tile::<{ $n }> };
}

products!(matmul, tile, Column);
products!(
    #[target_feature(enable = "avx512f,avx512bf16")]
    bf16_products,
    bf16_tile
);

/// # Safety
/// - As [`matmul`], for `T` tokens from `token` on.
#[target_feature(enable = "avx512f")]
unsafe fn tile<C: Column, const T: usize>(
    args: &Matmul<'_>,
    token: usize,
    panels: [*const u8; 2],
    outs: [Out; 2],
) {
    let (acts, n_cols) = (&args.activations, args.layout.n_cols());
    let x: [*const f32; T] = core::array::from_fn(|t| acts.f32_row(token + t).as_ptr());
    let mut acc = [[_mm512_setzero_ps(); 2]; T];
    for start in (0..n_cols).step_by(GROUP) {
        let mut sum = [[_mm512_setzero_ps(); 2]; T];
        for col in start..n_cols.min(start + GROUP) {
            // SAFETY: the column is in the panels and rows, by the caller.
            unsafe {
                let w = panels.map(|panel| C::load(panel.add(col * C::BYTES)));
                for (sum, x) in sum.iter_mut().zip(x) {
                    let x = _mm512_set1_ps(*x.add(col));
                    *sum = [0, 1].map(|p| _mm512_fmadd_ps(x, w[p], sum[p]));
                }
            }
        }
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc = [0, 1].map(|p| _mm512_add_ps(acc[p], sum[p]));
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            outs[0].store(t, acc[0]);
            outs[1].store(t, acc[1]);
        }
    }
}

/// Pairs of bf16 as they are multiplied, or as integers.
#[derive(Clone, Copy)]
pub(crate) union Pairs {
    pub(crate) ints: __m512i,
    pub(crate) pairs: __m512bh,
}

/// # Safety
/// - As [`bf16_products`], for `T` tokens from `token` on.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn bf16_tile<const T: usize>(
    args: &Matmul<'_>,
    token: usize,
    panels: [*const u8; 2],
    outs: [Out; 2],
) {
    let acts = &args.activations;
    let x: [*const i32; T] = core::array::from_fn(|t| {
        let row = &acts.bytes[(token + t) * acts.layout.row_bytes()..];
        acts.layout.bf16(row).as_ptr().cast()
    });
    let n_pairs = args.layout.n_cols().div_ceil(2);
    let mut acc = [[_mm512_setzero_ps(); 2]; T];
    for start in (0..n_pairs).step_by(GROUP / 2) {
        let mut sum = [[_mm512_setzero_ps(); 2]; T];
        for i in start..n_pairs.min(start + GROUP / 2) {
            // SAFETY: the pair is in the panels and rows, an odd row's partner included, by the
            // caller; both kinds of vectors are plain bits.
            unsafe {
                let w = panels.map(|p| p.add(i * LINE_BYTES).cast::<__m512bh>().read_unaligned());
                for (sum, x) in sum.iter_mut().zip(x) {
                    let ints = _mm512_set1_epi32(x.add(i).read_unaligned());
                    let x = Pairs { ints }.pairs;
                    *sum = [0, 1].map(|p| _mm512_dpbf16_ps(sum[p], x, w[p]));
                }
            }
        }
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc = [0, 1].map(|p| _mm512_add_ps(acc[p], sum[p]));
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            outs[0].store(t, acc[0]);
            outs[1].store(t, acc[1]);
        }
    }
}

/// BF16 rows in panels × all tokens by `vdpbf16ps`, where the CPU has it and it computes the
/// contract's step; else as AVX2 does.
///
/// # Safety
/// - As [`matmul`].
pub(crate) unsafe fn bf16_matmul(args: &Matmul<'_>) {
    // SAFETY: by the caller; the instruction was seen to be there, and the tables of AVX-512
    // require AVX2, FMA and F16C.
    unsafe {
        if bf16_serves() {
            bf16_products(args);
        } else {
            avx2::float_matmul::<panel::Bf16>(args);
        }
    }
}

/// Whether this CPU has `vdpbf16ps`, and it computes the contract's step. Asked once.
pub(crate) fn bf16_serves() -> bool {
    /// 0 before the first call, 1 where the instruction serves, 2 where it does not.
    static SERVES: AtomicU8 = AtomicU8::new(0);
    let mut serves = SERVES.load(Ordering::Relaxed);
    if serves == 0 {
        let has = crate::CpuFeatures::detect().contains(crate::CpuFeatures::AVX512_BF16);
        // SAFETY: the CPU was just seen to have the instruction.
        serves = if has && unsafe { step_is_the_contracts() } {
            1
        } else {
            2
        };
        SERVES.store(serves, Ordering::Relaxed);
    }
    serves == 1
}

/// Compares `vdpbf16ps` with [`crate::contract::bf16_step`] on numbers of all magnitudes,
/// denormals among them.
#[target_feature(enable = "avx512f,avx512bf16")]
fn step_is_the_contracts() -> bool {
    use crate::contract::{Portable, bf16_step};
    use crate::half::bf16_to_f32;
    let mut state = 0x9e37_79b9u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let numbers = |word: u32| {
        let [a, b, c, d] = word.to_le_bytes();
        [[a, b], [c, d]].map(|half| bf16_to_f32(u16::from_le_bytes(half)))
    };
    for round in 0..300 {
        // Ordinary numbers; any but NaN and infinity; some around the denormal border.
        let (keep, set) = match round % 3 {
            0 => (0x83ff_83ff, 0x3c00_3c00),
            1 => (0xbfff_bfff, 0x0080_0080),
            _ => (0x81ff_81ff, 0),
        };
        let mut draw = || random() & keep | set;
        let (a, b) = (draw(), draw());
        let c = f32::from_bits(draw());
        let (x, y) = (
            Pairs {
                ints: _mm512_set1_epi32(a.cast_signed()),
            },
            Pairs {
                ints: _mm512_set1_epi32(b.cast_signed()),
            },
        );
        // SAFETY: both kinds of vectors are plain bits.
        let sum = unsafe { _mm512_dpbf16_ps(_mm512_set1_ps(c), x.pairs, y.pairs) };
        let expected = bf16_step::<Portable>(numbers(a), numbers(b), c);
        if _mm512_cvtss_f32(sum).to_bits() != expected.to_bits() {
            return false;
        }
    }
    true
}
