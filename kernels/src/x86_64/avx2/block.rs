//! Products of types with a scale per 32 columns.

use super::tile::{self, BlockTile, Halves};
use super::{Floats, Ints, SIGNED, TILE_TOKENS, add_dots, line, load_out, signed, store_out};
use crate::activation::blocks_in_group;
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::scalar::matmul::{Lanes, PanelProduct};
use crate::tuning::AVX2_SPLIT_TOKENS;
use crate::vector::rows::{BlockScales, Int8Rows, Out};
use crate::vector::stream::{Ahead, Stream};
use crate::vector::unpack::{Block, BlockKind, Line, UnpackedBlocks, unpack_blocks};
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has AVX2,
///   FMA and F16C. `args.store` is `Set` or `Continue`.
pub(crate) unsafe fn matmul<B: Block>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe {
        match args.tokens.end - args.tokens.start {
            0 => {}
            1 => one_token::<B>(args),
            _ => many_tokens(args, &kind::<B>()),
        }
    }
}

/// What to subtract from codes up to `max` in the dots: 0 if they are made signed.
const fn offset(max: u8, offset: i16) -> i16 {
    if max == SIGNED { 0 } else { offset }
}

/// # Safety
/// - As [`matmul`], for one token.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_token<B: Block>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let row_of_x = Int8Rows::new(args, args.tokens.start, true);
    let ones = [_mm256_set1_epi16(1); 2];
    let ahead = Stream::new(1, B::BYTES, args.prefetch);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
        let out = Out::new(args, row);
        let mut acc = [_mm256_setzero_ps(); 2];
        if !args.store.starts() {
            // SAFETY: the columns before wrote this output, by the caller.
            acc = unsafe { load_out(&out, 0) };
        }
        for index in 0..n_cols / 32 {
            let (numbers, lines) = B::offsets(n_cols, index);
            ahead.prefetch(panel.wrapping_add(index * B::BYTES), B::BYTES);
            let x = row_of_x.skip_blocks(index);
            // SAFETY: block `index` is in the panel and in the row, by the caller.
            unsafe {
                let q_sums = _mm256_set1_epi32(x.sums.cast::<i32>().read_unaligned());
                let mut w = B::lines::<Ints>(panel.add(lines));
                if B::MAX == SIGNED {
                    for line in &mut w {
                        *line = signed(*line);
                    }
                }
                let offset = _mm256_set1_epi16(-const { offset(B::MAX, B::OFFSET) });
                let mut sums = [[_mm256_madd_epi16(q_sums, offset); 2]];
                let line = |i: usize| w[i];
                match B::MAX {
                    15 => add_dots::<8, 15, 1>(&mut sums, line, [x.q], ones),
                    31 => add_dots::<8, 31, 1>(&mut sums, line, [x.q], ones),
                    _ => add_dots::<8, SIGNED, 1>(&mut sums, line, [x.q], ones),
                }
                let d = _mm256_set1_ps(x.d.cast::<f32>().read_unaligned());
                let d_w = B::scales::<Ints>(panel.add(numbers));
                add_scaled(&mut acc, d_w, d, floats(sums[0]));
                if B::MIN {
                    let sum = _mm256_madd_epi16(q_sums, ones[0]);
                    let m_w = Ints::halves(panel.add(numbers + 2 * PANEL_ROWS));
                    add_scaled(&mut acc, m_w, d, [_mm256_cvtepi32_ps(sum); 2]);
                }
            }
        }
        // SAFETY: the output is writable, by the caller.
        unsafe { store_out(&out, 0, acc) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn floats(sums: Ints) -> Floats {
    [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])]
}

/// `acc = fma(d_w · d, sums, acc)`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_scaled(acc: &mut Floats, d_w: Floats, d: __m256, sums: Floats) {
    for half in 0..2 {
        let scale = _mm256_mul_ps(d_w[half], d);
        acc[half] = _mm256_fmadd_ps(scale, sums[half], acc[half]);
    }
}

/// Unpacks group `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<B: Block>(panel: *const u8, n_cols: usize, g: usize, out: &mut UnpackedBlocks) {
    // SAFETY: by the caller.
    unsafe { unpack_blocks::<B, Ints>(panel, n_cols, g, out) };
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

