//! A chunk of queries over the blocks of a split.

use super::softmax::{How, Running};
use super::{Ahead, CHUNK, QUERY_WORDS, Scores, ScoresFn, Values, ValuesFn, Vector, stride};
use crate::args::TileRange;
use crate::attention::{AttentionArgs, AttentionState, visible};
use crate::bytes::Pod;
use crate::contract::{KV_BLOCK, flush};
use crate::half::{bf16_to_f32, f32_to_bf16};
use crate::kv::{KV_HEAD_DIM_MAX, KV_SCALE_DIMS, KvType};
use crate::scalar::attention::quantize_query;
use crate::tuning::{Distance, Tuning};
use core::mem::MaybeUninit;
use core::ops::Range;

const BLOCKS: usize = QUERY_WORDS / KV_SCALE_DIMS;
const _: () = assert!(KV_HEAD_DIM_MAX <= QUERY_WORDS);

/// Memory of a chunk, on the stack. What may stay unused is not cleared for every call.
#[repr(C, align(64))]
struct Room {
    weights: [[f32; KV_BLOCK]; CHUNK],
    words: MaybeUninit<[[u32; KV_BLOCK]; CHUNK]>,
    queries: MaybeUninit<[u32; QUERY_WORDS]>,
    scales: [f32; BLOCKS],
    corrections: [u32; BLOCKS],
    /// Sums of queries beyond the chunk's last.
    spare: MaybeUninit<[f32; KV_HEAD_DIM_MAX]>,
}

/// `n` elements of an array, from `first` on, as zeros.
#[inline(always)]
fn zeros<T: Pod, const N: usize>(
    array: &mut MaybeUninit<[T; N]>,
    first: usize,
    n: usize,
) -> &mut [T] {
    assert!(first <= N && n <= N - first);
    let start = array.as_mut_ptr().cast::<T>().wrapping_add(first);
    // SAFETY: n elements lie within the array; zero bytes are a value of a Pod, …
    unsafe { start.write_bytes(0, n) };
    // SAFETY: … so that these are initialised now, and borrowed with the array.
    unsafe { core::slice::from_raw_parts_mut(start, n) }
}

/// Which of [`Vector::SIZES`] is one query.
const fn one_query<V: Vector>() -> usize {
    V::SIZES.len() - 1
}

/// Continues the online softmax of every query with the keys that it sees.
///
/// # Safety
/// - As [`crate::KernelTable::attention`] checks.
#[inline(always)]
pub(crate) unsafe fn attention<V: Vector>(
    args: &AttentionArgs<'_>,
    state: &mut AttentionState<'_>,
) {
    let mut room = Room {
        weights: [[0.0; KV_BLOCK]; CHUNK],
        words: MaybeUninit::uninit(),
        queries: MaybeUninit::uninit(),
        scales: [0.0; BLOCKS],
        corrections: [0; BLOCKS],
        spare: MaybeUninit::uninit(),
    };
    zeros(&mut room.spare, 0, args.layout.head_dim_v);
    let (n, mut first) = (args.n_queries(), 0);
    let n_words = args.layout.head_dim_k.next_multiple_of(KV_SCALE_DIMS);
    while first < n {
        let left = n - first;
        let fits = |size: usize| {
            let (n, least) = V::SIZES[size];
            n_words <= stride(n) && least <= left
        };
        let size = (0..V::SIZES.len())
            .position(fits)
            .unwrap_or(one_query::<V>());
        let n_queries = left.min(V::SIZES[size].0);
        let mut chunk = Chunk {
            args,
            first,
            n_queries,
            size: V::SIZES[size].0,
            // The first chunk follows the memory; later ones find the blocks in the cache.
            prefetch: first == 0,
            scores: V::scores_of(size, args.layout.type_k),
            values: V::values_of(size, args.layout.type_v),
            alone: V::values_of(one_query::<V>(), args.layout.type_v),
            of_half_pair: [false, true].map(V::values_of_half_pair),
            running: Running::NONE,
        };
        // SAFETY: the functions match the types and the size.
        unsafe { chunk.run::<V>(state, &mut room) };
        first += n_queries;
    }
}

