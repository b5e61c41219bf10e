//! Embeddings of texts: hidden states, pooled and normalised.
#![forbid(unsafe_code)]

use crate::adapter::AdapterBlend;
use crate::evaluate::EvaluateError;
use crate::model::{Model, ModelSource};
use crate::session::{GenerateError, Limits, Session, StepHooks};
use sluice_core::engine::{BatchEntry, Wants};
use sluice_core::pooling::Pooling;
use std::sync::Arc;

/// The divisor of an embedding, as llama-embedding's `--embd-normalize` numbers it.
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
    /// How the length is normalized.
    pub normalization: Normalization,
}

impl EmbedOptions {
    /// As the model's file asks for, or the mean of all tokens; of length 1.
    #[must_use]
    pub fn of(opened: &ModelSource) -> Self {
        let pooling = Pooling::from_gguf(opened.gguf(), opened.config());
        Self {
            pooling: pooling.ok().flatten().unwrap_or(Pooling::Mean),
            normalization: Normalization::PNorm(2),
        }
    }
}

impl Limits {
    /// For [`Session::embed_tokens`] over texts of at most `longest` tokens, of which `n_batch` are
    /// computed at once; encoders take more where a text is longer.
    #[must_use]
    pub fn for_embedding(opened: &ModelSource, longest: usize, n_batch: usize) -> Self {
        let longest = longest.max(1);
        let n_batch = if opened.embeds() {
            n_batch.max(longest)
        } else {
            n_batch.min((OUTPUT_FLOATS / opened.config().n_vocab).max(1))
        };
        Self {
            // Each text begins a page.
            n_ctx: longest.max(n_batch) + GROUP_TEXTS * PAGE,
            n_batch,
            n_outputs: n_batch,
            n_seq: GROUP_TEXTS,
            ..Self::default()
        }
    }
}

/// Texts that are embedded together, in as many steps as it takes.
#[derive(Debug)]
pub struct EmbedGroup {
    slots: Vec<(u32, Arc<()>)>,
    entries: Vec<BatchEntry>,
    /// The text of each entry.
    text_of: Vec<usize>,
    n_done: usize,
    /// The hidden states of each text that count.
    hidden: Vec<Vec<f32>>,
    n_embd: usize,
    model: Model,
    /// The adapters that its texts are computed with.
    adapter: Option<AdapterBlend>,
}

impl EmbedGroup {
    /// Texts in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the group holds no texts.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of unread tokens.
    #[must_use]
    pub const fn n_left(&self) -> usize {
        self.entries.len() - self.n_done
    }

    /// Hands over the embeddings (n_embd) of texts that are done, with their number in the group. They have passed
    /// the dense layers that the model may have; without pooling there is one for each token.
    pub fn finish(&self, options: &EmbedOptions, mut each: impl FnMut(usize, &[f32])) {
        let head = self.model.heads().embedding.as_ref();
        let mut pooled = vec![0f32; self.n_embd];
        for (i, rows) in self.hidden.iter().enumerate() {
            let n_rows = match options.pooling {
                Pooling::None => self.n_embd,
                _ => rows.len().max(1),
            };
            for rows in rows.chunks_exact(n_rows) {
                options.pooling.pool(rows, &mut pooled);
                if let Some(head) = head {
                    pooled = head.run(&pooled);
                }
                options.normalization.apply(&mut pooled);
                each(i, &pooled);
            }
        }
    }
}

/// Texts computed at once.
const GROUP_TEXTS: usize = 64;
/// Maximum floats of logits, in addition to the hidden states: 64 MiB.
const OUTPUT_FLOATS: usize = 1 << 24;
/// Tokens of a page of the KV cache.
const PAGE: usize = sluice_core::state::PAGE_TOKENS;

