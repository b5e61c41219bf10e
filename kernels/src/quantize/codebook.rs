//! Types whose columns are entries of a codebook, four or eight at a time: value = d · odd ·
//! entry, with signs apart, where `odd` is 2 sc + 1 for each sub-block.
//!
//! For a scale, every entry of the codebook is compared, eight sub-blocks side by side, and the
//! one with the least weighted squared error taken: a sum over two halves of its columns, of
//! which there are few (see [`super::books`]). A sub-block's scale is the best of some
//! candidates, refitted by least squares to its entries; then `d` and `odd` are chosen as for
//! the other types with super-blocks.

use super::books::{Book, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
use super::lanes::Lanes;
use super::symmetric::{byte, round_f64};
use super::vector::{LANES, Vector};
use crate::half::{f16_to_f32, f32_to_f16};

/// What a type makes of its codebook.
trait Format {
    type Book: Book;
    /// `d` of the formulas here, when the block's half is 1.
    const UNIT: f32;
    /// The largest `odd`.
    const LARGEST_ODD: f32;
    /// Where the largest magnitude goes in the candidates of a search, in units of the
    /// codebook's values.
    const TARGETS: &[f32];
    /// Only an even number of eight columns can be negative.
    const EVEN: bool;
}

/// Costs of halves of entries, for eight sub-blocks.
type Costs = [[f32; LANES]; 128];

/// Σ w (x − scale · value)² of every half that there can be.
#[inline(always)]
fn fill<V: Vector, B: Book>(costs: &mut Costs, x: &[V], w: &[V], scale: V) {
    costs[0] = [0.0; LANES];
    let mut len = 1;
    for (x, w) in x.iter().zip(w) {
        // The first code's costs replace the sums without this column.
        for (c, value) in B::VALUES.iter().enumerate().rev() {
            let e = x.sub(scale.mul(V::splat(*value)));
            let cost = w.mul(e).mul(e);
            for i in 0..len {
                costs[c * len + i] = V::load(&costs[i]).add(cost).store();
            }
        }
        len *= B::VALUES.len();
    }
}

/// The costs of both halves of the `COLUMNS` columns from `at`.
#[inline(always)]
fn fill_both<V: Vector, B: Book, const N: usize>(
    costs: &mut [Costs; 2],
    lanes: &Lanes<V, N>,
    at: usize,
    scale: V,
) {
    let half = B::COLUMNS / 2;
    for (costs, at) in costs.iter_mut().zip([at, at + half]) {
        fill::<V, B>(costs, &lanes.x[at..][..half], &lanes.w[at..][..half], scale);
    }
}

/// The first halves that go with a second half, and the number of the first of those entries.
#[inline(always)]
fn partners<B: Book>(second: usize) -> (usize, &'static [u8]) {
    let [start, end] = [second, second + 1].map(|h| usize::from(B::STARTS[h]));
    (start, &B::FIRST[start..end])
}

/// The least cost of an entry, and the second half of the first that has it, in every lane.
#[inline(always)]
fn least<V: Vector, B: Book>(costs: &[Costs; 2]) -> (V, V) {
    let mut best = (V::splat(f32::INFINITY), V::splat(0.0));
    let mut number = 0.0;
    for (second, cost) in costs[1][..B::HALVES].iter().enumerate() {
        let mut least = V::splat(f32::INFINITY);
        for first in partners::<B>(second).1 {
            least = least.min(V::load(&costs[0][usize::from(*first) & 127]));
        }
        let cost = least.add(V::load(cost));
        best.1 = cost.if_less(best.0, V::splat(number), best.1);
        best.0 = best.0.min(cost);
        number += 1.0;
    }
    best
}

/// The error of every lane with the best entries for this scale.
#[inline(always)]
fn error<V: Vector, B: Book, const N: usize>(
    costs: &mut [Costs; 2],
    lanes: &Lanes<V, N>,
    scale: V,
) -> V {
    let mut error = V::splat(0.0);
    for at in (0..N).step_by(B::COLUMNS) {
        fill_both::<V, B, N>(costs, lanes, at, scale);
        error = error.add(least::<V, B>(costs).0);
    }
    error
}

/// The best of `candidates` and its error, in every lane.
#[inline(always)]
fn best_scale<V: Vector, B: Book, const N: usize>(
    costs: &mut [Costs; 2],
    lanes: &Lanes<V, N>,
    candidates: impl Iterator<Item = V>,
) -> (V, V) {
    let mut best = (V::splat(0.0), V::splat(f32::INFINITY));
    for scale in candidates {
        let error = error::<V, B, N>(costs, lanes, scale);
        best.0 = error.if_less(best.1, scale, best.0);
        best.1 = best.1.min(error);
    }
    best
}

/// Entries of eight sub-blocks for given scales, with Σwxq and Σwq².
struct Chosen<V> {
    /// Of column group k of sub-block l at k, l.
    entries: [[u16; LANES]; 8],
    xq: V,
    qq: V,
}

#[inline(always)]
fn choose<V: Vector, B: Book, const N: usize>(
    costs: &mut [Costs; 2],
    lanes: &Lanes<V, N>,
    scale: V,
) -> Chosen<V> {
    let zero = V::splat(0.0);
    let mut out = Chosen {
        entries: [[0; LANES]; 8],
        xq: zero,
        qq: zero,
    };
    for (k, entries) in out.entries[..N / B::COLUMNS].iter_mut().enumerate() {
        let at = k * B::COLUMNS;
        fill_both::<V, B, N>(costs, lanes, at, scale);
        let seconds = least::<V, B>(costs).1.store();
        let mut q = [[0f32; LANES]; 8];
        for (l, entry) in entries.iter_mut().enumerate() {
            let second = usize::from(byte(seconds[l]));
            let (start, firsts) = partners::<B>(second);
            let (mut best, mut cost) = (0, f32::INFINITY);
            for (i, first) in firsts.iter().enumerate() {
                let other = costs[0][usize::from(*first) & 127][l];
                if other < cost {
                    (best, cost) = (i, other);
                }
            }
            let halves = [usize::from(firsts[best]), second];
            for (c, q) in q[..B::COLUMNS].iter_mut().enumerate() {
                let half = B::COLUMNS / 2;
                q[l] = B::VALUES[B::code(halves[c / half], c % half)];
            }
            let [low, high, ..] = (start + best).to_le_bytes();
            *entry = u16::from_le_bytes([low, high]);
        }
        for (c, q) in q[..B::COLUMNS].iter().enumerate() {
            let q = V::load(q);
            let wq = lanes.w[at + c].mul(q);
            out.xq = out.xq.add(wq.mul(lanes.x[at + c]));
            out.qq = out.qq.add(wq.mul(q));
        }
    }
    out
}

/// A super-block's scales: scale of a sub-block = d · UNIT · odd.
#[derive(Clone, Copy)]
struct Scales<V, const GROUPS: usize> {
    d: u16,
    odd: [V; GROUPS],
    error: f32,
}

impl<V: Vector, const GROUPS: usize> Scales<V, GROUPS> {
    /// What `odd` is multiplied by.
    #[inline(always)]
    fn step<F: Format>(d: u16) -> V {
        V::splat(f16_to_f32(d) * F::UNIT)
    }
}

/// Fits `GROUPS` times eight sub-blocks.
#[inline(always)]
fn super_block<V: Vector, F: Format, const N: usize, const GROUPS: usize>(
    costs: &mut [Costs; 2],
    groups: &[Lanes<V, N>; GROUPS],
) -> Scales<V, GROUPS> {
    let zero = V::splat(0.0);
    let mut wanted = [zero; GROUPS];
    let mut largest = 0f32;
    for (lanes, wanted) in groups.iter().zip(&mut wanted) {
        let max = lanes.x.iter().fold(zero, |max, x| max.max(*x));
        let targets = F::TARGETS.iter().map(|t| max.mul(V::splat(1.0 / t)));
        let (scale, _) = best_scale::<V, F::Book, N>(costs, lanes, targets);
        let chosen = choose::<V, F::Book, N>(costs, lanes, scale);
        *wanted = chosen.xq.ratio(chosen.qq);
        for scale in wanted.store() {
            largest = largest.max(scale);
        }
    }
    let mut d = f32_to_f16(largest / (F::LARGEST_ODD * F::UNIT));
    // Not zero as long as there is something to express.
    d = d.max(u16::from(largest > 0.0));
    let mut best = Scales {
        d,
        odd: [zero; GROUPS],
        error: f32::INFINITY,
    };
    for _ in 0..PASSES {
        let next = neighbours::<V, F, N, GROUPS>(costs, groups, d, &wanted);
        if next.error >= best.error {
            break;
        }
        best = next;
        let (mut r, mut a) = (0.0, 0.0);
        let step = Scales::<V, GROUPS>::step::<F>(best.d);
        for (g, lanes) in groups.iter().enumerate() {
            let chosen = choose::<V, F::Book, N>(costs, lanes, best.odd[g].mul(step));
            wanted[g] = chosen.xq.ratio(chosen.qq);
            let (xq, qq, odd) = (chosen.xq.store(), chosen.qq.store(), best.odd[g].store());
            for l in 0..LANES {
                let odd = f64::from(odd[l]);
                r += odd * f64::from(xq[l]);
                a += odd * odd * f64::from(qq[l]);
            }
        }
        let fitted = if a > 0.0 { r / a } else { 0.0 };
        d = round_f64(fitted / f64::from(F::UNIT));
    }
    best
}

/// Rounds of trying neighbouring scales and fitting `d`.
const PASSES: usize = 3;

/// The best odd numbers near those that express the wanted scales, given `d`.
#[inline(always)]
fn neighbours<V: Vector, F: Format, const N: usize, const GROUPS: usize>(
    costs: &mut [Costs; 2],
    groups: &[Lanes<V, N>; GROUPS],
    d: u16,
    wanted: &[V; GROUPS],
) -> Scales<V, GROUPS> {
    let step = Scales::<V, GROUPS>::step::<F>(d);
    let (one, half) = (V::splat(1.0), V::splat(0.5));
    let mut out = Scales {
        d,
        odd: *wanted,
        error: 0.0,
    };
    for (lanes, odd) in groups.iter().zip(&mut out.odd) {
        let exact = odd.mul(step.inverse()).clamp(0.0, F::LARGEST_ODD);
        let middle = exact.sub(one).mul(half).round();
        let middle = middle.add(middle).add(one);
        let candidates = [0.0, -2.0, 2.0].into_iter().map(|by| {
            let odd = middle.add(V::splat(by));
            odd.clamp(1.0, F::LARGEST_ODD).mul(step)
        });
        let (scale, error) = best_scale::<V, F::Book, N>(costs, lanes, candidates);
        *odd = scale.mul(step.inverse()).round();
        out.error += error.store().iter().sum::<f32>();
    }
    out
}

/// What a super-block holds.
struct Encoded {
    d: u16,
    /// (odd − 1) / 2 of every sub-block.
    sc: [u8; 16],
    entries: [u16; 64],
    /// Bit j: column j of eight is negative.
    signs: [u8; 32],
}

#[inline(always)]
fn encode<V: Vector, F: Format, const N: usize, const GROUPS: usize>(
    x: &[f32; 256],
    w: &[f32; 256],
) -> Encoded {
    let (magnitudes, signs) = split::<F>(x, w);
    let groups = Lanes::<V, N>::groups::<GROUPS>(&magnitudes, w);
    let costs = &mut [[[0.0; LANES]; 128]; 2];
    let scales = super_block::<V, F, N, GROUPS>(costs, &groups);
    let mut out = Encoded {
        d: scales.d,
        sc: [0; 16],
        entries: [0; 64],
        signs,
    };
    let step = Scales::<V, GROUPS>::step::<F>(scales.d);
    let per_lane = N / F::Book::COLUMNS;
    for (g, lanes) in groups.iter().enumerate() {
        let chosen = choose::<V, F::Book, N>(costs, lanes, scales.odd[g].mul(step));
        for (l, odd) in scales.odd[g].store().into_iter().enumerate() {
            let s = LANES * g + l;
            out.sc[s] = byte(odd) >> 1;
            for k in 0..per_lane {
                out.entries[s * per_lane + k] = chosen.entries[k][l];
            }
        }
    }
    out
}

/// Magnitudes and signs; where the signs must be even and are odd, the number whose square
/// costs least gets the other sign and a negative magnitude.
#[inline(always)]
fn split<F: Format>(x: &[f32; 256], w: &[f32; 256]) -> ([f32; 256], [u8; 32]) {
    let (mut magnitudes, mut signs) = (*x, [0u8; 32]);
    let eights = magnitudes.as_chunks_mut::<8>().0.iter_mut();
    for ((x, w), signs) in eights.zip(w.as_chunks::<8>().0).zip(&mut signs) {
        for (j, x) in x.iter_mut().enumerate() {
            *signs |= u8::from(*x < 0.0) << j;
            *x = x.abs();
        }
        if F::EVEN && signs.count_ones() % 2 == 1 {
            let mut least = 0;
            for j in 1..8 {
                if w[j] * x[j] * x[j] < w[least] * x[least] * x[least] {
                    least = j;
                }
            }
            x[least] = -x[least];
            *signs ^= 1 << least;
        }
    }
    (magnitudes, signs)
}

struct Iq3SFormat;

impl Format for Iq3SFormat {
    type Book = Iq3S;
    const UNIT: f32 = 1.0;
    const LARGEST_ODD: f32 = 31.0;
    const TARGETS: &[f32] = &[9.0, 10.5, 12.0, 12.8, 13.6, 14.4, 15.2, 16.2, 17.4];
    const EVEN: bool = false;
}

/// Fields: see the value functions of [`crate::blocks`].
#[inline(always)]
pub(super) fn iq3_s_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 110]) {
    let block = encode::<V, Iq3SFormat, 32, 1>(x, w);
    out.fill(0);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for (i, entry) in block.entries.iter().enumerate() {
        let [low, high] = entry.to_le_bytes();
        out[2 + i] = low;
        out[66 + i / 8] |= high << (i % 8);
    }
    out[74..106].copy_from_slice(&block.signs);
    for (s, sc) in block.sc[..8].iter().enumerate() {
        out[106 + s / 2] |= sc << (s % 2 * 4);
    }
}

