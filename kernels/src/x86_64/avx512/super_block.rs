//! Products of types with exact sums over 256 columns.

use super::tile::{self, Corrections, Tile};
use super::{CHAINS, FEW, Few, split};
use super::{broadcast, broadcast_float};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::x86_64::rows::{Ahead, Int8Rows, Out, Stream};
use crate::x86_64::unpack::{
    SubBlockBytes, SuperBlock, SuperBlockKind, UnpackedSuperBlock, numbers, unpack_super_block,
};
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: SuperBlock>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe {
        // At once: to split costs as much as a few panels.
        if args.tokens.end - args.tokens.start == 1 {
            few_tokens::<B, 1>(args);
            return;
        }
        let (tiled, rest) = split(args, tile::TOKENS);
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

/// Offsets (two i16 in each lane) that apply to the sums of 16 columns in a broadcast pair: to
/// both of a sub-block of 32 columns, or to the one of sub-block `s`.
#[target_feature(enable = "avx512f")]
#[inline]
fn pair(value: i16, sub_cols: usize, s: usize) -> __m512i {
    let value = u32::from(value.cast_unsigned());
    let pair = match (sub_cols, s % 2) {
        (32, _) => value | value << 16,
        (_, 0) => value,
        _ => value << 16,
    };
    _mm512_set1_epi32(pair.cast_signed())
}

/// Minima as pairs of i16, likewise.
#[target_feature(enable = "avx512f")]
#[inline]
fn min_pair(min: __m512i, sub_cols: usize, s: usize) -> __m512i {
    let upper = _mm512_slli_epi32::<16>(min);
    match (sub_cols, s % 2) {
        (32, _) => _mm512_or_si512(min, upper),
        (_, 0) => min,
        _ => upper,
    }
}

/// The product with up to `T` tokens; lines are unpacked in registers as they go.
///
/// # Safety
/// - As [`matmul`]; there are tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn few_tokens<B: SuperBlock, const T: usize>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let few = Few::<T>::new(args, false);
    let ahead = Stream::new(T, B::BYTES / 8);
    let mut scales_and_mins = [SubBlockBytes::EMPTY; 2];
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let panel = &args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..];
        let mut acc = [_mm512_setzero_ps(); T];
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
        unsafe { few.store(&acc, Out::new(args, row)) };
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
    let x = core::array::from_fn(|t| few.x[t].skip_groups(g));
    let zero = _mm512_setzero_si512();
    let (mut sums, mut min_sums) = ([[zero; 2]; T], [zero; T]);
    // Two runs a turn: sums that the loop's counter chooses would lie in memory.
    for even in (0..8).step_by(2) {
        for run in [even, even + 1] {
            ahead.ask(p.wrapping_add(B::BYTES / 8 * run), B::BYTES / 8);
            // SAFETY: the super-block is whole, and so are the groups in the rows.
            unsafe { add_run::<B, T>(&mut sums, &mut min_sums, p, run, &x, of_sub_blocks) };
        }
    }
    // SAFETY: the panel is whole; the group has a scale in each row.
    unsafe {
        let [d, dmin] = numbers::<B, __m512i>(panel, n_cols, g);
        for t in 0..T {
            let sum = _mm512_add_epi32(sums[t][0], sums[t][1]);
            let total = total::<B>(sum, min_sums[t], d, dmin);
            let d_x = broadcast_float(x[t].d);
            acc[t] = _mm512_fmadd_ps(d_x, total, acc[t]);
        }
    }
}

/// Adds the dots of 32 columns, times their scales; and their sums, times the minima. Even and odd
/// sub-blocks of one token apart: a chain of additions is not waited for.
///
/// # Safety
/// - A super-block is readable at `p`, and a group at each of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn add_run<B: SuperBlock, const T: usize>(
    sums: &mut [[__m512i; 2]; T],
    min_sums: &mut [__m512i; T],
    p: *const u8,
    run: usize,
    x: &[Int8Rows; T],
    [scales, mins]: &[SubBlockBytes; 2],
) {
    let (n_sub, lines_of_sub) = (32 / B::SUB_COLS, B::SUB_COLS / 4);
    // SAFETY: by the caller; there are so many runs and sub-blocks.
    unsafe {
        let w = B::lines::<__m512i>(p, run);
        for half in 0..n_sub {
            let s = n_sub * run + half;
            let scale: __m512i = scales.widen(s);
            let min = min_pair(mins.widen(s), B::SUB_COLS, s);
            let first = half * lines_of_sub;
            for (t, x) in x.iter().enumerate() {
                let of_run = broadcast(x.sums.add(4 * run));
                let mut dots = _mm512_setzero_si512();
                if B::OFFSET != 0 {
                    dots = _mm512_dpwssd_epi32(dots, of_run, pair(-B::OFFSET, B::SUB_COLS, s));
                }
                for (i, w) in w[first..first + lines_of_sub].iter().enumerate() {
                    let q = broadcast(x.q.add(32 * run + 4 * (first + i)));
                    dots = _mm512_dpbusd_epi32(dots, *w, q);
                }
                let sum = &mut sums[t][s % CHAINS.div_ceil(T)];
                *sum = _mm512_add_epi32(*sum, _mm512_mullo_epi32(dots, scale));
                if B::MIN {
                    min_sums[t] = _mm512_dpwssd_epi32(min_sums[t], min, of_run);
                }
            }
        }
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
pub(crate) fn scaled_less_min(sum: __m512i, min_sum: __m512i, d: __m512, dmin: __m512) -> __m512 {
    _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(min_sum), scaled(sum, d))
}

/// Unpacks super-block `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the Ice Lake set.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
pub(crate) unsafe fn unpack<B: SuperBlock, const WORDS: bool>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
    out: &mut UnpackedSuperBlock,
) {
    // SAFETY: by the caller.
    unsafe { unpack_super_block::<B, __m512i, WORDS>(panel, n_cols, g, out) };
}

