//! Types without an offset: value = scale · q, with q from a fixed grid.
//!
//! The scale of a sub-block comes from a search: for candidate inverse scales, round to the
//! grid and take the scale with the least weighted squared error for these q, which is
//! Σwxq / Σwq² and explains (Σwxq)² / Σwq² of Σwx². Scales of a super-block are then
//! quantised; with their steps known, neighbouring scales are tried, the super-block's `d` is
//! fitted to all q, and the neighbours are tried again.

use super::lanes::{Lanes, codes};
use super::vector::{LANES, Vector};
use crate::blocks::{iq4_nl, iq4_xs, lane, q3_k, q4_0, q5_0, q6_k};
use crate::half::{f16_to_f32, f32_to_f16};

/// What q may be.
pub(super) trait Grid {
    /// Where the number of largest magnitude goes, of either sign, in the candidates of a
    /// search. Negative: the other end of the grid.
    const TARGETS: &[f32];
    /// The q nearest to `y`.
    fn round<V: Vector>(y: V) -> V;
}

/// The integers −HALF..HALF.
pub(super) struct Integers<const HALF: i8>;

impl<const HALF: i8> Grid for Integers<HALF> {
    const TARGETS: &[f32] = match HALF {
        4 => &[-4.9, -4.6, -4.3, -4.0, -3.7, -3.4, 2.8, 3.1, 3.4, 3.7],
        8 => &[-8.8, -8.5, -8.2, -7.9, -7.6, -7.2, 6.8, 7.2, 7.6],
        16 => &[-16.8, -16.4, -16.0, -15.6, -15.2, 14.8, 15.3],
        _ => &[-32.8, -32.4, -32.0, -31.6, -31.2, 31.4],
    };

    #[inline(always)]
    fn round<V: Vector>(y: V) -> V {
        let half = f32::from(HALF);
        y.clamp(-half, half - 1.0).round()
    }
}

/// The integers of a precision lane. Scales that round luckily are not near each other: the more of them, the better.
pub(super) struct Lane<const BITS: usize>;

impl<const BITS: usize> Grid for Lane<BITS> {
    const TARGETS: &[f32] = match BITS {
        3 => Integers::<4>::TARGETS,
        5 => &[
            -16.8, -16.55, -16.3, -16.05, -15.8, -15.55, -15.3, -15.05, -14.8, -14.55, -14.3,
            -14.05, -13.8, -13.55, 14.8, 15.1, 15.4,
        ],
        _ => &[
            -64.6, -63.6, -62.6, -61.6, -60.6, -59.6, -58.6, -57.6, -56.6, -55.6, -54.6, -53.6,
            -52.6, -51.6, -50.6, 62.8, 63.4,
        ],
    };

    #[inline(always)]
    fn round<V: Vector>(y: V) -> V {
        let half = f32::from(lane::offset(BITS));
        y.clamp(-half, half - 1.0).round()
    }
}

/// The sixteen values of IQ4_NL.
pub(super) struct Nonlinear;

impl Grid for Nonlinear {
    const TARGETS: &[f32] = &[
        -134.0, -130.0, -126.0, -122.0, -118.0, 120.0, 116.0, 112.0, 108.0, 104.0,
    ];

    #[inline(always)]
    fn round<V: Vector>(y: V) -> V {
        let cell = y.clamp(-127.0, 113.0).mul(V::splat(2.0));
        cell.add(V::splat(255.5)).lookup(&NEAREST)
    }
}

/// The value of IQ4_NL nearest to (i − 256) / 2 up to (i − 255) / 2. Exact: the middles
/// between neighbours are multiples of one half.
static NEAREST: [f32; 512] = {
    let mut table = [0.0; 512];
    let mut i = 0;
    // In quarters, at the middle of the cell.
    let mut y = -511;
    while i < 512 {
        let mut best = 0;
        let mut v = 1;
        while v < 16 {
            let (a, b) = (
                iq4_nl::VALUES[v] as i32 * 4 - y,
                iq4_nl::VALUES[best] as i32 * 4 - y,
            );
            if a.abs() < b.abs() {
                best = v;
            }
            v += 1;
        }
        table[i] = iq4_nl::VALUES[best] as f32;
        i += 1;
        y += 2;
    }
    table
};

