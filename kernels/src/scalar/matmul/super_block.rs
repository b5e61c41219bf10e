//! Types that sum exactly over super-blocks of 256 columns.
//!
//! Sums stay below 2^31, with codes of activations within ±127: Q4_K 15·127·32·63·8 = 30.7 M,
//! Q5_K 31·127·32·63·8 = 63.5 M, Q6_K 32·127·16·128·16 = 133 M, Q2_K 3·127·16·15·16 = 1.5 M,
//! Q3_K 4·127·16·32·16 = 4.2 M, IQ4_XS 127·127·32·32·8 = 132 M; minima 63·127·256 = 2 M. Offsets
//! of codes are taken off before a sum is scaled, as the exact product with the activations' sum.

use super::{GroupKernel, Lanes, Lines, PanelProduct, add_high, dot, halves, split, unsigned};
use crate::activation::SUM_COLS;
use crate::blocks::iq4_xs;
use crate::contract::{Arith, GROUP};
use crate::panel::{self, LINE_BYTES, PANEL_ROWS, PanelFormat};
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};

/// The values of IQ4_XS codes, unsigned.
static IQ4_TABLE: [u8; 16] = unsigned(&iq4_xs::VALUES);

/// Sums of the activations' codes, 16 columns each.
type ActivationSums = [i16; GROUP / SUM_COLS];

/// A type with small unsigned codes that sums exactly over a group.
trait IntegerFormat: PanelFormat {
    /// Unpacks group `g` into byte lines.
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines);

    /// The group's sum `t` in units of the activation scale (see [`crate::contract`]).
    fn group<F: Arith>(
        panel: &[u8],
        n_cols: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes;
}

macro_rules! integer_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
                let (panel, n_cols) = (product.panel, product.n_cols);
                let mut lines = [[0; LINE_BYTES]; GROUP / 4];
                for g in 0..n_cols.div_ceil(GROUP) {
                    <$format>::unpack::<F>(panel, n_cols, g, &mut lines);
                    for (row, acc) in product.rows.iter().zip(&mut *acc) {
                        let (d, q, sums) = product.layout.int8_256(row, g);
                        let t = <$format>::group::<F>(panel, n_cols, g, &lines, q, sums);
                        for (acc, t) in acc.iter_mut().zip(t) {
                            *acc = F::fma(d, t, *acc);
                        }
                    }
                }
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

/// `fma(d, f32(sum), 0)`.
#[inline(always)]
fn scaled<F: Arith>(d: &Lanes, sum: &[i32; PANEL_ROWS]) -> Lanes {
    core::array::from_fn(|row| F::fma(d[row], float(sum[row]), 0.0))
}

/// `fma(-dmin, f32(min_sum), fma(d, f32(sum), 0))`.
#[inline(always)]
fn scaled_less_min<F: Arith>(
    d: &Lanes,
    sum: &[i32; PANEL_ROWS],
    dmin: &Lanes,
    min_sum: &[i32; PANEL_ROWS],
) -> Lanes {
    let t = scaled::<F>(d, sum);
    core::array::from_fn(|row| F::fma(-dmin[row], float(min_sum[row]), t[row]))
}

/// The sum of the activations' codes over 32 columns.
#[inline(always)]
fn sum_32(sums: &ActivationSums, s: usize) -> i32 {
    i32::from(sums[2 * s]) + i32::from(sums[2 * s + 1])
}

/// A group of Q4_K or Q5_K, by the head that they share.
#[inline(always)]
fn group_with_mins<F: Arith>(
    from: &[u8],
    lines: &Lines,
    q: &[i8; GROUP],
    sums: &ActivationSums,
) -> Lanes {
    let head = from.first_chunk().expect("whole super-blocks");
    let (mut sum, mut min_sum) = ([0i32; PANEL_ROWS], [0i32; PANEL_ROWS]);
    for s in 0..8 {
        let dots = dot::<F>(&lines[8 * s..8 * s + 8], &q[32 * s..32 * s + 32]);
        let q_sum = sum_32(sums, s);
        for row in 0..PANEL_ROWS {
            let (scale, min) = q4_k::scale_min(head, s, row);
            sum[row] += i32::from(scale) * dots[row];
            min_sum[row] += i32::from(min) * q_sum;
        }
    }
    let (d, dmin) = (halves::<F>(head, 0), halves::<F>(head, q4_k::DMIN));
    scaled_less_min::<F>(&d, &sum, &dmin, &min_sum)
}

impl IntegerFormat for panel::Q4K {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], _: usize, g: usize, lines: &mut Lines) {
        let from = &panel[g * q4_k::SUPER_BLOCK + q4_k::LINES..];
        for s in 0..32 {
            split::<4>(&from[s * LINE_BYTES..], &mut lines[2 * s..2 * s + 2]);
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        _: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        group_with_mins::<F>(&panel[g * q4_k::SUPER_BLOCK..], lines, q, sums)
    }
}

