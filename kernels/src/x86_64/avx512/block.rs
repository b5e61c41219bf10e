//! Products of types with a scale per 32 columns.

use super::Few;
use super::products::{FEW, matmul};
use super::tile::{self, BlockTile, STRIP_PANELS};
use super::{add_dots, halves, start};
use crate::activation::{BLOCK_COLS, blocks_in_group};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{PANEL_ROWS, WeightType};
use crate::tuning::prefetches_in_halves;
use crate::vector::rows::{BlockScales, Int8Rows, Out};
use crate::vector::stream::{Ahead, Stream};
use crate::vector::unpack::{Block, BlockKind, UnpackedBlocks, unpack_blocks};
use core::arch::x86_64::*;

/// Sums that are computed side by side at least: each addition waits for the one before.
const CHAINS: usize = 2;

matmul!(Block);

/// The product with up to `T` tokens; lines are unpacked in registers as they go.
///
/// # Safety
/// - As [`matmul`]; there are 1 to `T` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn few_tokens<B: Block, const T: usize>(args: &Matmul<'_>) {
    if T > 1 && B::SHARED {
        // SAFETY: by the caller.
        return unsafe { few_by_kind(args, B::BYTES, &kind::<B>()) };
    }
    let n_cols = args.layout.n_cols();
    let few = Few::<T>::new(args, true);
    let ahead = Stream::new(T, B::BYTES, args.prefetch);
    let mut scales = BlockScales::EMPTY;
    let starts = args.store.starts();
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
        let out = Out::new(args, row);
        // SAFETY: the outputs are readable if there were columns before, by the caller.
        let mut acc = unsafe { few.start(out, starts) };
        for g in 0..n_cols.div_ceil(GROUP) {
            let x = core::array::from_fn(|t| few.x[t].skip_blocks(8 * g));
            // SAFETY: rows have whole groups of scales and sums.
            unsafe { scales.gather(&x, B::OFFSET, B::MIN) };
            for b in 0..blocks_in_group(n_cols, g) {
                let index = 8 * g + b;
                let at = panel.wrapping_add(index * B::BYTES);
                if !prefetches_in_halves(B::TYPE, T) {
                    ahead.prefetch(at, B::BYTES);
                }
                let prefetch = |half| ahead.prefetch_half(at, B::BYTES, half);
                let (numbers, lines) = B::offsets(n_cols, index);
                let x = x.map(|x| x.q.wrapping_add(BLOCK_COLS * b));
                // SAFETY: block `index` is in the panel and in the rows, by the caller.
                unsafe {
                    let w = [panel.add(numbers), panel.add(lines)];
                    add_block::<B, T>(&mut acc, w, &x, &scales, b, prefetch);
                }
            }
        }
        // SAFETY: the outputs are writable, by the caller.
        unsafe { few.store(&acc, out) };
    }
}

/// Whether lines need next to no unpacking.
const fn is_lean(ty: WeightType) -> bool {
    matches!(ty, WeightType::Q4_0 | WeightType::Q8_0)
}

