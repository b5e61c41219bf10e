//! Products of types with exact sums over 256 columns.

use super::Few;
use super::products::matmul;
use super::tile::{self, Corrections, STRIP_PANELS, SuperBlockTile};
use super::{add_dots, broadcast, broadcast_float, start};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::tuning::prefetches_in_halves;
use crate::vector::rows::{Int8Rows, Out};
use crate::vector::stream::{Ahead, Stream};
use crate::vector::unpack::{
    Line, SubBlockBytes, SuperBlock, SuperBlockKind, UnpackedSuperBlock, numbers,
    unpack_super_block,
};
use core::arch::x86_64::*;

matmul!(SuperBlock);

/// The product with up to `T` tokens; lines are unpacked in registers as they go.
///
/// # Safety
/// - As [`matmul`]; there are 1 to `T` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn few_tokens<B: SuperBlock, const T: usize>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let few = Few::<T>::new(args, false);
    let ahead = Stream::new(T, B::BYTES / 8, args.prefetch);
    let mut scales_and_mins = [SubBlockBytes::EMPTY; 2];
    let starts = args.store.starts();
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = &args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..];
        let out = Out::new(args, row);
        // SAFETY: the outputs are readable if there were columns before, by the caller.
        let mut acc = unsafe { few.start(out, starts) };
        for g in 0..n_cols / GROUP {
            // SAFETY: the panel is whole, and so are the groups of the rows.
            unsafe {
                add_super_block::<B, T>(
                    &mut acc,
                    panel,
                    n_cols,
                    g,
                    &few,
                    &mut scales_and_mins,
                    ahead,
                )
            };
        }
        // SAFETY: the outputs are writable, by the caller.
        unsafe { few.store(&acc, out) };
    }
}

/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the rows have group `g`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn add_super_block<B: SuperBlock, const T: usize>(
    acc: &mut [__m512; T],
    panel: &[u8],
    n_cols: usize,
    g: usize,
    few: &Few<T>,
    of_sub_blocks: &mut [SubBlockBytes; 2],
    ahead: Stream,
) {
    let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
    let p = super_block.as_ptr();
    // SAFETY: the CPU has the features.
    unsafe { B::scale_lines::<__m512i>(super_block, of_sub_blocks) };
    let x: [_; T] = core::array::from_fn(|t| few.x[t].skip_groups(g));
    let kind = const { kind::<B>() };
    // For one token, finding out costs more than it saves.
    // SAFETY: the groups of the rows are whole, and rows are aligned: the table has checked it.
    let fits = T > 1 && x.iter().all(|x| kind.dots_fit(unsafe { &*x.numbers() }));
    let mut corrections = [[0; _]; T];
    if B::OFFSET != 0 {
        // SAFETY: as above.
        unsafe { correct(&mut corrections, &x, &kind) };
    }
    let zero = _mm512_setzero_si512();
    let (mut sums, mut min_sums) = ([zero; T], [zero; T]);
    let n_pairs = GROUP / B::SUB_COLS / 2;
    for pair in 0..n_pairs {
        // SAFETY: the super-block is whole, and so are the groups in the rows.
        unsafe {
            let dots = dots::<B, T>(p, pair, &x, &corrections, ahead);
            let [scales, mins] = &*of_sub_blocks;
            add_pairs(&mut sums, &dots, scales, pair, fits);
            if B::MIN {
                let mins = pairs(mins, pair);
                for (sum, x) in min_sums.iter_mut().zip(&x) {
                    let of_x = broadcast(minima_sums(x, B::SUB_COLS).add(4 * pair));
                    *sum = _mm512_dpwssd_epi32(*sum, mins, of_x);
                }
            }
        }
    }
    // SAFETY: the panel is whole; the group has a scale in each row.
    unsafe {
        let [d, dmin] = numbers::<B, __m512i>(panel, n_cols, g);
        for t in 0..T {
            let total = total::<B>(sums[t], min_sums[t], d, dmin);
            let d_x = broadcast_float(x[t].d);
            acc[t] = _mm512_fmadd_ps(d_x, total, acc[t]);
        }
    }
}

