//! Types with an offset: value = scale · q − min, with q in 0..=largest.
//!
//! A sub-block's search tries inverse scales around the one that maps its range onto the codes. For given q the best
//! scale and min are a weighted least-squares line (in the K-quants with min not below zero), and the candidate that
//! explains most of Σwx² wins. A super-block's scales and mins are then quantised, their neighbours tried, `d` and
//! `dmin` fitted to all q, and the neighbours tried again.

use super::lanes::{Lanes, codes};
use super::symmetric::{byte, round_f64};
use super::vector::{LANES, Vector};
use crate::blocks::{q2_k, q4_1, q4_k, q5_1, q5_k};
use crate::half::{f16_to_f32, f32_to_f16};

/// How far from the codes' number the range is stretched in a search.
const STRETCHES: &[f32] = &[-0.9, -0.6, -0.3, 0.0, 0.3, 0.7];
/// [`STRETCHES`] for two-bit codes, where a stretch of the range is a larger part of it.
const STRETCHES_OF_3: &[f32] = &[-1.2, -1.0, -0.8, -0.6, -0.4, -0.2, 0.0, 0.3];

/// For types without a second step that would make up for a coarse search.
const MANY_STRETCHES: &[f32] = &[
    -1.4, -1.1, -0.9, -0.75, -0.6, -0.45, -0.3, -0.15, 0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9,
];

/// x ≈ scale · q − min in every lane.
#[derive(Clone, Copy)]
struct Line<V> {
    scale: V,
    min: V,
}

/// Sums over a sub-block that the q do not change.
struct Fixed<V> {
    w: V,
    wx: V,
}

impl<V: Vector> Fixed<V> {
    #[inline(always)]
    fn new<const N: usize>(lanes: &Lanes<V, N>) -> Self {
        let zero = V::splat(0.0);
        let mut out = Self { w: zero, wx: zero };
        for (x, w) in lanes.x.iter().zip(&lanes.w) {
            out.w = out.w.add(*w);
            out.wx = out.wx.add(w.mul(*x));
        }
        out
    }
}

/// Σwq, Σwq² and Σwxq.
struct Moments<V> {
    q: V,
    qq: V,
    xq: V,
}

/// The q nearest to `y`.
#[inline(always)]
fn round<V: Vector, const MAX: u8>(y: V) -> V {
    y.clamp(0.0, f32::from(MAX)).round()
}

/// Moments with q = round((x + min) · inverse).
#[inline(always)]
fn moments<V: Vector, const N: usize, const MAX: u8>(
    lanes: &Lanes<V, N>,
    inverse: V,
    min: V,
) -> Moments<V> {
    let zero = V::splat(0.0);
    let (mut q, mut qq, mut xq) = (zero, zero, zero);
    for (x, w) in lanes.x.iter().zip(&lanes.w) {
        let code = round::<V, MAX>(x.add(min).mul(inverse));
        let wq = w.mul(code);
        q = q.add(wq);
        qq = qq.add(wq.mul(code));
        xq = xq.add(wq.mul(*x));
    }
    Moments { q, qq, xq }
}

/// A line, and what it explains of Σwx².
#[derive(Clone, Copy)]
struct Fit<V> {
    line: Line<V>,
    explained: V,
}

/// The best line for these moments.
#[inline(always)]
fn line<V: Vector, const MIN_ANY: bool>(fixed: &Fixed<V>, m: &Moments<V>) -> Fit<V> {
    let zero = V::splat(0.0);
    let det = fixed.w.mul(m.qq).sub(m.q.mul(m.q));
    let scale = fixed.w.mul(m.xq).sub(m.q.mul(fixed.wx)).ratio(det);
    let min = m.q.mul(scale).sub(fixed.wx).ratio(fixed.w);
    let (scale, min) = if MIN_ANY {
        (scale, min)
    } else {
        let through_zero = m.xq.ratio(m.qq);
        (
            min.if_less(zero, through_zero, scale),
            min.if_less(zero, zero, min),
        )
    };
    let explained = scale.mul(m.xq).sub(min.mul(fixed.wx));
    Fit {
        line: Line { scale, min },
        explained,
    }
}

