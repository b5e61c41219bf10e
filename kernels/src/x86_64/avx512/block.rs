//! Products of types with a scale per 32 columns.

use super::blocks::Block;
use super::{
    Int8Rows, Out, PREFETCH_AHEAD, TILE_TOKENS, broadcast, broadcast_float, halves, line, prefetch,
};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use core::arch::x86_64::*;

/// A group of 256 columns of one panel, unpacked; or of as many columns as the last has.
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// Unsigned codes.
    pub(crate) lines: [[u8; LINE_BYTES]; GROUP / 4],
    pub(crate) d: [[f32; PANEL_ROWS]; 8],
    /// Minima, in types that have any.
    pub(crate) m: [[f32; PANEL_ROWS]; 8],
}

impl Unpacked {
    pub(crate) const EMPTY: Self = Self {
        lines: [[0; _]; _],
        d: [[0.0; _]; _],
        m: [[0.0; _]; _],
    };
}

/// Rows in panels × all tokens, written to `out`; true.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: Block>(args: &Matmul<'_>) -> bool {
    // SAFETY: by the caller.
    unsafe {
        match args.tokens.end - args.tokens.start {
            0 => {}
            1 => one_token::<B>(args),
            _ => many_tokens::<B>(args),
        }
    }
    true
}

/// # Safety
/// - As [`matmul`], for one token.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn one_token<B: Block>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let x = Int8Rows::new(args, args.tokens.start, true);
    let offset = _mm512_set1_epi16(-B::OFFSET);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let panel = args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..].as_ptr();
        let mut acc = _mm512_setzero_ps();
        for index in 0..n_cols / 32 {
            let (numbers, lines) = B::offsets(n_cols, index);
            prefetch(panel.wrapping_add(lines + PREFETCH_AHEAD), B::LINES);
            let x = x.skip(32 * index, index);
            // SAFETY: block `index` lies in the panel and in the row, by the caller.
            unsafe {
                let sums = broadcast(x.sums);
                let w = B::lines(panel.add(lines));
                let mut s = [
                    _mm512_dpwssd_epi32(_mm512_setzero_si512(), sums, offset),
                    _mm512_setzero_si512(),
                ];
                for (i, w) in w.into_iter().enumerate() {
                    s[i % 2] = _mm512_dpbusd_epi32(s[i % 2], w, broadcast(x.q.add(4 * i)));
                }
                let s = _mm512_cvtepi32_ps(_mm512_add_epi32(s[0], s[1]));
                let d = broadcast_float(x.d);
                acc = _mm512_fmadd_ps(_mm512_mul_ps(B::scales(panel.add(numbers)), d), s, acc);
                if B::MIN {
                    let m = halves(panel.add(numbers + 2 * PANEL_ROWS));
                    acc = _mm512_fmadd_ps(_mm512_mul_ps(m, d), float_sum(sums), acc);
                }
            }
        }
        // SAFETY: the output is writable, by the caller.
        unsafe { Out::new(args, row).store(0, acc) };
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
    out: &mut Unpacked,
) {
    for b in 0..((n_cols - g * GROUP) / 32).min(8) {
        let (numbers, lines) = B::offsets(n_cols, 8 * g + b);
        // SAFETY: the block lies in the panel, by the caller.
        unsafe {
            prefetch(panel.wrapping_add(lines + PREFETCH_AHEAD), B::LINES);
            for (i, line) in B::lines(panel.add(lines)).into_iter().enumerate() {
                _mm512_store_si512(out.lines[8 * b + i].as_mut_ptr().cast(), line);
            }
            _mm512_store_ps(out.d[b].as_mut_ptr(), B::scales(panel.add(numbers)));
            if B::MIN {
                let m = halves(panel.add(numbers + 2 * PANEL_ROWS));
                _mm512_store_ps(out.m[b].as_mut_ptr(), m);
            }
        }
    }
}

/// # Safety
/// - As [`matmul`].
unsafe fn many_tokens<B: Block>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let panel_bytes = args.layout.panel_bytes();
    let mut unpacked = [Unpacked::EMPTY; 2];
    for row in (args.rows.start..args.rows.end).step_by(2 * PANEL_ROWS) {
        let outs = [0, PANEL_ROWS].map(|r| Out::new(args, row + r));
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in unpacked.iter_mut().enumerate() {
                if outs[p].mask != 0 {
                    let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                    // SAFETY: by the caller; the panel has rows to compute.
                    unsafe { unpack::<B>(panel, n_cols, g, unpacked) };
                }
            }
            // SAFETY: by the caller.
            unsafe { tiles(args, g, B::OFFSET, B::MIN, &unpacked, outs) };
        }
    }
}

