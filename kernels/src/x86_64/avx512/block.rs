//! Products of types with a scale per 32 columns.

use super::{CHAINS, FEW, Few, split};
use super::{TILE_PANELS, TILE_TOKENS, add_dots, broadcast, broadcast_float, for_tiles, halves};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::x86_64::rows::{Ahead, BlockScales, Int8Rows, Out, Stream};
use crate::x86_64::unpack::{Block, BlockKind, UnpackedBlocks, unpack_blocks};
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: Block>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe {
        // At once: to split costs as much as a few panels.
        if args.tokens.end - args.tokens.start == 1 {
            few_tokens::<B, 1>(args);
            return;
        }
        let (tiled, rest) = split(args, TILE_TOKENS);
        if tiled.tokens.start < tiled.tokens.end {
            many_tokens(&tiled, &kind::<B>());
        }
        for few in rest {
            match few.tokens.end - few.tokens.start {
                1 => few_tokens::<B, 1>(&few),
                _ => few_tokens::<B, FEW>(&few),
            }
        }
    }
}

/// The product with up to `T` tokens; lines are unpacked in registers as they go.
///
/// # Safety
/// - As [`matmul`]; there are tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn few_tokens<B: Block, const T: usize>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let few = Few::<T>::new(args, true);
    let ahead = Stream::new(T, B::BYTES);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let panel = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
        let mut acc = [_mm512_setzero_ps(); T];
        for index in 0..n_cols / 32 {
            // SAFETY: block `index` lies in the panel and in the rows, by the caller.
            unsafe { add_block::<B, T>(&mut acc, panel, n_cols, index, &few, ahead) };
        }
        // SAFETY: the outputs are writable, by the caller.
        unsafe { few.store(&acc, Out::new(args, row)) };
    }
}

/// # Safety
/// - Block `index` lies in the panel and in the rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn add_block<B: Block, const T: usize>(
    acc: &mut [__m512; T],
    panel: *const u8,
    n_cols: usize,
    index: usize,
    few: &Few<T>,
    ahead: Stream,
) {
    let zero = _mm512_setzero_si512();
    let (numbers, lines) = B::offsets(n_cols, index);
    ahead.ask(panel.wrapping_add(index * B::BYTES), B::BYTES);
    // SAFETY: by the caller.
    unsafe {
        let w = B::lines::<__m512i>(panel.add(lines));
        let d_w = B::scales::<__m512i>(panel.add(numbers));
        for (acc, x) in acc.iter_mut().zip(&few.x) {
            let x = x.skip_blocks(index);
            let mut dots = [zero; 2];
            if B::OFFSET != 0 {
                let [a, b] = x.sums.cast::<[i16; 2]>().read_unaligned();
                let sum = i32::from(a) + i32::from(b);
                dots[0] = _mm512_set1_epi32(sum * -i32::from(B::OFFSET));
            }
            for (i, w) in w.iter().enumerate() {
                let dots = &mut dots[i % CHAINS.div_ceil(T)];
                *dots = _mm512_dpbusd_epi32(*dots, *w, broadcast(x.q.add(4 * i)));
            }
            let dots = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
            let d = broadcast_float(x.d);
            *acc = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), dots, *acc);
            if B::MIN {
                let m = halves(panel.add(numbers + 2 * PANEL_ROWS));
                *acc = _mm512_fmadd_ps(_mm512_mul_ps(m, d), float_sum(broadcast(x.sums)), *acc);
            }
        }
    }
}

/// The sum of 32 codes from those of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
pub(crate) fn float_sum(sums: __m512i) -> __m512 {
    let sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), sums, _mm512_set1_epi16(1));
    _mm512_cvtepi32_ps(sum)
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

const fn kind<B: Block>() -> BlockKind {
    BlockKind {
        unpack: unpack::<B>,
        offsets: B::offsets,
        max: B::MAX,
        offset: B::OFFSET,
        min: B::MIN,
    }
}