/// # Safety
/// - As [`matmul`].
unsafe fn many_tokens(args: &Matmul<'_>, kind: &BlockKind) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let n_tokens = args.tokens.end - args.tokens.start;
    let (mut w, mut halves) = (UnpackedBlocks::EMPTY, Halves::EMPTY);
    let splits = kind.max == SIGNED && n_tokens >= AVX2_SPLIT_TOKENS;
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        args.prefetch_beside(row, 1, 0, 1);
        let panel = args.panels[row / PANEL_ROWS * panel_bytes..].as_ptr();
        let out = Out::new(args, row);
        for g in 0..n_cols.div_ceil(GROUP) {
            // SAFETY: by the caller.
            unsafe {
                (kind.unpack)(panel, n_cols, g, &mut w);
                if splits {
                    halves.split(&w.lines);
                }
            }
            let group = Group {
                ahead: Ahead::new(args, row, g, |g| (kind.offsets)(n_cols, 8 * g).0),
                x: Int8Rows::new(args, args.tokens.start, true).skip_blocks(8 * g),
                n_blocks: blocks_in_group(n_cols, g),
                offset: kind.offset,
                lines: match (kind.max, splits) {
                    (SIGNED, false) => core::ptr::null(),
                    (SIGNED, true) => core::ptr::from_ref(&halves).cast(),
                    _ => &raw const w.lines,
                },
                is_first: g == 0 && args.store.starts(),
            };
            // SAFETY: by the caller.
            unsafe { group_products(kind.max, kind.min, n_tokens, group, &w, out) };
        }
    }
}

/// Adds the products of a panel with some rows to `acc`: a
/// [`PanelFn`](crate::scalar::matmul::PanelFn).
///
/// # Safety
/// - The panel is whole, the rows are of its columns, and the CPU has AVX2, FMA and F16C.
pub(crate) unsafe fn panel_product<B: Block>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    // SAFETY: by the caller.
    unsafe { panel_products(product, acc, &kind::<B>()) };
}

/// # Safety
/// - As [`panel_product`].
unsafe fn panel_products(product: &PanelProduct<'_>, acc: &mut [Lanes], kind: &BlockKind) {
    let n_cols = product.n_cols;
    let mut w = UnpackedBlocks::EMPTY;
    for g in 0..n_cols.div_ceil(GROUP) {
        // SAFETY: by the caller.
        unsafe { (kind.unpack)(product.panel.as_ptr(), n_cols, g, &mut w) };
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let group = Group {
                ahead: Ahead::NONE,
                x: Int8Rows::of_row(product.layout, row, true).skip_blocks(8 * g),
                n_blocks: blocks_in_group(n_cols, g),
                offset: kind.offset,
                lines: core::ptr::null(),
                is_first: false,
            };
            // SAFETY: by the caller; the sums are one token's.
            unsafe { group_products(kind.max, kind.min, 1, group, &w, Out::of_sums(acc)) };
        }
    }
}

