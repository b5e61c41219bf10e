//! Exact dots become sums: scales, minima and the activations' scales, with the operations of the dense product in its
//! order.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::dots::{Dots, sum};
use super::{NeuronLine, Skip};
use crate::activation::{BLOCK_COLS, SUM_COLS};
use crate::panel::PANEL_ROWS;
use crate::vector::rows::Int8Rows;
use crate::vector::unpack::SubBlockBytes;

/// A group of columns of 16 outputs, and one token.
pub(crate) struct Panel<'a> {
    pub(super) head: &'a [u8],
    /// The dots of the first sub-block.
    pub(super) dots: *const Dots,
    /// From a sub-block's dots to the next one's.
    pub(super) stride: usize,
    pub(super) n_subs: usize,
    pub(super) x: Int8Rows,
}

impl Panel<'_> {
    /// # Safety
    /// - The dots are readable; the CPU has the features of `L`.
    #[inline(always)]
    unsafe fn dots<L: NeuronLine>(&self, s: usize) -> L {
        // SAFETY: by the caller.
        unsafe { L::load(self.dots.add(self.stride * s).cast()) }
    }
}

/// Adds scaled dots to the sums of 16 outputs; the numbers of sub-blocks are room for them.
pub(crate) type FinishFn =
    unsafe fn(&Skip, &Panel<'_>, &mut [SubBlockBytes; 2], &mut [f32; PANEL_ROWS]);

/// Sums over sub-blocks of a group, as pairs of words.
///
/// # Safety
/// - A group is readable at `x`.
#[inline(always)]
unsafe fn sums_of_subs(x: &Int8Rows, sub_cols: usize) -> *const i32 {
    let numbers = x.numbers();
    // SAFETY: by the caller.
    unsafe {
        match sub_cols {
            SUM_COLS => (&raw const (*numbers).sums).cast(),
            _ => (&raw const (*numbers).sums_of_32).cast(),
        }
    }
}

/// [`FinishFn`] of types with a scale per 32 columns.
///
/// # Safety
/// - A head and dots of all sub-blocks are readable, and a group at `x`; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn blocks<L: NeuronLine>(
    skip: &Skip,
    panel: &Panel<'_>,
    sums: &mut [f32; PANEL_ROWS],
) {
    let mut acc = L::floats(sums);
    // SAFETY: by the caller.
    unsafe {
        for s in 0..panel.n_subs {
            let d = panel.x.d.cast::<f32>().add(s).read();
            let dots = panel.dots::<L>(s).to_floats();
            let numbers = panel.head.as_ptr().add(s * skip.block_bytes);
            let d = L::float(d);
            let scale = match skip.block_bytes {
                PANEL_ROWS => L::exponents(numbers),
                _ => L::halves(numbers),
            };
            acc = L::fma::<false>(L::product(scale, d), dots, acc);
            if skip.has_min {
                let sum = L::ints(sum(&panel.x, BLOCK_COLS, s)).to_floats();
                let min = L::halves(numbers.add(2 * PANEL_ROWS));
                acc = L::fma::<false>(L::product(min, d), sum, acc);
            }
        }
    }
    L::store_floats(acc, sums);
}

/// [`FinishFn`] of types with exact sums over 256 columns.
///
/// # Safety
/// - As [`blocks`].
#[inline(always)]
pub(crate) unsafe fn super_blocks<L: NeuronLine>(
    skip: &Skip,
    panel: &Panel<'_>,
    numbers: &mut [SubBlockBytes; 2],
    sums: &mut [f32; PANEL_ROWS],
) {
    let (mut total, mut min) = (L::ints(0), L::ints(0));
    let (d, dmin) = skip.d;
    // SAFETY: by the caller; a head has a number of each row at `d` and `dmin`.
    unsafe {
        if let Some(scales) = skip.scales {
            scales(&panel.head[skip.start..], numbers);
        }
        let [scales, mins] = &*numbers;
        let sums_of_subs = sums_of_subs(&panel.x, skip.sub_cols);
        for pair in 0..panel.n_subs / 2 {
            let (even, odd) = (2 * pair, 2 * pair + 1);
            total = total.add_product(panel.dots(even), scales.widen(even));
            total = total.add_product(panel.dots(odd), scales.widen(odd));
            if skip.has_min {
                let mins = mins.widen::<L>(even).pair(mins.widen(odd));
                min = min.add_words(mins, L::ints(sums_of_subs.add(pair).read()));
            }
        }
        let d = L::halves(panel.head.as_ptr().add(d));
        let mut t = L::fma::<false>(d, total.to_floats(), L::float(0.0));
        if skip.has_min {
            let dmin = L::halves(panel.head.as_ptr().add(dmin));
            t = L::fma::<true>(dmin, min.to_floats(), t);
        }
        let acc = L::fma::<false>(L::float((*panel.x.numbers()).d), t, L::floats(sums));
        L::store_floats(acc, sums);
    }
}
