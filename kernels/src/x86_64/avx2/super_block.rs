//! Products of types with exact sums over 256 columns.

use super::{
    Floats, Ints, SIGNED, TILE_TOKENS, add_dots, ints, line, load_out, make_signed, signed,
    store_out,
};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::scalar::matmul::{Lanes, PanelProduct};
use crate::vector::rows::{Int8Rows, Out, SuperBlockScales};
use crate::vector::stream::{Ahead, Stream};
use crate::vector::unpack::{
    Line, SubBlockBytes, SuperBlock, SuperBlockKind, UnpackedSuperBlock, numbers, pairs,
    unpack_super_block,
};
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has AVX2,
///   FMA and F16C. `args.store` is `Set` or `Continue`.
pub(crate) unsafe fn matmul<B: SuperBlock>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe {
        match args.tokens.end - args.tokens.start {
            0 => {}
            1 => one_token::<B>(args),
            _ => many_tokens(args, &kind::<B>()),
        }
    }
}

/// What to subtract from codes in the dots: 0 if they are made signed.
const fn offset<B: SuperBlock>() -> i16 {
    if B::MAX == SIGNED { 0 } else { B::OFFSET }
}

/// Pairs of numbers that multiply the activations' sums: minima, or scales where codes have an
/// offset, which is taken off at the end.
const fn n_pairs<B: SuperBlock>() -> usize {
    if B::MIN || offset::<B>() != 0 {
        GROUP / B::SUB_COLS / 2
    } else {
        0
    }
}

/// # Safety
/// - As [`matmul`], for one token.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_token<B: SuperBlock>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let row_of_x = Int8Rows::new(args, args.tokens.start, false);
    let mut of_sub_blocks = [SubBlockBytes::EMPTY; 2];
    let ahead = Stream::new(1, B::BYTES / 8, args.prefetch);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = &args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..];
        let out = Out::new(args, row);
        let mut acc = [_mm256_setzero_ps(); 2];
        if !args.store.starts() {
            // SAFETY: the columns before wrote this output, by the caller.
            acc = unsafe { load_out(&out, 0) };
        }
        for g in 0..n_cols / GROUP {
            let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
            let p = super_block.as_ptr();
            // SAFETY: the CPU has the features.
            unsafe { B::scale_lines::<Ints>(super_block, &mut of_sub_blocks) };
            let [scales, mins] = &of_sub_blocks;
            let of_pairs = if B::MIN { mins } else { scales };
            // SAFETY: the CPU has the features.
            let pairs = unsafe { pairs::<Ints>(of_pairs, 2 * n_pairs::<B>()) };
            let x = row_of_x.skip_groups(g);
            let mut of_x = SuperBlockScales::<1>::EMPTY;
            let mut sums = [[_mm256_setzero_si256(); 2]];
            for run in 0..8 {
                ahead.prefetch(p.wrapping_add(B::BYTES / 8 * run), B::BYTES / 8);
                // SAFETY: the super-block is whole, and so is the group in the row.
                unsafe {
                    let mut w = B::lines::<Ints>(p, run);
                    if B::MAX == SIGNED {
                        for line in &mut w {
                            *line = signed(*line);
                        }
                    }
                    let q = [x.q.add(32 * run)];
                    add_run::<B>(&mut sums, w, q, scales, run);
                }
            }
            // SAFETY: the panel is whole; the group has scales and sums in the row.
            unsafe {
                gather::<1>(&mut of_x, &x, n_pairs::<B>());
                let numbers = numbers::<B, Ints>(panel, n_cols, g);
                let pair_sum = pair_sum(n_pairs::<B>(), &of_x.pairs[0], &pairs);
                let d_a = _mm256_set1_ps(of_x.d[0]);
                add_group(
                    &mut acc,
                    sums[0],
                    pair_sum,
                    B::MIN,
                    offset::<B>(),
                    numbers,
                    d_a,
                );
            }
        }
        // SAFETY: the output is writable, by the caller.
        unsafe { store_out(&out, 0, acc) };
    }
}

/// Adds the dots of 32 columns.
///
/// # Safety
/// - 32 columns are readable at `x`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_run<B: SuperBlock>(
    sums: &mut [Ints; 1],
    w: [Ints; 8],
    x: [*const u8; 1],
    scales: &SubBlockBytes,
    run: usize,
) {
    // SAFETY: by the caller.
    unsafe {
        if B::SUB_COLS == 32 {
            let scale = scales.widen_twice(run);
            let line = |i: usize| w[i];
            match B::MAX {
                15 => add_dots::<8, 15, 1>(sums, line, x, scale),
                31 => add_dots::<8, 31, 1>(sums, line, x, scale),
                _ => add_dots::<8, SIGNED, 1>(sums, line, x, scale),
            }
            return;
        }
        for half in 0..2 {
            let scale = scales.widen_twice(2 * run + half);
            let line = |i: usize| w[4 * half + i];
            let x = [x[0].add(16 * half)];
            match B::MAX {
                63 => add_dots::<4, 63, 1>(sums, line, x, scale),
                _ => add_dots::<4, 7, 1>(sums, line, x, scale),
            }
        }
    }
}

