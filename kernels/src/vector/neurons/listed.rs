//! Products of rows as they lie ([`Form::Rows`](crate::neuron::Form)), 16 at a time: a vector holds 128 columns of one row
//! in nibbles, or 64 in bytes, and the exact sums of its blocks come out in quarters. 16 rows' sums become lanes, and
//! scales are applied as in panels.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::dots::{Dots, sum};
use super::{NeuronLine, Skip};
use crate::activation::BLOCK_COLS;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::{prefetch_line_to_l2, prefetch_to_l2};
use crate::vector::rows::Int8Rows;

/// Blocks of a group.
pub(crate) const BLOCKS: usize = GROUP / BLOCK_COLS;
/// Steps of a group in which rows are prefetched.
pub(crate) const STEPS: usize = 8;

/// Writes the dots of each block of 16 rows, whose codes are given, with a token's group.
pub(crate) type ListedFn =
    unsafe fn(&Skip, &[*const u8; PANEL_ROWS], &Int8Rows, &mut RowsAhead<'_>, &mut [Dots; BLOCKS]);

/// Rows that are read next: they are prefetched in parts.
pub(crate) struct RowsAhead<'a> {
    rows: core::slice::Iter<'a, *const u8>,
    at: *const u8,
    /// Parts of the row that are left.
    n_left: usize,
    /// Parts of a row, and their size.
    n_parts: usize,
    bytes: usize,
}

impl<'a> RowsAhead<'a> {
    /// Prefetches `rows`, of `row_bytes` bytes each, in `n_steps` steps.
    pub(crate) fn new(rows: &'a [*const u8], row_bytes: usize, n_steps: usize) -> Self {
        let n_parts = (n_steps / PANEL_ROWS).max(1);
        // Addresses of all pages are looked up at once: one by one, each would be waited for.
        for row in rows {
            prefetch_line_to_l2(*row);
            prefetch_line_to_l2(row.wrapping_add(row_bytes - 1));
        }
        Self {
            rows: rows.iter(),
            at: core::ptr::null(),
            n_left: 0,
            n_parts,
            bytes: row_bytes.div_ceil(n_parts).next_multiple_of(LINE_BYTES),
        }
    }

    /// Prefetches all of it now.
    pub(crate) fn at_once(mut self) {
        while self.n_left > 0 || !self.rows.as_slice().is_empty() {
            self.step();
        }
    }

    #[inline(always)]
    fn step(&mut self) {
        if self.n_left == 0 {
            let Some(row) = self.rows.next() else { return };
            (self.at, self.n_left) = (*row, self.n_parts);
        }
        prefetch_to_l2(self.at, self.bytes);
        self.at = self.at.wrapping_add(self.bytes);
        self.n_left -= 1;
    }
}

/// [`ListedFn`].
///
/// # Safety
/// - A group of codes is readable at each of `rows`, and at `x`; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn dots<L: NeuronLine>(
    skip: &Skip,
    rows: &[*const u8; PANEL_ROWS],
    x: &Int8Rows,
    ahead: &mut RowsAhead<'_>,
    out: &mut [Dots; BLOCKS],
) {
    // SAFETY: by the caller.
    unsafe {
        match skip.planes {
            [4] => of_kind::<L, true>(skip, rows, x, ahead, out),
            _ => of_kind::<L, false>(skip, rows, x, ahead, out),
        }
    }
}

/// [`dots`] of codes of four bits, or of eight.
///
/// # Safety
/// - As there.
#[inline(always)]
unsafe fn of_kind<L: NeuronLine, const NIBBLES: bool>(
    skip: &Skip,
    rows: &[*const u8; PANEL_ROWS],
    x: &Int8Rows,
    ahead: &mut RowsAhead<'_>,
    out: &mut [Dots; BLOCKS],
) {
    let mut fours = [[L::splat(0); 4]; 2];
    // SAFETY: by the caller.
    unsafe {
        let pairs = x_pairs::<L, NIBBLES>(x.q);
        for (i, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
            ahead.step();
            let a = row_dots::<L, NIBBLES>(skip, rows[0], &pairs);
            let b = row_dots::<L, NIBBLES>(skip, rows[1], &pairs);
            ahead.step();
            let c = row_dots::<L, NIBBLES>(skip, rows[2], &pairs);
            let d = row_dots::<L, NIBBLES>(skip, rows[3], &pairs);
            fours[0][i] = L::sums([a[0], b[0], c[0], d[0]]);
            fours[1][i] = L::sums([a[1], b[1], c[1], d[1]]);
        }
        for (half, fours) in fours.into_iter().enumerate() {
            for (i, dots) in L::transpose_quarters(fours).into_iter().enumerate() {
                let s = 4 * half + i;
                let start = L::ints(-skip.offset * sum(x, BLOCK_COLS, s));
                dots.plus(start).store(out[s].0.as_mut_ptr().cast());
            }
        }
    }
}

/// The token's codes as [`row_dots`] needs them.
///
/// # Safety
/// - A group is readable at `x`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn x_pairs<L: NeuronLine, const NIBBLES: bool>(x: *const u8) -> [[L; 2]; 2] {
    // SAFETY: by the caller.
    unsafe {
        let halves = [
            [L::load(x), L::load(x.add(64))],
            [L::load(x.add(128)), L::load(x.add(192))],
        ];
        match NIBBLES {
            true => [L::by_words(halves[0]), L::by_words(halves[1])],
            false => [L::by_quarters(halves[0]), L::by_quarters(halves[1])],
        }
    }
}

/// Dots of the halves of a row's group: a quarter has a block's.
///
/// # Safety
/// - A group of codes is readable at `row`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn row_dots<L: NeuronLine, const NIBBLES: bool>(
    skip: &Skip,
    row: *const u8,
    x: &[[L; 2]; 2],
) -> [L; 2] {
    let zero = L::splat(0);
    let mut out = [zero; 2];
    for half in 0..2 {
        // SAFETY: by the caller.
        let [mut a, mut b] = unsafe {
            match NIBBLES {
                true => {
                    let (both, low) = (L::load(row.add(64 * half)), L::splat(0xf));
                    [both.and(low), both.shift(-4).and(low)]
                }
                false => {
                    let row = row.add(128 * half);
                    L::by_quarters([L::load(row), L::load(row.add(64))])
                }
            }
        };
        if let Some(table) = skip.table {
            (a, b) = (a.lookup(table), b.lookup(table));
        }
        out[half] = zero.dot(a, x[half][0]).dot(b, x[half][1]);
    }
    out
}
