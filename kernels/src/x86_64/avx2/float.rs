//! Products of float weights: a step is a column, or a pair of columns in BF16, of 16 rows.

use super::{Floats, store_out};
use crate::args::{Activations, Matmul};
use crate::contract::GROUP;
use crate::panel::{self, LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::Out;
use crate::x86_64::fma3::flush;
use core::arch::x86_64::*;
use core::ops::Range;

/// Tokens of a tile of one panel: 12 sums, two vectors of weights and a broadcast fill the
/// registers (in BF16, which has twice the weights, some lie in memory). Two tokens take two
/// panels, and one takes four: every addition waits four cycles for the one before, and two can
/// begin in each.
const TILE_TOKENS: usize = 6;
/// Panels that one token is multiplied with side by side.
const TILE_PANELS: usize = 4;

/// A float type, as steps of 16 rows.
pub(crate) trait Column {
    /// Columns of a step.
    const COLS: usize;
    /// Bytes of 16 rows of them.
    const BYTES: usize;
    /// Weights of a step.
    type Weights: Copy;
    /// A token's activations of a step.
    type Input: Copy;

    /// A token's row of activations.
    fn row(activations: &Activations<'_>, token: usize) -> *const u8;

    /// # Safety
    /// - Step `i` is in the panel; the CPU has AVX2, FMA and F16C.
    unsafe fn weights(panel: *const u8, i: usize) -> Self::Weights;

    /// # Safety
    /// - Step `i` is in the row; the CPU has the features.
    unsafe fn input(row: *const u8, i: usize) -> Self::Input;

    /// # Safety
    /// - The CPU has the features.
    unsafe fn add(sum: Floats, x: Self::Input, w: Self::Weights) -> Floats;
}

/// Implements what F32 and F16 share.
macro_rules! single_columns {
    ($($format:ty, $bytes:expr, $load:expr;)*) => {$(
        impl Column for $format {
            const COLS: usize = 1;
            const BYTES: usize = $bytes * PANEL_ROWS;
            type Weights = Floats;
            type Input = __m256;

            fn row(activations: &Activations<'_>, token: usize) -> *const u8 {
                activations.f32_row(token).as_ptr().cast()
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            unsafe fn weights(panel: *const u8, i: usize) -> Floats {
                let p = panel.wrapping_add(i * Self::BYTES);
                // SAFETY: by the caller.
                [0, 1].map(|half| unsafe { $load(p.wrapping_add(half * Self::BYTES / 2)) })
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            unsafe fn input(row: *const u8, i: usize) -> __m256 {
                // SAFETY: by the caller.
                _mm256_set1_ps(unsafe { *row.cast::<f32>().add(i) })
            }

            #[target_feature(enable = "avx2,fma,f16c")]
            #[inline]
            unsafe fn add(sum: Floats, x: __m256, w: Floats) -> Floats {
                [0, 1].map(|half| _mm256_fmadd_ps(x, w[half], sum[half]))
            }
        }
    )*};
}

single_columns! {
    panel::F32, 4, |p: *const u8| _mm256_loadu_ps(p.cast());
    panel::F16, 2, |p: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
}

/// The first and the second number of each pair of BF16, without denormals.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn of_pairs(pairs: __m256i) -> [__m256; 2] {
    let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    [
        flush(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
        flush(_mm256_castsi256_ps(_mm256_and_si256(pairs, high))),
    ]
}

impl Column for panel::Bf16 {
    const COLS: usize = 2;
    const BYTES: usize = LINE_BYTES;
    type Weights = [[__m256; 2]; 2];
    type Input = [__m256; 2];

    fn row(activations: &Activations<'_>, token: usize) -> *const u8 {
        let layout = &activations.layout;
        let row = &activations.bytes[token * layout.row_bytes()..];
        layout.bf16(row).as_ptr().cast()
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn weights(panel: *const u8, i: usize) -> Self::Weights {
        let p = panel.wrapping_add(i * Self::BYTES).cast::<__m256i>();
        // SAFETY: by the caller.
        [0, 1].map(|half| of_pairs(unsafe { _mm256_loadu_si256(p.wrapping_add(half)) }))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn input(row: *const u8, i: usize) -> Self::Input {
        // SAFETY: by the caller; an odd row's last partner is there.
        of_pairs(_mm256_set1_epi32(unsafe {
            row.cast::<i32>().add(i).read_unaligned()
        }))
    }

    /// [`crate::contract::bf16_step`]: the second product first.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn add(sum: Floats, x: Self::Input, w: Self::Weights) -> Floats {
        [0, 1].map(|half| {
            let inner = flush(_mm256_fmadd_ps(x[1], w[half][1], sum[half]));
            flush(_mm256_fmadd_ps(x[0], w[half][0], inner))
        })
    }
}

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has AVX2,
///   FMA and F16C. `args.store` is `Set`.
pub(crate) unsafe fn matmul<C: Column>(args: &Matmul<'_>) {
    for row in (args.rows.start..args.rows.end).step_by(TILE_PANELS * PANEL_ROWS) {
        let end = args.rows.end.min(row + TILE_PANELS * PANEL_ROWS);
        let mut token = args.tokens.start;
        while token < args.tokens.end {
            let rows = row..end;
            // SAFETY: by the caller; at least `T` tokens are left.
            token += unsafe {
                match args.tokens.end - token {
                    1 => tiles::<C, 1, TILE_PANELS>(args, token, rows),
                    2..TILE_TOKENS => tiles::<C, 2, 2>(args, token, rows),
                    _ => tiles::<C, TILE_TOKENS, 1>(args, token, rows),
                }
            };
        }
    }
}

/// `T` tokens from `token` on × some rows, `P` panels side by side; where there are fewer, the first
/// stands in and is not written. Returns `T`.
///
/// # Safety
/// - As [`matmul`], for `T` tokens from `token` on, and rows from a multiple of 16 on.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<C: Column, const T: usize, const P: usize>(
    args: &Matmul<'_>,
    token: usize,
    rows: Range<usize>,
) -> usize {
    let panel_bytes = args.layout.panel_bytes();
    let n_steps = args.layout.n_cols().div_ceil(C::COLS);
    let x: [*const u8; T] = core::array::from_fn(|t| C::row(&args.activations, token + t));
    for row in rows.step_by(P * PANEL_ROWS) {
        let outs: [Out; P] = core::array::from_fn(|p| Out::new(args, row + p * PANEL_ROWS));
        let first = args.panels[row / PANEL_ROWS * panel_bytes..].as_ptr();
        let mut panels = [first; P];
        for (p, panel) in panels.iter_mut().enumerate() {
            let is_there = outs[p].mask != 0;
            *panel = panel.wrapping_add(usize::from(is_there) * p * panel_bytes);
        }
        let mut acc = [[[_mm256_setzero_ps(); 2]; P]; T];
        for start in (0..n_steps).step_by(GROUP / C::COLS) {
            let end = n_steps.min(start + GROUP / C::COLS);
            // SAFETY: the steps are in panels and rows, by the caller.
            let sum = unsafe { group::<C, T, P>(panels, x, start..end) };
            for (acc, sum) in acc.as_flattened_mut().iter_mut().zip(sum.as_flattened()) {
                *acc = [0, 1].map(|half| _mm256_add_ps(acc[half], sum[half]));
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            for (out, acc) in outs.iter().zip(acc) {
                let out = out.tokens(token - args.tokens.start);
                // SAFETY: by the caller.
                unsafe { store_out(&out, t, *acc) };
            }
        }
    }
    T
}

/// The products of some steps, from zero.
///
/// # Safety
/// - The steps are in the panels and rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn group<C: Column, const T: usize, const P: usize>(
    panels: [*const u8; P],
    x: [*const u8; T],
    steps: Range<usize>,
) -> [[Floats; P]; T] {
    let mut sum = [[[_mm256_setzero_ps(); 2]; P]; T];
    for i in steps {
        // SAFETY: by the caller.
        unsafe {
            // One token's input stays in a register, or else one panel's weights.
            if T == 1 {
                let x = C::input(x[0], i);
                for (sum, panel) in sum[0].iter_mut().zip(panels) {
                    *sum = C::add(*sum, x, C::weights(panel, i));
                }
                continue;
            }
            let w = panels.map(|panel| C::weights(panel, i));
            for (sum, x) in sum.iter_mut().zip(x) {
                let x = C::input(x, i);
                for (sum, w) in sum.iter_mut().zip(w) {
                    *sum = C::add(*sum, x, w);
                }
            }
        }
    }
    sum
}
