//! Types that sum exactly over super-blocks of 256 columns.
//!
//! Sums stay below 2^31, with codes of activations within ±127: Q4_K 15·127·32·63·8 = 30.7 M,
//! Q5_K 31·127·32·63·8 = 63.5 M, Q6_K 32·127·16·128·16 = 133 M, Q2_K 3·127·16·15·16 = 1.5 M,
//! Q3_K 4·127·16·32·16 = 4.2 M, IQ4_XS 127·127·32·32·8 = 132 M; minima 63·127·256 = 2 M. Offsets
//! of codes are taken off before a sum is scaled, as the exact product with the activations' sum.

use super::{
    GroupKernel, Lanes, Lines, PanelProduct, add_high, dots, halves, lookup, split, unsigned,
};
use crate::activation::{GroupNumbers, SUM_COLS};
use crate::blocks::{SixBits, iq4_xs, q3_k as q3_k_blocks};
use crate::contract::{Arith, GROUP};
use crate::panel::{self, LINE_BYTES, PANEL_ROWS, PanelFormat};
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};

/// The values of IQ4_XS codes, unsigned.
pub(crate) static IQ4_TABLE: [u8; 16] = unsigned(&iq4_xs::VALUES);

/// Sums of the activations' codes, 16 columns each.
type ActivationSums = [i16; GROUP / SUM_COLS];

/// A number for each sub-block and row; types with sub-blocks of 32 columns have eight.
type PerSubBlock = [[i32; PANEL_ROWS]; 16];

/// A type with small unsigned codes that sums exactly over a group.
pub(crate) trait IntegerFormat: PanelFormat {
    /// Columns that share a scale: 16 or 32.
    const SUB_COLS: usize;
    /// What to subtract from a code to get its value.
    const OFFSET: i16;
    /// Whether sub-blocks have a minimum in addition to the scale.
    const MIN: bool;
    /// Bytes of a super-block.
    const BYTES: usize;

    /// Offset of super-block `g` of a panel.
    fn start(n_cols: usize, g: usize) -> usize;

    /// Unpacks a super-block into byte lines.
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines);

    /// Scales of a super-block, and minima where there are any.
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock);

    /// Offsets of `d` and `dmin` of super-block `g` in a panel; the latter is anything where
    /// there are no minima.
    fn d(n_cols: usize, g: usize) -> (usize, usize);
}

/// Adds the products of a panel with some activation rows.
#[inline(always)]
fn panel_products<B: IntegerFormat, F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    let (panel, n_cols) = (product.panel, product.n_cols);
    let mut lines = [[0; LINE_BYTES]; GROUP / 4];
    let (mut scales, mut mins): (PerSubBlock, PerSubBlock) = ([[0; _]; _], [[0; _]; _]);
    for g in 0..n_cols.div_ceil(GROUP) {
        let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
        B::unpack::<F>(super_block, &mut lines);
        B::scales(super_block, &mut scales, &mut mins);
        let (d, dmin) = B::d(n_cols, g);
        let (d, dmin) = (halves::<F>(panel, d), halves::<F>(panel, dmin));
        let block = Unpacked {
            lines: &lines,
            scales: &scales,
            mins: &mins,
            d,
            dmin,
        };
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let (numbers, q) = product.layout.int8_256(row, g);
            let offset = i32::from(B::OFFSET);
            match B::SUB_COLS {
                32 => group_products::<F, 8>(&block, numbers, q, offset, B::MIN, acc),
                _ => group_products::<F, 4>(&block, numbers, q, offset, B::MIN, acc),
            }
        }
    }
}

/// A super-block of a panel.
struct Unpacked<'a> {
    lines: &'a Lines,
    scales: &'a PerSubBlock,
    mins: &'a PerSubBlock,
    d: Lanes,
    dmin: Lanes,
}

/// Adds the products of a super-block of a panel with a group of an activation row. `N`: lines of
/// a sub-block.
#[inline(always)]
fn group_products<F: Arith, const N: usize>(
    block: &Unpacked<'_>,
    numbers: &GroupNumbers,
    q: &[i8; GROUP],
    offset: i32,
    has_min: bool,
    acc: &mut Lanes,
) {
    F::outlined(|| {
        let sum = scaled_dots::<F, N>(block, q, &numbers.sums, offset);
        let mut t: Lanes = core::array::from_fn(|row| F::fma(block.d[row], float(sum[row]), 0.0));
        if has_min {
            let sum = scaled_sums::<N>(block.mins, &numbers.sums);
            t = core::array::from_fn(|row| F::fma(-block.dmin[row], float(sum[row]), t[row]));
        }
        for (acc, t) in acc.iter_mut().zip(t) {
            *acc = F::fma(numbers.d, t, *acc);
        }
    });
}

