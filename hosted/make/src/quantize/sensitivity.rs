//! The effect of an error in a tensor on a model's answers.
//!
//! One tensor at a time is replaced by a rough copy. The change of the model's answers on a text (Kullback-Leibler
//! divergence, in nats per token), divided by the copy's error, is the tensor's sensitivity. Errors of weights are
//! small and independent enough for the divergence to grow with their square and to add up over tensors.

use super::budget::Budget;
use super::importance::ImportanceMatrix;
use super::plan::{Plan, PlannedTensor};
use super::stream::{QuantizeFileError, importances, read_rows, usize_of};
use core::ops::Range;
use sluice::evaluate::{EvaluateError, log_softmax};
use sluice::file::ModelFile;
use sluice::model::{LoadError, LoadOptions, ModelSource, OpenError};
use sluice::session::{SessionError, StopHandle};
use sluice::{Limits, Team};
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::Quantizer;
use sluice_core::kernels::{GgmlType, KernelTable};

/// Why sensitivities were not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each wraps the error of one part")]
pub enum SensitivityError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    #[error(transparent)]
    Quantize(#[from] QuantizeFileError),
}

/// Runs a model from a file, unchanged or with one tensor replaced.
#[derive(Debug)]
pub struct Bench<'b> {
    opened: ModelSource,
    runner: Runner,
    chunks: Vec<&'b [u32]>,
    /// Log probabilities of the unchanged model, position by position.
    base: Vec<f32>,
}

/// The resources for running models.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The threads.
    pub team: Team,
    /// The kernels; `None` for the fastest table.
    pub table: Option<&'static KernelTable>,
    /// The handle to stop a run.
    pub stop: StopHandle,
}

impl<'b> Bench<'b> {
    /// Reads `chunks` with the unchanged model.
    ///
    /// # Errors
    /// [`SensitivityError`].
    pub fn new(
        opened: ModelSource,
        chunks: Vec<&'b [u32]>,
        runner: Runner,
    ) -> Result<Self, SensitivityError> {
        let mut bench = Self {
            opened: opened.clone(),
            runner,
            chunks,
            base: Vec::new(),
        };
        let (mut base, mut logs) = (Vec::new(), Vec::new());
        bench.run(&opened, opened.file().source(), |_, logits| {
            log_softmax(logits, &mut logs);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "differences are far above f32's"
            )]
            base.extend(logs.iter().map(|&x| x as f32));
        })?;
        bench.base = base;
        Ok(bench)
    }

    /// Mean divergence of another file of the same model from this one, in nats per token.
    ///
    /// # Errors
    /// [`SensitivityError`].
    pub fn divergence_of(&mut self, other: &ModelSource) -> Result<f64, SensitivityError> {
        self.divergence(other, other.file().source())
    }

    /// Mean divergence of the answers with the weights in `source` from the unchanged model's, in nats per token.
    fn divergence(
        &mut self,
        opened: &ModelSource,
        source: &dyn TensorSource,
    ) -> Result<f64, SensitivityError> {
        let base = core::mem::take(&mut self.base);
        let n_vocab = self.opened.config().n_vocab;
        let (mut sum, mut logs) = (0.0, Vec::new());
        let result = self.run(opened, source, |i, logits| {
            log_softmax(logits, &mut logs);
            let base = &base[i * n_vocab..(i + 1) * n_vocab];
            let terms = base.iter().zip(&logs);
            sum += terms
                .map(|(&p, &q)| f64::from(p).exp() * (f64::from(p) - q))
                .sum::<f64>();
        });
        #[expect(clippy::cast_precision_loss, reason = "a count of positions")]
        let n = (base.len() / n_vocab).max(1) as f64;
        self.base = base;
        result.map(|()| sum / n)
    }

    fn run(
        &self,
        opened: &ModelSource,
        source: &dyn TensorSource,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), SensitivityError> {
        let Runner { team, table, stop } = &self.runner;
        let options = LoadOptions {
            stop: Some(stop),
            source: Some(source),
            ..LoadOptions::default()
        };
        let model = opened.load_with(team, options)?;
        let longest = self
            .chunks
            .iter()
            .map(|chunk| chunk.len())
            .max()
            .unwrap_or(1);
        let limits = Limits {
            table: *table,
            ..Limits::for_reading(model.config(), longest, false)
        };
        let mut session = model.session_on(team, limits)?;
        session.set_stop(stop.clone());
        let mut position = 0;
        // Predictions for the first tokens of a chunk are guesses, whatever the weights.
        let skipped = self.chunks.first().map_or(0, |chunk| chunk.len() / 8);
        session.read(&self.chunks, skipped, None, |_, _, logits| {
            each(position, logits);
            position += 1;
        })?;
        Ok(())
    }
}

