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
    /// Where the largest magnitude goes in the candidates of a search, in units of the
    /// codebook's values. The first is the smallest value, for equal magnitudes: it makes an
    /// entry with itself in every codebook, and the largest one does not.
    const TARGETS: &[f32];
    /// Only an even number of eight columns can be negative.
    const EVEN: bool;
}

/// Costs of halves of entries, for eight sub-blocks and two runs of columns in each.
type Costs = [[[f32; LANES]; 2]; 128];

/// Costs of the first and the second half.
type Both = [Costs; 2];

/// Σ w (x − scale · value)² of every half that there can be, for run `r`.
#[inline(always)]
fn fill<V: Vector, B: Book>(costs: &mut Costs, r: usize, x: &[V], w: &[V], scale: V) {
    costs[0][r] = [0.0; LANES];
    let mut len = 1;
    for (x, w) in x.iter().zip(w) {
        // The first code's costs replace the sums without this column.
        for (c, value) in B::VALUES.iter().enumerate().rev() {
            let e = x.sub(scale.mul(V::splat(*value)));
            let cost = w.mul(e).mul(e);
            for i in 0..len {
                costs[c * len + i][r] = V::load(&costs[i][r]).add(cost).store();
            }
        }
        len *= B::VALUES.len();
    }
}

/// The costs of both halves of two entries, the columns from `at`.
#[inline(always)]
fn fill_both<V: Vector, B: Book, const N: usize>(
    costs: &mut Both,
    lanes: &Lanes<V, N>,
    at: usize,
    scale: V,
) {
    let half = B::COLUMNS / 2;
    for r in 0..2 {
        for (h, costs) in costs.iter_mut().enumerate() {
            let at = at + (2 * r + h) * half;
            let (x, w) = (&lanes.x[at..][..half], &lanes.w[at..][..half]);
            fill::<V, B>(costs, r, x, w, scale);
        }
    }
}

/// The first halves that are combined with a second half.
#[inline(always)]
fn partners<B: Book>(second: usize) -> &'static [[u8; 4]] {
    let [start, end] = [second, second + 1].map(|h| usize::from(B::FOURS[h]));
    &B::FIRST[start..end]
}

/// The least cost of an entry, and the second half of the first that has it, in every lane of
/// both runs.
#[inline(always)]
fn least<V: Vector, B: Book>(costs: &Both) -> [(V, V); 2] {
    let mut best = [(V::splat(f32::INFINITY), V::splat(0.0)); 2];
    let mut number = 0.0;
    for (second, cost) in costs[1][..B::HALVES].iter().enumerate() {
        let mut least = [V::splat(f32::INFINITY); 2];
        for first in partners::<B>(second).as_flattened() {
            let cost = &costs[0][usize::from(*first) & 127];
            for (least, cost) in least.iter_mut().zip(cost) {
                *least = least.min(V::load(cost));
            }
        }
        for (r, best) in best.iter_mut().enumerate() {
            let cost = least[r].add(V::load(&cost[r]));
            best.1 = cost.if_less(best.0, V::splat(number), best.1);
            best.0 = best.0.min(cost);
        }
        number += 1.0;
    }
    best
}

/// The best of `candidates` and its error with the best entries, in every lane.
#[inline(always)]
fn best_scale<V: Vector, B: Book, const N: usize>(
    costs: &mut Both,
    lanes: &Lanes<V, N>,
    candidates: &[V],
) -> (V, V) {
    let mut best = (V::splat(0.0), V::splat(f32::INFINITY));
    for scale in candidates {
        let mut error = V::splat(0.0);
        for at in (0..N).step_by(2 * B::COLUMNS) {
            fill_both::<V, B, N>(costs, lanes, at, *scale);
            let [(a, _), (b, _)] = least::<V, B>(costs);
            error = error.add(a).add(b);
        }
        best.0 = error.if_less(best.1, *scale, best.0);
        best.1 = best.1.min(error);
    }
    best
}