/// Best line of every lane.
#[inline(always)]
fn fit<V: Vector, const N: usize, const MAX: u8, const MIN_ANY: bool>(
    lanes: &Lanes<V, N>,
) -> Line<V> {
    let zero = V::splat(0.0);
    let fixed = Fixed::new(lanes);
    let (mut low, mut high) = (lanes.x[0], lanes.x[0]);
    for x in &lanes.x {
        low = low.min(*x);
        high = high.max(*x);
    }
    if !MIN_ANY {
        low = low.min(zero);
    }
    let min = zero.sub(low);
    let unit = high.sub(low).inverse();
    // One level: the mean, or nothing where only mins are allowed.
    let none = Moments {
        q: zero,
        qq: zero,
        xq: zero,
    };
    let mut best = line::<V, MIN_ANY>(&fixed, &none);
    let stretches = match (MAX, MIN_ANY) {
        (3, _) => STRETCHES_OF_3,
        (_, true) => MANY_STRETCHES,
        _ => STRETCHES,
    };
    for stretch in stretches {
        let inverse = unit.mul(V::splat(f32::from(MAX) + stretch));
        let moments = moments::<V, N, MAX>(lanes, inverse, min);
        best = better(best, line::<V, MIN_ANY>(&fixed, &moments));
    }
    // The best line rounds some numbers to other q.
    for _ in 0..if MIN_ANY { 2 * REPEATS } else { REPEATS } {
        let inverse = best.line.scale.inverse();
        let moments = moments::<V, N, MAX>(lanes, inverse, best.line.min);
        best = better(best, line::<V, MIN_ANY>(&fixed, &moments));
    }
    best.line
}

/// The line that explains more, in every lane.
#[inline(always)]
fn better<V: Vector>(a: Fit<V>, b: Fit<V>) -> Fit<V> {
    let pick = |of_a: V, of_b: V| a.explained.if_less(b.explained, of_b, of_a);
    Fit {
        line: Line {
            scale: pick(a.line.scale, b.line.scale),
            min: pick(a.line.min, b.line.min),
        },
        explained: a.explained.max(b.explained),
    }
}

/// Times that the best line is used to round again.
const REPEATS: usize = 2;

/// The weighted squared error of every lane on a line.
#[inline(always)]
fn error<V: Vector, const N: usize, const MAX: u8>(lanes: &Lanes<V, N>, line: Line<V>) -> V {
    let inverse = line.scale.inverse();
    let mut error = V::splat(0.0);
    for (x, w) in lanes.x.iter().zip(&lanes.w) {
        let shifted = x.add(line.min);
        let q = round::<V, MAX>(shifted.mul(inverse));
        let e = shifted.sub(q.mul(line.scale));
        error = error.add(w.mul(e).mul(e));
    }
    error
}

/// A super-block's scales as the format has them: scale = d · sc, min = dmin · mn.
#[derive(Clone, Copy)]
struct Scales<V, const GROUPS: usize> {
    d: u16,
    dmin: u16,
    sc: [V; GROUPS],
    mn: [V; GROUPS],
    error: f32,
}

impl<V: Vector, const GROUPS: usize> Scales<V, GROUPS> {
    /// The line of every lane of a group.
    #[inline(always)]
    fn line(&self, group: usize) -> Line<V> {
        Line {
            scale: self.sc[group].mul(V::splat(f16_to_f32(self.d))),
            min: self.mn[group].mul(V::splat(f16_to_f32(self.dmin))),
        }
    }
}

/// Divides `wanted` by the step that puts the largest at LIMIT, which is returned.
#[inline(always)]
fn in_steps<V: Vector, const GROUPS: usize, const LIMIT: u8>(wanted: &mut [V; GROUPS]) -> u16 {
    let mut largest = 0f32;
    for wanted in &*wanted {
        for number in wanted.store() {
            // `max` may give the -0 of two zeros, which would be the bits of the step.
            largest = largest.max(number) + 0.0;
        }
    }
    // Not zero as long as there is something to express.
    let step = f32_to_f16(largest / f32::from(LIMIT)).max(u16::from(largest > 0.0));
    let inverse = V::splat(f16_to_f32(step)).inverse();
    for wanted in wanted {
        *wanted = wanted.mul(inverse);
    }
    step
}

/// Fits `GROUPS` times eight sub-blocks; sc and mn are integers in 0..=LIMIT.
#[inline(always)]
fn super_block<V: Vector, const N: usize, const GROUPS: usize, const MAX: u8, const LIMIT: u8>(
    groups: &[Lanes<V, N>; GROUPS],
) -> Scales<V, GROUPS> {
    let zero = V::splat(0.0);
    let mut wanted = Scales {
        d: 0,
        dmin: 0,
        sc: [zero; GROUPS],
        mn: [zero; GROUPS],
        error: 0.0,
    };
    for (g, lanes) in groups.iter().enumerate() {
        let line = fit::<V, N, MAX, false>(lanes);
        wanted.sc[g] = line.scale;
        wanted.mn[g] = line.min;
    }
    (wanted.d, wanted.dmin) = (
        in_steps::<V, GROUPS, LIMIT>(&mut wanted.sc),
        in_steps::<V, GROUPS, LIMIT>(&mut wanted.mn),
    );
    let mut best = neighbours::<V, N, GROUPS, MAX, LIMIT>(groups, &wanted);
    for _ in 0..PASSES {
        let refitted = refit::<V, N, GROUPS, MAX>(groups, &best);
        let next = neighbours::<V, N, GROUPS, MAX, LIMIT>(groups, &refitted);
        if next.error >= best.error {
            break;
        }
        best = next;
    }
    best
}

