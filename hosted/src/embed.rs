//! Embeddings of texts: hidden states, pooled and normalised.
#![forbid(unsafe_code)]

use crate::evaluate::{EvaluateError, Evaluator};
use crate::host::memory::AlignedMemory;
use crate::step::{StepError, run_step};
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EnginePlan, Limits, StepOptions, Wants,
};
use sluice_core::model::Model;
use sluice_core::pooling::Pooling;
use sluice_core::team::Stop;

/// What an embedding is divided by, as llama-embedding's `--embd-normalize` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalization {
    /// By nothing (-1).
    None,
    /// So that its largest magnitude is 32760 (0).
    MaxAbsolute,
    /// By its p-norm (p): 1 taxicab, 2 euclidean.
    PNorm(u32),
}

impl Normalization {
    /// Divides `x`; all zeros stay so.
    pub fn apply(self, x: &mut [f32]) {
        let magnitudes = x.iter().map(|x| f64::from(*x).abs());
        let norm = match self {
            Self::None => return,
            Self::MaxAbsolute => magnitudes.fold(0.0, f64::max) / 32760.0,
            Self::PNorm(1) => magnitudes.sum(),
            Self::PNorm(2) => magnitudes.map(|x| x * x).sum::<f64>().sqrt(),
            Self::PNorm(p) => {
                let p = f64::from(p);
                magnitudes.map(|x| x.powf(p)).sum::<f64>().powf(1.0 / p)
            }
        };
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        for x in x {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let scaled = (f64::from(*x) * scale) as f32;
            *x = scaled;
        }
    }
}

/// How texts are embedded.
#[derive(Clone, Copy, Debug)]
pub struct EmbedOptions {
    /// From tokens to a text.
    pub pooling: Pooling,
    /// What becomes of the length.
    pub normalization: Normalization,
    /// Most tokens computed at once; encoders take more where a text is longer.
    pub n_batch: usize,
}

/// Texts computed at once.
const GROUP_TEXTS: usize = 64;
/// Floats of logits that there is room for beside the hidden states: 64 MiB.
const OUTPUT_FLOATS: usize = 1 << 24;
/// Tokens of a page of the KV cache.
const PAGE: usize = sluice_core::kv_cache::PAGE_TOKENS;

