//! Exact dots become outputs: scales, minima and the activations' scales, as in the dense product.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::NeuronLine;
use crate::activation::{BLOCK_COLS, SUM_COLS};
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;
use crate::vector::rows::Int8Rows;
use crate::vector::unpack::{Block, SubBlockBytes, SuperBlock};

/// Scales dots and adds them to the outputs of a panel: the sub-blocks, the panel's head, its dots of the first sub-block
/// (the next one's are [`CHUNK`](crate::panel::form::CHUNK) further), the token's group, outputs.
pub(crate) type FinishFn =
    unsafe fn(&SubBlocks, &[u8], *const [i32; PANEL_ROWS], &Int8Rows, *mut f32);

/// The sub-blocks of a group.
#[derive(Clone, Copy)]
pub(crate) struct SubBlocks {
    /// How many there are.
    pub(crate) n: usize,
    pub(crate) cols: usize,
    /// Unpacks the scales, and perhaps minima, of a type with exact sums over 256 columns.
    pub(crate) scales: Option<ScalesFn>,
    /// Where `d` and `dmin` are in the head of such a type, the latter if it has minima, and where the scales are.
    pub(crate) d: (usize, Option<usize>, usize),
}

/// [`SuperBlock::scale_lines`].
pub(crate) type ScalesFn = unsafe fn(&[u8], &mut [SubBlockBytes; 2]);

impl SubBlocks {
    /// Of a type with a scale for each block of 32 columns.
    pub(crate) const BLOCKS: Self = Self {
        n: 0,
        cols: BLOCK_COLS,
        scales: None,
        d: (0, None, 0),
    };

    /// Of a type with exact sums over 256 columns.
    pub(crate) fn of<B: SuperBlock>(scales: ScalesFn) -> Self {
        let (d, dmin) = B::d(GROUP, 0);
        Self {
            n: 0,
            cols: B::SUB_COLS,
            scales: Some(scales),
            d: (d, B::MIN.then_some(dmin), B::start(GROUP, 0)),
        }
    }
}

/// The sum of the codes of sub-block `s`.
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

/// [`FinishFn`] of a type with a scale per 32 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn blocks<L: NeuronLine, B: Block>(
    subs: &SubBlocks,
    head: &[u8],
    dots: *const [i32; PANEL_ROWS],
    x: &Int8Rows,
    out: *mut f32,
) {
    // SAFETY: by the caller.
    unsafe {
        let lanes: *mut [f32; PANEL_ROWS] = out.cast();
        let mut acc = L::floats(&*lanes);
        let (block_bytes, _) = B::offsets(GROUP, 1);
        for b in 0..subs.n {
            let numbers = head[b * block_bytes..].as_ptr();
            let d = L::float(x.d.cast::<f32>().add(b).read());
            let dots = L::load(dots.add(8 * b).cast());
            let scale = L::product(B::scales::<L>(numbers), d);
            acc = L::fma::<false>(scale, dots.to_floats(), acc);
            if B::MIN {
                let sum = L::ints(sum(x, BLOCK_COLS, b)).to_floats();
                let m = L::halves(numbers.add(2 * PANEL_ROWS));
                acc = L::fma::<false>(L::product(m, d), sum, acc);
            }
        }
        L::store_floats(acc, &mut *lanes);
    }
}

/// [`FinishFn`] of a type with exact sums over 256 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn super_block<L: NeuronLine>(
    subs: &SubBlocks,
    head: &[u8],
    dots: *const [i32; PANEL_ROWS],
    x: &Int8Rows,
    out: *mut f32,
) {
    let (d, dmin, start) = subs.d;
    let mut of_subs = [SubBlockBytes::EMPTY; 2];
    // SAFETY: by the caller; a head has 16 numbers at each place.
    unsafe {
        let lanes: *mut [f32; PANEL_ROWS] = out.cast();
        if let Some(scales) = subs.scales {
            scales(&head[start..], &mut of_subs);
        }
        let [scales, mins] = &of_subs;
        let (mut total, mut min_total) = (L::ints(0), L::ints(0));
        for s in 0..subs.n {
            total = total.add_product(L::load(dots.add(8 * s).cast()), scales.widen(s));
            if dmin.is_some() {
                min_total = min_total.add_product(L::ints(sum(x, subs.cols, s)), mins.widen(s));
            }
        }
        let d = L::halves(head[d..].as_ptr());
        let mut t = L::fma::<false>(d, total.to_floats(), L::float(0.0));
        if let Some(dmin) = dmin {
            t = L::fma::<true>(L::halves(head[dmin..].as_ptr()), min_total.to_floats(), t);
        }
        let acc = L::fma::<false>(L::float((*x.numbers()).d), t, L::floats(&*lanes));
        L::store_floats(acc, &mut *lanes);
    }
}
