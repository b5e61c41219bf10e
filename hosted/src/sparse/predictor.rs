//! Which neurons will be active, from two small matrices.

use super::error::{PredictorFault, SparseResult};
use super::fit::{self, Fit};
use super::matrix::DenseMatrix;
use crate::host::memory::AlignedMemory;
use core::ops::DerefMut as _;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::pi::PiChaos;
use sluice_core::sparse::{
    Int8Predictor, PredictorWeights, SparsityConfig, SparsityError, check_finite, check_len,
    threshold_for,
};
use std::sync::{Mutex, PoisonError};

/// Predicts active neurons. `sluice::sparse::Predictor` is the predecessor's name for it.
pub trait NeuronPredictor: Send + Sync {
    /// The neurons, ascending.
    ///
    /// # Errors
    /// An input that does not fit; no calibrated threshold.
    fn predict(&self, input: &[f32]) -> SparseResult<Vec<usize>>;

    /// Fits the predictor to samples: inputs, and what each neuron made of them. High values are active.
    ///
    /// # Errors
    /// No samples, or one that does not fit, by its number; all zeros. Nothing has changed then.
    fn calibrate(&mut self, samples: &[Vec<f32>], activations: &[Vec<f32>]) -> SparseResult<()>;

    /// Counts of its predictions.
    fn stats(&self) -> PredictorStats;
}

/// Counts of predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictorStats {
    /// Predictions.
    pub predictions: usize,
    /// Mean number of active neurons.
    pub avg_active_neurons: f32,
    /// Mean share of the neurons that are not.
    pub avg_sparsity: f32,
    /// Whether it was fitted, or made from matrices.
    pub is_calibrated: bool,
}

/// Sums of predictions.
#[derive(Debug, Default)]
struct Sums {
    predictions: usize,
    active: usize,
}

/// `scores = Q · (P · x) + bias`, and a selection of the highest. The bias is 0 until it is calibrated.
#[derive(Debug)]
pub struct LowRankPredictor {
    scorer: Scorer,
    config: SparsityConfig,
    /// The threshold for a target, once calibrated.
    threshold: Option<f32>,
    is_calibrated: bool,
    work: Mutex<Work>,
}

/// What makes scores of an input.
#[derive(Debug)]
struct Scorer {
    p: DenseMatrix,
    q: DenseMatrix,
    bias: Option<Vec<f32>>,
    int8: Option<Int8>,
    table: &'static KernelTable,
}

/// Both matrices in 8 bits.
#[derive(Debug)]
struct Int8 {
    memory: AlignedMemory,
    /// Multiplies scores.
    scale: f32,
    scratch_bytes: usize,
}

/// Working memory, and what was counted.
#[derive(Debug)]
struct Work {
    z: Vec<f32>,
    scores: Vec<f32>,
    active: Vec<usize>,
    scratch: Option<AlignedMemory>,
    sums: Sums,
}

impl Scorer {
    /// The matrices in 8 bits; `None` where widths are not multiples of 32.
    fn quantized(&self) -> SparseResult<Option<Int8>> {
        let ((rank, input), hidden) = (self.p.dim(), self.q.dim().0);
        let bytes = match Int8Predictor::bytes(input, rank, hidden) {
            Err(SparsityError::Width { .. }) => return Ok(None),
            bytes => bytes.map_err(PredictorFault::from)?,
        };
        let (p, q, scale) = fit::balanced(self.p.as_slice(), self.q.as_slice(), rank);
        let weights = PredictorWeights::new(input, rank, &p, &q).map_err(PredictorFault::from)?;
        let mut memory = AlignedMemory::zeroed(bytes)?;
        let mut row = vec![0; 2 * input.max(rank)];
        let packed = Int8Predictor::pack(&weights, memory.deref_mut(), &mut row);
        let scratch_bytes = packed.map_err(PredictorFault::from)?.scratch_bytes();
        Ok(Some(Int8 {
            memory,
            scale,
            scratch_bytes,
        }))
    }

    fn scores(&self, input: &[f32], work: &mut Work) -> Result<(), PredictorFault> {
        let ((rank, n), hidden) = (self.p.dim(), self.q.dim().0);
        let (z, scores) = (&mut work.z, &mut work.scores);
        match (&self.int8, &mut work.scratch) {
            (Some(int8), Some(scratch)) => {
                Int8Predictor::new(n, rank, hidden, &int8.memory)?.scores(
                    self.table,
                    input,
                    z,
                    scratch.deref_mut(),
                    scores,
                )?;
                scores.iter_mut().for_each(|x| *x *= int8.scale);
            }
            _ => PredictorWeights::new(n, rank, self.p.as_slice(), self.q.as_slice())?
                .scores(self.table, input, z, scores)?,
        }
        for (score, bias) in scores.iter_mut().zip(self.bias.iter().flatten()) {
            *score += bias;
        }
        Ok(())
    }
}

