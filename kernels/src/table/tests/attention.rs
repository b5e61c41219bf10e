//! AttentionArgs over blocks and splits.

use crate::contract::KV_BLOCK;
use crate::table::{AttentionArgs, AttentionRow, AttentionState, TileRange};
use crate::tests::{Aligned, Noise, bits, scalar, tables};
use crate::{KernelTable, KvLayout, KvType};
use core::ops::Range;
extern crate std;
use std::vec;
use std::vec::Vec;

const SCALE: f32 = 0.3;

/// Keys and values (n_keys, head_dim) in a cache, and queries (n_queries, head_dim).
pub(super) struct Case {
    layout: KvLayout,
    n_keys: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    cache: Aligned,
    /// First key of the window.
    first_key: usize,
    soft_cap: f32,
}

impl Case {
    pub(super) fn random(
        layout: KvLayout,
        n_keys: usize,
        n_queries: usize,
        noise: &mut Noise,
    ) -> Self {
        let (dim_k, dim_v) = (layout.head_dim_k, layout.head_dim_v);
        let mut keys = noise.values(n_keys * dim_k);
        let mut values = noise.values(n_keys * dim_v);
        let mut cache = Aligned::new(n_keys.div_ceil(KV_BLOCK) * layout.block_bytes());
        // Slots past the end hold anything, NaN included: they must not be seen.
        cache.bytes_mut().fill(0xff);
        let rows = keys.chunks_mut(dim_k).zip(values.chunks_mut(dim_v));
        for (position, (key, value)) in rows.enumerate() {
            let block = &mut cache.bytes_mut()[position / KV_BLOCK * layout.block_bytes()..];
            let slot = position % KV_BLOCK;
            // SAFETY: the block is exclusively borrowed and inside the cache.
            unsafe { scalar().store_key(&layout, block.as_mut_ptr(), slot, key) };
            // SAFETY: as above.
            unsafe { scalar().store_value(&layout, block.as_mut_ptr(), slot, value) };
            // What the cache's type costs is tested with it; here it is the arithmetic.
            layout.load(&block[..layout.block_bytes()], slot, key, value);
        }
        Self {
            layout,
            n_keys,
            keys,
            values,
            queries: noise.values(n_queries * dim_k),
            cache,
            first_key: 0,
            soft_cap: 0.0,
        }
    }

    fn n_queries(&self) -> usize {
        self.queries.len() / self.layout.head_dim_k
    }

    /// Continues the softmax of every query over some blocks of keys.
    fn continue_over(&self, table: &KernelTable, blocks: Range<usize>, state: &mut State) {
        let block_bytes = self.layout.block_bytes();
        let cache: Vec<&[u8]> = self.cache.bytes().chunks(block_bytes).collect();
        let first = blocks.start * KV_BLOCK;
        let rows = [AttentionRow {
            queries: &self.queries,
            keys: TileRange {
                start: self.first_key.saturating_sub(first),
                end: self.n_keys.min(blocks.end * KV_BLOCK) - first,
            },
            position: 0,
        }];
        let args = AttentionArgs {
            next: core::ptr::null(),
            layout: self.layout,
            blocks: &cache[blocks],
            n_group: self.n_queries(),
            rows: &rows,
            scale: SCALE,
            soft_cap: self.soft_cap,
            slopes: &[],
        };
        table.attention(&args, &mut state.borrow());
    }

    /// AttentionArgs of every query to all keys: (n_queries, head_dim_v).
    pub(super) fn run(&self, table: &KernelTable) -> Vec<f32> {
        let mut state = State::new(self);
        let blocks = self.first_key / KV_BLOCK..self.n_keys.div_ceil(KV_BLOCK);
        self.continue_over(table, blocks, &mut state);
        let mut merged = State::new(self);
        table.attention_merge(&state.borrow(), &mut merged.borrow());
        merged.borrow().finish();
        state.borrow().finish();
        let pairs = state.out.iter().zip(&merged.out);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!({ pairs }.all(same), "a single split merges to itself");
        state.out
    }