/// The code of each value of IQ4_NL plus 128.
static CODES: [u8; 256] = {
    let mut table = [0; 256];
    let mut v = 0u8;
    while v < 16 {
        table[(iq4_nl::VALUES[v as usize] as i16 + 128) as usize] = v;
        v += 1;
    }
    table
};

/// Best scale of every lane.
#[inline(always)]
fn fit<V: Vector, G: Grid, const N: usize>(lanes: &Lanes<V, N>) -> V {
    let zero = V::splat(0.0);
    let (mut low, mut high) = (zero, zero);
    for x in &lanes.x {
        low = low.min(*x);
        high = high.max(*x);
    }
    let largest = zero.sub(low).if_less(high, high, low);
    let unit = largest.inverse();
    let (mut best, mut scale) = (zero, zero);
    for target in G::TARGETS {
        let (xq, qq) = moments::<V, G, N>(lanes, unit.mul(V::splat(*target)));
        let s = xq.ratio(qq);
        let explained = s.mul(xq);
        scale = best.if_less(explained, s, scale);
        best = best.max(explained);
    }
    scale
}

/// Σwxq and Σwq² with q = round(x · inverse).
#[inline(always)]
fn moments<V: Vector, G: Grid, const N: usize>(lanes: &Lanes<V, N>, inverse: V) -> (V, V) {
    let (mut xq, mut qq) = (V::splat(0.0), V::splat(0.0));
    for (x, w) in lanes.x.iter().zip(&lanes.w) {
        let q = G::round(x.mul(inverse));
        let wq = w.mul(q);
        xq = xq.add(wq.mul(*x));
        qq = qq.add(wq.mul(q));
    }
    (xq, qq)
}

/// The weighted squared error of every lane with this scale.
#[inline(always)]
fn error<V: Vector, G: Grid, const N: usize>(lanes: &Lanes<V, N>, scale: V) -> V {
    let inverse = scale.inverse();
    let mut error = V::splat(0.0);
    for (x, w) in lanes.x.iter().zip(&lanes.w) {
        let e = x.sub(G::round(x.mul(inverse)).mul(scale));
        error = error.add(w.mul(e).mul(e));
    }
    error
}

/// A super-block's scales as the format has them: scale of a sub-block = d · sc.
#[derive(Clone, Copy)]
struct Scales<V, const GROUPS: usize> {
    d: u16,
    sc: [V; GROUPS],
    error: f32,
}

/// Fits `GROUPS` times eight sub-blocks; sc is an integer in −LIMIT..LIMIT.
#[inline(always)]
fn super_block<V: Vector, G: Grid, const N: usize, const GROUPS: usize, const LIMIT: i16>(
    groups: &[Lanes<V, N>; GROUPS],
) -> Scales<V, GROUPS> {
    let mut wanted = [V::splat(0.0); GROUPS];
    let mut largest = 0f32;
    for (lanes, wanted) in groups.iter().zip(&mut wanted) {
        *wanted = fit::<V, G, N>(lanes);
        for scale in wanted.store() {
            if scale.abs() > largest.abs() {
                largest = scale;
            }
        }
    }
    let mut d = f32_to_f16(largest / -f32::from(LIMIT));
    if largest.abs() > 0.0 && d & 0x7fff == 0 {
        d |= 1; // Not zero as long as there is something to express.
    }
    let inverse = V::splat(f16_to_f32(d)).inverse();
    for wanted in &mut wanted {
        *wanted = wanted.mul(inverse);
    }
    let mut best = neighbours::<V, G, N, GROUPS, LIMIT>(groups, d, &wanted);
    for _ in 0..PASSES {
        let (mut r, mut a) = (0.0, 0.0);
        for (lanes, sc) in groups.iter().zip(&best.sc) {
            let scale = sc.mul(V::splat(f16_to_f32(best.d)));
            let (xq, qq) = moments::<V, G, N>(lanes, scale.inverse());
            let (xq, qq, sc) = (xq.store(), qq.store(), sc.store());
            for l in 0..LANES {
                let sc = f64::from(sc[l]);
                r += sc * f64::from(xq[l]);
                a += sc * sc * f64::from(qq[l]);
            }
        }
        let d = if a > 0.0 { round_f64(r / a) } else { 0 };
        let next = neighbours::<V, G, N, GROUPS, LIMIT>(groups, d, &best.sc);
        if next.error >= best.error {
            break;
        }
        best = next;
    }
    best
}