const fn kind<B: SuperBlock>() -> SuperBlockKind {
    SuperBlockKind {
        unpack: unpack::<B, false>,
        start: B::start,
        sub_cols: B::SUB_COLS,
        max: B::MAX,
        offset: B::OFFSET,
        min: B::MIN,
    }
}

/// Panels that are unpacked at once. A tile's tokens are multiplied with all of them while they are
/// in the L1 cache, and so are the panels: 21 KiB are read of these.
const STRIP_PANELS: usize = 4;
type Strip = [UnpackedSuperBlock; STRIP_PANELS];

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of [`tile::TOKENS`].
#[expect(
    clippy::large_stack_arrays,
    reason = "a kernel has no other memory; stack depths are tested"
)]
#[inline(never)] // Its room on the stack is not needed for few tokens.
unsafe fn many_tokens(args: &Matmul<'_>, kind: &SuperBlockKind) {
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
    let n_tokens = args.tokens.end - args.tokens.start;
    // Not all at once: the CPU has room for a dozen or two.
    let n_parts = (n_tokens / tile::TOKENS).min(8);
    let mut corrections = [[0; _]; _];
    for (i, token) in (0..n_tokens).step_by(tile::TOKENS).enumerate() {
        if i < n_parts {
            ahead.part(i, n_parts);
        }
        let x = group.tokens(token);
        let next = token + tile::TOKENS;
        x.tokens(tile::TOKENS)
            .prefetch((n_tokens - next).min(tile::TOKENS));
        // SAFETY: the tile's tokens have whole groups, scales and sums; else by the caller.
        unsafe {
            if kind.offset != 0 {
                correct(&mut corrections, &x, kind);
            }
            let pairs = strip.as_chunks::<{ tile::PANELS }>().0;
            for (w, outs) in pairs.iter().zip(outs.as_chunks::<{ tile::PANELS }>().0) {
                if outs[0].mask != 0 {
                    let outs = outs.map(|out| out.tokens(token));
                    operands(&x, kind, &corrections, w, &outs, g == 0).add();
                }
            }
        }
    }
}

/// # Safety
/// - A group is readable at `x` for the tokens of a tile.
#[inline(always)]
unsafe fn operands(
    x: &Int8Rows,
    kind: &SuperBlockKind,
    corrections: &Corrections,
    w: &[UnpackedSuperBlock; tile::PANELS],
    outs: &[Out; tile::PANELS],
    is_first: bool,
) -> Tile {
    let n_pairs = GROUP / kind.sub_cols / 2;
    // SAFETY: by the caller.
    let numbers = |t: usize| unsafe { &*x.tokens(t).numbers() };
    let sums: *const i16 = match kind.sub_cols {
        32 => numbers(0).sums_of_32.as_ptr(),
        _ => numbers(0).sums.as_ptr(),
    };
    let write = outs.map(|out| out.mask);
    Tile {
        x: x.q,
        d: x.d,
        sums: sums.cast(),
        stride: x.stride,
        corrections,
        w,
        out: outs[0].at,
        out_stride: 4 * outs[0].stride,
        n_lines: kind.sub_cols / 4,
        n_pairs,
        n_min_pairs: if kind.min { n_pairs } else { 0 },
        fits: (0..tile::TOKENS).all(|t| kind.dots_fit(numbers(t))).into(),
        read: if is_first { [0; _] } else { write },
        write,
    }
}

/// The offset of the weights, which is taken off at the start of each dot.
///
/// # Safety
/// - A group is readable at `x` for the tokens of a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
unsafe fn correct(corrections: &mut Corrections, x: &Int8Rows, kind: &SuperBlockKind) {
    for (t, out) in corrections.iter_mut().enumerate() {
        // SAFETY: 16 sums, by the caller.
        unsafe {
            let sums = _mm256_loadu_si256(x.tokens(t).sums.cast());
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

/// `Σ min · Σ a` over a group of each panel; side by side, for a token's sums are broadcast for
/// all of them.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
pub(crate) fn min_sums<const PAIRS: usize, const P: usize>(
    pairs: &[i32; 8],
    min_pairs: [&[[i32; PANEL_ROWS]; 8]; P],
) -> [__m512i; P] {
    let mut out = [_mm512_setzero_si512(); P];
    for i in 0..PAIRS {
        let pair = _mm512_set1_epi32(pairs[i]);
        for (out, mins) in out.iter_mut().zip(min_pairs) {
            // SAFETY: minima are whole, aligned vectors.
            let mins = unsafe { _mm512_load_si512(mins[i].as_ptr().cast()) };
            *out = _mm512_dpwssd_epi32(*out, mins, pair);
        }
    }
    out
}
