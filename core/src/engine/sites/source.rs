//! Where the weights of experts come from.

use crate::model::{ModelWeights, Site};
use crate::team::Member;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// The weights of one expert, each matrix as long as in the model's layout, aligned to
/// [`crate::memory::ALIGN`]. Where the file has gate and up as one matrix, both are that one, of 2 n_ff rows.
///
/// Of an expert that was lent for one product, the matrices of the other may be empty.
#[derive(Clone, Copy)]
pub struct ExpertWeights<'w> {
    /// (n_ff, n_embd) in panels; empty where experts have no gate.
    pub gate: &'w [u8],
    /// (n_ff, n_embd) in panels.
    pub up: &'w [u8],
    /// (n_embd, n_ff) in panels.
    pub down: &'w [u8],
}

impl ExpertWeights<'_> {
    /// Of neurons whose weights are in the model's own memory.
    pub const IN_PLACE: Self = Self {
        gate: &[],
        up: &[],
        down: &[],
    };
}

impl fmt::Debug for ExpertWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.gate.len() + self.up.len() + self.down.len();
        f.debug_struct("ExpertWeights")
            .field("bytes", &bytes)
            .finish()
    }
}

/// Neurons of a cluster, which a source lends together, of a dense network ([`ExpertSource::hot_neurons`]).
pub const CLUSTER_NEURONS: usize = 64;

/// The part of an expert that a product reads: its gate and up matrices, or its down matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertPart {
    /// Gate and up, which come first.
    GateUp = 0,
    /// Down, which is read after gate and up of all experts.
    Down = 1,
}

/// The answer to a request for an expert.
#[derive(Clone, Copy, Debug)]
pub enum Loan<'w> {
    /// It is ready, and stays in place until it has been given back as often as it was lent.
    Ready(ExpertWeights<'w>),
    /// It is being loaded.
    OnItsWay,
    /// It cannot be loaded: the step ends with [`crate::team::Stop::SourceFailed`]. The source knows the reason.
    Failed,
}

/// The experts of a layer that the step's tokens need. In the last layer, only tokens that outputs
/// depend on count, if there are any.
#[derive(Clone, Copy, Debug)]
pub struct NeededExperts<'a> {
    /// The layer.
    pub layer: usize,
    /// Indices of the experts, ascending.
    pub experts: &'a [u32],
    /// Number of workers that will be lent each of them, once each: for gate and up, and for down. Of clusters of neurons,
    /// [`usize::MAX`]: as many as ask.
    pub readers: [usize; 2],
    /// Tokens that need them.
    pub n_tokens: usize,
}

/// Weights of experts that are in memory, or being loaded. A [`ModelWeights`] is one: all of its experts
/// are resident.
///
/// An expert is lent for one product of one layer, then given back. A worker holds one at a time and does not wait
/// for another while it holds one, so room for a single expert is enough for any step.
///
/// Of dense networks, a source may lend neurons ([`Self::hot_neurons`]): a cluster takes the place of an expert, and its rows
/// of up and its columns of down (gate and up stand for up alone) come to their places in the model's own memory. A loan of
/// one is [`ExpertWeights::IN_PLACE`]. Workers hold all clusters of a layer at once: there has to be room for those.
pub trait ExpertSource: Sync {
    /// Announces the experts that a layer needs: at most once a layer and step, by one worker, maybe after others
    /// have asked for the first of them.
    fn announce(&self, needed: &NeededExperts<'_>) {
        let _ = needed;
    }

    /// Number of experts that a token's guess at the next layer should name, in addition to those that it uses; `None`
    /// if the source does not need guesses ([`Self::expect`]).
    fn looks_ahead(&self) -> Option<usize> {
        None
    }

    /// Experts that a token of the step will probably need in a later layer, by that layer's own router on the
    /// current residual stream, likeliest first. The guess may be wrong.
    fn expect(&self, layer: usize, experts: &[u32]) {
        let _ = (layer, experts);
    }

    /// Neurons of a layer's dense network that are in memory, the first ones, a multiple of [`CLUSTER_NEURONS`]: the others
    /// are lent in clusters, the first of which begins there. `None` if all are in memory.
    ///
    /// A step that leaves neurons unread asks for the clusters that have active ones; other steps ask for all of them. An
    /// engine has to be made for it ([`crate::engine::EngineLimits::cold_neurons`]).
    fn hot_neurons(&self, layer: usize) -> Option<usize> {
        let _ = layer;
        None
    }