/// Which keys the queries of a chunk see.
struct Sight {
    keys: [TileRange; CHUNK],
    n_queries: usize,
    /// Keys that all queries see; `any`: from the first to the last key that at least one query sees.
    all: TileRange,
    any: TileRange,
}

/// [`Sight`] of one block, counted from its first key.
struct Seen {
    each: [TileRange; CHUNK],
    any: TileRange,
    /// All queries see the same keys.
    alike: bool,
}

impl Sight {
    #[inline(never)]
    fn new(args: &AttentionArgs<'_>, queries: Range<usize>) -> Self {
        let mut keys = [TileRange { start: 0, end: 0 }; CHUNK];
        let (mut all, mut any) = (args.keys(queries.start), args.keys(queries.start));
        let n_queries = queries.len();
        for (keys, i) in keys.iter_mut().zip(queries) {
            *keys = args.keys(i);
            all.start = all.start.max(keys.start);
            all.end = all.end.min(keys.end);
            any.start = any.start.min(keys.start);
            any.end = any.end.max(keys.end);
        }
        Self {
            keys,
            n_queries,
            all,
            any,
        }
    }

    /// `None` if no query sees a key of block `b`.
    #[inline(never)]
    fn block(&self, b: usize) -> Option<Seen> {
        let any = visible(self.any, b);
        let mut each = [TileRange { start: 0, end: 0 }; CHUNK];
        if any.start < any.end && visible(self.all, b) == any {
            each[..self.n_queries].fill(any);
            let alike = true;
            return Some(Seen { each, any, alike });
        }
        for (each, keys) in each[..self.n_queries].iter_mut().zip(self.keys) {
            *each = visible(keys, b);
        }
        let with_keys = || each.iter().filter(|seen| seen.start < seen.end);
        let any = TileRange {
            start: with_keys().map(|seen| seen.start).min()?,
            end: with_keys().map(|seen| seen.end).max()?,
        };
        let alike = false;
        Some(Seen { each, any, alike })
    }
}

struct Chunk<'a> {
    args: &'a AttentionArgs<'a>,
    /// Number of the first query.
    first: usize,
    n_queries: usize,
    /// Queries that the functions compute; those beyond `n_queries` are not used.
    size: usize,
    prefetch: bool,
    scores: ScoresFn,
    values: ValuesFn,
    /// Values of one query, and of a pair of which the first or the second key is seen.
    alone: ValuesFn,
    of_half_pair: [ValuesFn; 2],
    running: Running,
}