/// [`SuperBlockScales::gather`] for a number of pairs.
///
/// # Safety
/// - As there.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn gather<const T: usize>(scales: &mut SuperBlockScales<T>, x: &Int8Rows, n_pairs: usize) {
    // SAFETY: by the caller.
    unsafe {
        match n_pairs {
            0 => scales.gather::<0>(x),
            4 => scales.gather::<4>(x),
            _ => scales.gather::<8>(x),
        }
    }
}

/// `Σ pair · Σ a` over a group.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pair_sum(n: usize, of_x: &[i32; 8], pairs: &[[i32; PANEL_ROWS]; 8]) -> Ints {
    let mut out = [_mm256_setzero_si256(); 2];
    for (of_x, pair) in of_x.iter().zip(pairs).take(n) {
        let (of_x, pair) = (_mm256_set1_epi32(*of_x), ints(pair));
        for half in 0..2 {
            out[half] = _mm256_add_epi32(out[half], _mm256_madd_epi16(pair[half], of_x));
        }
    }
    out
}

/// `acc = fma(d_a, t, acc)`, `t` the group's total: `fma(d, f32(sum), 0)`, in types with minima
/// `fma(-dmin, f32(pair_sum), t)`; else the codes' offset is taken off the sum.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_group(
    acc: &mut Floats,
    sum: Ints,
    pair_sum: Ints,
    has_min: bool,
    offset: i16,
    [d, dmin]: [Floats; 2],
    d_a: __m256,
) {
    for half in 0..2 {
        let mut sum = sum[half];
        if offset != 0 {
            let offset = _mm256_mullo_epi32(pair_sum[half], _mm256_set1_epi32(offset.into()));
            sum = _mm256_sub_epi32(sum, offset);
        }
        let mut t = _mm256_fmadd_ps(d[half], _mm256_cvtepi32_ps(sum), _mm256_setzero_ps());
        if has_min {
            t = _mm256_fnmadd_ps(dmin[half], _mm256_cvtepi32_ps(pair_sum[half]), t);
        }
        acc[half] = _mm256_fmadd_ps(d_a, t, acc[half]);
    }
}

/// Unpacks super-block `g` of a panel; codes of 8 bits are made signed.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<B: SuperBlock>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
    out: &mut UnpackedSuperBlock,
) {
    // SAFETY: by the caller.
    unsafe { unpack_super_block::<B, Ints, true>(panel, n_cols, g, out) };
    if B::MAX == SIGNED {
        make_signed(&mut out.lines);
    }
}

const fn kind<B: SuperBlock>() -> SuperBlockKind {
    SuperBlockKind {
        unpack: unpack::<B>,
        start: B::start,
        sub_cols: B::SUB_COLS,
        max: B::MAX,
        offset: offset::<B>(),
        min: B::MIN,
        most: SuperBlockKind::most(B::MAX, B::OFFSET, B::SUB_COLS),
    }
}

/// # Safety
/// - As [`matmul`].
unsafe fn many_tokens(args: &Matmul<'_>, kind: &SuperBlockKind) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let n_tokens = args.tokens.end - args.tokens.start;
    let mut w = UnpackedSuperBlock::EMPTY;
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = &args.panels[row / PANEL_ROWS * panel_bytes..];
        let out = Out::new(args, row);
        for g in 0..n_cols / GROUP {
            let group = Group {
                ahead: Ahead::new(args, row, g, |g| (kind.start)(n_cols, g)),
                x: Int8Rows::new(args, args.tokens.start, false).skip_groups(g),
                has_min: kind.min,
                offset: kind.offset,
                is_first: g == 0 && args.store.starts(),
            };
            // SAFETY: by the caller.
            unsafe {
                (kind.unpack)(panel, n_cols, g, &mut w);
                group_products(kind.sub_cols, kind.max, n_tokens, group, &w, out);
            }
        }
    }
}

/// Adds the products of a panel with some rows to `acc`: a
/// [`PanelFn`](crate::scalar::matmul::PanelFn).
///
/// # Safety
/// - The panel is whole, the rows are of its columns, and the CPU has AVX2, FMA and F16C.
pub(crate) unsafe fn panel_product<B: SuperBlock>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    // SAFETY: by the caller.
    unsafe { panel_products(product, acc, &kind::<B>()) };
}