struct Iq3XxsFormat;

impl Format for Iq3XxsFormat {
    type Book = Iq3Xxs;
    const UNIT: f32 = 0.25;
    const LARGEST_ODD: f32 = 31.0;
    const TARGETS: &[f32] = &[37.0, 42.0, 47.0, 51.0, 55.0, 59.0, 63.0, 68.0, 74.0];
    const EVEN: bool = true;
}

#[inline(always)]
pub(super) fn iq3_xxs_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 98]) {
    let block = encode::<V, Iq3XxsFormat, 32, 1>(x, w);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for (out, entry) in out[2..66].iter_mut().zip(block.entries) {
        *out = entry.to_le_bytes()[0];
    }
    let words = signs_and_scale(&block);
    for (out, word) in out[66..].as_chunks_mut().0.iter_mut().zip(words) {
        *out = word.to_le_bytes();
    }
}

/// A word for each 32 columns: four times seven signs, and a scale on top.
#[inline(always)]
fn signs_and_scale(block: &Encoded) -> [u32; 8] {
    core::array::from_fn(|s| {
        let mut word = u32::from(block.sc[s]) << 28;
        for (i, signs) in block.signs[4 * s..][..4].iter().enumerate() {
            word |= u32::from(signs & 0x7f) << (7 * i);
        }
        word
    })
}

