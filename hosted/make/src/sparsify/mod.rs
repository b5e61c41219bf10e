//! Calibrating modes that leave neurons out: thresholds and shares of a model's layers, from a text.
//!
//! The model reads the text whole while the signals of its neurons are counted, layer by layer, in bins of equal ratio. How
//! much each layer matters is measured by leaving neurons out of it alone; a density of the whole model is shared out by
//! that, and a layer's threshold keeps its share. With a divergence as the goal, the density is found by measuring: half
//! of the logits of some chunks against the whole model's.

mod divergence;
mod layers;
mod sharing;

use divergence::{Reference, some};
use layers::{Counter, Layers};
use sharing::Sharing;
use sluice::Session;
use sluice::evaluate::EvaluateError;
use sluice::identity::HashError;
use sluice::session::StepHooks;
use sluice::sparse::{NormsError, SparseFile, compares_gates, shares_between};
use sluice_core::engine::{Approximation, NeuronRule, NeuronSignal, Sparse};
use std::path::Path;

/// What thresholds are made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparsifyGoal {
    /// A share of neurons that is kept over all layers.
    Density(f64),
    /// The largest divergence from the whole model, in nats per token.
    Divergence(f64),
}

/// What is done, for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparsifyPhase {
    /// Signals are counted.
    Counting,
    /// Layers are measured one by one.
    Alone,
    /// Shares are compared.
    Sharing,
    /// A divergence is measured.
    Measuring,
}

/// Why a model was not calibrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SparsifyError {
    /// The text was not read to its end.
    #[error(transparent)]
    Read(#[from] EvaluateError),
    /// There are no norms of neurons.
    #[error("{0}: use --signal product, or keep experts in memory")]
    Norms(#[from] NormsError),
    /// The model's file could not be hashed.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// Signals are not finite numbers.
    #[error("layer {0}: its neurons are not finite, so nothing can be left out by them")]
    NotFinite(usize),
    /// The text is too short.
    #[error("the text has {0} chunks, calibration needs {CHUNKS_MIN}")]
    Short(usize),
}

/// The minimum number of chunks.
pub const CHUNKS_MIN: usize = 8;

/// Calibrates the model of `session`, whose steps may have an observer, on `chunks` of equal length.
///
/// # Errors
/// [`SparsifyError`].
pub fn sparsify(
    session: &mut Session,
    chunks: &[&[u32]],
    signal: NeuronSignal,
    goal: SparsifyGoal,
    mut progress: impl FnMut(SparsifyPhase, usize, usize),
) -> Result<SparseFile, SparsifyError> {
    let len = chunks.first().map_or(0, |chunk| chunk.len());
    if chunks.len() < CHUNKS_MIN {
        return Err(SparsifyError::Short(chunks.len()));
    }
    let model = session.model().clone();
    let norms = match signal {
        NeuronSignal::Contribution => model.neuron_norms(session.team().count())?,
        _ => Vec::new(),
    };
    let can_compare = compares_gates(model.config()) && model.experts().is_none();
    let mode = Mode {
        signal,
        norms: &norms,
        compares: signal != NeuronSignal::Gate || can_compare,
    };
    let layers = count(session, chunks, mode, &mut progress)?;
    // Shares are compared on other chunks than those that they were made from.
    let (made, compared) = sharing_chunks(chunks);
    let reference = Reference::of_few(session, made)?;
    let measured = Sharing::measure(session, &reference, &layers, mode, |done, all| {
        progress(SparsifyPhase::Alone, done, all);
    });
    // Its logits take memory.
    drop(reference);
    let (sharing, alone) = measured?;
    let reference = Reference::of_few(session, compared)?;
    let mut shares = Vec::new();
    for i in 1..GRID {
        let density = share(i, GRID);
        let found = sharing.shares(session, &reference, &layers, mode, density)?;
        shares.push((density, found));
        progress(SparsifyPhase::Sharing, i, GRID - 1);
    }
    shares.push((1.0, vec![1.0; layers.0.len()]));
    drop(reference);
    let (density, kl) = match goal {
        SparsifyGoal::Density(density) => (density, None),
        SparsifyGoal::Divergence(goal) => {
            let reference = Reference::of_many(some(chunks, CHUNKS_MIN));
            let at = |density: f64| thresholds(&layers, &shares, density);
            let (density, kl) = search(session, &reference, mode, at, goal, &mut progress)?;
            (density, Some(kl))
        }
    };
    let thresholds = thresholds(&layers, &shares, density);
    let kinds = model.config().kinds.iter();
    let name = Path::new(model.name()).file_name();
    Ok(SparseFile {
        fingerprint: model.calibrated_fingerprint()?.to_string(),
        model: name.unwrap_or_default().to_string_lossy().into_owned(),
        signal,
        density,
        chunks: (chunks.len(), len),
        n_ff: kinds.map(|kind| kind.n_ff()).max().unwrap_or(0),
        densities: layers.densities(&thresholds),
        thresholds,
        shares,
        alone,
        kl,
    })
}

/// Two chunks that layers are measured on alone, and two that shares are compared on.
fn sharing_chunks<'c>(chunks: &[&'c [u32]]) -> (Vec<&'c [u32]>, Vec<&'c [u32]>) {
    let four = some(chunks, 4);
    (vec![four[0], four[2]], vec![four[1], four[3]])
}