/// `S = Σ sc · Σ w · a` of a group.
#[inline(always)]
fn scaled_dots<F: Arith, const N: usize>(
    block: &Unpacked<'_>,
    q: &[i8; GROUP],
    sums: &ActivationSums,
    offset: i32,
) -> [i32; PANEL_ROWS] {
    let mut found = [0i32; PANEL_ROWS];
    let q = q.as_chunks::<4>().0.as_chunks::<N>().0;
    let lines = block.lines.as_chunks::<N>().0;
    for (s, ((lines, q), scales)) in lines.iter().zip(q).zip(block.scales).enumerate() {
        let dots = dots::<F, N>(lines, q);
        let correction = offset * sum_of::<N>(sums, s);
        for ((sum, dot), scale) in found.iter_mut().zip(dots).zip(scales) {
            *sum += scale * (dot - correction);
        }
    }
    found
}

/// `M = Σ min · Σ a` of a group.
#[inline(always)]
fn scaled_sums<const N: usize>(mins: &PerSubBlock, sums: &ActivationSums) -> [i32; PANEL_ROWS] {
    let mut sum = [0i32; PANEL_ROWS];
    for (s, mins) in mins[..GROUP / (4 * N)].iter().enumerate() {
        let q_sum = sum_of::<N>(sums, s);
        for (sum, min) in sum.iter_mut().zip(mins) {
            *sum += min * q_sum;
        }
    }
    sum
}

/// The sum of the activations' codes over sub-block `s`.
#[inline(always)]
fn sum_of<const N: usize>(sums: &ActivationSums, s: usize) -> i32 {
    let n = 4 * N / SUM_COLS;
    sums[n * s..][..n].iter().map(|sum| i32::from(*sum)).sum()
}

macro_rules! integer_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
                panel_products::<Self, F>(product, acc);
            }
        }
    )*};
}

integer_kernels!(
    panel::Q4K,
    panel::Q6K,
    panel::Q5K,
    panel::Q3K,
    panel::Q2K,
    panel::Iq4Xs
);

/// `sum` as f32, to nearest even.
#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    reason = "the contract rounds to nearest here"
)]
const fn float(sum: i32) -> f32 {
    sum as f32
}

/// Scales and minima of Q4_K and Q5_K.
#[inline(always)]
fn six_bits(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
    let head = super_block.first_chunk().expect("whole super-blocks");
    for s in 0..8 {
        for row in 0..PANEL_ROWS {
            let (scale, min) = q4_k::scale_min(head, s, row);
            scales[s][row] = i32::from(scale);
            mins[s][row] = i32::from(min);
        }
    }
}

/// The 6-bit scales, less 32, of a sub-block of Q3_K or IQ4_XS: their lower four bits and their
/// upper two are each in a byte of 16 rows, shifted.
#[inline(always)]
fn offset_scales(packed: &[u8], at: SixBits, scales: &mut [i32; PANEL_ROWS]) {
    let bytes = packed.as_chunks::<PANEL_ROWS>().0;
    for ((scale, low), high) in scales.iter_mut().zip(&bytes[at.low]).zip(&bytes[at.high]) {
        let low = i32::from(*low) >> at.low_shift & 0xf;
        let high = i32::from(*high) >> at.high_shift & 3;
        *scale = (low | high << 4) - 32;
    }
}

impl IntegerFormat for panel::Q4K {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q4_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q4_k::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[q4_k::LINES..];
        for s in 0..32 {
            split::<4>(&from[s * LINE_BYTES..], &mut lines[2 * s..2 * s + 2]);
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        six_bits(super_block, scales, mins);
    }

    #[inline(always)]
    fn d(n_cols: usize, g: usize) -> (usize, usize) {
        let d = Self::start(n_cols, g);
        (d, d + q4_k::DMIN)
    }
}

impl IntegerFormat for panel::Q5K {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q5_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q5_k::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[q4_k::LINES..];
        for s in 0..8 {
            let sub = &from[s * q5_k::SUB_BLOCK..];
            let lines = &mut lines[8 * s..8 * s + 8];
            for i in 0..4 {
                split::<4>(&sub[i * LINE_BYTES..], &mut lines[2 * i..2 * i + 2]);
            }
            add_high::<1>(&sub[q5_k::HIGH..], 4, lines);
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        six_bits(super_block, scales, mins);
    }