/// Adds the products of a group of two panels to the outputs of all tokens.
///
/// # Safety
/// - As [`matmul`], for the rows of `outs`.
unsafe fn tiles(
    args: &Matmul<'_>,
    g: usize,
    offset: i16,
    has_min: bool,
    w: &[Unpacked; 2],
    outs: [Out; 2],
) {
    let n_blocks = ((args.layout.n_cols() - g * GROUP) / 32).min(8);
    let n_tokens = args.tokens.end - args.tokens.start;
    let x = Int8Rows::new(args, args.tokens.start, true).skip(g * GROUP, 8 * g);
    for token in (0..n_tokens).step_by(TILE_TOKENS) {
        let group = Group {
            x: x.tokens(token),
            n_blocks,
            offset,
            is_first: g == 0,
        };
        let outs = outs.map(|out| out.tokens(token));
        // SAFETY: by the caller; the tile has as many tokens as are left, at most six.
        unsafe {
            match ((n_tokens - token).min(TILE_TOKENS), has_min) {
                (1, false) => tile::<1, false>(&group, w, outs),
                (2, false) => tile::<2, false>(&group, w, outs),
                (3, false) => tile::<3, false>(&group, w, outs),
                (4, false) => tile::<4, false>(&group, w, outs),
                (5, false) => tile::<5, false>(&group, w, outs),
                (_, false) => tile::<TILE_TOKENS, false>(&group, w, outs),
                (1, true) => tile::<1, true>(&group, w, outs),
                (2, true) => tile::<2, true>(&group, w, outs),
                (3, true) => tile::<3, true>(&group, w, outs),
                (4, true) => tile::<4, true>(&group, w, outs),
                (5, true) => tile::<5, true>(&group, w, outs),
                (_, true) => tile::<TILE_TOKENS, true>(&group, w, outs),
            }
        }
    }
}

/// What a tile multiplies with two unpacked panels.
struct Group {
    x: Int8Rows,
    n_blocks: usize,
    offset: i16,
    is_first: bool,
}

/// # Safety
/// - As [`tiles`], for `T` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tile<const T: usize, const MIN: bool>(group: &Group, w: &[Unpacked; 2], outs: [Out; 2]) {
    let zero = _mm512_setzero_si512();
    let offset = _mm512_set1_epi16(-group.offset);
    let mut acc = [[_mm512_setzero_ps(); 2]; T];
    if !group.is_first {
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the group before wrote these outputs.
            *acc = unsafe { [outs[0].load(t), outs[1].load(t)] };
        }
    }
    for b in 0..group.n_blocks {
        let x = group.x.skip(32 * b, b);
        let mut s = [[zero; 2]; T];
        // SAFETY: block `b` lies in the rows, by the caller; buffers are aligned and whole.
        unsafe {
            for (t, s) in s.iter_mut().enumerate() {
                let correction = broadcast(x.tokens(t).sums);
                *s = [_mm512_dpwssd_epi32(zero, correction, offset); 2];
            }
            for i in 0..8 {
                let w = [0, 1].map(|p| line(w[p].lines.as_ptr().add(8 * b + i).cast()));
                for (t, s) in s.iter_mut().enumerate() {
                    let q = broadcast(x.tokens(t).q.add(4 * i));
                    s[0] = _mm512_dpbusd_epi32(s[0], w[0], q);
                    s[1] = _mm512_dpbusd_epi32(s[1], w[1], q);
                }
            }
            let d_w = [0, 1].map(|p| _mm512_load_ps(w[p].d.as_ptr().add(b).cast()));
            for t in 0..T {
                let d = broadcast_float(x.tokens(t).d);
                for p in 0..2 {
                    let scale = _mm512_mul_ps(d_w[p], d);
                    acc[t][p] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(s[t][p]), acc[t][p]);
                }
                if MIN {
                    let sum = float_sum(broadcast(x.tokens(t).sums));
                    for p in 0..2 {
                        let m = _mm512_load_ps(w[p].m.as_ptr().add(b).cast());
                        acc[t][p] = _mm512_fmadd_ps(_mm512_mul_ps(m, d), sum, acc[t][p]);
                    }
                }
            }
        }
    }
    for (t, acc) in acc.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            outs[0].store(t, acc[0]);
            outs[1].store(t, acc[1]);
        }
    }
}
