//! Types with a scale per 32 columns: one tile product per block, scaled and added in registers.

use super::tiles::{ROWS, Shape, Tiles};
use super::{PANELS, Sums, whole_tiles};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::x86_64::avx512::{self, Block, Int8Rows, Out, UnpackedBlocks};
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`; true.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: Block, T: Tiles>(args: &Matmul<'_>) -> bool {
    let [tiles, rest] = whole_tiles(args);
    if tiles.tokens.start < tiles.tokens.end {
        // SAFETY: by the caller.
        unsafe { strips::<B, T>(&tiles) };
    }
    // SAFETY: by the caller.
    unsafe { avx512::block_matmul::<B>(&rest) }
}

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of 16.
#[expect(
    clippy::large_stack_arrays,
    reason = "a strip is unpacked where it is used; where tiles are, stacks are of megabytes"
)]
unsafe fn strips<B: Block, T: Tiles>(args: &Matmul<'_>) {
    let (n_cols, panel_bytes) = (args.layout.n_cols(), args.layout.panel_bytes());
    let mut unpacked = [UnpackedBlocks::EMPTY; PANELS];
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in unpacked[..n_panels].iter_mut().enumerate() {
                let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                // SAFETY: by the caller.
                unsafe {
                    avx512::unpack_blocks::<B>(panel, n_cols, g, unpacked);
                    make_signed(unpacked, B::OFFSET);
                }
            }
            // SAFETY: by the caller.
            unsafe {
                match B::MIN {
                    true => group::<T, true>(args, row, g, &unpacked[..n_panels]),
                    false => group::<T, false>(args, row, g, &unpacked[..n_panels]),
                }
            }
        }
    }
}

/// Takes the offset off all codes.
#[target_feature(enable = "avx512f,avx512bw")]
fn make_signed(unpacked: &mut UnpackedBlocks, offset: i16) {
    let offset = _mm512_set1_epi8(offset.to_le_bytes()[0].cast_signed());
    for line in &mut unpacked.lines {
        let p = line.as_mut_ptr().cast();
        // SAFETY: a line has 64 bytes and is aligned.
        unsafe { _mm512_store_si512(p, _mm512_sub_epi8(_mm512_load_si512(p), offset)) };
    }
}

/// Adds the products of a group of some panels to the outputs of all tokens.
///
/// # Safety
/// - As [`strips`], for the rows of `panels` from `row` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn group<T: Tiles, const MIN: bool>(
    args: &Matmul<'_>,
    row: usize,
    g: usize,
    panels: &[UnpackedBlocks],
) {
    let n_blocks = ((args.layout.n_cols() - g * GROUP) / 32).min(8);
    let shape = Shape {
        a_row_bytes: 32,
        b_rows: 8,
    };
    // SAFETY: by the caller.
    let mut tiles = unsafe { T::configure(shape) };
    let x = Int8Rows::new(args, args.tokens.start, true).skip(g * GROUP, 8 * g);
    for token in (0..args.tokens.end - args.tokens.start).step_by(ROWS) {
        let x = x.tokens(token);
        // SAFETY: the tile's tokens have whole groups of scales and sums.
        let scales = unsafe { Scales::gather::<MIN>(&x) };
        for (p, w) in panels.iter().enumerate() {
            let out = Out::new(args, row + p * PANEL_ROWS).tokens(token);
            // SAFETY: by the caller.
            unsafe { tile::<T, MIN>(&mut tiles, &x, &scales, w, out, n_blocks, g == 0) };
        }
    }
}

/// Scales and sums of a group of 16 tokens, close together.
#[repr(C, align(64))]
struct Scales {
    d: [[f32; 8]; ROWS],
    /// Sums of the codes of each block.
    sums: [[f32; 8]; ROWS],
}

impl Scales {
    /// # Safety
    /// - A group is readable at `x` for 16 tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn gather<const MIN: bool>(x: &Int8Rows) -> Self {
        let mut out = Self {
            d: [[0.0; 8]; ROWS],
            sums: [[0.0; 8]; ROWS],
        };
        for t in 0..ROWS {
            let x = x.tokens(t);
            // SAFETY: eight scales and 16 sums, by the caller.
            unsafe {
                _mm256_storeu_ps(out.d[t].as_mut_ptr(), _mm256_loadu_ps(x.d.cast()));
                if MIN {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let sums = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
                    _mm256_storeu_ps(out.sums[t].as_mut_ptr(), _mm256_cvtepi32_ps(sums));
                }
            }
        }
        out
    }
}

/// 16 tokens × one panel.
///
/// # Safety
/// - As [`group`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn tile<T: Tiles, const MIN: bool>(
    tiles: &mut T,
    x: &Int8Rows,
    scales: &Scales,
    w: &UnpackedBlocks,
    out: Out,
    n_blocks: usize,
    is_first: bool,
) {
    let mut acc = [_mm512_setzero_ps(); ROWS];
    if !is_first {
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the group before wrote these outputs.
            *acc = unsafe { out.load(t) };
        }
    }
    let mut sums: [Aligned; 2] = [Aligned([[0; PANEL_ROWS]; ROWS]); 2];
    // SAFETY: block 0 lies in the rows and lines.
    unsafe { multiply(tiles, x, w, 0, &mut sums[0]) };
    for b in 0..n_blocks {
        if b + 1 < n_blocks {
            // SAFETY: the block lies in the rows and lines.
            unsafe { multiply(tiles, x, w, b + 1, &mut sums[(b + 1) % 2]) };
        }
        // SAFETY: whole, aligned vectors.
        unsafe {
            let sums = &sums[b % 2].0;
            let d_w = _mm512_load_ps(w.d[b].as_ptr());
            for t in 0..ROWS {
                let d = _mm512_set1_ps(scales.d[t][b]);
                let s = _mm512_cvtepi32_ps(_mm512_load_si512(sums[t].as_ptr().cast()));
                acc[t] = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), s, acc[t]);
                if MIN {
                    let m = _mm512_mul_ps(_mm512_load_ps(w.m[b].as_ptr()), d);
                    acc[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(scales.sums[t][b]), acc[t]);
                }
            }
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { out.store(t, acc) };
    }
}

/// Sums where a tile is stored.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Aligned(Sums);

/// The product of block `b` into `sums`. Two sets of registers take turns.
///
/// # Safety
/// - The block lies in the rows of 16 tokens and in the lines.
#[inline(always)]
unsafe fn multiply<T: Tiles>(
    tiles: &mut T,
    x: &Int8Rows,
    w: &UnpackedBlocks,
    b: usize,
    sums: &mut Aligned,
) {
    let (a, lines) = (x.q.wrapping_add(32 * b), w.lines[8 * b..8 * b + 8].as_ptr());
    // SAFETY: by the caller; `sums` has 16 rows of 64 bytes.
    unsafe {
        if b.is_multiple_of(2) {
            tiles.zero::<0>();
            tiles.load::<4>(a, x.stride);
            tiles.load::<6>(lines.cast(), LINE_BYTES);
            tiles.add_signed::<0, 4, 6>();
            tiles.store::<0>(sums.0.as_mut_ptr().cast(), LINE_BYTES);
        } else {
            tiles.zero::<1>();
            tiles.load::<5>(a, x.stride);
            tiles.load::<7>(lines.cast(), LINE_BYTES);
            tiles.add_signed::<1, 5, 7>();
            tiles.store::<1>(sums.0.as_mut_ptr().cast(), LINE_BYTES);
        }
    }
}
