//! Types with one scale, and perhaps one minimum, per 32 columns.

use super::{
    GroupKernel, Lanes, Lines, PanelProduct, add_high, dots, halves, lookup, split, unsigned,
};
use crate::activation::{SUM_COLS, blocks_in_group};
use crate::blocks::{lane, mxfp4};
use crate::contract::{Arith, GROUP};
use crate::panel::lane::{last_at, last_bit, pairs_bit};
use crate::panel::small::{Codes, HIGH, Small, SmallBlock};
use crate::panel::{self, LINE_BYTES, PANEL_ROWS, PanelFormat};

/// A type with small unsigned codes and one scale per 32 columns.
trait BlockFormat: PanelFormat {
    /// What to subtract from a code to get its value.
    const OFFSET: i32;
    /// Whether values have a minimum in addition to the scale.
    const MIN: bool;

    /// Unpacks group `g` into byte lines; lines past the row's end are left alone.
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines);

    /// The scales of block `index`.
    fn scales<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes;

    /// The minima of block `index`; unused without [`Self::MIN`].
    fn mins<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes;
}

/// Adds the products of a panel with some activation rows.
#[inline(always)]
fn panel_products<B: BlockFormat, F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    let (panel, n_cols) = (product.panel, product.n_cols);
    let mut lines = [[0; LINE_BYTES]; GROUP / 4];
    for g in 0..n_cols.div_ceil(GROUP) {
        B::unpack::<F>(panel, n_cols, g, &mut lines);
        let n_blocks = blocks_in_group(n_cols, g);
        let mut numbers = [[[0.0; PANEL_ROWS]; 2]; 8];
        for (b, numbers) in numbers[..n_blocks].iter_mut().enumerate() {
            let index = 8 * g + b;
            let mins = || B::mins::<F>(panel, n_cols, index);
            let mins = if B::MIN { mins() } else { [0.0; PANEL_ROWS] };
            *numbers = [B::scales::<F>(panel, n_cols, index), mins];
        }
        let group = Unpacked {
            lines: &lines,
            numbers: &numbers[..n_blocks],
        };
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let (d, q, sums) = product.layout.int8_32(row, g);
            group_products::<F>(&group, d, q, sums, B::OFFSET, B::MIN, acc);
        }
    }
}

/// A group of 256 columns of a panel; the last may have fewer.
struct Unpacked<'a> {
    lines: &'a Lines,
    /// Scales and minima of each block; minima are unused without [`BlockFormat::MIN`].
    numbers: &'a [[Lanes; 2]],
}

/// Adds the products of a group of a panel with a group of an activation row.
#[inline(always)]
fn group_products<F: Arith>(
    group: &Unpacked<'_>,
    d: &[f32],
    q: &[i8; GROUP],
    sums: &[i16; GROUP / SUM_COLS],
    offset: i32,
    has_min: bool,
    acc: &mut Lanes,
) {
    F::outlined(|| {
        let q = q.as_chunks::<4>().0.as_chunks::<8>().0;
        let lines = group.lines.as_chunks::<8>().0;
        for (b, ([scales, mins], lines)) in group.numbers.iter().zip(lines).enumerate() {
            // At most 32 · 255 · 127 = 1.04 M, and as much again for the offset.
            let dots = dots::<F, 8>(lines, &q[b]);
            let q_sum = i32::from(sums[2 * b]) + i32::from(sums[2 * b + 1]);
            F::add_scaled_lanes(scales, d[b], &dots, offset * q_sum, acc);
            if has_min {
                F::add_scaled_lanes(mins, d[b], &[q_sum; PANEL_ROWS], 0, acc);
            }
        }
    });
}

impl GroupKernel for panel::Q8_0 {
    #[inline(always)]
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
        panel_products::<Self, F>(product, acc);
    }
}

impl<B: SmallBlock> GroupKernel for Small<B> {
    #[inline(always)]
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
        panel_products::<Self, F>(product, acc);
    }
}