/// Reads the text whole and counts signals.
fn count(
    session: &mut Session,
    chunks: &[&[u32]],
    mode: Mode<'_>,
    progress: &mut impl FnMut(SparsifyPhase, usize, usize),
) -> Result<Layers, SparsifyError> {
    let none = vec![-1.0; session.model().config().n_layer()];
    let counter = Counter::new(none.len());
    for (i, chunk) in chunks.iter().enumerate() {
        let hooks = StepHooks {
            observer: Some(&counter),
            sparse: Some(mode.with(NeuronRule::Threshold(&none))),
            ..StepHooks::default()
        };
        session.read_with(&[chunk], chunk.len(), &hooks, |_, _, _| ())?;
        progress(SparsifyPhase::Counting, i + 1, chunks.len());
    }
    counter.layers()
}

/// Thresholds that keep a density, or all neurons that are not 0 if these are fewer: what layers with many zeros cannot
/// keep, the others do.
fn thresholds(layers: &Layers, shares: &[(f64, Vec<f32>)], density: f64) -> Vec<f32> {
    let (mut low, mut high) = (density, 1.0);
    if layers.kept(&shares_at(shares, density)) >= density {
        high = density;
    }
    for _ in 0..30 {
        let middle = low.midpoint(high);
        match layers.kept(&shares_at(shares, middle)) < density {
            true => low = middle,
            false => high = middle,
        }
    }
    layers.thresholds(&shares_at(shares, high))
}

/// Shares of the layers for any density: below the first of the list in its proportions.
fn shares_at(shares: &[(f64, Vec<f32>)], density: f64) -> Vec<f32> {
    shares_between(shares, density).unwrap_or_else(|| {
        let (least, first) = &shares[0];
        first.iter().map(|x| x * narrow(density / least)).collect()
    })
}

/// A signal and what it needs.
#[derive(Clone, Copy)]
struct Mode<'n> {
    signal: NeuronSignal,
    norms: &'n [f32],
    /// Whether the neurons of a row can be compared.
    compares: bool,
}

impl<'n> Mode<'n> {
    const fn with(self, rule: NeuronRule<'n>) -> Sparse<'n> {
        Sparse::Approximate(Approximation {
            signal: self.signal,
            rule,
            norms: self.norms,
        })
    }

    /// The divergence if layers keep shares of their neurons: in each row, or by thresholds where rows are not compared.
    fn divergence(
        self,
        session: &mut Session,
        reference: &Reference<'_>,
        layers: &Layers,
        shares: &[f32],
    ) -> Result<f64, SparsifyError> {
        let thresholds;
        let rule = match self.compares {
            true => NeuronRule::Share(shares),
            false => {
                thresholds = layers.thresholds(shares);
                NeuronRule::Threshold(&thresholds)
            }
        };
        reference.divergence(session, &self.with(rule))
    }
}

/// The smallest density, in steps of 1/256, whose divergence is at most `goal`, and that divergence.
fn search(
    session: &mut Session,
    reference: &Reference<'_>,
    mode: Mode<'_>,
    thresholds: impl Fn(f64) -> Vec<f32>,
    goal: f64,
    progress: &mut impl FnMut(SparsifyPhase, usize, usize),
) -> Result<(f64, f64), SparsifyError> {
    let mut at = |step: usize, n_done: usize| {
        let thresholds = thresholds(share(step, STEPS));
        let sparse = mode.with(NeuronRule::Threshold(&thresholds));
        let found = reference.divergence(session, &sparse);
        progress(SparsifyPhase::Measuring, n_done, STEPS.ilog2() as usize);
        found
    };
    let (mut low, mut high, mut best) = (0usize, STEPS, (1.0, 0.0));
    for n_done in 1..=STEPS.ilog2() as usize {
        let middle = low.midpoint(high);
        let kl = at(middle, n_done)?;
        if kl <= goal {
            (high, best) = (middle, (share(middle, STEPS), kl));
        } else {
            low = middle;
        }
    }
    Ok(best)
}

/// `n` of `of`.
#[expect(clippy::cast_precision_loss, reason = "small")]
const fn share(n: usize, of: usize) -> f64 {
    n as f64 / of as f64
}

#[expect(clippy::cast_possible_truncation, reason = "a share is rounded")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

/// Number of densities of the file's shares.
const GRID: usize = 20;
/// Steps of the search for a density.
const STEPS: usize = 256;
