//! A cache whose experts are evicted by a policy's worth, as in a run.

use super::cache::Cache;
use sluice::experts::policy::Worth;
use std::collections::BTreeSet;

/// Slots whose experts are evicted by worth.
#[derive(Debug)]
pub(super) struct Slots {
    worth: Worth,
    n_slots: usize,
    /// The experts in slots that the step does not need, by worth: it does not change before their next use.
    order: BTreeSet<(u64, u32)>,
    is_in: Vec<bool>,
}

impl Slots {
    pub(super) fn new(worth: Worth, n_slots: usize) -> Self {
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

/// Maps a number to bits that, as whole numbers, sort like the numbers.
pub(super) const fn ordered(worth: f64) -> u64 {
    let bits = worth.to_bits();
    // Negative numbers are ordered the other way round.
    let mask = if worth.is_sign_negative() {
        u64::MAX
    } else {
        1 << 63
    };
    bits ^ mask
}