/// The dots of two sub-blocks with each token.
///
/// # Safety
/// - A super-block is readable at `p`, and a group at each of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn dots<B: SuperBlock, const T: usize>(
    p: *const u8,
    pair: usize,
    x: &[Int8Rows; T],
    corrections: &[[i32; 16]; T],
    ahead: Stream,
) -> [[__m512i; T]; 2] {
    let n_lines = B::SUB_COLS / 4;
    let bytes = B::BYTES * 2 * B::SUB_COLS / GROUP;
    let at = p.wrapping_add(bytes * pair);
    if !prefetches_in_halves(B::TYPE, T) {
        ahead.prefetch(at, bytes);
    }
    let mut out = [[_mm512_setzero_si512(); T]; 2];
    for (half, dots) in out.iter_mut().enumerate() {
        let s = 2 * pair + half;
        let (run, first) = (s * n_lines / 8, s * n_lines % 8);
        if prefetches_in_halves(B::TYPE, T) {
            ahead.prefetch_half(at, bytes, half);
        }
        // SAFETY: by the caller; `run` is less than the number of runs.
        unsafe {
            let w = B::lines::<__m512i>(p, run);
            if B::OFFSET != 0 {
                for (dot, corrections) in dots.iter_mut().zip(corrections) {
                    *dot = start::<T>(&corrections[s]);
                }
            }
            let x = x.map(|x| x.q.add(32 * run + 4 * first));
            add_dots::<0, T>(
                dots,
                [w[first], w[first + 1], w[first + 2], w[first + 3]],
                &x,
            );
            if n_lines == 8 {
                add_dots::<16, T>(dots, [w[4], w[5], w[6], w[7]], &x);
            }
        }
    }
    out
}

/// The numbers of two sub-blocks as a pair of i16.
///
/// # Safety
/// - The CPU has the features.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn pairs(numbers: &SubBlockBytes, pair: usize) -> __m512i {
    // SAFETY: by the caller.
    unsafe {
        numbers
            .widen::<__m512i>(2 * pair)
            .pair(numbers.widen(2 * pair + 1))
    }
}

/// Adds dots of two sub-blocks times their scales; at once, if all fit into 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn add_pairs<const T: usize>(
    sums: &mut [__m512i; T],
    [even, odd]: &[[__m512i; T]; 2],
    scales: &SubBlockBytes,
    pair: usize,
    fits: bool,
) {
    // SAFETY: only callers with the features call this.
    let scale = |s| unsafe { scales.widen::<__m512i>(s) };
    let (lower, upper) = (scale(2 * pair), scale(2 * pair + 1));
    if fits {
        let scales = lower.pair(upper);
        for (sum, (even, odd)) in sums.iter_mut().zip(even.iter().zip(odd)) {
            *sum = _mm512_dpwssd_epi32(*sum, even.pair(*odd), scales);
        }
        return;
    }
    for (sum, (even, odd)) in sums.iter_mut().zip(even.iter().zip(odd)) {
        let products = _mm512_add_epi32(
            _mm512_mullo_epi32(*even, lower),
            _mm512_mullo_epi32(*odd, upper),
        );
        *sum = _mm512_add_epi32(*sum, products);
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn total<B: SuperBlock>(sum: __m512i, min_sum: __m512i, d: __m512, dmin: __m512) -> __m512 {
    if B::MIN {
        scaled_less_min(sum, min_sum, d, dmin)
    } else {
        scaled(sum, d)
    }
}

/// `fma(d, f32(sum), 0)`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn scaled(sum: __m512i, d: __m512) -> __m512 {
    _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum), _mm512_setzero_ps())
}

/// `fma(-dmin, f32(min_sum), fma(d, f32(sum), 0))`.
#[target_feature(enable = "avx512f")]
#[inline]
fn scaled_less_min(sum: __m512i, min_sum: __m512i, d: __m512, dmin: __m512) -> __m512 {
    _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(min_sum), scaled(sum, d))
}

/// Unpacks super-block `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the Ice Lake set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn unpack<B: SuperBlock>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
    out: &mut UnpackedSuperBlock,
) {
    // SAFETY: by the caller.
    unsafe { unpack_super_block::<B, __m512i, false>(panel, n_cols, g, out) };
}

const fn kind<B: SuperBlock>() -> SuperBlockKind {
    SuperBlockKind {
        unpack: unpack::<B>,
        start: B::start,
        sub_cols: B::SUB_COLS,
        max: B::MAX,
        offset: B::OFFSET,
        min: B::MIN,
        most: SuperBlockKind::most(B::MAX, B::OFFSET, B::SUB_COLS),
    }
}