/// Rounds of fitting `d` and trying neighbouring scales.
const PASSES: usize = 2;

/// The best integers within one of `wanted`, given `d`.
#[inline(always)]
fn neighbours<V: Vector, G: Grid, const N: usize, const GROUPS: usize, const LIMIT: i16>(
    groups: &[Lanes<V, N>; GROUPS],
    d: u16,
    wanted: &[V; GROUPS],
) -> Scales<V, GROUPS> {
    let limit = f32::from(LIMIT);
    let mut out = Scales {
        d,
        sc: *wanted,
        error: 0.0,
    };
    for (lanes, sc) in groups.iter().zip(&mut out.sc) {
        let middle = sc.round();
        let mut least = V::splat(f32::INFINITY);
        for step in [0.0, -1.0, 1.0] {
            let candidate = middle.add(V::splat(step)).clamp(-limit, limit - 1.0);
            let error = error::<V, G, N>(lanes, candidate.mul(V::splat(f16_to_f32(d))));
            *sc = error.if_less(least, candidate, *sc);
            least = least.min(error);
        }
        out.error += least.store().iter().sum::<f32>();
    }
    out
}

/// The half nearest to `x` (by way of the nearest f32).
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
pub(super) fn round_f64(x: f64) -> u16 {
    f32_to_f16(x as f32)
}

/// The q of a super-block plus `offset`, and its scales.
#[inline(always)]
fn encode<V: Vector, G: Grid, const N: usize, const GROUPS: usize, const LIMIT: i16>(
    x: &[f32; 256],
    w: &[f32; 256],
    offset: f32,
) -> (u16, [f32; 16], [u8; 256]) {
    let at = |g: usize| g * LANES * N..(g + 1) * LANES * N;
    let groups = Lanes::<V, N>::groups::<GROUPS>(x, w);
    let scales = super_block::<V, G, N, GROUPS, LIMIT>(&groups);
    let (mut sc, mut out) = ([0.0; 16], [0; 256]);
    for (g, lanes) in groups.iter().enumerate() {
        sc[LANES * g..][..LANES].copy_from_slice(&scales.sc[g].store());
        let scale = scales.sc[g].mul(V::splat(f16_to_f32(scales.d)));
        let inverse = scale.inverse();
        let mut q = lanes.x;
        for q in &mut q {
            *q = G::round(q.mul(inverse));
        }
        codes::<V, N>(&q, offset, &mut out[at(g)]);
    }
    (scales.d, sc, out)
}

/// An integer that is known to be in 0..256.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "stated")]
#[expect(clippy::cast_sign_loss, reason = "stated")]
pub(super) fn byte(x: f32) -> u8 {
    x as u8
}

#[inline(always)]
pub(super) fn q3_k_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 110]) {
    let (d, sc, codes) = encode::<V, Integers<4>, 16, 2, 32>(x, w, 4.0);
    q3_k::set_codes(&codes, out);
    out[q3_k::SCALES..q3_k::D].fill(0);
    for (s, sc) in sc.into_iter().enumerate() {
        let at = q3_k::scale_at(s);
        let sc = byte(sc + 32.0);
        out[q3_k::SCALES + at.low] |= (sc & 0xf) << at.low_shift;
        out[q3_k::SCALES + at.high] |= (sc >> 4) << at.high_shift;
    }
    out[q3_k::D..].copy_from_slice(&d.to_le_bytes());
}

