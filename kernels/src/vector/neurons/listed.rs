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
use crate::prefetch::{prefetch_line_to_l2, prefetch_to_l2};
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
    // SAFETY: by the caller.
    let mut out = unsafe {
        match skip.planes {
            [4] => codes_dots::<L, true>(skip, listed, ahead),
            _ => codes_dots::<L, false>(skip, listed, ahead),
        }
    };
    for (s, dots) in out.iter_mut().enumerate() {
        // SAFETY: by the caller.
        let start = -skip.offset * unsafe { sum(&listed.x, BLOCK_COLS, s) };
        *dots = dots.plus(L::ints(start));
    }
    out
}

/// The dots of unsigned codes.
///
/// # Safety
/// - As [`dots`].
#[inline(always)]
unsafe fn codes_dots<L: NeuronLine, const NIBBLES: bool>(
    skip: &Skip,
    listed: &Listed<'_>,
    ahead: &mut RowsAhead<'_>,
) -> [L; BLOCKS] {
    let mut fours = [[L::splat(0); 4]; 2];
    // SAFETY: by the caller.
    unsafe {
        let x = x_pairs::<L, NIBBLES>(listed.x.q);
        for (i, rows) in listed.codes.as_chunks::<4>().0.iter().enumerate() {
            ahead.step();
            let a = row_dots::<L, NIBBLES>(skip, rows[0], &x);
            let b = row_dots::<L, NIBBLES>(skip, rows[1], &x);
            ahead.step();
            let c = row_dots::<L, NIBBLES>(skip, rows[2], &x);
            let d = row_dots::<L, NIBBLES>(skip, rows[3], &x);
            fours[0][i] = L::sums([a[0], b[0], c[0], d[0]]);
            fours[1][i] = L::sums([a[1], b[1], c[1], d[1]]);
        }
    }
    let ([a, b, c, d], [e, f, g, h]) = (
        L::transpose_quarters(fours[0]),
        L::transpose_quarters(fours[1]),
    );
    [a, b, c, d, e, f, g, h]
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

/// Dots of the halves of a row's group: those of a block are in a quarter.
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