    #[inline(always)]
    fn d(n_cols: usize, g: usize) -> (usize, usize) {
        let d = Self::start(n_cols, g);
        (d, d + q4_k::DMIN)
    }
}

impl IntegerFormat for panel::Q6K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 32;
    const MIN: bool = false;
    const BYTES: usize = q6_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(n_cols: usize, g: usize) -> usize {
        Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[q6_k::LINES..];
        for s in 0..16 {
            let (sub, lines) = (&from[s * q6_k::SUB_BLOCK..], &mut lines[4 * s..4 * s + 4]);
            split::<4>(sub, &mut lines[..2]);
            split::<4>(&sub[LINE_BYTES..], &mut lines[2..]);
            add_high::<2>(&sub[q6_k::HIGH..], 4, lines);
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        let bytes = super_block.as_chunks::<PANEL_ROWS>().0;
        for (scales, bytes) in scales.iter_mut().zip(bytes) {
            for (scale, byte) in scales.iter_mut().zip(bytes) {
                *scale = byte.cast_signed().into();
            }
        }
    }

    #[inline(always)]
    fn d(_: usize, g: usize) -> (usize, usize) {
        let d = 2 * PANEL_ROWS * g;
        (d, d)
    }
}

impl IntegerFormat for panel::Q3K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 4;
    const MIN: bool = false;
    const BYTES: usize = q3_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(n_cols: usize, g: usize) -> usize {
        Self::head_bytes(n_cols) + g * q3_k::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[q3_k::LINES..];
        for s in 0..8 {
            let (run, lines) = (&from[s * q3_k::RUN..], &mut lines[8 * s..8 * s + 8]);
            split::<2>(run, &mut lines[..4]);
            split::<2>(&run[LINE_BYTES..], &mut lines[4..]);
            add_high::<1>(&run[q3_k::HIGH..], 2, lines);
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        for (s, scales) in scales.iter_mut().enumerate() {
            offset_scales(super_block, q3_k_blocks::scale_at(s), scales);
        }
    }

    #[inline(always)]
    fn d(_: usize, g: usize) -> (usize, usize) {
        let d = 2 * PANEL_ROWS * g;
        (d, d)
    }
}

impl IntegerFormat for panel::Q2K {
    const SUB_COLS: usize = 16;
    const OFFSET: i16 = 0;
    const MIN: bool = true;
    const BYTES: usize = q2_k::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * q2_k::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[q2_k::LINES..];
        for s in 0..16 {
            split::<2>(&from[s * LINE_BYTES..], &mut lines[4 * s..4 * s + 4]);
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, mins: &mut PerSubBlock) {
        let (packed, _) = super_block[q2_k::SCALES..].as_chunks::<PANEL_ROWS>();
        for ((scales, mins), packed) in scales.iter_mut().zip(mins).zip(packed) {
            for ((scale, min), byte) in scales.iter_mut().zip(mins).zip(packed) {
                (*scale, *min) = ((byte & 0xf).into(), (byte >> 4).into());
            }
        }
    }

    #[inline(always)]
    fn d(n_cols: usize, g: usize) -> (usize, usize) {
        let d = Self::start(n_cols, g);
        (d, d + q2_k::DMIN)
    }
}

impl IntegerFormat for panel::Iq4Xs {
    const SUB_COLS: usize = 32;
    const OFFSET: i16 = 128;
    const MIN: bool = false;
    const BYTES: usize = iq4_xs_panel::SUPER_BLOCK;

    #[inline(always)]
    fn start(_: usize, g: usize) -> usize {
        g * iq4_xs_panel::SUPER_BLOCK
    }

    #[inline(always)]
    fn unpack<F: Arith>(super_block: &[u8], lines: &mut Lines) {
        let from = &super_block[iq4_xs_panel::LINES..];
        for s in 0..32 {
            let lines = &mut lines[2 * s..2 * s + 2];
            split::<4>(&from[s * LINE_BYTES..], lines);
            for line in lines {
                *line = lookup(&IQ4_TABLE, line);
            }
        }
    }

    #[inline(always)]
    fn scales(super_block: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        let packed = &super_block[iq4_xs_panel::SCALES..];
        for (s, scales) in scales[..8].iter_mut().enumerate() {
            offset_scales(packed, iq4_xs::scale_at(s), scales);
        }
    }

    #[inline(always)]
    fn d(n_cols: usize, g: usize) -> (usize, usize) {
        let d = Self::start(n_cols, g);
        (d, d)
    }
}