impl LowRankPredictor {
    /// With numbers within ±0.01 from a fixed seed: it selects neurons that mean nothing until it is calibrated.
    ///
    /// # Errors
    /// A rank of 0, or above a dimension; settings out of range.
    pub fn new(
        input_dim: usize,
        hidden_dim: usize,
        rank: usize,
        config: SparsityConfig,
    ) -> SparseResult<Self> {
        check_rank(input_dim, hidden_dim, rank)?;
        let mut chaos = PiChaos::hashed(4);
        let mut next = || (chaos.next_float() - 0.5) * 0.02;
        let p = DenseMatrix::generated(["rank", "input_dim"], rank, input_dim, &mut next)?;
        let q = DenseMatrix::generated(["hidden_dim", "rank"], hidden_dim, rank, &mut next)?;
        let mut made = Self::from_matrices(p, q, config)?;
        made.is_calibrated = false;
        Ok(made)
    }

    /// From P (rank, input) and Q (hidden, rank).
    ///
    /// # Errors
    /// Ranks that differ, or are above a dimension; settings out of range.
    pub fn from_matrices(
        p: DenseMatrix,
        q: DenseMatrix,
        config: SparsityConfig,
    ) -> SparseResult<Self> {
        let ((rank, input), (hidden, q_rank)) = (p.dim(), q.dim());
        if rank != q_rank {
            return Err(PredictorFault::DimensionMismatch {
                what: "a row of q",
                expected: rank,
                actual: q_rank,
            }
            .into());
        }
        check_rank(input, hidden, rank)?;
        config.validate().map_err(PredictorFault::InvalidConfig)?;
        Ok(Self {
            scorer: Scorer {
                p,
                q,
                bias: None,
                int8: None,
                table: KernelTable::best(CpuFeatures::detect()),
            },
            config,
            threshold: None,
            is_calibrated: true,
            work: Mutex::new(Work {
                z: vec![0.0; rank],
                scores: vec![0.0; hidden],
                active: vec![0; hidden],
                scratch: None,
                sums: Sums::default(),
            }),
        })
    }

    /// Predicts with both matrices in 8 bits from now on, which reads a quarter of the bytes. Widths that are not
    /// multiples of 32 stay in f32.
    ///
    /// # Errors
    /// No memory.
    pub fn quantize(&mut self) -> SparseResult<()> {
        let Some(int8) = self.scorer.quantized()? else {
            return Ok(());
        };
        let work = self.work.get_mut().unwrap_or_else(PoisonError::into_inner);
        work.scratch = Some(AlignedMemory::zeroed(int8.scratch_bytes)?);
        self.scorer.int8 = Some(int8);
        Ok(())
    }

    /// Rows of P.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.scorer.p.dim().0
    }

    /// Elements of the input.
    #[must_use]
    pub const fn input_dim(&self) -> usize {
        self.scorer.p.dim().1
    }

    /// Neurons.
    #[must_use]
    pub const fn hidden_dim(&self) -> usize {
        self.scorer.q.dim().0
    }

    /// A score for each neuron.
    ///
    /// # Errors
    /// An input that does not fit.
    pub fn scores(&self, input: &[f32]) -> SparseResult<Vec<f32>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.scorer.scores(input, &mut work)?;
        Ok(work.scores.clone())
    }
}

/// Rows of `n` finite numbers, not all of them 0.
fn check_samples(what: &'static str, rows: &[Vec<f32>], n: usize) -> SparseResult<()> {
    let failed = |sample, error| PredictorFault::CalibrationFailed { sample, error };
    for (sample, row) in rows.iter().enumerate() {
        check_len(what, row.len(), n)
            .and_then(|()| check_finite(what, row))
            .map_err(|error| failed(sample, error))?;
    }
    match rows.iter().flatten().any(|x| *x != 0.0) {
        true => Ok(()),
        false => Err(failed(0, SparsityError::Zeros { what }).into()),
    }
}

