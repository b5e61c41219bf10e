//! How large an engine is made, and the memory that takes.

use super::batch::EngineError;
use super::scratch::ScratchPlan;
use crate::kernels::{KvLayout, KvType};
use crate::kv_cache::{HEAD_DIM_MAX, KvConfig};
use crate::model::ModelConfig;
use crate::team::WORKERS_MAX;

/// Limits of an engine, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most entries in a step. Longer prompts are cut by the caller.
    pub n_batch: usize,
    /// Most entries of a step that want logits or the hidden state.
    pub n_outputs: usize,
    /// Tokens that the KV cache holds, over all sequences.
    pub n_ctx: usize,
    /// Sequences, numbered from 0.
    pub n_seq: usize,
    /// Element type of keys in the KV cache.
    pub type_k: KvType,
    /// Element type of values in the KV cache.
    pub type_v: KvType,
    /// Workers that run a step, `1..=64`.
    pub n_workers: usize,
    /// Whether steps may carry adapters: their f32 inputs are then kept too.
    pub adapters: bool,
}

impl Limits {
    /// One sequence of `n_ctx` tokens in f16, prompts in steps of 512, one row of logits.
    pub const fn single(n_ctx: usize, n_workers: usize) -> Self {
        Self {
            n_batch: 512,
            n_outputs: 1,
            n_ctx,
            n_seq: 1,
            type_k: KvType::F16,
            type_v: KvType::F16,
            n_workers,
            adapters: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), EngineError> {
        const N_MAX: usize = 1 << 24;
        let ranges = [
            ("n_batch", self.n_batch, 1, N_MAX),
            ("n_outputs", self.n_outputs, 0, N_MAX),
            ("n_ctx", self.n_ctx, 1, N_MAX),
            ("n_seq", self.n_seq, 1, 1 << 16),
            ("n_workers", self.n_workers, 1, WORKERS_MAX),
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

    pub(super) const fn kv_config(&self, model: &ModelConfig) -> KvConfig {
        let layout = KvLayout {
            type_k: self.type_k,
            type_v: self.type_v,
            head_dim_k: model.head_dim_k,
            head_dim_v: model.head_dim_v,
        };
        KvConfig::new(model, layout, self.n_ctx, self.n_seq)
    }
}

/// Memory that an engine needs beside the weights, each aligned to [`crate::memory::ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnginePlan {
    /// Bytes of the KV cache with its tables.
    pub kv_bytes: usize,
    /// Bytes of activations, outputs and the workers' own room.
    pub scratch_bytes: usize,
}

impl EnginePlan {
    /// Pure arithmetic on the model's shape and the limits.
    ///
    /// # Errors
    /// A limit out of range, heads that are too long, or sizes beyond the address space.
    pub fn new(model: &ModelConfig, limits: &Limits) -> Result<Self, EngineError> {
        limits.check()?;
        let head_dim = model.head_dim_k.max(model.head_dim_v);
        if head_dim > HEAD_DIM_MAX {
            return Err(EngineError::HeadTooLong {
                head_dim,
                max: HEAD_DIM_MAX,
            });
        }
        let kv_bytes = limits.kv_config(model).plan()?.bytes();
        let scratch_bytes = ScratchPlan::new(model, limits).memory()?.bytes();
        Ok(Self {
            kv_bytes,
            scratch_bytes,
        })
    }
}
