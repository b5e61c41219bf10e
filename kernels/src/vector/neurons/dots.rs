//! Exact dots of neurons with chunks of outputs, a sub-block of columns at a time.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::active::Active;
use super::{NeuronLine, Skip};
use crate::activation::SUM_COLS;
use crate::contract::GROUP;
use crate::neuron::ChunkCodes;
use crate::panel::PANEL_ROWS;
use crate::panel::form::CHUNK;
use crate::prefetch::prefetch_to_l2;
use crate::vector::rows::Int8Rows;

/// Panels of a chunk.
pub(super) const PANELS: usize = CHUNK / PANEL_ROWS;
/// Lines of dots that there is room for: sub-blocks × panels.
pub(crate) const DOTS: usize = 8 * 4 * PANELS;

/// Dots of 16 outputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Dots(pub(super) [i32; PANEL_ROWS]);

/// The sum of a token's codes in sub-block `s`.
///
/// # Safety
/// - A group is readable at `x`.
#[inline(always)]
pub(super) unsafe fn sum(x: &Int8Rows, sub_cols: usize, s: usize) -> i32 {
    let sums: *const i16 = x.sums.cast();
    // SAFETY: a group has 16 sums.
    unsafe {
        match sub_cols {
            SUM_COLS => sums.add(s).read().into(),
            _ => i32::from(sums.add(2 * s).read()) + i32::from(sums.add(2 * s + 1).read()),
        }
    }
}

/// Chunks of outputs that are side by side, a group of columns and one token.
pub(crate) struct Chunks<'a> {
    /// The first one.
    pub(super) codes: ChunkCodes,
    /// The codes of the group's first column.
    pub(super) first: *const u8,
    pub(super) n_chunks: usize,
    pub(super) active: &'a Active,
    pub(super) n_subs: usize,
    pub(super) x: Int8Rows,
}

/// Columns that are read next: their codes are prefetched a piece at a time.
pub(crate) struct Ahead {
    pub(super) columns: [u8; GROUP],
    /// The column of the next piece, and the number of columns.
    pub(super) next: usize,
    pub(super) n: usize,
    pub(super) first: *const u8,
    pub(super) stride: usize,
    /// Where in the column the next piece is; bytes of a piece, and of a column.
    pub(super) at: usize,
    pub(super) piece: usize,
    pub(super) bytes: usize,
}

impl Ahead {
    pub(super) const EMPTY: Self = Self {
        columns: [0; _],
        next: 0,
        n: 0,
        first: core::ptr::null(),
        stride: 0,
        at: 0,
        piece: 0,
        bytes: 0,
    };

    #[inline(always)]
    pub(super) fn prefetch_piece(&mut self) -> bool {
        let Some(column) = self.columns[..self.n].get(self.next) else {
            return false;
        };
        let at = self
            .first
            .wrapping_add(usize::from(*column) * self.stride + self.at);
        prefetch_to_l2(at, self.piece);
        self.at += self.piece;
        if self.at >= self.bytes {
            (self.at, self.next) = (0, self.next + 1);
        }
        true
    }
}

/// Writes the dots of each sub-block, by sub-block, then by panel.
pub(crate) type DotsFn = unsafe fn(&Skip, &Chunks<'_>, &mut Ahead, &mut [Dots; DOTS]);

/// [`DotsFn`].
///
/// # Safety
/// - The columns' codes are readable; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn dots<L: NeuronLine>(
    skip: &Skip,
    chunks: &Chunks<'_>,
    ahead: &mut Ahead,
    out: &mut [Dots; DOTS],
) {
    let is_whole = chunks.codes.n_outputs == CHUNK;
    // SAFETY: by the caller.
    unsafe {
        match (skip.planes, is_whole) {
            ([4], true) => of_kind::<L, NIBBLES>(skip, chunks, ahead, out),
            ([8], true) => of_kind::<L, BYTES>(skip, chunks, ahead, out),
            _ => of_kind::<L, OTHERS>(skip, chunks, ahead, out),
        }
    }
}

/// Whole chunks of codes of four bits.
const NIBBLES: u8 = 0;
/// Whole chunks of codes of eight bits.
const BYTES: u8 = 1;
/// Codes that are widened to bytes first.
const OTHERS: u8 = 2;