/// Adds the products of block `b` of a group; calls `prefetch` before either half, where there are halves.
///
/// # Safety
/// - Its numbers and its lines are readable at `w`, and its codes at each of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn add_block<B: Block, const T: usize>(
    acc: &mut [__m512; T],
    [numbers, lines]: [*const u8; 2],
    x: &[*const u8; T],
    scales: &BlockScales<T>,
    b: usize,
    prefetch: impl Fn(usize),
) {
    let zero = _mm512_setzero_si512();
    if prefetches_in_halves(B::TYPE, T) {
        prefetch(0);
    }
    // SAFETY: by the caller.
    unsafe {
        let mut w = B::lines::<__m512i>(lines);
        let d_w = B::scales::<__m512i>(numbers);
        let mut dots = [[zero; T]; CHAINS];
        if B::OFFSET != 0 {
            for (dot, correction) in dots[0].iter_mut().zip(&scales.correction) {
                *dot = start::<T>(&correction[b]);
            }
        }
        add_dots::<0, T>(&mut dots[0], [w[0], w[1], w[2], w[3]], x);
        // Several tokens' sums are chains enough for types that unpack much in between.
        let chain = usize::from(T < CHAINS || is_lean(B::TYPE));
        if prefetches_in_halves(B::TYPE, T) {
            prefetch(1);
            w = B::lines(lines);
        }
        add_dots::<16, T>(&mut dots[chain], [w[4], w[5], w[6], w[7]], x);
        for (t, acc) in acc.iter_mut().enumerate() {
            let dots = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0][t], dots[1][t]));
            let d = _mm512_set1_ps(scales.d[t][b]);
            *acc = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), dots, *acc);
            if B::MIN {
                let m = halves(numbers.add(2 * PANEL_ROWS));
                let sum = _mm512_set1_ps(scales.sums[t][b]);
                *acc = _mm512_fmadd_ps(_mm512_mul_ps(m, d), sum, *acc);
            }
        }
    }
}

/// The product with up to [`FEW`] tokens of a type without minima: a group is unpacked into memory first.
///
/// # Safety
/// - As [`matmul`]; there are 1 to [`FEW`] tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline(never)] // One function for all types.
unsafe fn few_by_kind(args: &Matmul<'_>, block_bytes: usize, kind: &BlockKind) {
    const T: usize = FEW;
    let n_cols = args.layout.n_cols();
    let few = Few::<T>::new(args, true);
    let ahead = Stream::new(T, block_bytes, args.prefetch);
    let (mut w, mut scales) = (UnpackedBlocks::EMPTY, BlockScales::EMPTY);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
        let out = Out::new(args, row);
        // SAFETY: the outputs are readable if there were columns before, by the caller.
        let mut acc = unsafe { few.start(out, args.store.starts()) };
        for g in 0..n_cols.div_ceil(GROUP) {
            let x = core::array::from_fn(|t| few.x[t].skip_blocks(8 * g));
            // SAFETY: rows have whole groups of scales and sums; the panel is whole.
            unsafe {
                scales.gather(&x, kind.offset, false);
                (kind.unpack)(panel, n_cols, g, &mut w);
            }
            for b in 0..blocks_in_group(n_cols, g) {
                ahead.prefetch(panel.wrapping_add((8 * g + b) * block_bytes), block_bytes);
                let x = x.map(|x| x.q.wrapping_add(BLOCK_COLS * b));
                let lines = &w.lines[8 * b..][..8];
                // SAFETY: the block's codes are at each of `x`, by the caller.
                unsafe {
                    let line = |i: usize| _mm512_load_si512(lines[i].as_ptr().cast());
                    let mut dots = [_mm512_setzero_si512(); T];
                    for (dot, correction) in dots.iter_mut().zip(&scales.correction) {
                        *dot = start::<T>(&correction[b]);
                    }
                    add_dots::<0, T>(&mut dots, [line(0), line(1), line(2), line(3)], &x);
                    add_dots::<16, T>(&mut dots, [line(4), line(5), line(6), line(7)], &x);
                    let d_w = _mm512_load_ps(w.d[b].as_ptr());
                    for (t, acc) in acc.iter_mut().enumerate() {
                        let d = _mm512_mul_ps(d_w, _mm512_set1_ps(scales.d[t][b]));
                        *acc = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(dots[t]), *acc);
                    }
                }
            }
        }
        // SAFETY: the outputs are writable, by the caller.
        unsafe { few.store(&acc, out) };
    }
}

/// Unpacks group `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the Ice Lake set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
pub(crate) unsafe fn unpack<B: Block>(
    panel: *const u8,
    n_cols: usize,
    g: usize,
    out: &mut UnpackedBlocks,
) {
    // SAFETY: by the caller.
    unsafe { unpack_blocks::<B, __m512i>(panel, n_cols, g, out) };
}