/// Rounds of fitting `d` and `dmin` and trying neighbours.
const PASSES: usize = 2;

/// Keeps the integers and fits the `d` and `dmin` that are best for all q.
#[inline(always)]
fn refit<V: Vector, const N: usize, const GROUPS: usize, const MAX: u8>(
    groups: &[Lanes<V, N>; GROUPS],
    scales: &Scales<V, GROUPS>,
) -> Scales<V, GROUPS> {
    // Σ w (x − d·sc·q + dmin·mn)² is least where two linear equations hold.
    let (mut a, mut b, mut c, mut r, mut s) = (0f64, 0f64, 0f64, 0f64, 0f64);
    for (g, lanes) in groups.iter().enumerate() {
        let line = scales.line(g);
        let m = moments::<V, N, MAX>(lanes, line.scale.inverse(), line.min);
        let Fixed { w, wx } = Fixed::new(lanes);
        let (sc, mn, w, wx) = (
            scales.sc[g].store(),
            scales.mn[g].store(),
            w.store(),
            wx.store(),
        );
        let (q, qq, xq) = (m.q.store(), m.qq.store(), m.xq.store());
        for l in 0..LANES {
            let (sc, mn) = (f64::from(sc[l]), f64::from(mn[l]));
            a += sc * sc * f64::from(qq[l]);
            b += sc * mn * f64::from(q[l]);
            c += mn * mn * f64::from(w[l]);
            r += sc * f64::from(xq[l]);
            s += mn * f64::from(wx[l]);
        }
    }
    let det = a * c - b * b;
    let (d, dmin) = if det > 1e-9 * a * c {
        ((r * c - s * b) / det, (r * b - s * a) / det)
    } else {
        (r / a, 0.0)
    };
    let mut out = *scales;
    if d > 0.0 && dmin >= 0.0 {
        (out.d, out.dmin) = (round_f64(d), round_f64(dmin));
    }
    out
}

/// The best integers near the wanted ones, given `d` and `dmin`: of each neighbouring sc the
/// best mn.
#[inline(always)]
fn neighbours<V: Vector, const N: usize, const GROUPS: usize, const MAX: u8, const LIMIT: u8>(
    groups: &[Lanes<V, N>; GROUPS],
    wanted: &Scales<V, GROUPS>,
) -> Scales<V, GROUPS> {
    let limit = f32::from(LIMIT);
    let mut out = *wanted;
    out.error = 0.0;
    for (g, lanes) in groups.iter().enumerate() {
        let (sc, mn) = (wanted.sc[g].round(), wanted.mn[g].round());
        let mut least = V::splat(f32::INFINITY);
        for (dsc, dmn) in NEIGHBOURS {
            let mut candidate = *wanted;
            candidate.sc[g] = sc.add(V::splat(dsc)).clamp(0.0, limit);
            candidate.mn[g] = mn.add(V::splat(dmn)).clamp(0.0, limit);
            let error = error::<V, N, MAX>(lanes, candidate.line(g));
            out.sc[g] = error.if_less(least, candidate.sc[g], out.sc[g]);
            out.mn[g] = error.if_less(least, candidate.mn[g], out.mn[g]);
            least = least.min(error);
        }
        out.error += least.store().iter().sum::<f32>();
    }
    out
}

/// Steps from the nearest integers (sc, mn) that are tried.
const NEIGHBOURS: [(f32, f32); 7] = [
    (0.0, 0.0),
    (-1.0, -1.0),
    (1.0, 1.0),
    (-1.0, 0.0),
    (1.0, 0.0),
    (0.0, -1.0),
    (0.0, 1.0),
];

/// What a super-block holds.
struct Encoded {
    d: u16,
    dmin: u16,
    sc: [u8; 16],
    mn: [u8; 16],
    codes: [u8; 256],
}