struct Iq2SFormat;

impl Format for Iq2SFormat {
    type Book = Iq2S;
    const UNIT: f32 = 0.125;
    const LARGEST_ODD: f32 = 31.0;
    const TARGETS: &[f32] = &[28.0, 32.0, 36.0, 39.0, 42.0, 45.0, 48.0, 52.0, 58.0];
    const EVEN: bool = false;
}

#[inline(always)]
pub(super) fn iq2_s_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 82]) {
    let block = encode::<V, Iq2SFormat, 16, 2>(x, w);
    out.fill(0);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    for (i, entry) in block.entries[..32].iter().enumerate() {
        let [low, high] = entry.to_le_bytes();
        out[2 + i] = low;
        out[66 + i / 4] |= high << (i % 4 * 2);
    }
    out[34..66].copy_from_slice(&block.signs);
    set_nibbles(&block.sc, &mut out[74..]);
}

/// A byte for two scales.
#[inline(always)]
fn set_nibbles(sc: &[u8; 16], out: &mut [u8]) {
    for (out, [low, high]) in out.iter_mut().zip(sc.as_chunks().0) {
        *out = low | high << 4;
    }
}

struct Iq2XsFormat;

impl Format for Iq2XsFormat {
    type Book = Iq2Xs;
    const UNIT: f32 = 0.125;
    const LARGEST_ODD: f32 = 31.0;
    const TARGETS: &[f32] = Iq2SFormat::TARGETS;
    const EVEN: bool = true;
}