impl IntegerFormat for panel::Q5K {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], _: usize, g: usize, lines: &mut Lines) {
        let from = &panel[g * q5_k::SUPER_BLOCK + q4_k::LINES..];
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
    fn group<F: Arith>(
        panel: &[u8],
        _: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        group_with_mins::<F>(&panel[g * q5_k::SUPER_BLOCK..], lines, q, sums)
    }
}

impl IntegerFormat for panel::Q6K {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let from = &panel[Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK + q6_k::LINES..];
        for s in 0..16 {
            let (sub, lines) = (&from[s * q6_k::SUB_BLOCK..], &mut lines[4 * s..4 * s + 4]);
            split::<4>(sub, &mut lines[..2]);
            split::<4>(&sub[LINE_BYTES..], &mut lines[2..]);
            add_high::<2>(&sub[q6_k::HIGH..], 4, lines);
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        n_cols: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        let from = &panel[Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK..];
        let mut sum = [0i32; PANEL_ROWS];
        for s in 0..16 {
            let dots = dot::<F>(&lines[4 * s..4 * s + 4], &q[16 * s..16 * s + 16]);
            let scales: &[u8; PANEL_ROWS] = from[16 * s..].first_chunk().expect("16 scales");
            for row in 0..PANEL_ROWS {
                let scale = i32::from(scales[row].cast_signed());
                sum[row] += scale * (dots[row] - 32 * i32::from(sums[s]));
            }
        }
        scaled::<F>(&halves::<F>(panel, g * 2 * PANEL_ROWS), &sum)
    }
}

impl IntegerFormat for panel::Q3K {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let from = &panel[Self::head_bytes(n_cols) + g * q3_k::SUPER_BLOCK + q3_k::LINES..];
        for s in 0..8 {
            let (run, lines) = (&from[s * q3_k::RUN..], &mut lines[8 * s..8 * s + 8]);
            split::<2>(run, &mut lines[..4]);
            split::<2>(&run[LINE_BYTES..], &mut lines[4..]);
            add_high::<1>(&run[q3_k::HIGH..], 2, lines);
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        n_cols: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        let from = &panel[Self::head_bytes(n_cols) + g * q3_k::SUPER_BLOCK..];
        let scales = from.first_chunk().expect("whole super-blocks");
        let mut sum = [0i32; PANEL_ROWS];
        for s in 0..16 {
            let dots = dot::<F>(&lines[4 * s..4 * s + 4], &q[16 * s..16 * s + 16]);
            for row in 0..PANEL_ROWS {
                sum[row] += Self::scale(scales, s, row) * (dots[row] - 4 * i32::from(sums[s]));
            }
        }
        scaled::<F>(&halves::<F>(panel, g * 2 * PANEL_ROWS), &sum)
    }
}

impl IntegerFormat for panel::Q2K {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], _: usize, g: usize, lines: &mut Lines) {
        let from = &panel[g * q2_k::SUPER_BLOCK + q2_k::LINES..];
        for s in 0..16 {
            split::<2>(&from[s * LINE_BYTES..], &mut lines[4 * s..4 * s + 4]);
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        _: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        let from = &panel[g * q2_k::SUPER_BLOCK..][..q2_k::SUPER_BLOCK];
        let (mut sum, mut min_sum) = ([0i32; PANEL_ROWS], [0i32; PANEL_ROWS]);
        for s in 0..16 {
            let dots = dot::<F>(&lines[4 * s..4 * s + 4], &q[16 * s..16 * s + 16]);
            let scales: &[u8; PANEL_ROWS] = from[q2_k::SCALES + 16 * s..]
                .first_chunk()
                .expect("16 scales");
            for row in 0..PANEL_ROWS {
                sum[row] += i32::from(scales[row] & 0xf) * dots[row];
                min_sum[row] += i32::from(scales[row] >> 4) * i32::from(sums[s]);
            }
        }
        let (d, dmin) = (halves::<F>(from, 0), halves::<F>(from, q2_k::DMIN));
        scaled_less_min::<F>(&d, &sum, &dmin, &min_sum)
    }
}

impl IntegerFormat for panel::Iq4Xs {
    #[inline(always)]
    fn unpack<F: Arith>(panel: &[u8], _: usize, g: usize, lines: &mut Lines) {
        let from = &panel[g * iq4_xs_panel::SUPER_BLOCK + iq4_xs_panel::LINES..];
        for s in 0..32 {
            let lines = &mut lines[2 * s..2 * s + 2];
            split::<4>(&from[s * LINE_BYTES..], lines);
            for line in lines {
                *line = F::lookup_lanes(&IQ4_TABLE, line);
            }
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        _: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &ActivationSums,
    ) -> Lanes {
        let from = &panel[g * iq4_xs_panel::SUPER_BLOCK..];
        let head = from.first_chunk().expect("whole super-blocks");
        let mut sum = [0i32; PANEL_ROWS];
        for s in 0..8 {
            let dots = dot::<F>(&lines[8 * s..8 * s + 8], &q[32 * s..32 * s + 32]);
            let correction = 128 * sum_32(sums, s);
            for row in 0..PANEL_ROWS {
                sum[row] += Self::scale(head, s, row) * (dots[row] - correction);
            }
        }
        scaled::<F>(&halves::<F>(head, 0), &sum)
    }
}