    fn exact(&self, query: &[f32]) -> Vec<f64> {
        let dim_v = self.layout.head_dim_v;
        let score = |key: &[f32]| -> f64 {
            let pairs = query.iter().zip(key);
            let score: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let (score, cap) = (f64::from(SCALE) * score, f64::from(self.soft_cap));
            if cap == 0.0 {
                return score;
            }
            cap * libm::tanh(score / cap)
        };
        let weights: Vec<f64> = self
            .keys
            .chunks(self.layout.head_dim_k)
            .skip(self.first_key)
            .map(|key| score(key).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; dim_v];
        let values = self.values.chunks(dim_v).skip(self.first_key);
        for (weight, value) in weights.iter().zip(values) {
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight / total * f64::from(*value);
            }
        }
        out
    }
}

/// Holds results against f64 on the same keys and values. Queries are rounded to bf16 or int8, and weights to bf16, for
/// types that require it.
fn assert_near(case: &Case, found: &[f32], ty: KvType) {
    let (head_dim_k, head_dim_v) = (case.layout.head_dim_k, case.layout.head_dim_v);
    let (mut error, mut norm) = (0.0, 0.0);
    let rows = case
        .queries
        .chunks(head_dim_k)
        .zip(found.chunks(head_dim_v));
    for (query, found) in rows {
        for (found, exact) in found.iter().zip(case.exact(query)) {
            error += (f64::from(*found) - exact).powi(2);
            norm += exact * exact;
        }
    }
    let relative = (error / norm).sqrt();
    let tolerance = match ty {
        KvType::F32 | KvType::F16 | KvType::FP8 => 1e-5,
        KvType::BF16 => 0.04,
        // One outlier in a short query costs the other dimensions their digits.
        KvType::Q8_0 | KvType::Q4_0 => 0.3,
    };
    assert!(relative < tolerance, "{ty} {:?}: {relative}", case.layout);
}

/// An owned [`AttentionState`].
struct State {
    max: Vec<f32>,
    sum: Vec<f32>,
    out: Vec<f32>,
}

impl State {
    fn new(case: &Case) -> Self {
        let n = case.n_queries();
        let mut state = Self {
            max: vec![0.0; n],
            sum: vec![0.0; n],
            out: vec![0.0; n * case.layout.head_dim_v],
        };
        state.borrow().reset();
        state
    }

    fn borrow(&mut self) -> AttentionState<'_> {
        AttentionState {
            max: &mut self.max,
            sum: &mut self.sum,
            out: &mut self.out,
        }
    }
}

#[test]
fn attention_equals_the_reference_and_is_near_f64() {
    let mut noise = Noise(3);
    for ty in KvType::ALL {
        for (head_dim_k, head_dim_v, n_keys, n_queries) in [
            (8, 8, 1, 1),
            (64, 64, 63, 2),
            (64, 64, 64, 4),
            (5, 5, 33, 3),
            (7, 19, 40, 2),
            (16, 16, 130, 1),
        ] {
            let layout = KvLayout {
                type_k: ty,
                type_v: ty,
                head_dim_k,
                head_dim_v,
            };
            let case = Case::random(layout, n_keys, n_queries, &mut noise);
            let expected = case.run(scalar());
            for table in tables() {
                let same = bits(&case.run(table)) == bits(&expected);
                assert!(same, "{} {ty} {head_dim_k}", table.name());
            }
            assert_near(&case, &expected, ty);
        }
    }
}

#[test]
fn every_count_of_keys_sees_those_keys_only() {
    let mut noise = Noise(31);
    for ty in KvType::ALL {
        let layout = KvLayout {
            type_k: ty,
            type_v: ty,
            head_dim_k: 6,
            head_dim_v: 21,
        };
        for n_keys in 1..=2 * KV_BLOCK + 1 {
            let case = Case::random(layout, n_keys, 2, &mut noise);
            let expected = case.run(scalar());
            assert!(expected.iter().all(|x| x.is_finite()), "{ty} {n_keys}");
            for table in tables() {
                let same = bits(&case.run(table)) == bits(&expected);
                assert!(same, "{} {ty} {n_keys} keys", table.name());
            }
        }
    }
}

