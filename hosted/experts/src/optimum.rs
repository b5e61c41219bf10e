//! The best that any cache can do (L. A. Belady, A study of replacement algorithms for a virtual-storage computer,
//! 1966).
//!
//! With the future known, evict the expert that is needed last. This stays optimal where a step needs several experts
//! at once, as none of those may be evicted.

use super::cache::{Cache, CacheSetup, Hits, run as run_pools};
use super::steps::Steps;
use std::collections::BTreeSet;

/// The hits of the optimum. With `bypass` a missed expert may be used without a slot.
pub(super) fn run(steps: &Steps, setup: CacheSetup, next: &[Box<[usize]>], bypass: bool) -> Hits {
    run_pools(steps, setup, |n_slots, _| Optimum {
        next,
        n_slots,
        bypass,
        order: BTreeSet::new(),
        needed: vec![None; steps.n_ids()],
    })
}

/// For each step, when each of its experts is used next: an index of a step, or [`NEVER`].
pub(super) fn next_uses(steps: &Steps) -> Vec<Box<[usize]>> {
    let mut coming = vec![NEVER; steps.n_ids()];
    let mut next = vec![Box::default(); steps.len()];
    for (i, next) in next.iter_mut().enumerate().rev() {
        let experts = steps.get(i).experts.iter();
        let of = |&id: &u32| core::mem::replace(&mut coming[id as usize], i);
        *next = experts.map(of).collect();
    }
    next
}

const NEVER: usize = usize::MAX;

struct Optimum<'n> {
    next: &'n [Box<[usize]>],
    n_slots: usize,
    bypass: bool,
    /// The experts in slots, by their next use.
    order: BTreeSet<(usize, u32)>,
    /// When an expert that is in a slot is used next.
    needed: Vec<Option<usize>>,
}

impl Optimum<'_> {
    fn evict_down_to(&mut self, n: usize) {
        while self.order.len() > n {
            if let Some((_, evicted)) = self.order.pop_last() {
                self.needed[evicted as usize] = None;
            }
        }
    }
}

impl Cache for Optimum<'_> {
    fn step(&mut self, index: usize, experts: &[u32]) -> u64 {
        let mut n_hits = 0;
        for &id in experts {
            if let Some(needed) = self.needed[id as usize].take() {
                self.order.remove(&(needed, id));
                n_hits += 1;
            }
        }
        if !self.bypass {
            self.evict_down_to(self.n_slots - experts.len());
        }
        for (&id, &next) in experts.iter().zip(&self.next[index]) {
            self.needed[id as usize] = Some(next);
            self.order.insert((next, id));
        }
        self.evict_down_to(self.n_slots);
        n_hits
    }
}