/// Multiplies the costs in `budget` by the sensitivities of their tensors. `progress` is called with the number of
/// tensors measured so far.
///
/// # Errors
/// [`SensitivityError`].
pub fn apply(
    bench: &mut Bench<'_>,
    plan: &Plan,
    importance: Option<&ImportanceMatrix>,
    budget: &mut Budget,
    mut progress: impl FnMut(u64),
) -> Result<(), SensitivityError> {
    let columns = importances(plan, importance)?;
    let opened = bench.opened.clone();
    let mut done = 0;
    for (tensor, columns) in plan.tensors.iter().zip(&columns) {
        let Some((_, choices)) = budget.choices.iter().find(|(name, _)| *name == tensor.name)
        else {
            continue;
        };
        if choices.len() < 2 {
            continue;
        }
        // Rough enough to stand out from rounding, but not so rough that the model breaks.
        let probe = choices[1];
        let bytes = rough_copy(bench.opened.file(), tensor, columns, probe.ty)?;
        let overlay = Overlay {
            base: opened.file().source(),
            offset: tensor.offset,
            bytes,
        };
        let divergence = bench.divergence(&opened, &overlay)?;
        let sensitivity = if probe.cost > 0.0 {
            divergence.max(0.0) / probe.cost
        } else {
            0.0
        };
        budget.scale(&tensor.name, sensitivity);
        done += 1;
        progress(done);
    }
    Ok(())
}

/// A tensor after a round trip through `ty`, stored in its own type.
fn rough_copy(
    file: &ModelFile,
    tensor: &PlannedTensor,
    columns: &[Vec<f32>],
    ty: GgmlType,
) -> Result<Vec<u8>, QuantizeFileError> {
    let quantizer = Quantizer::detect();
    let row_len = usize_of(tensor.row_len());
    let rows_per_matrix = tensor.dims.get(1).copied().unwrap_or(1);
    let row_bytes = |ty: GgmlType| usize_of(ty.row_bytes(tensor.row_len()).expect("it fits"));
    let mut copy = vec![0; usize_of(tensor.len_bytes)];
    let (mut row, mut bytes) = (Vec::new(), vec![0; row_bytes(ty)]);
    for (at, out) in (0..).zip(copy.chunks_exact_mut(row_bytes(tensor.source))) {
        read_rows(file.source(), tensor, at..at + 1, &mut row)?;
        let columns = columns
            .get(usize_of(at / rows_per_matrix))
            .map(Vec::as_slice);
        let encode = |ty, row: &[f32], columns, out: &mut [u8]| {
            let done = quantizer.quantize_rows(ty, row, row_len, columns, out);
            done.map_err(|error| QuantizeFileError::Values {
                tensor: tensor.name.clone(),
                row: at,
                error,
            })
        };
        encode(ty, &row, columns, &mut bytes)?;
        dequantize_row(ty, &bytes, &mut row);
        encode(tensor.source, &row, None, out)?;
    }
    Ok(copy)
}

/// A file with some of its bytes replaced.
struct Overlay<'a> {
    base: &'a dyn TensorSource,
    offset: u64,
    bytes: Vec<u8>,
}

impl Overlay<'_> {
    /// The overlap of the replacement with a range: its position in the range, and in the replacement.
    fn meets(&self, offset: u64, len: usize) -> Option<(Range<usize>, Range<usize>)> {
        let end = offset
            .checked_add(len as u64)?
            .min(self.offset + self.bytes.len() as u64);
        let start = offset.max(self.offset);
        (start < end).then(|| {
            let from = |base| usize_of(start - base)..usize_of(end - base);
            (from(offset), from(self.offset))
        })
    }
}

impl TensorSource for Overlay<'_> {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        match self.meets(offset, len) {
            Some((part, ours)) if part == (0..len) => Some(&self.bytes[ours]),
            Some(_) => None,
            None => self.base.slice(offset, len),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.base.read(offset, into)?;
        if let Some((part, ours)) = self.meets(offset, into.len()) {
            into[part].copy_from_slice(&self.bytes[ours]);
        }
        Ok(())
    }
}
