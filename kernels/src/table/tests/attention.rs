//! Attention over blocks and splits.

use crate::contract::KV_BLOCK;
use crate::table::{AttentionBlock, AttentionState};
use crate::test_support::{Aligned, Noise, bits, scalar, tables};
use crate::{KernelTable, KvLayout, KvType};
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
        }
    }

    fn n_queries(&self) -> usize {
        self.queries.len() / self.layout.head_dim_k
    }

    /// Attention of every query to all keys: (n_queries, head_dim_v).
    pub(super) fn run(&self, table: &KernelTable) -> Vec<f32> {
        let mut state = State::new(self);
        for (b, block) in self
            .cache
            .bytes()
            .chunks(self.layout.block_bytes())
            .enumerate()
        {
            let args = AttentionBlock {
                layout: self.layout,
                block,
                n_keys: (self.n_keys - b * KV_BLOCK).min(KV_BLOCK),
                queries: &self.queries,
                scale: SCALE,
            };
            table.attention_block(&args, &mut state.borrow());
        }
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
            pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        let weights: Vec<f64> = self
            .keys
            .chunks(self.layout.head_dim_k)
            .map(|key| (f64::from(SCALE) * score(key)).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; dim_v];
        for (weight, value) in weights.iter().zip(self.values.chunks(dim_v)) {
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
