//! Attention in vectors, for tables of any width.
//!
//! A *chunk* of up to a dozen queries passes over the blocks of a split together. Scores: a
//! vector lane is a key, and one load of keys serves all queries of the chunk. Values: a lane is
//! a dimension, in the same way. Sums stay in registers; between the two steps a chunk's weights lie in
//! L1. What each query computes, and in which order, is the definition's
//! ([`crate::scalar::attention`]); neighbours in a chunk share nothing but loads.
//!
//! Everything here is generic over [`Vector`] and inlined into the functions of a table, which
//! enable its features.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod chunk;
mod float;
mod functions;
mod int8;
mod softmax;

pub(crate) use chunk::attention;
pub(crate) use float::{Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, scores, values};
pub(crate) use functions::attention_functions;
pub(crate) use int8::{int8_scores, int8_values};

use crate::args::TileRange;
use crate::contract::KV_BLOCK;
use crate::kv::KvType;
use crate::panel::LINE_BYTES;
use crate::prefetch::{prefetch_line, prefetch_line_to_l2};
use crate::tuning::Distance;

/// Maximum number of queries in a chunk.
pub(crate) const CHUNK: usize = 12;

/// Words of a chunk's queries: twelve of 256 dimensions, one of the longest heads. Lines of
/// neighbours are not in the same set of a cache.
const QUERY_WORDS: usize = CHUNK * (256 + 16);

/// Words from a query to the next in chunks of `size`.
const fn stride(size: usize) -> usize {
    QUERY_WORDS / size
}

/// What a table provides: vectors of 8 or 16 lanes.
///
/// Methods without pointers are safe to call in the functions of a table alone: those run only
/// where the features were detected.
pub(crate) trait Vector: Copy {
    /// Floats.
    type F: Copy;
    /// 32-bit integers, or bytes and pairs in them.
    type I: Copy;
    /// A bit for each lane.
    type M: Copy;
    /// Lanes.
    const WIDTH: usize;
    /// Queries in a chunk, and from how many on one of that size pays, filled or not; largest first,
    /// the last of one.
    const SIZES: &'static [(usize, usize)];

    /// The scores functions for chunks of the size `SIZES[size]`.
    fn scores_of(size: usize, ty: KvType) -> ScoresFn;
    /// The values functions for chunks of the size `SIZES[size]`.
    fn values_of(size: usize, ty: KvType) -> ValuesFn;
    /// For pairs of bf16 values of which one is seen: the second (odd) key, or the first.
    fn values_of_half_pair(second: bool) -> ValuesFn;