impl NeuronPredictor for LowRankPredictor {
    fn predict(&self, input: &[f32]) -> SparseResult<Vec<usize>> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.scorer.scores(input, &mut work)?;
        let Work {
            scores,
            active,
            sums,
            ..
        } = &mut *work;
        let n = self
            .config
            .select(self.scorer.table, scores, self.threshold, active);
        let n = n.map_err(PredictorFault::from)?;
        sums.predictions += 1;
        sums.active += n;
        Ok(active[..n].to_vec())
    }

    fn calibrate(&mut self, samples: &[Vec<f32>], activations: &[Vec<f32>]) -> SparseResult<()> {
        let failed = |error| PredictorFault::CalibrationFailed { sample: 0, error };
        if samples.is_empty() {
            let what = "samples";
            return Err(failed(SparsityError::Empty { what }).into());
        }
        if samples.len() != activations.len() {
            return Err(failed(SparsityError::Length {
                what: "activations",
                expected: samples.len(),
                found: activations.len(),
            })
            .into());
        }
        let (rank, input) = self.scorer.p.dim();
        let hidden = self.scorer.q.dim().0;
        // A threshold is set on samples that the fit has not seen, a quarter of them, where there are several.
        let sets_threshold = self.config.target_sparsity.is_some();
        let n_held = if sets_threshold { samples.len() / 4 } else { 0 };
        let (held, seen) = samples.split_at(n_held);
        check_samples("sample", samples, input)?;
        check_samples("activation", activations, hidden)?;
        let Fit { p, q, bias } = fit::low_rank(seen, &activations[n_held..], rank)?;
        let mut scorer = Scorer {
            p: DenseMatrix::new(rank, input, p)?,
            q: DenseMatrix::new(hidden, rank, q)?,
            bias: Some(bias),
            int8: None,
            table: self.scorer.table,
        };
        if self.scorer.int8.is_some() {
            scorer.int8 = scorer.quantized()?;
        }
        let mut threshold = self.threshold;
        if let Some(target) = self.config.target_sparsity {
            let held = if held.is_empty() { seen } else { held };
            let mut all = Vec::with_capacity(held.len() * hidden);
            let work = self.work.get_mut().unwrap_or_else(PoisonError::into_inner);
            for sample in held {
                scorer.scores(sample, work)?;
                all.extend_from_slice(&work.scores);
            }
            let found = threshold_for(scorer.table, &all, target).map_err(PredictorFault::from)?;
            threshold = Some(found);
        }
        // Nothing fails from here on: all changes, or none.
        (self.scorer, self.threshold) = (scorer, threshold);
        self.is_calibrated = true;
        Ok(())
    }

    fn stats(&self) -> PredictorStats {
        let work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums {
            predictions,
            active,
        } = work.sums;
        let mean = active as f32 / predictions.max(1) as f32;
        PredictorStats {
            predictions,
            avg_active_neurons: mean,
            avg_sparsity: match predictions {
                0 => 0.0,
                _ => 1.0 - mean / self.hidden_dim() as f32,
            },
            is_calibrated: self.is_calibrated,
        }
    }
}

/// A rank from 1 to the smaller of both dimensions.
fn check_rank(input: usize, hidden: usize, rank: usize) -> Result<(), PredictorFault> {
    let most = input.min(hidden);
    match (1..=most).contains(&rank) {
        true => Ok(()),
        false => Err(PredictorFault::InvalidRank { rank, most }),
    }
}

/// All neurons, always.
#[derive(Clone, Copy, Debug)]
pub struct DensePredictor {
    neuron_count: usize,
}

impl DensePredictor {
    /// Of `neuron_count` neurons.
    #[must_use]
    pub const fn new(neuron_count: usize) -> Self {
        Self { neuron_count }
    }
}

impl NeuronPredictor for DensePredictor {
    fn predict(&self, _input: &[f32]) -> SparseResult<Vec<usize>> {
        let mut all = Vec::new();
        all.try_reserve_exact(self.neuron_count)
            .map_err(|_| SparsityError::Setting {
                name: "neuron_count",
                value: self.neuron_count as f64,
                expected: "a size in memory",
            })?;
        all.extend(0..self.neuron_count);
        Ok(all)
    }

    fn calibrate(&mut self, _samples: &[Vec<f32>], _activations: &[Vec<f32>]) -> SparseResult<()> {
        Ok(())
    }

    fn stats(&self) -> PredictorStats {
        PredictorStats {
            avg_active_neurons: self.neuron_count as f32,
            is_calibrated: true,
            ..PredictorStats::default()
        }
    }
}