/// The panels of a tile, and where their outputs go.
type Panels = [UnpackedBlocks; TILE_PANELS];
type Outs = [Out; TILE_PANELS];

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of [`TILE_TOKENS`].
unsafe fn many_tokens(args: &Matmul<'_>, kind: &BlockKind) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let mut unpacked = [UnpackedBlocks::EMPTY; TILE_PANELS];
    for row in (args.rows.start..args.rows.end).step_by(TILE_PANELS * PANEL_ROWS) {
        let outs = core::array::from_fn(|p| Out::new(args, row + p * PANEL_ROWS));
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in unpacked.iter_mut().enumerate() {
                if outs[p].mask != 0 {
                    let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                    // SAFETY: by the caller; the panel has rows to compute.
                    unsafe { (kind.unpack)(panel, n_cols, g, unpacked) };
                }
            }
            let ahead = Ahead::new(args, row, g, |g| (kind.offsets)(n_cols, 8 * g).0);
            // SAFETY: by the caller.
            unsafe {
                match kind.min {
                    true => tiles::<true>(args, g, kind.offset, ahead, &unpacked, &outs),
                    false => tiles::<false>(args, g, kind.offset, ahead, &unpacked, &outs),
                }
            }
        }
    }
}

/// Adds the products of a group of some panels to the outputs of all tokens.
///
/// # Safety
/// - As [`matmul`], for the rows of `outs`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tiles<const MIN: bool>(
    args: &Matmul<'_>,
    g: usize,
    offset: i16,
    ahead: Ahead<TILE_PANELS>,
    w: &Panels,
    outs: &Outs,
) {
    let n_blocks = ((args.layout.n_cols() - g * GROUP) / 32).min(8);
    let x = Int8Rows::new(args, args.tokens.start, true).skip_blocks(8 * g);
    // Hidden from the compiler: see [`add_dots`].
    let n_lines = core::hint::black_box(8);
    let mut scales = BlockScales::EMPTY;
    for_tiles(args, x, ahead, |x, token| {
        // SAFETY: the tile's tokens have whole groups of scales and sums; else by the caller.
        unsafe {
            scales.gather::<MIN>(&x, offset);
            let outs = outs.map(|out| out.tokens(token));
            tile::<MIN>(&x, &scales, (n_blocks, n_lines), w, &outs, g == 0);
        }
    });
}

/// # Safety
/// - As [`tiles`]; `x` and `scales` are those of the tile's tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tile<const MIN: bool>(
    x: &Int8Rows,
    scales: &BlockScales<TILE_TOKENS>,
    (n_blocks, n_lines): (usize, usize),
    w: &Panels,
    outs: &Outs,
    is_first: bool,
) {
    // SAFETY: the group before wrote these outputs.
    let mut acc: [_; TILE_TOKENS] =
        core::array::from_fn(|t| outs.map(|out| unsafe { out.running(t, is_first) }));
    // By pointer: a compiler that knew that there are at most eight blocks would unroll all of them,
    // and the CPU's store of decoded instructions is too small for that.
    for b in 0..n_blocks {
        let of_token = |numbers: &[f32; 8]| numbers.as_ptr().wrapping_add(b);
        let of_panel = |numbers: &[[f32; PANEL_ROWS]; 8]| numbers.as_ptr().wrapping_add(b);
        // SAFETY: block `b` lies in the rows, by the caller; buffers are aligned and whole.
        unsafe {
            let mut dots: [_; TILE_TOKENS] = core::array::from_fn(|t| {
                let correction = scales.correction[t].as_ptr().wrapping_add(b);
                [_mm512_set1_epi32(*correction); TILE_PANELS]
            });
            let lines = w
                .each_ref()
                .map(|w| w.lines.as_ptr().wrapping_add(8 * b).cast::<u8>());
            let x: [_; TILE_TOKENS] = core::array::from_fn(|t| x.tokens(t).q.add(32 * b));
            add_dots(&mut dots, n_lines, lines, x);
            let d_w = w.each_ref().map(|w| _mm512_load_ps(of_panel(&w.d).cast()));
            for (t, (acc, dots)) in acc.iter_mut().zip(dots).enumerate() {
                let d = _mm512_set1_ps(*of_token(&scales.d[t]));
                for ((acc, dot), d_w) in acc.iter_mut().zip(dots).zip(d_w) {
                    *acc = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), _mm512_cvtepi32_ps(dot), *acc);
                }
            }
            if MIN {
                let m_w = w.each_ref().map(|w| _mm512_load_ps(of_panel(&w.m).cast()));
                for (t, acc) in acc.iter_mut().enumerate() {
                    let d = _mm512_set1_ps(*of_token(&scales.d[t]));
                    let sum = _mm512_set1_ps(*of_token(&scales.sums[t]));
                    for (acc, m_w) in acc.iter_mut().zip(m_w) {
                        *acc = _mm512_fmadd_ps(_mm512_mul_ps(m_w, d), sum, *acc);
                    }
                }
            }
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        for (out, acc) in outs.iter().zip(acc) {
            // SAFETY: by the caller.
            unsafe { out.store(t, acc) };
        }
    }
}