type Strip = [UnpackedSuperBlock; STRIP_PANELS];

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of [`tile::TOKENS`].
unsafe fn many_tokens<B: SuperBlock>(args: &Matmul<'_>) {
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
unsafe fn strips(args: &Matmul<'_>, kind: &SuperBlockKind) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let mut strip = [const { UnpackedSuperBlock::EMPTY }; STRIP_PANELS];
    for row in (args.rows.start..args.rows.end).step_by(STRIP_PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(STRIP_PANELS);
        for g in 0..n_cols / GROUP {
            for (p, unpacked) in strip[..n_panels].iter_mut().enumerate() {
                let panel = &args.panels[(row / PANEL_ROWS + p) * panel_bytes..];
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn tiles(args: &Matmul<'_>, row: usize, g: usize, kind: &SuperBlockKind, strip: &Strip) {
    let group = Int8Rows::new(args, args.tokens.start, false).skip_groups(g);
    let outs: [_; STRIP_PANELS] = core::array::from_fn(|p| Out::new(args, row + p * PANEL_ROWS));
    let ahead = Ahead::<STRIP_PANELS>::new(args, row, g, |g| (kind.start)(args.layout.n_cols(), g));
    let (n_tokens, n_cols) = (args.tokens.end - args.tokens.start, args.layout.n_cols());
    // Not all at once: the CPU has room for a dozen or two.
    let n_parts = (n_tokens / tile::TOKENS).min(8);
    let mut corrections: Corrections = [[0; _]; _];
    let n_pairs = GROUP / kind.sub_cols / 2;
    let mut tile = SuperBlockTile {
        x: group.q,
        d: group.d,
        sums: group.sums,
        stride: group.stride,
        corrections: &raw const corrections,
        w: strip.as_ptr().cast(),
        out: outs[0].at,
        out_stride: 4 * outs[0].stride,
        n_lines: kind.sub_cols / 4,
        n_pairs,
        n_min_pairs: if kind.min { n_pairs } else { 0 },
        scaling: 0,
        read: [0; _],
        write: [0; _],
    };
    for (i, token) in (0..n_tokens).step_by(tile::TOKENS).enumerate() {
        if i < n_parts {
            ahead.part(i, n_parts);
            let n_groups = n_cols.div_ceil(GROUP);
            args.prefetch_beside(row, STRIP_PANELS, g * n_parts + i, n_groups * n_parts);
        }
        let x = core::array::from_fn(|t| group.tokens(token + t));
        let next = token + tile::TOKENS;
        (group.tokens(next)).prefetch((n_tokens - next).min(tile::TOKENS));
        // SAFETY: the tile's tokens have whole groups, scales and sums, in rows that are aligned: the
        // table has checked it; else by the caller.
        unsafe {
            if kind.offset != 0 {
                correct(&mut corrections, &x, kind);
                tile.corrections = &raw const corrections;
            }
            (tile.x, tile.d, tile.sums) = (x[0].q, x[0].d, minima_sums(&x[0], kind.sub_cols));
            let fits = x.iter().all(|x| kind.dots_fit(&*x.numbers()));
            tile.scaling = tile::scaling(fits);
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

/// The offset of the weights, which is taken off at the start of each dot.
///
/// # Safety
/// - A group is readable at each of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn correct<const T: usize>(
    corrections: &mut [[i32; 16]; T],
    x: &[Int8Rows; T],
    kind: &SuperBlockKind,
) {
    for (out, x) in corrections.iter_mut().zip(x) {
        // SAFETY: 16 sums, by the caller.
        unsafe {
            let sums = _mm256_loadu_si256(x.sums.cast());
            let offset = _mm256_set1_epi16(-kind.offset);
            if kind.sub_cols == 32 {
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_madd_epi16(sums, offset));
            } else {
                let (sums, offset) = (_mm512_cvtepi16_epi32(sums), _mm512_cvtepi16_epi32(offset));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_mullo_epi32(sums, offset));
            }
        }
    }
}

/// Sums of a group over as many columns as have a minimum.
///
/// # Safety
/// - A group is readable at `x`.
#[inline(always)]
unsafe fn minima_sums(x: &Int8Rows, sub_cols: usize) -> *const u8 {
    let numbers = x.numbers();
    // SAFETY: by the caller.
    unsafe {
        match sub_cols {
            32 => (&raw const (*numbers).sums_of_32).cast(),
            _ => (&raw const (*numbers).sums).cast(),
        }
    }
}
