//! Types with a scale per 32 columns: one tile product per block, scaled and added in registers.

use super::tiles::{ROWS, Shape, Tiles};
use super::{PANELS, Sums, whole_tiles};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::x86_64::avx512;
use crate::x86_64::rows::{Ahead, BlockScales, Int8Rows, Out};
use crate::x86_64::unpack::{Block, UnpackedBlocks};
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
            Ahead::<PANELS>::new(args, row, g, |g| B::offsets(n_cols, 8 * g).0).part(0, 1);
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
    let mut sums = [[Aligned([[0; PANEL_ROWS]; ROWS]); 8]; 2];
    let mut scales = [BlockScales::<ROWS>::EMPTY; 2];
    let mut before: Option<Job<'_>> = None;
    let mut turn = 0;
    let n_tokens = args.tokens.end - args.tokens.start;
    for (i, token) in (0..n_tokens).step_by(ROWS).enumerate() {
        let x = x.tokens(token);
        x.tokens(ROWS).prefetch((n_tokens - token - ROWS).min(ROWS));
        // SAFETY: the tile's tokens have whole groups of scales and sums.
        unsafe { scales[i % 2].gather::<MIN>(&x, 0) };
        for (p, w) in panels.iter().enumerate() {
            let now = Job {
                x,
                n_blocks,
                w,
                scales: i % 2,
                out: Out::new(args, row + p * PANEL_ROWS).tokens(token),
                is_first: g == 0,
            };
            let [even, odd] = &mut sums;
            let (to, from) = if turn == 0 { (even, odd) } else { (odd, even) };
            // SAFETY: by the caller.
            unsafe {
                match &before {
                    Some(before) => {
                        now.step::<T, true, MIN>(
                            &mut tiles,
                            to,
                            before,
                            from,
                            &scales[before.scales],
                        );
                    }
                    None => (0..n_blocks).for_each(|b| now.multiply(&mut tiles, b, &mut to[b])),
                }
            }
            before = Some(now);
            turn = 1 - turn;
        }
    }
    if let Some(last) = &before {
        let [even, odd] = &mut sums;
        let (to, from) = if turn == 0 { (even, odd) } else { (odd, even) };
        // SAFETY: by the caller.
        unsafe { last.step::<T, false, MIN>(&mut tiles, to, last, from, &scales[last.scales]) };
    }
}

/// Sums where a tile is stored.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Aligned(Sums);

/// 16 tokens × one panel.
struct Job<'w> {
    x: Int8Rows,
    n_blocks: usize,
    w: &'w UnpackedBlocks,
    /// Which of the gathered scales are these tokens'.
    scales: usize,
    out: Out,
    is_first: bool,
}

impl Job<'_> {
    /// Multiplies this job into `to` if `MULTIPLY`, and scales and adds the sums `from` of the
    /// job `before`, block by block: a tile's sums are long in memory when they are read.
    ///
    /// # Safety
    /// - As [`group`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn step<T: Tiles, const MULTIPLY: bool, const MIN: bool>(
        &self,
        tiles: &mut T,
        to: &mut [Aligned; 8],
        before: &Self,
        from: &[Aligned; 8],
        scales: &BlockScales<ROWS>,
    ) {
        let mut acc = [_mm512_setzero_ps(); ROWS];
        if !before.is_first {
            for (t, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the group before wrote these outputs.
                *acc = unsafe { before.out.load(t) };
            }
        }
        for b in 0..before.n_blocks {
            // SAFETY: the block lies in the rows and lines; whole, aligned vectors.
            unsafe {
                if MULTIPLY {
                    self.multiply(tiles, b, &mut to[b]);
                }
                let d_w = _mm512_load_ps(before.w.d[b].as_ptr());
                let m_w = _mm512_load_ps(before.w.m[b].as_ptr());
                for (t, acc) in acc.iter_mut().enumerate() {
                    let d = _mm512_set1_ps(scales.d[t][b]);
                    let s = _mm512_cvtepi32_ps(_mm512_load_si512(from[b].0[t].as_ptr().cast()));
                    *acc = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), s, *acc);
                    if MIN {
                        let m = _mm512_mul_ps(m_w, d);
                        *acc = _mm512_fmadd_ps(m, _mm512_set1_ps(scales.sums[t][b]), *acc);
                    }
                }
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            // SAFETY: by the caller.
            unsafe { before.out.store(t, acc) };
        }
    }

    /// The product of block `b` into `sums`. Two sets of registers take turns.
    ///
    /// # Safety
    /// - The block lies in the rows of 16 tokens and in the lines.
    #[inline(always)]
    unsafe fn multiply<T: Tiles>(&self, tiles: &mut T, b: usize, sums: &mut Aligned) {
        let x = self.x.q.wrapping_add(32 * b);
        let lines = self.w.lines[8 * b..8 * b + 8].as_ptr();
        // SAFETY: by the caller; `sums` has 16 rows of 64 bytes.
        unsafe {
            if b.is_multiple_of(2) {
                tiles.zero::<0>();
                tiles.load::<4>(x, self.x.stride);
                tiles.load::<6>(lines.cast(), LINE_BYTES);
                tiles.add_signed::<0, 4, 6>();
                tiles.store::<0>(sums.0.as_mut_ptr().cast(), LINE_BYTES);
            } else {
                tiles.zero::<1>();
                tiles.load::<5>(x, self.x.stride);
                tiles.load::<7>(lines.cast(), LINE_BYTES);
                tiles.add_signed::<1, 5, 7>();
                tiles.store::<1>(sums.0.as_mut_ptr().cast(), LINE_BYTES);
            }
        }
    }
}