/// Entries of eight sub-blocks for given scales, with Σwxq and Σwq².
struct Chosen<V> {
    entries: Entries,
    xq: V,
    qq: V,
}

/// Indices: run k, then sub-block l.
type Entries = [[u16; LANES]; 8];

#[inline(always)]
fn choose<V: Vector, B: Book, const N: usize>(
    costs: &mut Both,
    lanes: &Lanes<V, N>,
    scale: V,
) -> Chosen<V> {
    let (zero, half) = (V::splat(0.0), B::COLUMNS / 2);
    let mut out = Chosen {
        entries: [[0; LANES]; 8],
        xq: zero,
        qq: zero,
    };
    for k in (0..N / B::COLUMNS).step_by(2) {
        fill_both::<V, B, N>(costs, lanes, k * B::COLUMNS, scale);
        for (r, (_, seconds)) in least::<V, B>(costs).into_iter().enumerate() {
            let mut q = [[0f32; LANES]; 8];
            for (l, second) in seconds.store().into_iter().enumerate() {
                let second = usize::from(byte(second));
                let (entry, first) = first_half::<B>(&costs[0], second, r, l);
                out.entries[k + r][l] = entry;
                for (c, q) in q[..B::COLUMNS].iter_mut().enumerate() {
                    let number = if c < half { first } else { second };
                    q[l] = B::VALUES[B::code(number, c % half)];
                }
            }
            for (c, q) in q[..B::COLUMNS].iter().enumerate() {
                let (at, q) = ((k + r) * B::COLUMNS + c, V::load(q));
                let wq = lanes.w[at].mul(q);
                out.xq = out.xq.add(wq.mul(lanes.x[at]));
                out.qq = out.qq.add(wq.mul(q));
            }
        }
    }
    out
}

/// The entry with this second half that costs least in run `r` of lane `l`, and its first half.
#[inline(always)]
fn first_half<B: Book>(costs: &Costs, second: usize, r: usize, l: usize) -> (u16, usize) {
    let firsts = partners::<B>(second).as_flattened();
    let (mut best, mut least, mut entry) = (0, f32::INFINITY, B::ENTRIES[second]);
    let start = entry;
    for (i, first) in (start..).zip(firsts) {
        let first = usize::from(*first) & 127;
        let cost = costs[first][r][l];
        // Not reached by repetitions of the last.
        if cost < least {
            (best, least, entry) = (first, cost, i);
        }
    }
    (entry, best)
}

/// A super-block's scales and entries: scale of a sub-block = d · UNIT · odd.
#[derive(Clone, Copy)]
struct Fitted<V, const GROUPS: usize> {
    d: u16,
    odd: [V; GROUPS],
    entries: [Entries; GROUPS],
}