/// [`dots`] of codes of a kind.
///
/// # Safety
/// - As there.
#[inline(always)]
unsafe fn of_kind<L: NeuronLine, const KIND: u8>(
    skip: &Skip,
    chunks: &Chunks<'_>,
    ahead: &mut Ahead,
    out: &mut [Dots; DOTS],
) {
    let n_panels = PANELS * chunks.n_chunks;
    let bytes = chunks.codes.bytes();
    let mut wide = [[0u8; CHUNK]; 4];
    for (s, out) in out
        .chunks_exact_mut(n_panels)
        .take(chunks.n_subs)
        .enumerate()
    {
        // SAFETY: rows have whole groups of sums.
        let start = L::ints(-skip.offset * unsafe { sum(&chunks.x, skip.sub_cols, s) });
        let fours = chunks.active.of(s);
        if fours.is_empty() {
            for out in out {
                // SAFETY: 16 integers; by the caller.
                unsafe { start.store(out.0.as_mut_ptr().cast()) };
            }
            continue;
        }
        for (i, four) in fours.iter().enumerate() {
            let q = L::ints(four.q());
            let at = (four.columns)
                .map(|col| (chunks.first).wrapping_add(usize::from(col) * chunks.codes.stride));
            for (c, out) in out.as_chunks_mut::<PANELS>().0.iter_mut().enumerate() {
                // As much is prefetched as is read.
                if c < 4 {
                    ahead.prefetch_piece();
                }
                let at = at.map(|at| at.wrapping_add(bytes * c));
                // SAFETY: by the caller.
                unsafe {
                    let at = match KIND {
                        OTHERS => {
                            (skip.kernels.widen)(skip, &chunks.codes, at, &mut wide);
                            let wide = &raw const wide;
                            [0, 1, 2, 3].map(|j| wide.cast::<u8>().add(CHUNK * j))
                        }
                        _ => at,
                    };
                    add_four::<L, KIND>(skip, at, q, (i == 0).then_some(start), out);
                }
            }
        }
    }
}

/// Adds the dots of four columns with a chunk to `out`, or to `start`.
///
/// # Safety
/// - A chunk is readable at each of `at`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn add_four<L: NeuronLine, const KIND: u8>(
    skip: &Skip,
    at: [*const u8; 4],
    q: L,
    start: Option<L>,
    out: &mut [Dots; PANELS],
) {
    // SAFETY: by the caller.
    unsafe {
        let [a, b, c, d] = at;
        let first = L::interleave([L::load(a), L::load(b), L::load(c), L::load(d)]);
        let second = match KIND {
            NIBBLES => first,
            _ => {
                let [a, b, c, d] = at.map(|at| at.wrapping_add(CHUNK / 2));
                L::interleave([L::load(a), L::load(b), L::load(c), L::load(d)])
            }
        };
        let low = L::splat(0xf);
        for i in 0..4 {
            let (mut a, mut b) = (first[i], second[i]);
            if KIND == NIBBLES {
                (a, b) = (a.and(low), b.shift(-4).and(low));
            }
            if let Some(table) = skip.table {
                (a, b) = (a.lookup(table), b.lookup(table));
            }
            for (line, out) in [(a, &raw mut out[i]), (b, &raw mut out[4 + i])] {
                let acc = match start {
                    Some(start) => start,
                    None => L::load(out.cast()),
                };
                acc.dot(line, q).store(out.cast());
            }
        }
    }
}

/// Writes the codes of four columns' chunk as bytes, in the order of whole chunks.
pub(crate) type WidenFn = unsafe fn(&Skip, &ChunkCodes, [*const u8; 4], &mut [[u8; CHUNK]; 4]);

/// [`WidenFn`].
///
/// # Safety
/// - The columns' codes are readable; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn widen<L: NeuronLine>(
    skip: &Skip,
    codes: &ChunkCodes,
    at: [*const u8; 4],
    wide: &mut [[u8; CHUNK]; 4],
) {
    for (at, wide) in at.into_iter().zip(wide) {
        // SAFETY: by the caller.
        unsafe {
            match codes.n_outputs {
                CHUNK => {
                    let [a, b] = self::wide::<L>(skip.planes, at);
                    a.store(wide.as_mut_ptr());
                    b.store(wide[CHUNK / 2..].as_mut_ptr());
                }
                _ => codes.widen(core::slice::from_raw_parts(at, codes.bytes()), wide),
            }
        }
    }
}

/// The codes of a column's whole chunk as bytes.
///
/// # Safety
/// - The chunk is readable at `at`; the CPU has the features of `L`.
#[inline(always)]
pub(super) unsafe fn wide<L: NeuronLine>(planes: &[usize], at: *const u8) -> [L; 2] {
    let mut halves = [L::splat(0); 2];
    let (mut at, mut first) = (at, 0);
    for &bits in planes {
        // SAFETY: by the caller.
        let plane = unsafe {
            match bits {
                8 => [L::load(at), L::load(at.add(CHUNK / 2))],
                4 => {
                    let (both, low) = (L::load(at), L::splat(0xf));
                    [both.and(low), both.shift(-4).and(low)]
                }
                2 => {
                    let (all, [low, high]) = (L::twice(at), L::halves_of(3));
                    [
                        all.and(low).or(all.shift(-2).and(high)),
                        all.shift(-4).and(low).or(all.shift(-6).and(high)),
                    ]
                }
                _ => {
                    let words: *const u64 = at.cast();
                    [
                        L::bits(words.read_unaligned()),
                        L::bits(words.add(1).read_unaligned()),
                    ]
                }
            }
        };
        for (half, plane) in halves.iter_mut().zip(plane) {
            *half = half.or(plane.shift(first));
        }
        at = at.wrapping_add(CHUNK * bits / 8);
        first += i32::from(bits.to_le_bytes()[0]);
    }
    halves
}