impl Chunk<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(&mut self, state: &mut AttentionState<'_>, room: &mut Room) {
        let (layout, head_dim_v) = (&self.args.layout, self.args.layout.head_dim_v);
        self.prepare(room);
        let queries = self.first..self.first + self.n_queries;
        self.running.max[..self.n_queries].copy_from_slice(&state.max[queries.clone()]);
        self.running.sum[..self.n_queries].copy_from_slice(&state.sum[queries.clone()]);
        let sight = Sight::new(self.args, queries.clone());
        let mut how = How {
            scale: self.args.scale,
            soft_cap: self.args.soft_cap,
            round: layout.type_v == KvType::BF16,
            slopes: None,
        };
        let distance = Tuning::detect().kv.distance(layout);
        let sums = state.out[queries.start * head_dim_v..queries.end * head_dim_v].as_mut_ptr();
        for (b, block) in self.args.blocks.iter().enumerate() {
            let Some(Seen { each, any, alike }) = sight.block(b) else {
                continue;
            };
            let ahead = self.ahead(b, distance);
            let scores = Scores {
                queries: room.queries.as_ptr().cast(),
                scales: room.scales.as_ptr(),
                corrections: room.corrections.as_ptr(),
                keys: block.as_ptr(),
                head_dim: layout.head_dim_k,
                start: any.start,
                end: any.end,
                out: room.weights.as_mut_ptr().cast(),
                ahead,
            };
            // SAFETY: the queries were prepared for this type and size; a block has its keys.
            unsafe { (self.scores)(&scores) };
            let n = self.size;
            how.slopes = self.slopes(b);
            // SAFETY: in this function, V's instructions are allowed.
            let (corrections, tops) = unsafe {
                self.running
                    .softmax::<V>(&mut room.weights[..n], &each, &how)
            };
            if how.round {
                pair_words(&room.weights[..n], &mut room.words);
            }
            let mut out = [room.spare.as_mut_ptr().cast(); CHUNK];
            for (q, out) in out[..self.n_queries].iter_mut().enumerate() {
                if each[q].start < each[q].end {
                    *out = sums.wrapping_add(q * head_dim_v);
                }
            }
            let values = Values {
                weights: room.weights.as_ptr().cast(),
                room: room.words.as_mut_ptr().cast(),
                values: block[layout.k_bytes()..].as_ptr(),
                head_dim: head_dim_v,
                start: any.start,
                end: any.end,
                seen: each,
                tops,
                corrections,
                out,
                ahead: ahead.from(layout.k_bytes()),
            };
            // SAFETY: the functions match the type and the size.
            unsafe { self.add_values(values, alike) };
            // Where few keys are seen, few values have prefetched the start of the next block.
            let prefetched = layout.k_bytes() + layout.v_row_bytes() * any.end;
            let first = prefetched.max(block.len().saturating_sub(distance.bytes));
            ahead.prefetch_more(first, block.len() - first);
        }
        state.max[queries.clone()].copy_from_slice(&self.running.max[..self.n_queries]);
        state.sum[queries].copy_from_slice(&self.running.sum[..self.n_queries]);
    }

    /// The queries' slopes and places in block `b`, where there are slopes.
    #[inline(never)]
    fn slopes(&self, b: usize) -> Option<[(f32, f32); CHUNK]> {
        if self.args.slopes.is_empty() {
            return None;
        }
        let mut slopes = [(0.0, 0.0); CHUNK];
        for (q, slope) in slopes[..self.n_queries].iter_mut().enumerate() {
            *slope = self.args.slope(self.first + q, b);
        }
        Some(slopes)
    }

    /// What is prefetched while block `b` is read.
    #[inline(always)]
    fn ahead(&self, b: usize, distance: Distance) -> Ahead {
        if !self.prefetch {
            return Ahead::NONE;
        }
        let next = match self.args.blocks.get(b + 1) {
            Some(block) => block.as_ptr(),
            None => self.args.next,
        };
        Ahead::new(self.args.blocks[b], next, distance)
    }

    /// The queries as words of steps.
    #[inline(never)]
    fn prepare(&self, room: &mut Room) {
        let (size, ty) = (self.size, self.args.layout.type_k);
        let n_words = self.args.layout.head_dim_k.next_multiple_of(KV_SCALE_DIMS);
        for q in 0..size {
            let words = zeros(&mut room.queries, q * stride(size), n_words);
            if q >= self.n_queries {
                continue;
            }
            let query = self.args.query(self.first + q);
            let words = words.iter_mut();
            match ty {
                KvType::F32 | KvType::F16 | KvType::FP8 => {
                    for (word, x) in words.zip(query) {
                        *word = x.to_bits();
                    }
                }
                KvType::BF16 => {
                    let round = |x: &f32| flush(bf16_to_f32(f32_to_bf16(*x))).to_bits();
                    for (word, pair) in words.zip(query.chunks(2)) {
                        *word = round(&pair[0]) >> 16 | pair.get(1).map_or(0, round);
                    }
                }
                KvType::Q8_0 | KvType::Q4_0 => {
                    let offset = if ty == KvType::Q8_0 { 128 } else { 8 };
                    let mut words = words;
                    for (b, x) in query.chunks(KV_SCALE_DIMS).enumerate() {
                        let (scale, codes) = quantize_query(x);
                        let sum: i32 = codes.iter().map(|code| i32::from(*code)).sum();
                        room.scales[b * size + q] = scale;
                        room.corrections[b * size + q] = (-offset * sum).cast_unsigned();
                        // In this order, `zip` takes no word too many.
                        for (codes, word) in codes.as_chunks::<4>().0.iter().zip(&mut words) {
                            *word = u32::from_le_bytes(codes.map(i8::cast_unsigned));
                        }
                    }
                }
            }
        }
    }

    /// Adds the values of a block: first the keys before the common ones, then those that all queries see together,
    /// then the rest. Each query processes its keys in ascending order.
    #[inline(never)]
    unsafe fn add_values(&self, mut values: Values, alike: bool) {
        let ty = self.args.layout.type_v;
        let pairs = ty == KvType::BF16;
        let integers = matches!(ty, KvType::Q8_0 | KvType::Q4_0);
        // Integers are exact: a weight of zero is as good as a key left out.
        if integers || alike && !pairs {
            // SAFETY: by the caller.
            return unsafe { (self.values)(&values) };
        }
        let seen = values.seen;
        if pairs {
            // Where `pair_words` has put them.
            values.weights = values.room.cast_const().cast();
        }
        // Steps of which all keys are seen.
        let whole = |seen: TileRange| match pairs {
            true => TileRange {
                start: seen.start.div_ceil(2),
                end: seen.end / 2,
            },
            false => seen,
        };
        let active = || (0..self.n_queries).filter(|&q| seen[q].start < seen[q].end);
        let common_start = active().map(|q| whole(seen[q]).start).max().unwrap_or(0);
        let common_end = active().map(|q| whole(seen[q]).end).min().unwrap_or(0);
        let together = common_start < common_end;
        for q in active() {
            let TileRange { start, end } = whole(seen[q]);
            let end = if together { common_start.min(end) } else { end };
            if pairs && seen[q].start % 2 == 1 {
                // SAFETY: by the caller.
                unsafe {
                    one(
                        &mut values,
                        q,
                        seen[q].start / 2..start,
                        self.of_half_pair[1],
                    )
                };
            }
            // SAFETY: by the caller.
            unsafe { one(&mut values, q, start..end, self.alone) };
        }
        if together {
            (values.start, values.end) = (common_start, common_end);
            // SAFETY: by the caller.
            unsafe { (self.values)(&values) };
            values.corrections = [1.0; CHUNK];
        }
        for q in active() {
            let end = whole(seen[q]).end;
            if together {
                // SAFETY: by the caller.
                unsafe { one(&mut values, q, common_end..end, self.alone) };
            }
            if pairs && seen[q].end % 2 == 1 {
                // SAFETY: by the caller.
                unsafe { one(&mut values, q, end..end + 1, self.of_half_pair[0]) };
            }
        }
    }
}

