//! Hit rates of caches on a trace.
//!
//! The experts of a step are needed together, so none of them is evicted for another one of them. A cache is one pool
//! over all layers, as the live one is, or one a layer.

use super::optimum;
use super::steps::Steps;
use crate::experts::policy::{Policy, Profile, Worth};
use core::error::Error;
use core::fmt;
use std::collections::BTreeSet;

/// A cache to replay.
#[derive(Clone, Copy, Debug)]
pub struct CacheSetup {
    /// How many experts it holds.
    pub n_slots: usize,
    /// What shares them.
    pub pool: Pool,
}

/// What shares the slots of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// All layers: what the live cache does.
    All,
    /// Each layer has its part, as equal as may be.
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

/// What caches of one size make of a trace.
#[derive(Clone, Debug)]
pub struct CacheReport {
    /// The cache.
    pub setup: CacheSetup,
    /// Slots for each expert there is: the hit rate of any cache where all are used alike and at random.
    pub slots_per_expert: f64,
    /// Belady's optimum: of those that the step does not need, the one goes that is needed last.
    pub optimum: Hits,
    /// The same where an expert may be used without a slot: more than the live cache could have.
    pub bypass: Hits,
    /// Of each policy that was asked for.
    pub policies: Vec<(Policy, Hits)>,
}

/// A step needs more experts at once than there are slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewSlots {
    /// How many there are.
    pub n_slots: usize,
    /// How many it takes.
    pub n_needed: usize,
}

impl fmt::Display for TooFewSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "too few slots ({}): this trace takes at least {}, for the experts of one step",
            self.n_slots, self.n_needed
        )
    }
}

impl Error for TooFewSlots {}

impl Rate {
    /// Hits of all uses, 0 to 1.
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
    /// Of all layers.
    #[must_use]
    pub fn total(&self) -> Rate {
        let mut total = Rate::default();
        self.layers.iter().for_each(|&layer| total.add(layer));
        total
    }
}

/// Runs a trace through the optimum and through `policies`. [`Policy::Static`] holds `profile`, cut to half the slots;
/// without one, that of the trace itself, which looks ahead.
///
/// # Errors
/// [`TooFewSlots`].
pub fn replay(
    steps: &Steps,
    setup: CacheSetup,
    policies: &[Policy],
    profile: Option<&Profile>,
) -> Result<CacheReport, TooFewSlots> {
    let n_pools = setup.pool.count(steps);
    if setup.n_slots / n_pools < steps.widest() {
        return Err(TooFewSlots {
            n_slots: setup.n_slots,
            n_needed: steps.widest() * n_pools,
        });
    }
    let next = optimum::next_uses(steps);
    let run = |policy: &Policy| {
        let own = (*policy == Policy::Static && profile.is_none()).then(|| steps.profile());
        let profile = profile.or(own.as_ref());
        let hits = run(steps, setup, |n_slots, layer| {
            let cut = profile.map(|profile| of_pool(steps, profile, n_slots, layer));
            Slots::new(
                Worth::new(*policy, steps.n_ids(), n_slots, cut.as_ref()),
                n_slots,
            )
        });
        (*policy, hits)
    };
    Ok(CacheReport {
        setup,
        slots_per_expert: per_expert(setup.n_slots, steps.n_experts()),
        optimum: optimum::run(steps, setup, &next, false),
        bypass: optimum::run(steps, setup, &next, true),
        policies: policies.iter().map(run).collect(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of experts are small")]
fn per_expert(n_slots: usize, n_experts: usize) -> f64 {
    (n_slots as f64 / n_experts as f64).min(1.0)
}

/// What a pool holds of a profile.
fn of_pool(steps: &Steps, profile: &Profile, n_slots: usize, layer: Option<u32>) -> Profile {
    let is_here = |id: u32| layer.is_none_or(|layer| id / steps.n_expert() == layer);
    let here: Profile = profile.iter().filter(|&(id, _)| is_here(id)).collect();
    here.for_slots(n_slots)
}

/// A cache: takes the index and the experts of a step, and gives the number of hits.
pub(super) trait Cache {
    fn step(&mut self, index: usize, experts: &[u32]) -> u64;
}

/// Runs a trace through a cache for each pool, made by `make` for a number of slots and the layer, where it has one.
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
    fn count(self, steps: &Steps) -> usize {
        match self {
            Self::All => 1,
            Self::Layer => steps.layers().len(),
        }
    }
}

/// Slots whose experts are evicted by worth.
#[derive(Debug)]
struct Slots {
    worth: Worth,
    n_slots: usize,
    /// The experts in slots that the step does not need, by worth: it changes for none of them until it is used.
    order: BTreeSet<(u64, u32)>,
    is_in: Vec<bool>,
}

impl Slots {
    fn new(worth: Worth, n_slots: usize) -> Self {
        Self {
            is_in: vec![false; worth.n_ids()],
            worth,
            n_slots,
            order: BTreeSet::new(),
        }
    }

    fn key(&self, id: u32) -> (u64, u32) {
        (ordered(self.worth.of(id)), id)
    }
}

impl Cache for Slots {
    fn step(&mut self, _: usize, experts: &[u32]) -> u64 {
        let mut n_hits = 0;
        for &id in experts {
            if self.is_in[id as usize] {
                let key = self.key(id);
                self.order.remove(&key);
                n_hits += 1;
            }
        }
        while self.order.len() + experts.len() > self.n_slots {
            if let Some((_, evicted)) = self.order.pop_first() {
                self.is_in[evicted as usize] = false;
            }
        }
        for &id in experts {
            self.worth.used(id);
            if !core::mem::replace(&mut self.is_in[id as usize], true) {
                self.worth.inserted(id);
            }
        }
        for &id in experts {
            let key = self.key(id);
            self.order.insert(key);
        }
        n_hits
    }
}

/// Bits whose order as whole numbers is the order of the numbers.
const fn ordered(worth: f64) -> u64 {
    let bits = worth.to_bits();
    // Negative numbers are ordered the other way round.
    let mask = if worth.is_sign_negative() {
        u64::MAX
    } else {
        1 << 63
    };
    bits ^ mask
}

#[cfg(test)]
mod tests;
