//! A cache of experts, and its hits on a trace.
//!
//! The experts of a step are needed together, so none of them is evicted for another one of them. A cache is one pool
//! over all layers, like the live one, or one per layer.

use super::steps::Steps;

/// A cache to replay.
#[derive(Clone, Copy, Debug)]
pub struct CacheSetup {
    /// Number of experts that it holds.
    pub n_slots: usize,
    /// Who shares the slots.
    pub pool: Pool,
}

/// Who shares the slots of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// All layers, as in the live cache.
    All,
    /// Each layer has its own part, as equal as possible.
    Layer,
}

/// Uses of experts, and how many were hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Uses of experts that were in a slot.
    pub n_hits: u64,
    /// All uses.
    pub n_uses: u64,
}

/// The hits of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hits {
    /// By layer, in the order of [`Steps::layers`].
    pub layers: Vec<Rate>,
}

impl Rate {
    /// The share of hits, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
    pub fn value(self) -> f64 {
        self.n_hits as f64 / self.n_uses.max(1) as f64
    }

    pub(super) const fn add(&mut self, other: Self) {
        self.n_hits += other.n_hits;
        self.n_uses += other.n_uses;
    }
}

impl Hits {
    /// The sum over all layers.
    #[must_use]
    pub fn total(&self) -> Rate {
        let mut total = Rate::default();
        self.layers.iter().for_each(|&layer| total.add(layer));
        total
    }
}

/// A cache: takes the index and the experts of a step, and gives the number of hits.
pub(super) trait Cache {
    fn step(&mut self, index: usize, experts: &[u32]) -> u64;
}

/// Runs a trace through a cache for each pool, made by `make` for a number of slots and the layer, if it has one.
pub(super) fn run<C: Cache>(
    steps: &Steps,
    setup: CacheSetup,
    mut make: impl FnMut(usize, Option<u32>) -> C,
) -> Hits {
    let mut layers = vec![Rate::default(); steps.layers().len()];
    let mut run_pool = |mut cache: C, only: Option<u32>| {
        for (index, step) in steps.iter().enumerate() {
            if only.is_none_or(|layer| layer == step.layer) {
                layers[steps.layer_index(step.layer)].add(Rate {
                    n_hits: cache.step(index, step.experts),
                    n_uses: step.experts.len() as u64,
                });
            }
        }
    };
    match setup.pool {
        Pool::All => run_pool(make(setup.n_slots, None), None),
        Pool::Layer => {
            let n = steps.layers().len();
            for (i, &layer) in steps.layers().iter().enumerate() {
                let n_slots = setup.n_slots / n + usize::from(i < setup.n_slots % n);
                run_pool(make(n_slots, Some(layer)), Some(layer));
            }
        }
    }
    Hits { layers }
}

impl Pool {
    pub(super) fn count(self, steps: &Steps) -> usize {
        match self {
            Self::All => 1,
            Self::Layer => steps.layers().len(),
        }
    }
}
