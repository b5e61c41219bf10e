//! Attention over blocks and splits.

use crate::contract::KV_BLOCK;
use crate::table::{AttentionBlock, AttentionState};
use crate::test_support::{Aligned, Noise, bits, scalar, tables};
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
        let keys = noise.values(n_keys * dim_k);
        let values = noise.values(n_keys * dim_v);
        let mut cache = Aligned::new(n_keys.div_ceil(KV_BLOCK) * layout.block_bytes());
        // Slots past the end hold anything, NaN included: they must not be seen.
        cache.bytes_mut().fill(0xff);
        let rows = keys.chunks(dim_k).zip(values.chunks(dim_v));
        for (position, (key, value)) in rows.enumerate() {
            let block = &mut cache.bytes_mut()[position / KV_BLOCK * layout.block_bytes()..];
            let slot = position % KV_BLOCK;
            // SAFETY: the block is exclusively borrowed and inside the cache.
            unsafe { layout.store_key(block.as_mut_ptr(), slot, key) };
            // SAFETY: as above.
            unsafe { layout.store_value(block.as_mut_ptr(), slot, value) };
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
        for b in blocks {
            let args = AttentionBlock {
                layout: self.layout,
                block: &self.cache.bytes()[b * block_bytes..][..block_bytes],
                first_key: self.first_key.saturating_sub(b * KV_BLOCK),
                n_keys: (self.n_keys - b * KV_BLOCK).min(KV_BLOCK),
                queries: &self.queries,
                scale: SCALE,
                soft_cap: self.soft_cap,
            };
            table.attention_block(&args, &mut state.borrow());
        }
    }

    /// Attention of every query to all keys: (n_queries, head_dim_v).
    pub(super) fn run(&self, table: &KernelTable) -> Vec<f32> {
        let mut state = State::new(self);
        let blocks = self.first_key / KV_BLOCK..self.n_keys.div_ceil(KV_BLOCK);
        self.continue_over(table, blocks, &mut state);
        let mut merged = State::new(self);
        table.attention_merge(&state.borrow(), &mut merged.borrow());
        merged.borrow().finish();
        state.borrow().finish();
        assert_eq!(
            bits(&state.out),
            bits(&merged.out),
            "a single split merges to itself"
        );
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
                ty,
                head_dim_k,
                head_dim_v,
            };
            let case = Case::random(layout, n_keys, n_queries, &mut noise);
            let expected = case.run(scalar());
            for table in tables() {
                let same = bits(&case.run(table)) == bits(&expected);
                assert!(same, "{} {ty} {head_dim_k}", table.name());
            }
            let tolerance = match ty {
                KvType::F32 => 4e-5,
                KvType::F16 => 8e-3,
                KvType::BF16 => 0.12,
            };
            let queries = case.queries.chunks(head_dim_k);
            for (query, out) in queries.zip(expected.chunks(head_dim_v)) {
                for (out, exact) in out.iter().zip(case.exact(query)) {
                    let error = (f64::from(*out) - exact).abs();
                    assert!(error < tolerance, "{ty} {head_dim_k}: {error}");
                }
            }
        }
    }
}

#[test]
fn every_count_of_keys_sees_those_keys_only() {
    let mut noise = Noise(31);
    for ty in KvType::ALL {
        let layout = KvLayout {
            ty,
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

/// Every start of a window, with and without a cap; what lies before it may be anything.
#[test]
fn windows_and_soft_caps_equal_the_reference_and_are_near_f64() {
    let mut noise = Noise(34);
    for ty in KvType::ALL {
        let layout = KvLayout {
            ty,
            head_dim_k: 6,
            head_dim_v: 21,
        };
        let tolerance = match ty {
            KvType::F32 => 4e-5,
            KvType::F16 => 8e-3,
            KvType::BF16 => 0.12,
        };
        for first_key in 0..=KV_BLOCK + 2 {
            let mut case = Case::random(layout, KV_BLOCK + 3, 2, &mut noise);
            case.first_key = first_key;
            case.soft_cap = [0.0, 1.5, 50.0][first_key % 3];
            for position in 0..first_key.min(KV_BLOCK) {
                let block = case.cache.bytes_mut().as_mut_ptr();
                // SAFETY: the first block of the cache is exclusively borrowed.
                unsafe { layout.store_key(block, position, &[f32::NAN; 6]) };
                // SAFETY: as above.
                unsafe { layout.store_value(block, position, &[f32::INFINITY; 21]) };
            }
            let expected = case.run(scalar());
            for table in tables() {
                let same = bits(&case.run(table)) == bits(&expected);
                assert!(same, "{} {ty} from {first_key}", table.name());
            }
            for (query, out) in case.queries.chunks(6).zip(expected.chunks(21)) {
                for (out, exact) in out.iter().zip(case.exact(query)) {
                    let error = (f64::from(*out) - exact).abs();
                    assert!(error < tolerance, "{ty} from {first_key}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_key_that_is_not_a_number_shows() {
    for ty in KvType::ALL {
        let layout = KvLayout {
            ty,
            head_dim_k: 8,
            head_dim_v: 8,
        };
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = Case::random(layout, 70, 1, &mut Noise(32));
            let mut key = case.keys[..8].to_vec();
            key[3] = bad;
            let block = case.cache.bytes_mut().as_mut_ptr();
            // SAFETY: the first block of the cache is exclusively borrowed.
            unsafe { layout.store_key(block, 17, &key) };
            // SAFETY: as above.
            unsafe { layout.store_value(block, 17, &key) };
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
        ty: KvType::F32,
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