/// # Safety
/// - As [`panel_product`].
unsafe fn panel_products(product: &PanelProduct<'_>, acc: &mut [Lanes], kind: &SuperBlockKind) {
    let n_cols = product.n_cols;
    let mut w = UnpackedSuperBlock::EMPTY;
    for g in 0..n_cols / GROUP {
        // SAFETY: by the caller.
        unsafe { (kind.unpack)(product.panel, n_cols, g, &mut w) };
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let group = Group {
                ahead: Ahead::NONE,
                x: Int8Rows::of_row(product.layout, row, false).skip_groups(g),
                has_min: kind.min,
                offset: kind.offset,
                is_first: false,
            };
            let out = Out::of_sums(acc);
            // SAFETY: by the caller; the sums are one token's.
            unsafe { group_products(kind.sub_cols, kind.max, 1, group, &w, out) };
        }
    }
}

/// [`tiles`] of a type with `sub_cols` columns a sub-block and codes up to `max`.
///
/// # Safety
/// - As [`tiles`].
unsafe fn group_products(
    sub_cols: usize,
    max: u8,
    n_tokens: usize,
    group: Group,
    w: &UnpackedSuperBlock,
    out: Out,
) {
    // SAFETY: by the caller.
    unsafe {
        match (sub_cols, max) {
            (32, 15) => tiles::<8, 15, 4>(n_tokens, group, w, out),
            (32, 31) => tiles::<8, 31, 4>(n_tokens, group, w, out),
            (32, _) => tiles::<8, SIGNED, 0>(n_tokens, group, w, out),
            (_, 63) => tiles::<4, 63, 8>(n_tokens, group, w, out),
            (_, _) => tiles::<4, 7, 8>(n_tokens, group, w, out),
        }
    }
}

/// Adds the products of a group of a panel to the outputs of all tokens. `N`: lines of a
/// sub-block; `PAIRS`: pairs in a group.
///
/// # Safety
/// - As [`matmul`], for the rows of `out`.
unsafe fn tiles<const N: usize, const MAX: u8, const PAIRS: usize>(
    n_tokens: usize,
    mut group: Group,
    w: &UnpackedSuperBlock,
    out: Out,
) {
    let (x, mut token) = (group.x, 0);
    while token < n_tokens {
        let n = (n_tokens - token).min(TILE_TOKENS);
        group.x = x.tokens(token);
        let n_next = (n_tokens - token - n).min(TILE_TOKENS);
        group.x.tokens(n).prefetch(n_next);
        let out = &out.tokens(token);
        // SAFETY: by the caller; the tile has as many tokens as are left, at most four.
        unsafe {
            match n {
                1 => tile::<1, N, MAX, PAIRS>(&group, w, out),
                2 => tile::<2, N, MAX, PAIRS>(&group, w, out),
                3 => tile::<3, N, MAX, PAIRS>(&group, w, out),
                _ => tile::<TILE_TOKENS, N, MAX, PAIRS>(&group, w, out),
            }
        }
        group.ahead = Ahead::NONE;
        token += n;
    }
}

/// What a tile multiplies with an unpacked panel.
struct Group {
    ahead: Ahead<1>,
    x: Int8Rows,
    /// Whether there are minima, and the offset of the codes.
    has_min: bool,
    offset: i16,
    is_first: bool,
}

/// # Safety
/// - As [`tiles`], for `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn tile<const T: usize, const N: usize, const MAX: u8, const PAIRS: usize>(
    group: &Group,
    w: &UnpackedSuperBlock,
    out: &Out,
) {
    let mut scales = SuperBlockScales::<T>::EMPTY;
    // SAFETY: the tile's tokens have whole groups of scales and sums.
    unsafe { scales.gather::<PAIRS>(&group.x) };
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    for s in 0..GROUP / (4 * N) {
        group.ahead.part(s, GROUP / (4 * N));
        let x = core::array::from_fn(|t| group.x.tokens(t).q.wrapping_add(4 * N * s));
        let lines = w.lines[N * s..][..N].as_ptr();
        // SAFETY: sub-block `s` is in the rows, by the caller, and has `N` lines.
        unsafe { add_dots::<N, MAX, T>(&mut sums, |i| line(lines, i), x, ints(&w.scales[s])) };
    }
    let numbers = [Ints::floats(&w.d), Ints::floats(&w.dmin)];
    for (t, sums) in sums.into_iter().enumerate() {
        let pair_sum = pair_sum(PAIRS, &scales.pairs[t], &w.min_pairs);
        // SAFETY: the group before wrote the outputs.
        unsafe {
            let mut acc = match group.is_first {
                true => [_mm256_setzero_ps(); 2],
                false => load_out(out, t),
            };
            let d_a = _mm256_set1_ps(scales.d[t]);
            let (min, offset) = (group.has_min, group.offset);
            add_group(&mut acc, sums, pair_sum, min, offset, numbers, d_a);
            store_out(out, t, acc);
        }
    }
}