impl Evaluator<'_> {
    /// Embeds each text (its tokens, at least one). `each` gets the number of the text and its
    /// embedding (n_embd), in order; without pooling, one for each token. What a text gets does
    /// not depend on the others.
    ///
    /// # Errors
    /// [`EvaluateError`]; the texts before have been handed over.
    ///
    /// # Panics
    /// If a text has no tokens.
    pub fn embed(
        &mut self,
        model: Model<'_>,
        texts: &[Vec<u32>],
        options: &EmbedOptions,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let config = *model.config();
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let n_batch = if config.is_causal {
            let room = (OUTPUT_FLOATS / config.n_vocab).max(1);
            options.n_batch.min(room)
        } else {
            options.n_batch.max(longest)
        };
        let limits = Limits {
            n_batch,
            n_outputs: n_batch,
            n_seq: GROUP_TEXTS,
            type_k: self.cache_types.0,
            type_v: self.cache_types.1,
            // Each text begins a page.
            ..Limits::single(
                longest.max(n_batch) + GROUP_TEXTS * PAGE,
                self.workers.count(),
            )
        };
        let plan = EnginePlan::new(&config, &limits)?;
        let mut kv = AlignedMemory::zeroed(plan.kv_bytes)?;
        let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes)?;
        let mut engine = Engine::new(model, self.table, &limits, &mut kv, &mut scratch)?;
        let mut pooled = vec![0f32; config.n_embd];
        let mut start = 0;
        while start < texts.len() {
            let group = &texts[start..start + group_len(&texts[start..], n_batch)];
            let hidden = self.hidden(&mut engine, group, n_batch, options.pooling)?;
            for (i, rows) in (start..).zip(&hidden) {
                if options.pooling == Pooling::None {
                    for row in rows.chunks_exact(config.n_embd) {
                        pooled.copy_from_slice(row);
                        options.normalization.apply(&mut pooled);
                        each(i, &pooled);
                    }
                } else {
                    options.pooling.pool(rows, &mut pooled);
                    options.normalization.apply(&mut pooled);
                    each(i, &pooled);
                }
            }
            start += group.len();
        }
        Ok(())
    }

    /// The hidden states that count of each text of a group.
    fn hidden(
        &mut self,
        engine: &mut Engine<'_>,
        group: &[Vec<u32>],
        n_batch: usize,
        pooling: Pooling,
    ) -> Result<Vec<Vec<f32>>, EvaluateError> {
        let mut entries = Vec::new();
        for (sequence, text) in (0u32..).zip(group) {
            engine.kv_mut().clear(sequence).map_err(EngineError::from)?;
            for (i, (position, &token)) in (0u32..).zip(text).enumerate() {
                let wants = match pooling.reads(i, text.len()) {
                    true => Wants::Hidden,
                    false => Wants::Nothing,
                };
                entries.push(BatchEntry::new(token, sequence, position, wants));
            }
        }
        let mut hidden = vec![Vec::new(); group.len()];
        // One step, but for a long text of a decoder.
        for batch in entries.chunks(n_batch) {
            let wait = *self.workers.wait_policy();
            let step = StepOptions::new(&wait, self.stop);
            let outputs = match run_step(engine, self.workers, batch, step) {
                Err(StepError::Engine(EngineError::Stopped(Stop::Cancelled))) => {
                    return Err(EvaluateError::Stopped);
                }
                result => result.map_err(EvaluateError::Step)?,
            };
            for (i, entry) in batch.iter().enumerate() {
                if let Some(row) = outputs.hidden(i) {
                    hidden[entry.sequence as usize].extend_from_slice(row);
                }
            }
        }
        for sequence in (0u32..).take(group.len()) {
            engine.kv_mut().clear(sequence).map_err(EngineError::from)?;
        }
        Ok(hidden)
    }
}

/// How many of the first texts fit into one batch; at least one.
fn group_len(texts: &[Vec<u32>], n_batch: usize) -> usize {
    let mut sum = 0;
    let fits = |text: &&Vec<u32>| {
        assert!(!text.is_empty(), "a text has tokens");
        sum += text.len();
        sum <= n_batch
    };
    let n = texts.iter().take(GROUP_TEXTS).take_while(fits).count();
    n.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_of_a_known_vector() {
        let of = |normalization: Normalization| {
            let mut x = [3.0, -4.0];
            normalization.apply(&mut x);
            format!("{x:.4?}")
        };
        assert_eq!(of(Normalization::None), "[3.0000, -4.0000]");
        assert_eq!(of(Normalization::PNorm(2)), "[0.6000, -0.8000]");
        assert_eq!(of(Normalization::PNorm(1)), "[0.4286, -0.5714]");
        assert_eq!(of(Normalization::MaxAbsolute), "[24570.0000, -32760.0000]");
        assert_eq!(of(Normalization::PNorm(3)), "[0.6670, -0.8893]");
        let mut zeros = [0.0; 3];
        Normalization::PNorm(2).apply(&mut zeros);
        assert!(zeros.iter().all(|x| x.abs() < 1e-30));
    }

    #[test]
    fn groups_hold_what_fits() {
        let texts = [3, 4, 2, 9, 1].map(|n| vec![7; n]);
        assert_eq!(group_len(&texts, 9), 3);
        assert_eq!(group_len(&texts, 8), 2);
        assert_eq!(group_len(&texts[3..], 4), 1);
        assert_eq!(group_len(&vec![vec![1]; 100], 512), GROUP_TEXTS);
    }
}
