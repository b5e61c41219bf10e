//! Scores and values of q8_0 and q4_0: exact integers per 32 dimensions and per 64 keys.

use super::{Scores, Values, Vector, stride};
use crate::args::TileRange;
use crate::contract::{KV_BLOCK, LANES};
use crate::kv::KV_SCALE_DIMS;
use crate::scalar::attention::{WEIGHT_MAX, inverse};
use core::mem::MaybeUninit;

/// Sums in memory, for a loop that is not unrolled: an array of registers cannot be indexed by a
/// variable, and would be kept in memory anyway.
#[repr(C, align(64))]
struct Stored<const Q: usize, const L: usize>(MaybeUninit<[[[u32; LANES]; L]; Q]>);

impl<const Q: usize, const L: usize> Stored<Q, L> {
    #[inline(always)]
    fn new<V: Vector>(sums: &[[V::I; L]; Q]) -> Self {
        let mut stored = Self(MaybeUninit::uninit());
        let to = stored.0.as_mut_ptr().cast::<[u32; LANES]>();
        for (q, sums) in sums.iter().enumerate() {
            for (l, sum) in sums.iter().enumerate() {
                // SAFETY: there is room for LANES lanes of each sum.
                unsafe { V::store_int(*sum, to.wrapping_add(q * L + l).cast()) };
            }
        }
        stored
    }

    /// Sum `l` of query `q`.
    #[inline(always)]
    fn get<V: Vector>(&self, q: usize, l: usize) -> V::I {
        assert!(q < Q && l < L);
        let from = self.0.as_ptr().cast::<[u32; LANES]>();
        // SAFETY: all sums were stored.
        unsafe { V::load_int(from.wrapping_add(q * L + l).cast()) }
    }
}

/// Products of `Q` int8 queries with the keys of a block, `L` vectors of keys at a time.
///
/// # Safety
/// - The pointers of `args` are what [`Scores`] says, for `Q` queries.
#[inline(always)]
pub(crate) unsafe fn int8_scores<V: Vector, const NIBBLES: bool, const Q: usize, const L: usize>(
    args: &Scores,
) {
    let n_blocks = args.head_dim.div_ceil(KV_SCALE_DIMS);
    let codes_at = n_blocks * KV_BLOCK * 2;
    let codes = args.keys.wrapping_add(codes_at);
    let n_lines = if NIBBLES { 4 } else { 8 };
    let mut v = args.start / (V::WIDTH * L) * L;
    while v * V::WIDTH < args.end {
        for b in 0..n_blocks {
            args.ahead.prefetch_more(b * KV_BLOCK * 2, KV_BLOCK * 2);
            let mut sums = [[V::splat_int(0); L]; Q];
            for (q, sums) in sums.iter_mut().enumerate() {
                // SAFETY: a correction for each block and query.
                let correction = unsafe { args.corrections.wrapping_add(b * Q + q).read() };
                *sums = [V::splat_int(correction); L];
            }
            let mut words = args.queries.wrapping_add(b * 8);
            for line in 0..n_lines {
                let at = ((b * n_lines + line) * KV_BLOCK + v * V::WIDTH) * 4;
                args.ahead.prefetch(codes_at + at, 4 * V::WIDTH * L);
                let mut lines = [V::splat_int(0); L];
                for (l, codes_of) in lines.iter_mut().enumerate() {
                    let at = at + 4 * V::WIDTH * l;
                    // SAFETY: lines lie within the keys of a block.
                    *codes_of = unsafe { V::load_int(codes.wrapping_add(at)) };
                }
                let low = V::splat_int(0x0f0f_0f0f);
                for half in 0..=usize::from(NIBBLES) {
                    let mut codes_of = lines;
                    for codes_of in &mut codes_of {
                        if NIBBLES && half == 1 {
                            *codes_of = V::shift_right::<4>(*codes_of);
                        }
                        if NIBBLES {
                            *codes_of = V::and(*codes_of, low);
                        }
                    }
                    for (q, sums) in sums.iter_mut().enumerate() {
                        // SAFETY: eight words for each block and query.
                        let word =
                            V::splat_int(unsafe { words.wrapping_add(q * stride(Q)).read() });
                        for (sum, line) in sums.iter_mut().zip(codes_of) {
                            *sum = V::dot4(line, word, *sum);
                        }
                    }
                    words = words.wrapping_add(1);
                }
            }
            let mut scales = [V::splat(0.0); L];
            for (l, scale) in scales.iter_mut().enumerate() {
                let at = (b * KV_BLOCK + (v + l) * V::WIDTH) * 2;
                // SAFETY: a scale for each block and key.
                *scale = unsafe { V::halves(args.keys.wrapping_add(at)) };
            }
            let sums = Stored::<Q, L>::new::<V>(&sums);
            for q in 0..Q {
                // SAFETY: a scale for each block and query.
                let scale = V::splat(unsafe { args.scales.wrapping_add(b * Q + q).read() });
                for (l, of_keys) in scales.iter().enumerate() {
                    let at = args.out.wrapping_add(q * KV_BLOCK + (v + l) * V::WIDTH);
                    let before = if b == 0 {
                        V::splat(0.0)
                    } else {
                        // SAFETY: each query has 64 products.
                        unsafe { V::load(at) }
                    };
                    let sum = V::to_float(sums.get::<V>(q, l));
                    let x = V::fma(V::mul(*of_keys, scale), sum, before);
                    // SAFETY: as above.
                    unsafe { V::store(x, at) };
                }
            }
        }
        v += L;
    }
}