impl BlockFormat for panel::Q8_0 {
    const OFFSET: i32 = 128;
    const MIN: bool = false;

    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let (_, at) = Self::at(n_cols, 8 * g);
        let n_lines = 8 * blocks_in_group(n_cols, g);
        let (from, _) = panel[at..].as_chunks::<LINE_BYTES>();
        lines[..n_lines].copy_from_slice(&from[..n_lines]);
    }

    #[inline(always)]
    fn scales<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes {
        halves::<F>(panel, Self::at(n_cols, index).0)
    }

    #[inline(always)]
    fn mins<F: Arith>(_: &[u8], _: usize, _: usize) -> Lanes {
        [0.0; PANEL_ROWS]
    }
}

impl<const BITS: usize> GroupKernel for panel::Lane<BITS> {
    #[inline(always)]
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
        panel_products::<Self, F>(product, acc);
    }
}

impl<const BITS: usize> BlockFormat for panel::Lane<BITS> {
    const OFFSET: i32 = lane::offset(BITS) as i32;
    const MIN: bool = false;

    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let (_, at) = Self::at(n_cols, 8 * g);
        for b in 0..blocks_in_group(n_cols, g) {
            let from = &panel[at + b * Self::LINES..][..Self::LINES];
            let lines = &mut lines[8 * b..8 * b + 8];
            lines.fill([0; LINE_BYTES]);
            for s in (0..4).take(BITS & 4) {
                add_high::<4>(&from[s * LINE_BYTES..], 0, &mut lines[2 * s..]);
            }
            for s in (0..2).take(BITS & 2) {
                let pairs = &from[Self::PAIRS + s * LINE_BYTES..];
                add_high::<2>(pairs, pairs_bit(BITS), &mut lines[4 * s..]);
            }
            let last: &[u8; LINE_BYTES] = from[Self::LAST..].first_chunk().expect("a line");
            for (step, line) in lines.iter_mut().enumerate() {
                for (code, byte) in line.iter_mut().zip(last) {
                    *code |= (byte >> last_at(BITS, step) & 1) << last_bit(BITS);
                }
            }
        }
    }

    #[inline(always)]
    fn scales<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes {
        halves::<F>(panel, Self::at(n_cols, index).0)
    }

    #[inline(always)]
    fn mins<F: Arith>(_: &[u8], _: usize, _: usize) -> Lanes {
        [0.0; PANEL_ROWS]
    }
}

impl<B: SmallBlock> Small<B> {
    /// The table of a type that has one, unsigned.
    pub(crate) const TABLE: Option<[u8; 16]> = match B::CODES {
        Codes::Offset(_) => None,
        Codes::Table(values) => Some(unsigned(values)),
    };
}

impl<B: SmallBlock> BlockFormat for Small<B> {
    const OFFSET: i32 = match B::CODES {
        Codes::Offset(offset) => offset,
        Codes::Table(_) => 128,
    };
    const MIN: bool = B::N_NUMBERS == 2;

    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let (_, at) = Self::at(n_cols, 8 * g);
        for b in 0..blocks_in_group(n_cols, g) {
            let from = &panel[at + b * Self::LINES..][..Self::LINES];
            let lines = &mut lines[8 * b..8 * b + 8];
            for s in 0..4 {
                split::<4>(&from[s * LINE_BYTES..], &mut lines[2 * s..2 * s + 2]);
            }
            if B::HIGH {
                add_high::<1>(&from[HIGH..], 4, lines);
            }
            if let Some(table) = &Self::TABLE {
                for line in lines {
                    *line = lookup(table, line);
                }
            }
        }
    }

    #[inline(always)]
    fn scales<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes {
        let (head, _) = Self::at(n_cols, index);
        if B::NUMBER_BYTES == 2 {
            return halves::<F>(panel, head);
        }
        let exponents: &[u8; PANEL_ROWS] = panel[head..].first_chunk().expect("16 exponents");
        exponents.map(mxfp4::scale)
    }

    #[inline(always)]
    fn mins<F: Arith>(panel: &[u8], n_cols: usize, index: usize) -> Lanes {
        halves::<F>(panel, Self::at(n_cols, index).0 + 2 * PANEL_ROWS)
    }
}
