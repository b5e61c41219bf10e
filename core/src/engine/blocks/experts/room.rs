//! Memory of experts.

use super::latent::LatentRoom;
use super::predict::PredictedRoom;
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, RowsRoom, activations_of};
use crate::engine::rows::{Buckets, Rows, SMALL_BATCH, TILE_TOKENS};
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::{Experts, ModelConfig};

/// The experts of tokens and their weights, (n_rows, n_expert_used) each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices<'p> {
    pub(super) experts: Shared<'p, u32>,
    pub(super) weights: Shared<'p, f32>,
}

/// Memory of experts.
#[derive(Debug)]
pub(in crate::engine::blocks) struct ExpertsRoom<'m> {
    /// Rows of the residual stream, one for each pair, sorted by expert.
    pub(super) gathered: RowsRoom<'m>,
    /// Quantised rows of neurons, one for each pair.
    pub(super) neurons: Shared<'m, u8>,
    /// Gates of pairs before up is computed, and the cuts of their rows, where steps may compare gates.
    pub(super) gates: Rows<'m>,
    pub(super) cuts: Shared<'m, u64>,
    /// Rows of neurons of the expert that works on every token, and the factors on its output.
    pub(super) shared: Shared<'m, u8>,
    pub(super) shared_scales: Shared<'m, f32>,
    /// Experts of each token, (n_batch, n_expert_used), and their weights.
    chosen: Choices<'m>,
    /// A worker's own, for [`SMALL_BATCH`] tokens.
    chosen_private: (PerWorker<'m, u32>, PerWorker<'m, f32>),
    /// A worker's own logits of the router, [`TILE_TOKENS`] × n_expert, and a row of scores to choose by.
    pub(super) routers: PerWorker<'m, f32>,
    /// A worker's own list of experts that are not loaded yet.
    pub(super) left: PerWorker<'m, u32>,
    /// A row and the experts of a guess at a later layer.
    pub(super) ahead: (RowsRoom<'m>, Shared<'m, u32>),
    pub(super) latent: LatentRoom<'m>,
    pub(super) predicted: PredictedRoom<'m>,
    /// A worker's own room for buckets.
    pub(super) buckets: PerWorker<'m, u32>,
    pub(in crate::engine::blocks) needs: Needs,
}

impl<'m> ExpertsRoom<'m> {
    pub(in crate::engine::blocks) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let most = |len: fn(&Experts) -> usize| config.experts().map(len).max().unwrap_or(0);
        let kinds = activations_of(config, limits);
        let row_bytes = |n_ff| match n_ff {
            0 => 0,
            _ => ActivationLayout::new(n_ff, kinds.neurons).row_bytes(),
        };
        let n_gates = match limits.ranks_gates {
            true => most(|shape| shape.n_ff),
            false => 0,
        };
        let shared_bytes = row_bytes(most(|shape| shape.shared.map_or(0, |shared| shared.n_ff)));
        let row_bytes = row_bytes(most(|shape| shape.n_ff));
        let (n_batch, n_workers) = (limits.n_batch, limits.n_workers);
        let (n_expert, n_used) = (
            most(|shape| shape.n_expert),
            most(|shape| shape.n_expert_used),
        );
        let n_pairs = n_batch.checked_mul(n_used);
        let n_pairs = n_pairs.filter(|&pairs| u32::try_from(pairs).is_ok());
        let n_pairs = n_pairs.ok_or(MemoryError::TooLarge)?;
        // Rows of small batches stay where they are.
        let n_gathered = if n_batch > SMALL_BATCH { n_pairs } else { 0 };
        let width = config.experts().map(|shape| shape.width(config.n_embd));
        let width = width.max().unwrap_or(config.n_embd);
        let gathered = ActivationLayout::new(width, kinds.experts);
        let latent = LatentRoom::new(config, limits, room)?;
        let ahead = ActivationLayout::new(config.n_embd, kinds.stream | kinds.experts);
        let words = match n_expert {
            0 => 0,
            _ => Buckets::words(n_expert, n_pairs),
        };
        Ok(Self {
            gathered: RowsRoom {
                memory: room.buffer(n_gathered, gathered.row_bytes())?,
                layout: gathered,
            },
            neurons: room.buffer(n_pairs, row_bytes)?,
            gates: Rows {
                memory: room.buffer(n_pairs, n_gates)?,
                stride: n_gates,
            },
            cuts: room.buffer(n_pairs, n_gates.min(1))?,
            shared: room.buffer(n_batch, shared_bytes)?,
            shared_scales: room.buffer(n_batch, usize::from(shared_bytes > 0))?,
            chosen: Choices {
                experts: room.buffer(n_batch, n_used)?,
                weights: room.buffer(n_batch, n_used)?,
            },
            chosen_private: (
                room.of_workers(n_workers, SMALL_BATCH * n_used)?,
                room.of_workers(n_workers, SMALL_BATCH * n_used)?,
            ),
            routers: room.of_workers(n_workers, (TILE_TOKENS + 1) * n_expert)?,
            left: room.of_workers(n_workers, n_expert)?,
            ahead: (
                RowsRoom {
                    memory: room.buffer(usize::from(n_expert > 0), ahead.row_bytes())?,
                    layout: ahead,
                },
                room.buffer(1, n_expert)?,
            ),
            latent,
            predicted: PredictedRoom::new(limits, n_pairs, most(|shape| shape.n_ff), room)?,
            buckets: room.of_workers(n_workers, words)?,
            needs: Needs {
                row_bytes: row_bytes.max(shared_bytes).max(latent.row_bytes()),
                n_rows: n_pairs,
                ..Needs::default()
            },
        })
    }

    /// Room for the experts of each token and their weights: rank `rank`'s own room for [`SMALL_BATCH`] tokens,
    /// or the room of all workers.
    pub(super) fn choices(&self, rank: Option<usize>) -> Choices<'m> {
        let Some(rank) = rank else {
            return self.chosen;
        };
        let (experts, weights) = &self.chosen_private;
        Choices {
            experts: experts.of(rank),
            weights: weights.of(rank),
        }
    }
}
