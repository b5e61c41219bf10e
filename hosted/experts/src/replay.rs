//! A trace, run through the optimum and through policies.

use super::cache::{self, CacheSetup, Hits};
use super::optimum;
use super::slots::Slots;
use super::steps::Steps;
use core::error::Error;
use core::fmt;
use sluice::experts::policy::{EvictionPolicy, ExpertProfile, Worth};

/// The results of caches of one size on a trace.
#[derive(Clone, Debug)]
pub struct CacheReport {
    /// The cache.
    pub setup: CacheSetup,
    /// Slots per expert: the hit rate of any cache where all experts are used equally often and at random.
    pub slots_per_expert: f64,
    /// Belady's optimum: of the experts that the step does not need, evicts the one that is needed last.
    pub optimum: Hits,
    /// The optimum where an expert may also be used without a slot: more than the live cache can reach.
    pub bypass: Hits,
    /// The hits of each requested policy, in order.
    pub policies: Vec<PolicyHits>,
}

/// The hits of a cache that follows a policy.
#[derive(Clone, Debug)]
pub struct PolicyHits {
    /// The policy.
    pub policy: EvictionPolicy,
    /// Its hits.
    pub hits: Hits,
}

/// A step needs more experts at once than there are slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewSlots {
    /// Number of slots.
    pub n_slots: usize,
    /// Number of slots that the step needs.
    pub n_needed: usize,
}

impl fmt::Display for TooFewSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "too few slots ({}): this trace needs at least {} for the experts of one step",
            self.n_slots, self.n_needed
        )
    }
}

impl Error for TooFewSlots {}

/// Runs a trace through the optimum and through `policies`. [`EvictionPolicy::Static`] holds `profile`, cut to half the slots;
/// without a profile it holds the trace's own, which looks ahead.
///
/// # Errors
/// [`TooFewSlots`].
pub fn replay(
    steps: &Steps,
    setup: CacheSetup,
    policies: &[EvictionPolicy],
    profile: Option<&ExpertProfile>,
) -> Result<CacheReport, TooFewSlots> {
    let n_pools = setup.pool.count(steps);
    if setup.n_slots / n_pools < steps.widest() {
        return Err(TooFewSlots {
            n_slots: setup.n_slots,
            n_needed: steps.widest() * n_pools,
        });
    }
    let next = optimum::next_uses(steps);
    let run = |policy: &EvictionPolicy| {
        let own = (*policy == EvictionPolicy::Static && profile.is_none()).then(|| steps.profile());
        let profile = profile.or(own.as_ref());
        let hits = cache::run(steps, setup, |n_slots, layer| {
            let cut = profile.map(|profile| of_pool(steps, profile, n_slots, layer));
            Slots::new(
                Worth::new(*policy, steps.n_ids(), n_slots, cut.as_ref()),
                n_slots,
            )
        });
        PolicyHits {
            policy: *policy,
            hits,
        }
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

/// The experts of a profile that a pool keeps.
fn of_pool(
    steps: &Steps,
    profile: &ExpertProfile,
    n_slots: usize,
    layer: Option<u32>,
) -> ExpertProfile {
    let is_here = |id: u32| layer.is_none_or(|layer| id / steps.n_expert() == layer);
    let here: ExpertProfile = profile.iter().filter(|&(id, _)| is_here(id)).collect();
    here.for_slots(n_slots)
}

#[cfg(test)]
mod tests;
