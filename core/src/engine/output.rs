//! The outputs of a step: their memory, and how a caller reads them.

use super::batch::{BatchEntry, Wants};
use super::limits::EngineLimits;
use super::neurons::Neurons;
use super::pass::{Needs, RowsRoom, activations_of_sites};
use super::scratch::Room;
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::ModelConfig;

/// Memory of outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputRoom<'m> {
    /// Quantised rows that logits are computed from.
    pub(super) rows: RowsRoom<'m>,
    /// (n_outputs, n_vocab)
    pub(super) logits: Shared<'m, f32>,
    /// (n_outputs + n_hidden, n_embd)
    hidden: Shared<'m, f32>,
    pub(super) n_embd: usize,
    /// 0 without logits: encoders return hidden states only.
    pub(super) n_vocab: usize,
}

impl<'m> OutputRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let kinds = config.output_activations | activations_of_sites(limits);
        let layout = ActivationLayout::new(config.n_embd, kinds);
        let n_vocab = if config.is_causal { config.n_vocab } else { 0 };
        let n_outputs = limits.n_outputs + limits.n_hidden;
        Ok(Self {
            rows: RowsRoom {
                memory: room.buffer(n_outputs, layout.row_bytes())?,
                layout,
            },
            logits: room.buffer(limits.n_outputs, n_vocab)?,
            hidden: room.buffer(n_outputs, config.n_embd)?,
            n_embd: config.n_embd,
            n_vocab,
        })
    }

    pub(super) fn needs(&self) -> Needs {
        Needs {
            row_bytes: self.rows.layout.row_bytes(),
            ..Needs::default()
        }
    }

    /// Writes hidden state `i`.
    ///
    /// # Safety
    /// - No other worker accesses it at the same time.
    pub(super) unsafe fn write_hidden(&self, i: usize, x: &[f32]) {
        let range = i * self.n_embd..(i + 1) * self.n_embd;
        // SAFETY: by the caller.
        unsafe { self.hidden.write(range) }.copy_from_slice(x);
    }

    /// The rows of outputs; `entries` are the entries that they belong to, of which the first `n_logits` have logits.
    ///
    /// # Safety
    /// - No step runs while the result lives.
    pub(super) unsafe fn outputs<'s>(
        &self,
        batch: &'s [BatchEntry],
        entries: &'s [u32],
        n_logits: usize,
        report: StepReport,
    ) -> Outputs<'s>
    where
        'm: 's,
    {
        let n = entries.len();
        // SAFETY: by the caller.
        let logits = unsafe { self.logits.read(0..n_logits * self.n_vocab) };
        // SAFETY: by the caller.
        let hidden = unsafe { self.hidden.read(0..n * self.n_embd) };
        Outputs {
            batch,
            entries: entries.split_at(n_logits),
            logits,
            hidden,
            n_vocab: self.n_vocab,
            n_embd: self.n_embd,
            report,
        }
    }
}

/// Statistics of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Entries of its batch.
    pub n_rows: usize,
    /// Entries that wanted outputs.
    pub n_outputs: usize,
    /// Sum over the entries of the positions at or before theirs: attention reads in proportion to it.
    pub n_positions: usize,
    /// Neurons of gated networks in files by neuron, of all layers and experts: how many could be left unread, and how many of
    /// these were. Neurons of several rows that are multiplied together count once.
    pub neurons: Neurons,
    /// Ticks of [`super::StepOptions::clock`] from the call of [`super::Engine::step`] to the call of
    /// [`super::Step::finish`]; 0 without a clock.
    pub ticks: u64,
}

/// The outputs of a step.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'s> {
    batch: &'s [BatchEntry],
    /// Entries with logits, and entries with hidden states only; each in order.
    entries: (&'s [u32], &'s [u32]),
    logits: &'s [f32],
    hidden: &'s [f32],
    n_vocab: usize,
    n_embd: usize,
    report: StepReport,
}

impl<'s> Outputs<'s> {
    /// Logits (n_vocab) of entry `entry` of the batch, if it wanted them.
    pub fn logits(&self, entry: usize) -> Option<&'s [f32]> {
        let i = self.find(entry, Wants::has_logits)?;
        Some(&self.logits[i * self.n_vocab..(i + 1) * self.n_vocab])
    }

    /// The final hidden state (n_embd) of entry `entry`, if it wanted it.
    pub fn hidden(&self, entry: usize) -> Option<&'s [f32]> {
        let i = self.find(entry, Wants::has_hidden)?;
        Some(&self.hidden[i * self.n_embd..(i + 1) * self.n_embd])
    }

    /// The step's statistics.
    pub const fn report(&self) -> &StepReport {
        &self.report
    }

    fn find(&self, entry: usize, wants: fn(Wants) -> bool) -> Option<usize> {
        let (with_logits, others) = self.entries;
        let number = u32::try_from(entry).ok()?;
        let i = match with_logits.binary_search(&number) {
            Ok(i) => i,
            Err(_) => with_logits.len() + others.binary_search(&number).ok()?,
        };
        wants(self.batch[entry].wants).then_some(i)
    }
}
