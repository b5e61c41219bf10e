//! Products of rows as they lie ([`Form::Rows`](crate::neuron::Form)), 16 at a time: a vector holds 128 columns of one row
//! in nibbles, or 64 in bytes, and the exact sums of its blocks come out in quarters. 16 rows' sums become lanes, and
//! scales are applied as in panels.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::chunk::sum;
use super::{NeuronLine, Skip};
use crate::activation::BLOCK_COLS;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::prefetch_line_to_l2;
use crate::vector::rows::Int8Rows;
use crate::vector::unpack::SubBlockBytes;

/// Blocks of a group.
const BLOCKS: usize = GROUP / BLOCK_COLS;
/// Steps of a group in which rows are prefetched.
pub(crate) const STEPS: usize = 8;

/// A group of columns of 16 rows, and one token.
pub(crate) struct Listed<'a> {
    /// The codes of each row.
    pub(crate) codes: [*const u8; PANEL_ROWS],
    /// The rows' numbers, as a panel has them.
    pub(crate) head: &'a [u8],
    /// Scales, and perhaps minima, in types with exact sums over 256 columns.
    pub(crate) numbers: &'a [SubBlockBytes; 2],
    pub(crate) x: Int8Rows,
}

/// Adds the products of a group of 16 rows to their sums.
pub(crate) type ListedFn =
    unsafe fn(&Skip, &Listed<'_>, &mut RowsAhead<'_>, &mut [f32; PANEL_ROWS]);

/// Rows that are read next: their lines are prefetched a few at a time.
pub(crate) struct RowsAhead<'a> {
    rows: core::slice::Iter<'a, *const u8>,
    at: *const u8,
    /// Bytes of the row that are left.
    rest: usize,
    row_bytes: usize,
    /// Lines in a step.
    n_lines: usize,
}

impl<'a> RowsAhead<'a> {
    /// Prefetches `rows`, of `row_bytes` bytes each, in `n_steps` steps.
    pub(crate) fn new(rows: &'a [*const u8], row_bytes: usize, n_steps: usize) -> Self {
        let n_lines = rows.len() * (row_bytes / LINE_BYTES + 1);
        Self {
            rows: rows.iter(),
            at: core::ptr::null(),
            rest: 0,
            row_bytes,
            n_lines: n_lines.div_ceil(n_steps),
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        for _ in 0..self.n_lines {
            if self.rest == 0 {
                let Some(row) = self.rows.next() else { return };
                (self.at, self.rest) = (*row, self.row_bytes + LINE_BYTES);
            }
            prefetch_line_to_l2(self.at);
            self.at = self.at.wrapping_add(LINE_BYTES);
            self.rest = self.rest.saturating_sub(LINE_BYTES);
        }
    }
}

/// [`ListedFn`] of types with a scale per 32 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn blocks<L: NeuronLine>(
    skip: &Skip,
    listed: &Listed<'_>,
    ahead: &mut RowsAhead<'_>,
    sums: &mut [f32; PANEL_ROWS],
) {
    // SAFETY: by the caller.
    unsafe {
        let (dots, x) = (dots::<L>(skip, listed, ahead), &listed.x);
        let mut acc = L::floats(sums);
        for (s, dots) in dots.into_iter().enumerate() {
            let numbers = listed.head[s * skip.block_bytes..].as_ptr();
            let d = L::float(x.d.cast::<f32>().add(s).read());
            let scale = match skip.block_bytes {
                PANEL_ROWS => L::exponents(numbers),
                _ => L::halves(numbers),
            };
            acc = L::fma::<false>(L::product(scale, d), dots.to_floats(), acc);
            if skip.has_min {
                let sum = L::ints(sum(x, BLOCK_COLS, s)).to_floats();
                let min = L::halves(numbers.add(2 * PANEL_ROWS));
                acc = L::fma::<false>(L::product(min, d), sum, acc);
            }
        }
        L::store_floats(acc, sums);
    }
}

/// [`ListedFn`] of types with exact sums over 256 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn super_blocks<L: NeuronLine>(
    skip: &Skip,
    listed: &Listed<'_>,
    ahead: &mut RowsAhead<'_>,
    sums: &mut [f32; PANEL_ROWS],
) {
    // SAFETY: by the caller; a head has a number of each row at `d` and `dmin`.
    unsafe {
        let (dots, x) = (dots::<L>(skip, listed, ahead), &listed.x);
        let ([scales, mins], (d, dmin)) = (listed.numbers, skip.d);
        let (mut total, mut min) = (L::ints(0), L::ints(0));
        for (s, dots) in dots.into_iter().enumerate() {
            total = total.add_product(dots, scales.widen(s));
            if skip.has_min {
                min = min.add_product(L::ints(sum(x, BLOCK_COLS, s)), mins.widen(s));
            }
        }
        let d = L::halves(listed.head[d..].as_ptr());
        let mut t = L::fma::<false>(d, total.to_floats(), L::float(0.0));
        if skip.has_min {
            let dmin = L::halves(listed.head[dmin..].as_ptr());
            t = L::fma::<true>(dmin, min.to_floats(), t);
        }
        let acc = L::fma::<false>(L::float((*x.numbers()).d), t, L::floats(sums));
        L::store_floats(acc, sums);
    }
}

/// The dots of each block.
///
/// # Safety
/// - A group of codes is readable at each row, and at `x`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn dots<L: NeuronLine>(
    skip: &Skip,
    listed: &Listed<'_>,
    ahead: &mut RowsAhead<'_>,
) -> [L; BLOCKS] {
    let mut out = [L::splat(0); BLOCKS];
    let is_nibbles = skip.planes == [4];
    for half in 0..2 {
        // SAFETY: by the caller.
        unsafe {
            let x = listed.x.q.add(GROUP / 2 * half);
            let x = [L::load(x), L::load(x.add(LINE_BYTES))];
            let [x_a, x_b] = match is_nibbles {
                true => L::by_words(x),
                false => L::by_quarters(x),
            };
            // What the codes' offset adds, in one lane of each quarter.
            let mut starts = [0; PANEL_ROWS];
            for (s, start) in starts.iter_mut().step_by(4).enumerate() {
                *start = -skip.offset * sum(&listed.x, BLOCK_COLS, 4 * half + s);
            }
            let start = L::load(starts.as_ptr().cast());
            let mut fours = [start; 4];
            for (i, rows) in listed.codes.as_chunks::<4>().0.iter().enumerate() {
                ahead.step();
                let mut of_rows = [start; 4];
                for (sums, row) in of_rows.iter_mut().zip(rows) {
                    let [mut a, mut b] = match is_nibbles {
                        true => {
                            let (both, low) = (L::load(row.add(64 * half)), L::splat(0xf));
                            [both.and(low), both.shift(-4).and(low)]
                        }
                        false => {
                            let row = row.add(128 * half);
                            L::by_quarters([L::load(row), L::load(row.add(64))])
                        }
                    };
                    if let Some(table) = skip.table {
                        (a, b) = (a.lookup(table), b.lookup(table));
                    }
                    *sums = start.dot(a, x_a).dot(b, x_b);
                }
                fours[i] = L::sums(of_rows);
            }
            let blocks = L::transpose_quarters(fours);
            out[4 * half..4 * half + 4].copy_from_slice(&blocks);
        }
    }
    out
}