/// Weights in pairs of bf16, as many words as a row has weights.
#[inline(never)]
fn pair_words(weights: &[[f32; KV_BLOCK]], words: &mut MaybeUninit<[[u32; KV_BLOCK]; CHUNK]>) {
    let words = words.as_mut_ptr().cast::<[u32; KV_BLOCK]>();
    for (q, weights) in weights.iter().enumerate() {
        let mut pairs = [0; KV_BLOCK];
        for (word, pair) in pairs.iter_mut().zip(weights.as_chunks::<2>().0) {
            *word = pair[0].to_bits() >> 16 | pair[1].to_bits();
        }
        // SAFETY: there are words for as many queries as a chunk has.
        unsafe { words.wrapping_add(q).write(pairs) };
    }
}

/// Runs some steps of query `q` alone, if there are any.
///
/// # Safety
/// - `function` is the one for one query and the type of `values`.
unsafe fn one(values: &mut Values, q: usize, steps: Range<usize>, function: ValuesFn) {
    if steps.is_empty() {
        return;
    }
    let mut alone = Values {
        weights: values.weights.wrapping_add(q * KV_BLOCK),
        start: steps.start,
        end: steps.end,
        ahead: Ahead::NONE,
        ..*values
    };
    alone.out[0] = values.out[q];
    alone.corrections[0] = values.corrections[q];
    // SAFETY: by the caller.
    unsafe { function(&alone) };
    values.corrections[q] = 1.0;
}