/// Every start of a window, with and without a cap; keys before it may hold anything.
#[test]
fn windows_and_soft_caps_equal_the_reference_and_are_near_f64() {
    let mut noise = Noise(34);
    for ty in KvType::ALL {
        let layout = KvLayout {
            type_k: ty,
            type_v: ty,
            head_dim_k: 6,
            head_dim_v: 21,
        };
        for first_key in 0..=KV_BLOCK + 2 {
            let mut case = Case::random(layout, KV_BLOCK + 3, 2, &mut noise);
            case.first_key = first_key;
            case.soft_cap = [0.0, 1.5, 50.0][first_key % 3];
            for position in 0..first_key.min(KV_BLOCK) {
                let block = case.cache.bytes_mut().as_mut_ptr();
                // SAFETY: the first block of the cache is exclusively borrowed.
                unsafe { scalar().store_key(&layout, block, position, &[f32::NAN; 6]) };
                // SAFETY: as above.
                unsafe { scalar().store_value(&layout, block, position, &[f32::INFINITY; 21]) };
            }
            let expected = case.run(scalar());
            for table in tables() {
                let same = bits(&case.run(table)) == bits(&expected);
                assert!(same, "{} {ty} from {first_key}", table.name());
            }
            assert_near(&case, &expected, ty);
        }
    }
}

#[test]
fn a_key_that_is_not_a_number_shows() {
    for ty in KvType::ALL {
        let layout = KvLayout {
            type_k: ty,
            type_v: ty,
            head_dim_k: 8,
            head_dim_v: 8,
        };
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = Case::random(layout, 70, 1, &mut Noise(32));
            let mut key = case.keys[..8].to_vec();
            key[3] = bad;
            let block = case.cache.bytes_mut().as_mut_ptr();
            // SAFETY: the first block of the cache is exclusively borrowed.
            unsafe { scalar().store_key(&layout, block, 17, &key) };
            // SAFETY: as above.
            unsafe { scalar().store_value(&layout, block, 17, &key) };
            case.queries[3] = 1.0;
            for table in tables() {
                let out = case.run(table);
                assert!(
                    out.iter().all(|x| x.is_nan()),
                    "{} {ty} {bad}",
                    table.name()
                );
            }
        }
    }
}

#[test]
fn splits_merge_to_the_whole() {
    let mut noise = Noise(33);
    let layout = KvLayout {
        type_k: KvType::F32,
        type_v: KvType::F32,
        head_dim_k: 16,
        head_dim_v: 16,
    };
    let case = Case::random(layout, 5 * KV_BLOCK, 2, &mut noise);
    for table in tables() {
        let mut whole = State::new(&case);
        for split in [0..2, 2..2, 2..3, 3..5] {
            let mut part = State::new(&case);
            case.continue_over(table, split, &mut part);
            table.attention_merge(&part.borrow(), &mut whole.borrow());
        }
        whole.borrow().finish();
        for (out, query) in whole.out.chunks(16).zip(case.queries.chunks(16)) {
            for (out, exact) in out.iter().zip(case.exact(query)) {
                assert!((f64::from(*out) - exact).abs() < 4e-5, "{}", table.name());
            }
        }
    }
}