    fn splat(x: f32) -> Self::F;
    fn splat_int(x: u32) -> Self::I;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(x: Self::F, to: *mut f32);
    /// The first `n` lanes, the others zero.
    unsafe fn load_part(from: *const f32, n: usize) -> Self::F;
    unsafe fn store_part(x: Self::F, to: *mut f32, n: usize);
    unsafe fn load_int(from: *const u8) -> Self::I;
    unsafe fn load_int_part(from: *const u8, n: usize) -> Self::I;
    unsafe fn store_int(x: Self::I, to: *mut u32);
    unsafe fn halves(from: *const u8) -> Self::F;
    unsafe fn halves_part(from: *const u8, n: usize) -> Self::F;
    unsafe fn bf16(from: *const u8) -> Self::F;
    unsafe fn e4m3(from: *const u8) -> Self::F;
    unsafe fn e4m3_part(from: *const u8, n: usize) -> Self::F;
    /// `a * b + c`.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// [`Self::fma`] for each of `a`, with the float at `at` in all lanes as `b`.
    ///
    /// # Safety
    /// - It is readable.
    #[inline(always)]
    unsafe fn fma_at<const N: usize>(a: [Self::F; N], at: *const f32, c: &mut [Self::F; N]) {
        // SAFETY: by the caller.
        let b = Self::splat(unsafe { at.read() });
        for (c, a) in c.iter_mut().zip(a) {
            *c = Self::fma(a, b, *c);
        }
    }
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`, so b where one is NaN.
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`.
    fn min(a: Self::F, b: Self::F) -> Self::F;
    fn abs(x: Self::F) -> Self::F;
    fn copysign(x: Self::F, sign: Self::F) -> Self::F;
    /// `a < b`, false for NaN.
    fn lt(a: Self::F, b: Self::F) -> Self::M;
    /// `a != b`, true for NaN.
    fn ne(a: Self::F, b: Self::F) -> Self::M;
    fn select(mask: Self::M, yes: Self::F, no: Self::F) -> Self::F;
    fn any(mask: Self::M) -> bool;
    /// Lanes l with `start <= l < end`.
    fn range(start: isize, end: isize) -> Self::M;
    /// The largest lane; none is NaN.
    fn largest(x: Self::F) -> f32;
    /// [`crate::contract::tree_sum`] of 16 lanes: a vector and nothing, or two. By shuffles: compilers
    /// gather a lane of many sums at a time, which takes longer than the exponentials.
    fn tree_sum(lanes: [Self::F; 2]) -> f32;
    /// Bits of a float shifted up by 23: an integer as an exponent.
    fn as_exponent(x: Self::F) -> Self::F;
    /// Rounded to bf16.
    fn round_bf16(x: Self::F) -> Self::F;
    /// Zero for denormals.
    fn flush(x: Self::F) -> Self::F;
    /// [`crate::contract::bf16_step`]: pairs of bf16 `a` and `b`.
    fn bf16_step(a: Self::I, b: Self::I, c: Self::F) -> Self::F;
    fn and(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts 16-bit halves to the right, zeros in.
    fn shift_right<const N: i32>(x: Self::I) -> Self::I;
    /// Differences of 16-bit halves.
    fn sub16(a: Self::I, b: Self::I) -> Self::I;
    /// `c +` the dot product of four unsigned bytes `codes` with four signed `q`.
    fn dot4(codes: Self::I, q: Self::I, c: Self::I) -> Self::I;
    /// `c +` the dot product of two 16-bit integers.
    fn dot2(a: Self::I, b: Self::I, c: Self::I) -> Self::I;
    fn add_int(a: Self::I, b: Self::I) -> Self::I;
    fn to_float(x: Self::I) -> Self::F;
    /// Nearest integers, ties to even.
    fn round(x: Self::F) -> Self::I;
    /// For each four integers within 16 bits (w0, w1, w2, w3): pairs (w0, w2), (w1, w3) in the first two lanes.
    fn pair_weights(x: Self::I) -> Self::I;
}

/// Prefetches what will be read: a block from its first byte to its last, then the next block.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// The block that is read; null: nothing is prefetched.
    block: *const u8,
    /// The one after it, less the bytes of a block.
    next: *const u8,
    block_bytes: usize,
    /// Where in the block offset 0 prefetches.
    start: usize,
    to_l2: bool,
}

impl Ahead {
    pub(crate) const NONE: Self = Self {
        block: core::ptr::null(),
        next: core::ptr::null(),
        block_bytes: 0,
        start: 0,
        to_l2: false,
    };

    /// While `block` is read, and `next` after it (null: not known).
    pub(crate) fn new(block: &[u8], next: *const u8, distance: Distance) -> Self {
        // Prefetching the block's own lines again does no harm.
        let next = if next.is_null() { block.as_ptr() } else { next };
        Self {
            block: block.as_ptr(),
            next: next.wrapping_sub(block.len()),
            block_bytes: block.len(),
            start: distance.bytes,
            to_l2: distance.to_l2,
        }
    }

    /// With offsets from byte `offset` of the block on.
    pub(crate) fn from(self, offset: usize) -> Self {
        let start = self.start + offset;
        Self { start, ..self }
    }

    /// Prefetches ahead of the `bytes` bytes at `offset`.
    #[inline(always)]
    pub(crate) fn prefetch(self, offset: usize, bytes: usize) {
        if self.block.is_null() {
            return;
        }
        let at = self.start + offset;
        let block = if at < self.block_bytes {
            self.block
        } else {
            self.next
        };
        for line in 0..bytes.div_ceil(LINE_BYTES) {
            let line = block.wrapping_add(at + line * LINE_BYTES);
            if self.to_l2 {
                prefetch_line_to_l2(line);
            } else {
                prefetch_line(line);
            }
        }
    }

    /// [`Self::prefetch`] as a call, where inlining it is not worth its code.
    #[inline(never)]
    pub(crate) fn prefetch_more(self, offset: usize, bytes: usize) {
        self.prefetch(offset, bytes);
    }
}

