//! Where the weights of experts come from.

use crate::model::{Matrix, Model};
use crate::team::Member;
use core::fmt;

/// The weights of one expert, each matrix as long as the model's layout of it says, aligned to
/// [`crate::memory::ALIGN`].
#[derive(Clone, Copy)]
pub struct ExpertWeights<'w> {
    /// (n_ff, n_embd) in panels.
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
pub trait ExpertSource: Sync {
    /// Says which experts of a layer (ascending) the tokens at hand need: at most once a layer and
    /// step, by one worker, maybe after others have asked for the first of them. In the last layer
    /// those are the tokens that outputs depend on, if there are any.
    fn announce(&self, layer: usize, experts: &[u32]) {
        let _ = (layer, experts);
    }

    /// The weights of an expert; `None` while they are on their way, which any worker may be told
    /// any number of times. They stay where they are until the step ends.
    fn weights(&self, layer: usize, expert: u32) -> Option<ExpertWeights<'_>>;
}

impl ExpertSource for Model<'_> {
    fn weights(&self, layer: usize, expert: u32) -> Option<ExpertWeights<'_>> {
        let bytes = |matrix| self.expert_bytes(layer, matrix, expert as usize);
        Some(ExpertWeights {
            gate: bytes(Matrix::FfnGate),
            up: bytes(Matrix::FfnUp),
            down: bytes(Matrix::FfnDown),
        })
    }
}

/// The weights of an expert, once they are there; `None` if the step is to stop, which it then does
/// at the next barrier.
pub(super) fn wait<'s>(
    source: &'s dyn ExpertSource,
    member: &mut Member<'_>,
    layer: usize,
    expert: u32,
) -> Option<ExpertWeights<'s>> {
    loop {
        if let Some(weights) = source.weights(layer, expert) {
            return Some(weights);
        }
        if member.must_stop() {
            return None;
        }
        core::hint::spin_loop();
    }
}