/// Adds weights times values to the sums of `Q` queries, 32 dimensions at a time.
///
/// # Safety
/// - The pointers of `args` are what [`Values`] says, for `Q` queries.
#[inline(always)]
pub(crate) unsafe fn int8_values<V: Vector, const NIBBLES: bool, const Q: usize>(args: &Values) {
    let n_blocks = args.head_dim.div_ceil(KV_SCALE_DIMS);
    let codes = args.values.wrapping_add(n_blocks * KV_BLOCK * 2);
    let line_bytes = 4 * if NIBBLES { LANES } else { KV_SCALE_DIMS };
    for b in 0..n_blocks {
        let scales = args.values.wrapping_add(b * KV_BLOCK * 2);
        args.ahead.prefetch_more(b * KV_BLOCK * 2, KV_BLOCK * 2);
        let (mut units, mut scaled, mut largest) = ([0f32; Q], [0f32; KV_BLOCK], 0.0);
        for (q, unit) in units.iter_mut().enumerate() {
            if q == 0 || args.seen[q] != args.seen[q - 1] {
                // SAFETY: a scale for each block and key.
                largest = unsafe { integer_scales::<V>(scales, args.seen[q], &mut scaled) };
            }
            *unit = args.tops[q] * largest * (1.0 / WEIGHT_MAX);
            let at = q * KV_BLOCK;
            // SAFETY: 64 weights and words for each query.
            unsafe {
                integer_weights::<V>(
                    args.weights.wrapping_add(at).cast(),
                    inverse(args.tops[q], 1.0),
                    &scaled,
                    args.room.wrapping_add(at),
                );
            }
        }
        // Two vectors of dimensions, 16 apart.
        for first in (0..LANES).step_by(V::WIDTH) {
            let lines = codes.wrapping_add(b * line_bytes + 4 * first);
            let dim = b * KV_SCALE_DIMS + first;
            // SAFETY: lines lie within the values of a block, and dimensions begin in a query's.
            unsafe {
                let sums = value_sums::<V, NIBBLES, Q>(args, lines, n_blocks * line_bytes);
                add_scaled::<V, Q>(args, dim, &sums, &units);
            }
        }
    }
}

/// Sums of integer weights times the codes of lines `step` bytes apart, four keys each.
///
/// # Safety
/// - 16 lines from `lines` on are values of the block.
#[inline(always)]
unsafe fn value_sums<V: Vector, const NIBBLES: bool, const Q: usize>(
    args: &Values,
    lines: *const u8,
    step: usize,
) -> Stored<Q, 2> {
    // Few queries have sums of their own for every other pair, or each would wait for its last.
    let mut sums = [[[V::splat_int(0); 2]; Q]; 2];
    for t in 0..KV_BLOCK / 4 {
        let line = lines.wrapping_add(t * step);
        let at = line.addr() - args.values.addr();
        args.ahead
            .prefetch(at, 4 * if NIBBLES { LANES } else { 2 * LANES });
        // SAFETY: by the caller.
        let pairs = unsafe { code_pairs::<V, NIBBLES>(line) };
        let words = args.room.wrapping_add(4 * t);
        // SAFETY: 64 words for each query.
        unsafe {
            add_pairs::<V, Q>(&mut sums[0], pairs[0], words);
            let second = usize::from(Q <= 4);
            add_pairs::<V, Q>(&mut sums[second], pairs[1], words.wrapping_add(1));
        }
    }
    let [mut sums, others] = sums;
    let others = others.as_flattened();
    for (sum, other) in sums.as_flattened_mut().iter_mut().zip(others) {
        *sum = V::add_int(*sum, *other);
    }
    Stored::new::<V>(&sums)
}

/// Scales sums and adds them to the queries' sums, from dimensions `dim` and `dim + 16` on.
///
/// # Safety
/// - The pointers of `args` are what [`Values`] says, for `Q` queries.
#[inline(always)]
unsafe fn add_scaled<V: Vector, const Q: usize>(
    args: &Values,
    dim: usize,
    sums: &Stored<Q, 2>,
    units: &[f32; Q],
) {
    for (q, unit) in units.iter().enumerate() {
        for j in 0..2 {
            let dim = dim + j * LANES;
            let n = args.head_dim.saturating_sub(dim);
            if n == 0 {
                continue;
            }
            let at = args.out[q].wrapping_add(dim);
            let part = n < V::WIDTH;
            // SAFETY: n dimensions from here on are within the query's sums.
            let before = unsafe {
                if part {
                    V::load_part(at, n)
                } else {
                    V::load(at)
                }
            };
            let before = V::mul(before, V::splat(args.corrections[q]));
            let x = V::fma(V::splat(*unit), V::to_float(sums.get::<V>(q, j)), before);
            // SAFETY: as above.
            unsafe {
                if part {
                    V::store_part(x, at, n);
                } else {
                    V::store(x, at);
                }
            }
        }
    }
}