    /// Lends the weights of an expert for one product. Any worker may get [`Loan::OnItsWay`] any number of
    /// times. A worker asks for gates and ups in any order, for downs in ascending order.
    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_>;

    /// Ends a loan that a worker no longer needs.
    fn give_back(&self, layer: usize, expert: u32, part: ExpertPart) {
        let _ = (layer, expert, part);
    }

    /// A word that changes, waking its waiters, whenever an expert has been loaded or room has become free:
    /// workers park on it by the step's [`crate::team::WaitPolicy::park_briefly`]. `None` lets them spin.
    fn arrivals(&self) -> Option<&AtomicU32> {
        None
    }

    /// Whether every expert can be lent at any time; asked once a step. If not, every worker computes its own share
    /// of each expert of a layer and does not wait for the others at an expert: a loaded expert must stay until every
    /// worker of the step has been lent it, or be loaded again.
    fn is_resident(&self) -> bool {
        false
    }
}

impl ExpertSource for ModelWeights<'_> {
    fn lend(&self, layer: usize, expert: u32, _: ExpertPart) -> Loan<'_> {
        let bytes = |site| self.expert_bytes(layer, site, expert as usize);
        Loan::Ready(ExpertWeights {
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
    part: ExpertPart,
    pub(in crate::engine) weights: ExpertWeights<'s>,
}

impl Lent<'_> {
    /// Leaves giving it back to the caller.
    pub(in crate::engine) fn keep(self) {
        let _kept = core::mem::ManuallyDrop::new(self);
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.source.give_back(self.layer, self.expert, self.part);
    }
}

/// A worker's wait for experts that may not be loaded yet.
pub(in crate::engine) struct Waiter<'s> {
    source: &'s dyn ExpertSource,
    layer: usize,
    part: ExpertPart,
    spins: u32,
}

impl<'s> Waiter<'s> {
    pub(in crate::engine) const fn new(
        source: &'s dyn ExpertSource,
        layer: usize,
        part: ExpertPart,
    ) -> Self {
        Self {
            source,
            layer,
            part,
            spins: 0,
        }
    }

    /// An expert, if it is loaded; `Err` if the step is to stop, which it then does at the next barrier.
    pub(in crate::engine) fn take(
        &mut self,
        member: &mut Member<'_>,
        expert: u32,
    ) -> Result<Option<Lent<'s>>, ()> {
        let (source, layer, part) = (self.source, self.layer, self.part);
        match source.lend(layer, expert, part) {
            Loan::Ready(weights) => {
                self.spins = 0;
                Ok(Some(Lent {
                    source,
                    layer,
                    expert,
                    part,
                    weights,
                }))
            }
            Loan::OnItsWay => Ok(None),
            Loan::Failed => {
                member.source_failed();
                Err(())
            }
        }
    }

    /// The value that [`Self::pause`] compares with; read it before asking.
    pub(in crate::engine) fn seen(&self) -> u32 {
        let word = self.source.arrivals();
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Waits briefly, or until an expert has been loaded since `seen`; `Err` if the step is to stop.
    pub(in crate::engine) fn pause(
        &mut self,
        member: &mut Member<'_>,
        seen: u32,
    ) -> Result<(), ()> {
        if member.must_stop() {
            return Err(());
        }
        match self.source.arrivals() {
            Some(word) if self.spins >= member.wait().spins() => {
                member.wait().park_briefly(word, seen);
            }
            _ => core::hint::spin_loop(),
        }
        self.spins = self.spins.saturating_add(1);
        Ok(())
    }

    /// An expert, as soon as it is loaded; `None` if the step is to stop.
    pub(in crate::engine) fn wait(
        &mut self,
        member: &mut Member<'_>,
        expert: u32,
    ) -> Option<Lent<'s>> {
        loop {
            let seen = self.seen();
            if let Some(lent) = self.take(member, expert).ok()? {
                return Some(lent);
            }
            self.pause(member, seen).ok()?;
        }
    }
}
