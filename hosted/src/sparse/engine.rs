//! A network with a predictor in front of it.

use super::error::{PredictorFault, SparseResult};
use super::ffn::SparseFfn;
use super::matrix::DenseMatrix;
use super::predictor::{DensePredictor, LowRankPredictor, NeuronPredictor};
use core::fmt;
use sluice_core::sparse::{ActivationType, SparsityConfig, SparsityError, project_into};
use std::sync::{Mutex, PoisonError};

/// Rank of a predictor, where the dimensions allow it.
const RANK: usize = 128;

/// Predicts active neurons, and computes those.
pub struct SparseInferenceEngine {
    predictor: Box<dyn NeuronPredictor>,
    ffn: SparseFfn,
    counts: Mutex<Counts>,
}

/// What was computed.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    n: usize,
    active: usize,
    least: usize,
    most: usize,
}

/// How many neurons were computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparsityStats {
    /// Mean share of the neurons.
    pub average_active_ratio: f64,
    /// The fewest of a vector.
    pub min_active: usize,
    /// The most of a vector.
    pub max_active: usize,
}

impl fmt::Debug for SparseInferenceEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseInferenceEngine")
            .field("ffn", &self.ffn)
            .finish_non_exhaustive()
    }
}

impl SparseInferenceEngine {
    /// A SiLU network with weights from a fixed seed, as wide at its end as at its beginning, of which `sparsity_ratio` (0
    /// to 1) of the neurons are **kept**, at least one. Its predictor is a projection of these weights until
    /// [`SparseInferenceEngine::calibrate`] fits it to samples. [`SparseInferenceEngine::from_parts`] takes your own.
    ///
    /// # Errors
    /// A dimension of 0, a ratio outside 0 to 1.
    pub fn new_sparse(
        input_dim: usize,
        hidden_dim: usize,
        sparsity_ratio: f32,
    ) -> SparseResult<Self> {
        if !(0.0..=1.0).contains(&sparsity_ratio) {
            return Err(SparsityError::Setting {
                name: "sparsity_ratio",
                value: f64::from(sparsity_ratio),
                expected: "a number from 0 to 1",
            }
            .into());
        }
        let ffn = SparseFfn::new(input_dim, hidden_dim, input_dim, ActivationType::Silu)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count"
        )]
        let kept = (sparsity_ratio * hidden_dim as f32).max(1.0) as usize;
        let config = SparsityConfig::with_top_k(kept);
        let rank = RANK.min(input_dim).min(hidden_dim);
        let mut predictor = projected(&ffn, rank, config)?;
        predictor.quantize()?;
        Ok(Self::from_parts(Box::new(predictor), ffn))
    }

    /// The same network, of which all neurons are computed.
    ///
    /// # Errors
    /// A dimension of 0.
    pub fn new_dense(input_dim: usize, hidden_dim: usize) -> SparseResult<Self> {
        let ffn = SparseFfn::new(input_dim, hidden_dim, input_dim, ActivationType::Silu)?;
        Ok(Self::from_parts(
            Box::new(DensePredictor::new(hidden_dim)),
            ffn,
        ))
    }

    /// Of your own predictor and network.
    #[must_use]
    pub fn from_parts(predictor: Box<dyn NeuronPredictor>, ffn: SparseFfn) -> Self {
        Self {
            predictor,
            ffn,
            counts: Mutex::default(),
        }
    }

    /// The network.
    #[must_use]
    pub const fn ffn(&self) -> &SparseFfn {
        &self.ffn
    }

    /// The predictor.
    #[must_use]
    pub fn predictor(&self) -> &dyn NeuronPredictor {
        &*self.predictor
    }

    /// Fits the predictor to samples, so that it finds the neurons that contribute most to vectors like these: some times
    /// as many samples as its rank are needed.
    ///
    /// # Errors
    /// No samples, or one that does not fit, by its number.
    pub fn calibrate(&mut self, samples: &[Vec<f32>]) -> SparseResult<()> {
        let of_sample = |(sample, x): (usize, &Vec<f32>)| {
            let failed = |error| PredictorFault::CalibrationFailed { sample, error };
            self.ffn.contributions(x).map_err(failed)
        };
        let contributions = samples.iter().enumerate().map(of_sample);
        let contributions: Vec<_> = contributions.collect::<Result<_, _>>()?;
        self.predictor.calibrate(samples, &contributions)
    }

    /// Computes a vector.
    ///
    /// # Errors
    /// An input of another width, or with a number that is not finite; no active neurons.
    pub fn infer(&self, input: &[f32]) -> SparseResult<Vec<f32>> {
        let active = self.predictor.predict(input)?;
        let output = self.ffn.forward_sparse(input, &active)?;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.least = match counts.n {
            0 => active.len(),
            _ => counts.least.min(active.len()),
        };
        counts.most = counts.most.max(active.len());
        counts.active += active.len();
        counts.n += 1;
        Ok(output)
    }

    /// How many neurons were computed so far.
    ///
    /// # Errors
    /// Nothing has been computed yet.
    pub fn sparsity_statistics(&self) -> SparseResult<SparsityStats> {
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.n == 0 {
            return Err(SparsityError::EmptyHistory {
                what: "sparsity statistics",
            }
            .into());
        }
        let mean = counts.active as f64 / counts.n as f64;
        Ok(SparsityStats {
            average_active_ratio: mean / self.ffn.hidden_dim() as f64,
            min_active: counts.least,
            max_active: counts.most,
        })
    }
}

/// A predictor of the network's weights alone.
fn projected(
    ffn: &SparseFfn,
    rank: usize,
    config: SparsityConfig,
) -> SparseResult<LowRankPredictor> {
    let (n, hidden) = (ffn.input_dim(), ffn.hidden_dim());
    let (mut p, mut q) = (vec![0.0; rank * n], vec![0.0; hidden * rank]);
    project_into(ffn.table(), n, ffn.w1(), &mut p, &mut q)?;
    let q = DenseMatrix::new(hidden, rank, q)?;
    LowRankPredictor::from_matrices(DenseMatrix::new(rank, n, p)?, q, config)
}