/// Adds a pair of keys' codes, two vectors of dimensions, times the word of each query.
///
/// # Safety
/// - Each query has a word, 64 apart.
#[inline(always)]
unsafe fn add_pairs<V: Vector, const Q: usize>(
    sums: &mut [[V::I; 2]; Q],
    pairs: [V::I; 2],
    words: *const u32,
) {
    for (q, sums) in sums.iter_mut().enumerate() {
        // SAFETY: by the caller.
        let word = V::splat_int(unsafe { words.wrapping_add(q * KV_BLOCK).read() });
        for (sum, pairs) in sums.iter_mut().zip(pairs) {
            *sum = V::dot2(pairs, word, *sum);
        }
    }
}

/// Codes of four keys as pairs of 16 bits, first and third, then second and fourth: each of two
/// vectors of dimensions that are 16 apart.
#[inline(always)]
unsafe fn code_pairs<V: Vector, const NIBBLES: bool>(line: *const u8) -> [[V::I; 2]; 2] {
    // SAFETY: by the caller.
    let low = unsafe { V::load_int(line) };
    if NIBBLES {
        let (mask, offset) = (V::splat_int(0x000f_000f), V::splat_int(0x0008_0008));
        return [
            [
                V::sub16(V::and(low, mask), offset),
                V::sub16(V::and(V::shift_right::<4>(low), mask), offset),
            ],
            [
                V::sub16(V::and(V::shift_right::<8>(low), mask), offset),
                V::sub16(V::shift_right::<12>(low), offset),
            ],
        ];
    }
    // SAFETY: by the caller.
    let high = unsafe { V::load_int(line.wrapping_add(4 * LANES)) };
    let (mask, offset) = (V::splat_int(0x00ff_00ff), V::splat_int(0x0080_0080));
    [
        [low, high].map(|x| V::sub16(V::and(x, mask), offset)),
        [low, high].map(|x| V::sub16(V::shift_right::<8>(x), offset)),
    ]
}

/// The scales of 32 dimensions as factors of integer weights; gives the largest among the keys
/// that are seen, NaN if one is.
///
/// # Safety
/// - `scales` has 64 halves.
#[inline(always)]
unsafe fn integer_scales<V: Vector>(
    scales: *const u8,
    seen: TileRange,
    out: &mut [f32; KV_BLOCK],
) -> f32 {
    let (mut largest, mut is_nan) = (V::splat(0.0), false);
    for v in (0..KV_BLOCK).step_by(V::WIDTH) {
        // SAFETY: v + WIDTH is at most 64.
        let x = unsafe { V::halves(scales.wrapping_add(2 * v)) };
        let first = v.cast_signed();
        let lanes = V::range(
            seen.start.cast_signed() - first,
            seen.end.cast_signed() - first,
        );
        let seen = V::select(lanes, V::abs(x), V::splat(0.0));
        is_nan |= V::any(V::ne(seen, seen));
        largest = V::max(seen, largest);
    }
    let largest = V::largest(largest);
    let to_scale = V::splat(inverse(largest, WEIGHT_MAX));
    for v in (0..KV_BLOCK).step_by(V::WIDTH) {
        // SAFETY: as above.
        let x = unsafe { V::halves(scales.wrapping_add(2 * v)) };
        // SAFETY: as above.
        unsafe { V::store(V::mul(x, to_scale), out.as_mut_ptr().wrapping_add(v)) };
    }
    if is_nan { f32::NAN } else { largest }
}

/// The weights of one query with the scales of 32 dimensions as integers, in pairs. Keys out of sight have weight zero,
/// whatever the scales: a NaN's integer has no low bits.
///
/// # Safety
/// - `weights` has 64 floats, `out` room for 64 words.
#[inline(always)]
unsafe fn integer_weights<V: Vector>(
    weights: *const f32,
    to_weight: f32,
    scales: &[f32; KV_BLOCK],
    out: *mut u32,
) {
    for v in (0..KV_BLOCK).step_by(V::WIDTH) {
        // SAFETY: v + WIDTH is at most 64.
        let weight = unsafe { V::load(weights.wrapping_add(v)) };
        // SAFETY: as above.
        let scale = unsafe { V::load(scales.as_ptr().wrapping_add(v)) };
        let x = V::mul(V::mul(weight, V::splat(to_weight)), scale);
        // SAFETY: as above.
        unsafe { V::store_int(V::pair_weights(V::round(x)), out.wrapping_add(v)) };
    }
}