impl Session {
    /// A vector (n_embd) for each text, of length 1.
    ///
    /// # Errors
    /// [`EvaluateError`]: a text that is empty, too long, or cannot be made into tokens.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T]) -> Result<Vec<Vec<f32>>, EvaluateError> {
        let model = self.model().clone();
        let tokens = texts.iter().map(|text| model.encode(text.as_ref(), false));
        let tokens: Vec<_> = tokens
            .collect::<Result<_, _>>()
            .map_err(GenerateError::from)?;
        let mut all = vec![Vec::new(); texts.len()];
        self.embed_tokens(&tokens, &EmbedOptions::of(&model), |i, embedding| {
            all[i].extend_from_slice(embedding);
        })?;
        Ok(all)
    }

    /// Embeds each text (its tokens, at least one). `each` gets the number of the text and its
    /// embedding (n_embd), in order; without pooling, one for each token. The embedding
    /// of a text does not depend on the others. [`Limits::for_embedding`] gives limits that are fast for this.
    ///
    /// # Errors
    /// [`EvaluateError`]; the texts before have been handed over.
    pub fn embed_tokens(
        &mut self,
        texts: &[Vec<u32>],
        options: &EmbedOptions,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        if let Some(empty) = texts.iter().position(Vec::is_empty) {
            return Err(EvaluateError::Empty(empty));
        }
        let mut start = 0;
        while start < texts.len() {
            let mut group = self.begin_group(&texts[start..], options.pooling)?;
            while !self.step_group(&mut group, usize::MAX)? {}
            group.finish(options, |i, embedding| each(start + i, embedding));
            start += group.len();
        }
        Ok(())
    }

    /// Begins with as many of the first of `texts` as make a step, at least one; each has a token. Dropped, it
    /// gives its sequences back.
    ///
    /// # Errors
    /// No free sequence.
    pub fn begin_group(
        &mut self,
        texts: &[Vec<u32>],
        pooling: Pooling,
    ) -> Result<EmbedGroup, EvaluateError> {
        // Pages of the group before are free for this one.
        self.sweep()?;
        let mut slots = self.claim_some(GROUP_TEXTS.min(texts.len()))?;
        let n = group_len(texts, self.limits().n_batch, slots.len());
        slots.truncate(n);
        let mut entries = Vec::new();
        let mut text_of = Vec::new();
        let adapter = self.own_adapter();
        for (text, (slot, _)) in texts.iter().zip(&slots) {
            self.fit_slot(*slot, text.len())?;
        }
        for (index, (text, (slot, _))) in texts.iter().zip(&slots).enumerate() {
            for (i, (position, &token)) in (0u32..).zip(text).enumerate() {
                let wants = match pooling.reads(i, text.len()) {
                    true => Wants::Hidden,
                    false => Wants::Nothing,
                };
                entries.push(BatchEntry {
                    adapter,
                    ..BatchEntry::new(token, *slot, position, wants)
                });
                text_of.push(index);
            }
        }
        Ok(EmbedGroup {
            hidden: vec![Vec::new(); slots.len()],
            slots,
            entries,
            text_of,
            n_done: 0,
            n_embd: self.model().config().n_embd,
            model: self.model().clone(),
            adapter: self.adapter.clone(),
        })
    }

    /// Runs a step of at most `n_max` tokens of a group, or of all of it where the model is an encoder, whose texts
    /// are not cut. True when all are done.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn step_group(
        &mut self,
        group: &mut EmbedGroup,
        n_max: usize,
    ) -> Result<bool, EvaluateError> {
        let limits = self.limits();
        let n_max = match self.model().embeds() {
            true => limits.n_batch,
            false => limits.n_batch.min(n_max.max(1)),
        };
        let rest = &group.entries[group.n_done..];
        let batch = &rest[..step_len(rest, n_max, limits.n_outputs).min(rest.len())];
        let texts = &group.text_of[group.n_done..];
        let hidden = &mut group.hidden;
        let adapters = group.adapter.as_ref().map(AdapterBlend::parts);
        let hooks = StepHooks {
            adapters: adapters.as_slice(),
            ..StepHooks::default()
        };
        self.run(batch, &hooks, |outputs, _| {
            for (i, &text) in texts[..batch.len()].iter().enumerate() {
                if let Some(row) = outputs.hidden(i) {
                    hidden[text].extend_from_slice(row);
                }
            }
        })?;
        group.n_done += batch.len();
        Ok(group.n_done == group.entries.len())
    }

    /// Claims up to `n` of the free sequences.
    fn claim_some(&mut self, n: usize) -> Result<Vec<(u32, Arc<()>)>, GenerateError> {
        let mut claims = Vec::with_capacity(n);
        while claims.len() < n {
            match self.claim() {
                Ok(claim) => claims.push(claim),
                Err(GenerateError::NoSequence { .. }) if !claims.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(claims)
    }
}

/// How many of the first entries make a step; at least one.
fn step_len(entries: &[BatchEntry], n_batch: usize, n_outputs: usize) -> usize {
    let mut wanted = 0;
    let fits = |entry: &&BatchEntry| {
        wanted += usize::from(entry.wants != Wants::Nothing);
        wanted <= n_outputs
    };
    entries.iter().take(n_batch).take_while(fits).count().max(1)
}

/// How many of the first texts fit into one batch; at least one.
fn group_len(texts: &[Vec<u32>], n_batch: usize, n_texts: usize) -> usize {
    let mut sum = 0;
    let fits = |text: &&Vec<u32>| {
        sum += text.len();
        sum <= n_batch
    };
    let n = texts.iter().take(n_texts).take_while(fits).count();
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
        assert_eq!(group_len(&texts, 9, 64), 3);
        assert_eq!(group_len(&texts, 8, 64), 2);
        assert_eq!(group_len(&texts[3..], 4, 64), 1);
        assert_eq!(group_len(&vec![vec![1]; 100], 512, 64), 64);
    }
}