/// Any pair of types, any heads, groups and tiles; causal, with windows and without; with numbers
/// that are not finite: every query has the bits that the reference gives it, alone.
#[test]
#[expect(clippy::too_many_lines, reason = "one drawing of many cases")]
fn tiles_of_queries_equal_the_reference() {
    const DIMS: [usize; 12] = [1, 5, 21, 32, 40, 64, 67, 72, 80, 96, 128, 256];
    let mut noise = Noise(35);
    for round in 0..300 {
        let mut below = |n: usize| usize::try_from(noise.u64() % n as u64).expect("small");
        let mut pick = |types: [KvType; 6]| types[below(6)];
        // F16 often: it has chunks of its own.
        let (type_k, type_v) = match round % 3 {
            0 => (KvType::F16, KvType::F16),
            _ => (pick(KvType::ALL), pick(KvType::ALL)),
        };
        let (head_dim_k, head_dim_v) = (DIMS[below(12)], DIMS[below(12)]);
        let (n_blocks, n_group, n_rows) = (1 + below(3), 1 + below(16), 1 + below(9));
        let (window, causal) = ([1000, 1 + below(100)][below(2)], below(2) == 0);
        let n_keys = 1 + below(n_blocks * KV_BLOCK);
        let keys: Vec<TileRange> = (0..n_rows)
            .map(|row| {
                let last = if causal {
                    n_keys + row
                } else {
                    below(n_keys + 1)
                };
                let end = last.min(n_blocks * KV_BLOCK);
                let start = end.saturating_sub(window);
                TileRange { start, end }
            })
            .collect();
        let layout = KvLayout {
            type_k,
            type_v,
            head_dim_k,
            head_dim_v,
        };
        let mut case = Case::random(layout, n_blocks * KV_BLOCK, n_rows * n_group, &mut noise);
        if round % 8 == 0 {
            let bad = vec![f32::NAN; head_dim_k.max(head_dim_v)];
            let block = case.cache.bytes_mut().as_mut_ptr();
            // SAFETY: the first block of the cache is exclusively borrowed.
            unsafe { scalar().store_key(&layout, block, 3, &bad[..head_dim_k]) };
            // SAFETY: as above.
            unsafe { scalar().store_value(&layout, block, 5, &bad[..head_dim_v]) };
        }
        let soft_cap = [0.0, 20.0][round % 2];
        let slopes: Vec<f32> = (0..n_group).map(|head| 0.5 / (head + 1) as f32).collect();
        let slopes = if round % 3 == 0 { &*slopes } else { &[] };
        let run = |table: &KernelTable, rows: Range<usize>| {
            let mut state = State::new(&case);
            let tile: Vec<_> = rows
                .map(|row| AttentionRow {
                    queries: &case.queries[row * n_group * head_dim_k..][..n_group * head_dim_k],
                    keys: keys[row],
                    // Before the first key, and after the last.
                    position: 29 * row.cast_signed() - 40,
                })
                .collect();
            let n = tile.len() * n_group;
            let blocks: Vec<_> = case.cache.bytes().chunks(layout.block_bytes()).collect();
            let args = AttentionArgs {
                // A hint may point anywhere.
                next: core::ptr::without_provenance(usize::MAX - 5),
                layout,
                blocks: &blocks,
                n_group,
                rows: &tile,
                scale: SCALE,
                soft_cap,
                slopes,
            };
            let mut part = AttentionState {
                max: &mut state.max[..n],
                sum: &mut state.sum[..n],
                out: &mut state.out[..n * head_dim_v],
            };
            table.attention(&args, &mut part);
            part.sum
                .iter()
                .chain(&*part.out)
                .copied()
                .collect::<Vec<f32>>()
        };
        let same = |found: &[f32], expected: &[f32]| {
            let pairs = found.iter().zip(expected);
            let same =
                |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            found.len() == expected.len() && { pairs }.all(same)
        };
        let expected = run(scalar(), 0..n_rows);
        for table in tables() {
            let found = run(table, 0..n_rows);
            assert!(
                same(&found, &expected),
                "{} {layout:?} {n_group} {keys:?}",
                table.name()
            );
            let alone = run(table, n_rows - 1..n_rows);
            let (sums, outs) = expected.split_at(n_rows * n_group);
            let last = (n_rows - 1) * n_group;
            let of_last = [&sums[last..], &outs[last * head_dim_v..]].concat();
            assert!(same(&alone, &of_last), "{} {layout:?} alone", table.name());
        }
    }
}