/// Adds the products of a group of a panel to the outputs of all tokens: of a type with codes up to
/// `max`, and minima or not.
///
/// # Safety
/// - As [`matmul`], for the rows of `out`.
unsafe fn group_products(
    max: u8,
    min: bool,
    n_tokens: usize,
    mut group: Group,
    w: &UnpackedBlocks,
    out: Out,
) {
    let (x, mut token) = (group.x, 0);
    while token < n_tokens {
        let n = match n_tokens - token {
            // Two and one: three tokens of small codes take more registers than there are.
            3 if max != SIGNED => 2,
            n => n.min(TILE_TOKENS),
        };
        group.x = x.tokens(token);
        let n_next = (n_tokens - token - n).min(TILE_TOKENS);
        group.x.tokens(n).prefetch(n_next);
        let out = &out.tokens(token);
        // SAFETY: by the caller; there are as many tokens.
        unsafe {
            match (n, max, min) {
                (TILE_TOKENS, ..) if group.lines.is_null() => {
                    few_tokens::<TILE_TOKENS, SIGNED, false>(&group, w, out);
                }
                (TILE_TOKENS, ..) => four_tokens(max, min, &group, w, out),
                (1, 15, false) => few_tokens::<1, 15, false>(&group, w, out),
                (1, 15, true) => few_tokens::<1, 15, true>(&group, w, out),
                (1, 31, false) => few_tokens::<1, 31, false>(&group, w, out),
                (1, 31, true) => few_tokens::<1, 31, true>(&group, w, out),
                (1, ..) => few_tokens::<1, SIGNED, false>(&group, w, out),
                (2, 15, false) => few_tokens::<2, 15, false>(&group, w, out),
                (2, 15, true) => few_tokens::<2, 15, true>(&group, w, out),
                (2, 31, false) => few_tokens::<2, 31, false>(&group, w, out),
                (2, 31, true) => few_tokens::<2, 31, true>(&group, w, out),
                (2, ..) => few_tokens::<2, SIGNED, false>(&group, w, out),
                _ => few_tokens::<3, SIGNED, false>(&group, w, out),
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
    n_blocks: usize,
    offset: i16,
    /// [`BlockTile::lines`]; null where codes of 8 bits are not split.
    lines: *const tile::Lines,
    is_first: bool,
}

/// # Safety
/// - As [`group_products`], for four tokens.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn four_tokens(max: u8, min: bool, group: &Group, w: &UnpackedBlocks, out: &Out) {
    let mut scales = BlockScales::EMPTY;
    let x = core::array::from_fn(|t| group.x.tokens(t));
    // SAFETY: the tokens have whole groups of scales and sums.
    unsafe { scales.gather(&x, group.offset, min) };
    let mut tile = BlockTile {
        x: group.x.q,
        stride: group.x.stride,
        scales: &raw const scales,
        lines: group.lines,
        numbers: &raw const w.d,
        out: out.at,
        out_stride: 4 * out.stride,
        n_blocks: group.n_blocks,
        has_min: min,
    };
    let mut sums = [[0f32; PANEL_ROWS]; TILE_TOKENS];
    // SAFETY: the tokens have whole groups of codes; the outputs are writable, and the group before
    // wrote them.
    unsafe {
        if out.mask == u16::MAX {
            if group.is_first {
                let zero = [_mm256_setzero_ps(); 2];
                (0..TILE_TOKENS).for_each(|t| store_out(out, t, zero));
            }
            return add_tile(max, group, &tile);
        }
        if !group.is_first {
            for (t, sums) in sums.iter_mut().enumerate() {
                Ints::store_floats(load_out(out, t), sums);
            }
        }
        (tile.out, tile.out_stride) = (sums.as_flattened_mut().as_mut_ptr(), size_of_val(&sums[0]));
        add_tile(max, group, &tile);
        for (t, sums) in sums.iter().enumerate() {
            store_out(out, t, Ints::floats(sums));
        }
    }
}

/// [`BlockTile::add`]; block by block, as long as there is something to prefetch meanwhile.
///
/// # Safety
/// - As there.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_tile(max: u8, group: &Group, tile: &BlockTile) {
    if group.ahead.n_lines() == 0 {
        // SAFETY: by the caller.
        return unsafe { tile.add(max) };
    }
    for b in 0..group.n_blocks {
        group.ahead.part(b, group.n_blocks);
        // SAFETY: by the caller; the block is one of the tile's.
        unsafe { tile.block(b).add(max) };
    }
}

/// # Safety
/// - As [`group_products`], for `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn few_tokens<const T: usize, const MAX: u8, const MIN: bool>(
    group: &Group,
    w: &UnpackedBlocks,
    out: &Out,
) {
    let ones = [_mm256_set1_epi16(1); 2];
    let mut scales = BlockScales::<T>::EMPTY;
    let x = core::array::from_fn(|t| group.x.tokens(t));
    // SAFETY: the tile's tokens have whole groups of scales and sums.
    unsafe { scales.gather(&x, offset(MAX, group.offset), MIN) };
    let mut acc = [[_mm256_setzero_ps(); 2]; T];
    if !group.is_first {
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the group before wrote these outputs.
            *acc = unsafe { load_out(out, t) };
        }
    }
    for b in 0..group.n_blocks {
        group.ahead.part(b, group.n_blocks);
        let d_w = Ints::floats(&w.d[b]);
        let mut sums = [[_mm256_setzero_si256(); 2]; T];
        for (sums, correction) in sums.iter_mut().zip(&scales.correction) {
            *sums = [_mm256_set1_epi32(correction[b]); 2];
        }
        let x = core::array::from_fn(|t| group.x.tokens(t).q.wrapping_add(32 * b));
        let lines = w.lines[8 * b..][..8].as_ptr();
        // SAFETY: block `b` is in the rows, by the caller, and has eight lines.
        unsafe {
            let line = |i| match MAX {
                SIGNED => signed(line(lines, i)),
                _ => line(lines, i),
            };
            add_dots::<8, MAX, T>(&mut sums, line, x, ones);
        }
        for (t, (acc, sums)) in acc.iter_mut().zip(sums).enumerate() {
            let d = _mm256_set1_ps(scales.d[t][b]);
            add_scaled(acc, d_w, d, floats(sums));
            if MIN {
                let sum = _mm256_set1_ps(scales.sums[t][b]);
                add_scaled(acc, Ints::floats(&w.m[b]), d, [sum; 2]);
            }
        }
    }
    for (t, acc) in acc.into_iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { store_out(out, t, acc) };
    }
}
