//! A model read over text it did not write: what perplexities, divergences and importance
//! matrices are made of.
#![forbid(unsafe_code)]

use crate::host::memory::{AlignedMemory, OutOfMemory};
use crate::host::workers::Workers;
use crate::step::{StepError, run_step};
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EnginePlan, Limits, LinearAdapter, StepOptions, Wants,
};
use sluice_core::kernels::{KernelTable, KvType};
use sluice_core::model::Model;
use sluice_core::team::{Stop, StopFlag};

/// Why a text was not read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// There is no memory for the engine.
    #[error("no memory to run the model: {0}")]
    Memory(#[from] OutOfMemory),
    /// The engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A step failed.
    #[error(transparent)]
    Step(StepError),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

/// What runs models.
#[derive(Debug)]
pub struct Evaluator<'e> {
    /// Types of keys and of values in the KV cache.
    pub cache_types: (KvType, KvType),
    /// The kernels.
    pub table: &'static KernelTable,
    /// The threads.
    pub workers: &'e mut Workers,
    /// Asks to stop.
    pub stop: &'e StopFlag,
}

impl Evaluator<'_> {
    /// Reads each chunk from an empty context. The logits (n_vocab) after every token of a chunk but
    /// the first `skipped` are handed to `each`, with the numbers of chunk and token, in order.
    /// `observer` sees the inputs of all linear layers.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn read(
        &mut self,
        model: Model<'_>,
        chunks: &[&[u32]],
        skipped: usize,
        observer: Option<&dyn LinearAdapter>,
        mut each: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let longest = chunks.iter().map(|chunk| chunk.len()).max().unwrap_or(1);
        let config = *model.config();
        let n_batch = (OUTPUT_FLOATS / config.n_vocab).clamp(1, longest.clamp(1, BATCH_MAX));
        let limits = Limits {
            n_batch,
            n_outputs: n_batch,
            type_k: self.cache_types.0,
            type_v: self.cache_types.1,
            adapters: observer.is_some(),
            ..Limits::single(longest.max(1), self.workers.count())
        };
        let plan = EnginePlan::new(&config, &limits)?;
        let mut kv = AlignedMemory::zeroed(plan.kv_bytes)?;
        let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes)?;
        let mut engine = Engine::new(model, self.table, &limits, &mut kv, &mut scratch)?;
        let adapters: Vec<&dyn LinearAdapter> = observer.into_iter().collect();
        for (c, chunk) in chunks.iter().enumerate() {
            engine.kv_mut().clear(0).map_err(EngineError::from)?;
            for (start, part) in (0..).step_by(n_batch).zip(chunk.chunks(n_batch)) {
                let batch = batch(part, start, skipped, observer.is_some());
                let wait = *self.workers.wait_policy();
                let mut options = StepOptions::new(&wait, self.stop);
                options.adapters = &adapters;
                let outputs = match run_step(&mut engine, self.workers, &batch, options) {
                    Err(StepError::Engine(EngineError::Stopped(Stop::Cancelled))) => {
                        return Err(EvaluateError::Stopped);
                    }
                    result => result.map_err(EvaluateError::Step)?,
                };
                for i in 0..part.len() {
                    if let Some(logits) = outputs.logits(i) {
                        each(c, start + i, logits);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Tokens of one sequence from position `start` on.
fn batch(tokens: &[u32], start: usize, skipped: usize, observed: bool) -> Vec<BatchEntry> {
    let entry = |(i, &token): (usize, &u32)| {
        let position = start + i;
        let wants = if position < skipped {
            Wants::Nothing
        } else {
            Wants::Logits
        };
        let position = u32::try_from(position).expect("contexts are below 2^24 tokens");
        BatchEntry {
            adapter: observed.then_some(0),
            ..BatchEntry::new(token, 0, position, wants)
        }
    };
    tokens.iter().enumerate().map(entry).collect()
}

/// Natural logarithms of the probabilities of all tokens, from logits, in f64.
pub fn log_softmax(logits: &[f32], out: &mut Vec<f64>) {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_top = |x: f32| f64::from(x) - f64::from(top);
    let sum: f64 = logits.iter().map(|&x| of_top(x).exp()).sum();
    out.clear();
    out.extend(logits.iter().map(|&x| of_top(x) - sum.ln()));
}

/// Most tokens of a step.
const BATCH_MAX: usize = 512;
/// Floats of logits that a step may give back: 64 MiB.
const OUTPUT_FLOATS: usize = 1 << 24;