pub(crate) const fn kind<B: Block>() -> BlockKind {
    BlockKind {
        unpack: unpack::<B>,
        offsets: B::offsets,
        max: B::MAX,
        offset: B::OFFSET,
        min: B::MIN,
    }
}

type Strip = [UnpackedBlocks; STRIP_PANELS];

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of [`tile::TOKENS`].
unsafe fn many_tokens<B: Block>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe { strips(args, &kind::<B>()) }
}

/// # Safety
/// - As [`many_tokens`].
#[expect(
    clippy::large_stack_arrays,
    reason = "a kernel has no other memory; stack depths are tested"
)]
#[inline(never)] // Its room on the stack is not needed for few tokens.
unsafe fn strips(args: &Matmul<'_>, kind: &BlockKind) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let mut strip = [const { UnpackedBlocks::EMPTY }; STRIP_PANELS];
    for row in (args.rows.start..args.rows.end).step_by(STRIP_PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(STRIP_PANELS);
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in strip[..n_panels].iter_mut().enumerate() {
                let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                // SAFETY: by the caller.
                unsafe { (kind.unpack)(panel, n_cols, g, unpacked) };
            }
            // SAFETY: by the caller.
            unsafe { tiles(args, row, g, kind, &strip) };
        }
    }
}

/// Adds the products of a group of the panels from `row` on to the outputs of all tokens.
///
/// # Safety
/// - As [`many_tokens`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tiles(args: &Matmul<'_>, row: usize, g: usize, kind: &BlockKind, strip: &Strip) {
    let n_cols = args.layout.n_cols();
    let group = Int8Rows::new(args, args.tokens.start, true).skip_blocks(8 * g);
    let outs: [_; STRIP_PANELS] = core::array::from_fn(|p| Out::new(args, row + p * PANEL_ROWS));
    let ahead = Ahead::<STRIP_PANELS>::new(args, row, g, |g| (kind.offsets)(n_cols, 8 * g).0);
    let n_tokens = args.tokens.end - args.tokens.start;
    // Not all at once: the CPU has room for a dozen or two.
    let n_parts = (n_tokens / tile::TOKENS).min(8);
    let mut scales = BlockScales::EMPTY;
    let mut tile = BlockTile {
        x: group.q,
        stride: group.stride,
        scales: &raw const scales,
        w: strip.as_ptr().cast(),
        out: outs[0].at,
        out_stride: 4 * outs[0].stride,
        n_blocks: blocks_in_group(n_cols, g),
        has_min: kind.min.into(),
        read: [0; _],
        write: [0; _],
    };
    for (i, token) in (0..n_tokens).step_by(tile::TOKENS).enumerate() {
        if i < n_parts {
            ahead.part(i, n_parts);
            let n_groups = n_cols.div_ceil(GROUP);
            args.prefetch_beside(row, STRIP_PANELS, g * n_parts + i, n_groups * n_parts);
        }
        let next = token + tile::TOKENS;
        (group.tokens(next)).prefetch((n_tokens - next).min(tile::TOKENS));
        let x = core::array::from_fn(|t| group.tokens(token + t));
        // SAFETY: the tile's tokens have whole groups of scales and sums; else by the caller.
        unsafe {
            scales.gather(&x, kind.offset, kind.min);
            (tile.x, tile.scales) = (x[0].q, &raw const scales);
            let panels = strip.as_chunks().0.iter().zip(outs.as_chunks().0);
            for (w, outs) in panels {
                tile.write = outs.map(|out| out.mask);
                if tile.write[0] != 0 {
                    tile.read = match g == 0 && args.store.starts() {
                        true => [0; _],
                        false => tile.write,
                    };
                    (tile.w, tile.out) = (w, outs[0].tokens(token).at);
                    tile.add();
                }
            }
        }
    }
}