#[inline(always)]
pub(super) fn q6_k_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 210]) {
    let (d, sc, codes) = encode::<V, Integers<32>, 16, 2, 128>(x, w, 32.0);
    q6_k::set_codes(&codes, out);
    for (out, sc) in out[q6_k::SCALES..q6_k::D].iter_mut().zip(sc) {
        *out = byte(sc + 128.0) ^ 0x80;
    }
    out[q6_k::D..].copy_from_slice(&d.to_le_bytes());
}

#[inline(always)]
pub(super) fn iq4_xs_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 136]) {
    let (d, sc, codes) = encode::<V, Nonlinear, 32, 1, 32>(x, w, 128.0);
    iq4_xs::set_codes(&codes.map(|v| CODES[usize::from(v)]), out);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[iq4_xs::SCALES..iq4_xs::QS].fill(0);
    for (s, sc) in sc[..8].iter().enumerate() {
        let at = iq4_xs::scale_at(s);
        let sc = byte(sc + 32.0);
        out[iq4_xs::SCALES + at.low] |= (sc & 0xf) << at.low_shift;
        out[iq4_xs::SCALES + at.high] |= (sc >> 4) << at.high_shift;
    }
}

/// Scales and q plus `offset` of eight blocks of 32 that have a scale each.
#[inline(always)]
fn encode_small<V: Vector, G: Grid>(
    x: &[f32; 256],
    w: &[f32; 256],
    offset: f32,
) -> ([u16; 8], [u8; 256]) {
    let lanes = Lanes::<V, 32>::new(x, w);
    let mut scale = fit::<V, G, 32>(&lanes);
    // Round again with the best scale, and fit that to the new q.
    let (xq, qq) = moments::<V, G, 32>(&lanes, scale.inverse());
    scale = xq.ratio(qq);
    let halves = scale.store().map(f32_to_f16);
    let inverse = V::load(&halves.map(f16_to_f32)).inverse();
    let mut out = [0; 256];
    let mut q = lanes.x;
    for q in &mut q {
        *q = G::round(q.mul(inverse));
    }
    codes::<V, 32>(&q, offset, &mut out);
    (halves, out)
}

#[inline(always)]
pub(super) fn q4_0_blocks<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 18]]) {
    let (d, codes) = encode_small::<V, Integers<8>>(x, w, 8.0);
    let blocks = codes.as_chunks::<32>().0.iter().zip(d);
    for ((codes, d), out) in blocks.zip(out) {
        out[..2].copy_from_slice(&d.to_le_bytes());
        q4_0::set_codes(codes, out);
    }
}

#[inline(always)]
pub(super) fn q5_0_blocks<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 22]]) {
    let (d, codes) = encode_small::<V, Integers<16>>(x, w, 16.0);
    let blocks = codes.as_chunks::<32>().0.iter().zip(d);
    for ((codes, d), out) in blocks.zip(out) {
        out[..2].copy_from_slice(&d.to_le_bytes());
        q5_0::set_codes(codes, out);
    }
}

#[inline(always)]
pub(super) fn lane_blocks<V: Vector, const BITS: usize, const BYTES: usize>(
    x: &[f32; 256],
    w: &[f32; 256],
    out: &mut [[u8; BYTES]],
) {
    let (d, codes) = encode_small::<V, Lane<BITS>>(x, w, f32::from(lane::offset(BITS)));
    let blocks = codes.as_chunks::<32>().0.iter().zip(d);
    for ((codes, d), out) in blocks.zip(out) {
        out[..lane::QS].copy_from_slice(&d.to_le_bytes());
        lane::set_codes(BITS, codes, out);
    }
}

#[inline(always)]
pub(super) fn iq4_nl_blocks<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 18]]) {
    let (d, codes) = encode_small::<V, Nonlinear>(x, w, 128.0);
    let blocks = codes.as_chunks::<32>().0.iter().zip(d);
    for ((codes, d), out) in blocks.zip(out) {
        out[..2].copy_from_slice(&d.to_le_bytes());
        iq4_nl::set_codes(&codes.map(|v| CODES[usize::from(v)]), out);
    }
}