#[inline(always)]
fn encode<V: Vector, const N: usize, const GROUPS: usize, const MAX: u8, const LIMIT: u8>(
    x: &[f32; 256],
    w: &[f32; 256],
) -> Encoded {
    let at = |g: usize| g * LANES * N..(g + 1) * LANES * N;
    let groups = Lanes::<V, N>::groups::<GROUPS>(x, w);
    let scales = super_block::<V, N, GROUPS, MAX, LIMIT>(&groups);
    let mut out = Encoded {
        d: scales.d,
        dmin: scales.dmin,
        sc: [0; 16],
        mn: [0; 16],
        codes: [0; 256],
    };
    for (g, lanes) in groups.iter().enumerate() {
        let (sc, mn) = (scales.sc[g].store(), scales.mn[g].store());
        for l in 0..LANES {
            out.sc[LANES * g + l] = byte(sc[l]);
            out.mn[LANES * g + l] = byte(mn[l]);
        }
        let line = scales.line(g);
        let inverse = line.scale.inverse();
        let mut q = lanes.x;
        for q in &mut q {
            *q = round::<V, MAX>(q.add(line.min).mul(inverse));
        }
        codes::<V, N>(&q, 0.0, &mut out.codes[at(g)]);
    }
    out
}

#[inline(always)]
pub(super) fn q2_k_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 84]) {
    let block = encode::<V, 16, 2, 3, 15>(x, w);
    for (s, out) in out[..q2_k::QS].iter_mut().enumerate() {
        *out = block.sc[s] | block.mn[s] << 4;
    }
    q2_k::set_codes(&block.codes, out);
    out[q2_k::D..][..2].copy_from_slice(&block.d.to_le_bytes());
    out[q2_k::D + 2..].copy_from_slice(&block.dmin.to_le_bytes());
}

#[inline(always)]
pub(super) fn q4_k_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 144]) {
    let block = encode::<V, 32, 1, 15, 63>(x, w);
    set_head(&block, out);
    q4_k::set_codes(&block.codes, out);
}

#[inline(always)]
pub(super) fn q5_k_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 176]) {
    let block = encode::<V, 32, 1, 31, 63>(x, w);
    set_head(&block, out);
    q5_k::set_codes(&block.codes, out);
}

/// What Q4_K and Q5_K start with.
#[inline(always)]
fn set_head(block: &Encoded, out: &mut [u8]) {
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    out[2..4].copy_from_slice(&block.dmin.to_le_bytes());
    let (sc, mn) = (block.sc.first_chunk(), block.mn.first_chunk());
    q4_k::set_scales(sc.expect("there are 16"), mn.expect("there are 16"), out);
}

/// Scales, mins and codes of eight blocks of 32 that have a scale and an offset each.
#[inline(always)]
fn encode_small<V: Vector, const MAX: u8>(
    x: &[f32; 256],
    w: &[f32; 256],
) -> ([u16; 8], [u16; 8], [u8; 256]) {
    let lanes = Lanes::<V, 32>::new(x, w);
    let line = fit::<V, 32, MAX, true>(&lanes);
    let d = line.scale.store().map(f32_to_f16);
    let m = V::splat(0.0).sub(line.min).store().map(f32_to_f16);
    let inverse = V::load(&d.map(f16_to_f32)).inverse();
    let offset = V::load(&m.map(f16_to_f32));
    let mut q = lanes.x;
    for q in &mut q {
        *q = round::<V, MAX>(q.sub(offset).mul(inverse));
    }
    let mut out = [0; 256];
    codes::<V, 32>(&q, 0.0, &mut out);
    (d, m, out)
}

#[inline(always)]
pub(super) fn q4_1_blocks<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 20]]) {
    let (d, m, codes) = encode_small::<V, 15>(x, w);
    let blocks = codes.as_chunks::<32>().0.iter().zip(d.into_iter().zip(m));
    for ((codes, (d, m)), out) in blocks.zip(out) {
        out[..2].copy_from_slice(&d.to_le_bytes());
        out[2..4].copy_from_slice(&m.to_le_bytes());
        q4_1::set_codes(codes, out);
    }
}

#[inline(always)]
pub(super) fn q5_1_blocks<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 24]]) {
    let (d, m, codes) = encode_small::<V, 31>(x, w);
    let blocks = codes.as_chunks::<32>().0.iter().zip(d.into_iter().zip(m));
    for ((codes, (d, m)), out) in blocks.zip(out) {
        out[..2].copy_from_slice(&d.to_le_bytes());
        out[2..4].copy_from_slice(&m.to_le_bytes());
        q5_1::set_codes(codes, out);
    }
}
