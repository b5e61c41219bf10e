//! The limits of an engine, from which its size follows.

use super::batch::EngineError;
use crate::kernels::KvType;
use crate::kernels::activation::ActivationKinds;
use crate::model::{LongRope, ModelConfig, PredictorLimits};
use crate::state::{StateConfig, StateLimits};
use crate::team::WORKERS_MAX;

/// Limits of an engine, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum entries in a step. Longer prompts are cut by the caller.
    pub n_batch: usize,
    /// Maximum entries of a step that want logits. They have room for hidden states, too.
    pub n_outputs: usize,
    /// Further entries that may want their hidden state only.
    pub n_hidden: usize,
    /// Tokens that the KV cache holds, over all sequences.
    pub n_ctx: usize,
    /// Tokens beyond them in pages that a host holds ([`crate::state::State::retain`]).
    pub n_held: usize,
    /// Sequences, numbered from 0.
    pub n_seq: usize,
    /// Element type of keys in the KV cache.
    pub type_k: KvType,
    /// Element type of values in the KV cache.
    pub type_v: KvType,
    /// Whether keys and values of q8_0, q4_0 and fp8 are rotated where heads are a multiple of 64 long, so
    /// that no dimension takes up a scale's range ([`crate::kernels::hadamard`]).
    pub kv_rotation: bool,
    /// Workers that run a step, `1..=WORKERS_MAX`.
    pub n_workers: usize,
    /// Largest rank of the blends of adapters that steps may carry ([`super::Blend::rank`]); 0 for none.
    pub adapter_rank: usize,
    /// Kinds in which inputs of linear layers are kept for adapters: the kinds of their matrices A
    /// ([`super::Blend::kinds`]). Empty without adapters.
    pub adapter_kinds: ActivationKinds,
    /// Whether steps may have an observer: inputs of linear layers are then kept in f32, too.
    pub observes: bool,
    /// Whether steps may have a selector of neurons.
    pub selects: bool,
    /// Whether steps may compare the neurons of a row by their gates ([`super::Approximation::ranks_gates`]): gates then take
    /// memory.
    pub ranks_gates: bool,
    /// Whether steps may take neurons of dense networks from a source ([`super::ExpertSource::hot_neurons`]): gates then take
    /// memory.
    pub cold_neurons: bool,
    /// The largest predictor that steps may have ([`crate::model::Predictor::limits`]).
    pub predictor: PredictorLimits,
    /// Number of tokens by which a sequence can be rewound in a recurrent model. Each takes the room of a
    /// recurrent state.
    pub n_behind: usize,
    /// Named recurrent states ([`crate::state::State::checkpoint`]).
    pub n_checkpoints: usize,
    /// Whether layers with a window give back the pages that it has left. Sequences can then not be rewound
    /// further than the window and `n_behind` reach.
    pub windows_give_back: bool,
    /// Which divisors of its rotary frequencies a longrope model uses.
    pub longrope: LongRope,
}

/// The kinds of activations that matrices of all types multiply.
const ANY_ADAPTER: ActivationKinds = ActivationKinds::F32.union(ActivationKinds::INT8_256);
/// Largest rank of a blend.
const RANK_MAX: usize = 4096;

impl EngineLimits {
    /// One sequence of `n_ctx` tokens in f16, prompts in steps of 512, one row of logits.
    pub const fn single(n_ctx: usize, n_workers: usize) -> Self {
        Self {
            n_batch: 512,
            n_outputs: 1,
            n_hidden: 0,
            n_ctx,
            n_held: 0,
            n_seq: 1,
            type_k: KvType::F16,
            type_v: KvType::F16,
            kv_rotation: true,
            n_workers,
            adapter_rank: 0,
            adapter_kinds: ANY_ADAPTER,
            observes: false,
            selects: false,
            ranks_gates: false,
            cold_neurons: false,
            predictor: PredictorLimits::NONE,
            n_behind: 0,
            n_checkpoints: 0,
            windows_give_back: false,
            longrope: LongRope::ByLength,
        }
    }

    pub(super) fn check(&self) -> Result<(), EngineError> {
        const N_MAX: usize = 1 << 24;
        let ranges = [
            ("n_batch", self.n_batch, 1, N_MAX),
            ("n_outputs", self.n_outputs, 0, N_MAX),
            ("n_hidden", self.n_hidden, 0, N_MAX),
            ("n_ctx", self.n_ctx, 1, N_MAX),
            ("n_held", self.n_held, 0, 1 << 28),
            ("n_seq", self.n_seq, 1, 1 << 16),
            ("n_workers", self.n_workers, 1, WORKERS_MAX),
            ("adapter_rank", self.adapter_rank, 0, RANK_MAX),
            ("n_behind", self.n_behind, 0, 1 << 10),
            ("n_checkpoints", self.n_checkpoints, 0, 1 << 16),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(EngineError::Limit {
                    name,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }

    pub(super) fn state_config(&self, model: &ModelConfig) -> StateConfig {
        StateConfig::new(model, &self.state())
    }

    /// Limits of the state.
    pub const fn state(&self) -> StateLimits {
        StateLimits {
            n_ctx: self.n_ctx,
            n_held: self.n_held,
            n_batch: self.n_batch,
            n_seq: self.n_seq,
            type_k: self.type_k,
            type_v: self.type_v,
            kv_rotation: self.kv_rotation,
            n_behind: self.n_behind,
            n_checkpoints: self.n_checkpoints,
            windows_give_back: self.windows_give_back,
        }
    }
}