#[inline(always)]
pub(super) fn iq2_xs_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 74]) {
    let block = encode::<V, Iq2XsFormat, 16, 2>(x, w);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    let words = out[2..66].as_chunks_mut().0.iter_mut();
    for ((out, entry), signs) in words.zip(block.entries).zip(block.signs) {
        *out = (entry | u16::from(signs & 0x7f) << 9).to_le_bytes();
    }
    set_nibbles(&block.sc, &mut out[66..]);
}

struct Iq2XxsFormat;

impl Format for Iq2XxsFormat {
    type Book = Iq2Xxs;
    const UNIT: f32 = 0.125;
    const LARGEST_ODD: f32 = 31.0;
    const TARGETS: &[f32] = Iq2SFormat::TARGETS;
    const EVEN: bool = true;
}

#[inline(always)]
pub(super) fn iq2_xxs_block<V: Vector>(x: &[f32; 256], w: &[f32; 256], out: &mut [u8; 66]) {
    let block = encode::<V, Iq2XxsFormat, 32, 1>(x, w);
    out[..2].copy_from_slice(&block.d.to_le_bytes());
    let words = signs_and_scale(&block);
    for (s, out) in out[2..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
        for (out, entry) in out.iter_mut().zip(&block.entries[4 * s..]).take(4) {
            *out = entry.to_le_bytes()[0];
        }
        out[4..].copy_from_slice(&words[s].to_le_bytes());
    }
}
