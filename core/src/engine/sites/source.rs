//! Where the weights of experts come from.

use crate::model::{Model, Site};
use crate::team::Member;
use core::fmt;
use core::sync::atomic::AtomicU32;

/// The weights of one expert, each matrix as long as the model's layout of it says, aligned to
/// [`crate::memory::ALIGN`]. Where the file has gate and up as one, both are that one, of 2 n_ff rows.
#[derive(Clone, Copy)]
pub struct ExpertWeights<'w> {
    /// (n_ff, n_embd) in panels; empty where experts have no gate.
    pub gate: &'w [u8],
    /// (n_ff, n_embd) in panels.
    pub up: &'w [u8],
    /// (n_embd, n_ff) in panels.
    pub down: &'w [u8],
}

impl fmt::Debug for ExpertWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.gate.len() + self.up.len() + self.down.len();
        f.debug_struct("ExpertWeights")
            .field("bytes", &bytes)
            .finish()
    }
}

/// Weights of experts that are in memory, or on their way. A [`Model`] is one: all of its experts
/// are resident.
///
/// An expert is lent for one product of one layer and given back. A worker holds one at a time and waits for
/// none while it holds one, so room for a single expert is enough for any step.
pub trait ExpertSource: Sync {
    /// Says which experts of a layer (ascending) the tokens at hand need: at most once a layer and
    /// step, by one worker, maybe after others have asked for the first of them. In the last layer
    /// those are the tokens that outputs depend on, if there are any.
    fn announce(&self, layer: usize, experts: &[u32]) {
        let _ = (layer, experts);
    }

    /// Lends the weights of an expert; `None` while they are on their way, which any worker may be told
    /// any number of times. They stay where they are until they are given back as often as lent.
    fn lend(&self, layer: usize, expert: u32) -> Option<ExpertWeights<'_>>;

    /// A worker has done with what it was lent.
    fn give_back(&self, layer: usize, expert: u32) {
        let _ = (layer, expert);
    }

    /// A word that changes, and whose waiters are woken, whenever an expert has come or room has become
    /// free: workers park on it by the step's [`crate::team::WaitPolicy::park_briefly`]. `None` lets them spin.
    fn arrivals(&self) -> Option<&AtomicU32> {
        None
    }

    /// Whether every expert can be lent at any time; asked once a step. Where not, workers go through experts one after the
    /// other, in the same order, and none waits for another at an expert: what has come must stay until every
    /// worker of the step has been lent it, or be fetched again.
    fn is_resident(&self) -> bool {
        false
    }
}

impl ExpertSource for Model<'_> {
    fn lend(&self, layer: usize, expert: u32) -> Option<ExpertWeights<'_>> {
        let bytes = |site| self.expert_bytes(layer, site, expert as usize);
        Some(ExpertWeights {
            gate: bytes(Site::FfnGate),
            up: bytes(Site::FfnUp),
            down: bytes(Site::FfnDown),
        })
    }

    fn is_resident(&self) -> bool {
        true
    }
}

/// An expert that is lent; given back when dropped.
pub(in crate::engine) struct Lent<'s> {
    source: &'s dyn ExpertSource,
    layer: usize,
    expert: u32,
    pub(in crate::engine) weights: ExpertWeights<'s>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.source.give_back(self.layer, self.expert);
    }
}

/// The weights of an expert, once they are there; `None` if the step is to stop, which it then does
/// at the next barrier.
pub(in crate::engine) fn wait<'s>(
    source: &'s dyn ExpertSource,
    member: &mut Member<'_>,
    layer: usize,
    expert: u32,
) -> Option<Lent<'s>> {
    let arrivals = source.arrivals();
    let mut spins = 0;
    loop {
        let seen = arrivals.map(|word| (word, word.load(core::sync::atomic::Ordering::SeqCst)));
        if let Some(weights) = source.lend(layer, expert) {
            return Some(Lent {
                source,
                layer,
                expert,
                weights,
            });
        }
        if member.must_stop() {
            return None;
        }
        match seen {
            Some((word, seen)) if spins >= member.wait().spins() => {
                member.wait().park_briefly(word, seen);
            }
            _ => core::hint::spin_loop(),
        }
        spins = spins.saturating_add(1);
    }
}