/// Fits `GROUPS` times eight sub-blocks.
#[inline(always)]
fn super_block<V: Vector, F: Format, const N: usize, const GROUPS: usize>(
    groups: &[Lanes<V, N>; GROUPS],
) -> Fitted<V, GROUPS> {
    let mut costs = [[[[0.0; LANES]; 2]; 128]; 2];
    let mut best = Fitted {
        d: 0,
        odd: [V::splat(1.0); GROUPS],
        entries: [[[0; LANES]; 8]; GROUPS],
    };
    let (mut d, mut error) = (0, f32::INFINITY);
    let mut wanted = [V::splat(0.0); GROUPS];
    for pass in 0..=PASSES {
        let step = V::splat(f16_to_f32(d) * F::UNIT);
        let (mut largest, mut sum, mut xq, mut qq) = (0f32, 0f32, 0f64, 0f64);
        let mut next = Fitted { d, ..best };
        for (g, lanes) in groups.iter().enumerate() {
            let candidates = &mut [V::splat(0.0); CANDIDATES];
            let candidates = if pass == 0 {
                first_candidates::<V, F, N>(lanes, candidates)
            } else {
                neighbours(wanted[g], step, candidates)
            };
            let (scale, least) = best_scale::<V, F::Book, N>(&mut costs, lanes, candidates);
            let chosen = choose::<V, F::Book, N>(&mut costs, lanes, scale);
            wanted[g] = chosen.xq.ratio(chosen.qq);
            next.odd[g] = scale.mul(step.inverse()).round();
            next.entries[g] = chosen.entries;
            let (odd, wanted) = (next.odd[g].store(), wanted[g].store());
            for l in 0..LANES {
                let odd = f64::from(odd[l]);
                // `max` may give the -0 of two zeros, which would be the bits of `d`.
                largest = largest.max(wanted[l]) + 0.0;
                sum += least.store()[l];
                xq += odd * f64::from(chosen.xq.store()[l]);
                qq += odd * odd * f64::from(chosen.qq.store()[l]);
            }
        }
        if pass == 0 {
            // Not zero as long as there is something to express.
            let half = f32_to_f16(largest / (LARGEST_ODD * F::UNIT));
            d = half.max(u16::from(largest > 0.0));
            continue;
        }
        if sum >= error {
            break;
        }
        (best, error) = (next, sum);
        let fitted = if qq > 0.0 { xq / qq } else { 0.0 };
        d = round_f64(fitted / f64::from(F::UNIT));
    }
    best
}

/// The largest `odd`.
const LARGEST_ODD: f32 = 31.0;
/// Rounds of trying neighbouring scales and fitting `d`.
const PASSES: usize = 2;
/// Maximum number of scales that are tried in a round.
const CANDIDATES: usize = 7;

/// Scales that put the largest magnitude at each of the targets.
#[inline(always)]
fn first_candidates<'a, V: Vector, F: Format, const N: usize>(
    lanes: &Lanes<V, N>,
    out: &'a mut [V; CANDIDATES],
) -> &'a [V] {
    let mut largest = V::splat(0.0);
    for x in &lanes.x {
        largest = largest.max(*x);
    }
    for (out, target) in out.iter_mut().zip(F::TARGETS) {
        *out = largest.mul(V::splat(1.0 / target));
    }
    &out[..F::TARGETS.len()]
}

/// The odd multiple of `step` nearest to `wanted`, and its two neighbours.
#[inline(always)]
fn neighbours<V: Vector>(wanted: V, step: V, out: &mut [V; CANDIDATES]) -> &[V] {
    let exact = wanted.mul(step.inverse()).clamp(0.0, LARGEST_ODD);
    let below = exact.sub(V::splat(1.0)).mul(V::splat(0.5)).round();
    let middle = below.add(below).add(V::splat(1.0));
    for (out, by) in out.iter_mut().zip([0.0, -2.0, 2.0]) {
        let odd = middle.add(V::splat(by)).clamp(1.0, LARGEST_ODD);
        *out = odd.mul(step);
    }
    &out[..3]
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
    let fitted = super_block::<V, F, N, GROUPS>(&groups);
    let mut out = Encoded {
        d: fitted.d,
        sc: [0; 16],
        entries: [0; 64],
        signs,
    };
    let runs = N / F::Book::COLUMNS;
    for (g, entries) in fitted.entries.iter().enumerate() {
        for (l, odd) in fitted.odd[g].store().into_iter().enumerate() {
            let s = LANES * g + l;
            out.sc[s] = byte(odd) >> 1;
            for (k, entries) in entries[..runs].iter().enumerate() {
                out.entries[s * runs + k] = entries[l];
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
    const TARGETS: &[f32] = &[1.0, 9.5, 11.5, 12.8, 14.0, 15.2, 17.0];
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
    const TARGETS: &[f32] = &[4.0, 39.0, 46.0, 51.5, 57.0, 62.0, 70.0];
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
    const TARGETS: &[f32] = &[8.0, 30.0, 35.0, 39.0, 43.0, 47.0, 53.0];
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