/// What a scores function takes.
pub(crate) struct Scores {
    /// Steps of the queries: (n_queries, n_steps) words, [`stride`] apart.
    pub(crate) queries: *const u32,
    /// int8: scales of the queries, (n_blocks, n_queries).
    pub(crate) scales: *const f32,
    /// int8: what takes the codes' offset out, (n_blocks, n_queries).
    pub(crate) corrections: *const u32,
    /// Keys of a block.
    pub(crate) keys: *const u8,
    /// Dimensions.
    pub(crate) head_dim: usize,
    /// Keys that some query sees.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Products, (n_queries, 64).
    pub(crate) out: *mut f32,
    /// From the first of `keys` on.
    pub(crate) ahead: Ahead,
}

/// What a values function takes.
pub(crate) struct Values {
    /// Weights, (n_queries, 64): words as the type wants them.
    pub(crate) weights: *const u32,
    /// Room for as many words.
    pub(crate) room: *mut u32,
    /// Values of a block.
    pub(crate) values: *const u8,
    /// Dimensions.
    pub(crate) head_dim: usize,
    /// Steps: keys, or pairs of keys.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Keys that each query sees.
    pub(crate) seen: [TileRange; CHUNK],
    /// The largest weight of each query.
    pub(crate) tops: [f32; CHUNK],
    /// What `out` is multiplied by first.
    pub(crate) corrections: [f32; CHUNK],
    /// The running sums of each query, (head_dim).
    pub(crate) out: [*mut f32; CHUNK],
    /// From the first of `values` on.
    pub(crate) ahead: Ahead,
}

impl Values {
    /// The same from query `first` on; what is prefetched is prefetched with the first.
    pub(crate) fn of_queries_from(&self, first: usize) -> Self {
        let (mut corrections, mut out) = (self.corrections, self.out);
        corrections.rotate_left(first);
        out.rotate_left(first);
        Self {
            weights: self.weights.wrapping_add(first * KV_BLOCK),
            corrections,
            out,
            ahead: if first == 0 { self.ahead } else { Ahead::NONE },
            ..*self
        }
    }
}

pub(crate) type ScoresFn = unsafe fn(&Scores);
pub(crate) type ValuesFn = unsafe fn(&Values);

/// [`crate::contract::exp`] in every lane.
#[inline(always)]
pub(crate) fn exp<V: Vector>(x: V::F) -> V::F {
    const MAGIC: f32 = 12_583_039.0;
    let clamped = V::max(V::splat(crate::contract::EXP_LO), x);
    let clamped = V::min(V::splat(crate::contract::EXP_HI), clamped);
    let shifted = V::fma(
        clamped,
        V::splat(core::f32::consts::LOG2_E),
        V::splat(MAGIC),
    );
    let n = V::sub(shifted, V::splat(MAGIC));
    let r = V::fma(n, V::splat(-0.693_359_4), clamped);
    let r = V::fma(n, V::splat(2.121_944_4e-4), r);
    let mut p = V::splat(1.987_569_1e-4);
    for c in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = V::fma(p, r, V::splat(c));
    }
    let y = V::add(V::fma(p, V::mul(r, r), r), V::splat(1.0));
    let y = V::mul(y, V::as_exponent(shifted));
    V::select(
        V::lt(x, V::splat(crate::contract::EXP_LO)),
        V::splat(0.0),
        y,
    )
}

/// [`crate::contract::soft_cap`] in every lane.
#[inline(always)]
fn soft_cap<V: Vector>(x: V::F, cap: f32, inverse: f32) -> V::F {
    let x = V::mul(x, V::splat(inverse));
    let z = V::mul(x, x);
    let mut p = V::splat(-5.704_986_4e-3);
    for c in [2.063_908_6e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_8] {
        p = V::fma(p, z, V::splat(c));
    }
    let near = V::fma(V::mul(p, z), x, x);
    let e = exp::<V>(V::mul(V::splat(2.0), V::abs(x)));
    let far = V::div(V::splat(2.0), V::add(e, V::splat(1.0)));
    let far = V::copysign(V::sub(V::splat(1.0), far), x);
    let small = V::lt(V::abs(x), V::splat(0.625));
    V::mul(V::splat(cap), V::select(small, near, far))
}
