//! Calibrating modes that leave neurons out: thresholds and shares of a model's layers, from a text.
//!
//! The model reads the text whole while the signals of its neurons are counted, layer by layer, in bins of equal ratio. A
//! layer's threshold is `λ` times the root mean square of its signals, without the largest hundredth, so that the last neuron left out costs every layer
//! the same share of its energy; one `λ` gives the density of the whole model. With a divergence as the goal, the density
//! is found by measuring: half of the logits of some chunks against the whole model's.

use sluice::Session;
use sluice::evaluate::{EvaluateError, log_softmax};
use sluice::identity::HashError;
use sluice::session::StepHooks;
use sluice::sparse::{NormsError, SparseFile, neuron_norms};
use sluice_core::engine::{Approximation, NeuronRule, NeuronSignal, Observer, SiteInput, Sparse};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

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
        NeuronSignal::Contribution => neuron_norms(model.weights(), session.team().count())?,
        _ => Vec::new(),
    };
    let mode = Mode {
        signal,
        norms: &norms,
    };
    let none = vec![-1.0; model.config().n_layer()];
    let counter = Counter::new(none.len());
    for (i, chunk) in chunks.iter().enumerate() {
        let hooks = StepHooks {
            observer: Some(&counter),
            sparse: Some(mode.with(&none)),
            ..StepHooks::default()
        };
        session.read_with(&[chunk], len, &hooks, |_, _, _| ())?;
        progress(SparsifyPhase::Counting, i + 1, chunks.len());
    }
    let layers = counter.layers()?;
    let (density, kl) = match goal {
        SparsifyGoal::Density(density) => (density, None),
        SparsifyGoal::Divergence(goal) => {
            let (density, kl) = search(session, chunks, &layers, mode, goal, &mut progress)?;
            (density, Some(kl))
        }
    };
    let thresholds = layers.thresholds(density);
    let name = Path::new(model.name()).file_name();
    Ok(SparseFile {
        fingerprint: model.calibrated_fingerprint()?.to_string(),
        model: name.unwrap_or_default().to_string_lossy().into_owned(),
        signal,
        density,
        chunks: (chunks.len(), len),
        n_ff: model
            .config()
            .kinds
            .iter()
            .map(|kind| kind.n_ff())
            .max()
            .unwrap_or(0),
        densities: layers.densities(&thresholds),
        thresholds,
        shares: (1..=GRID)
            .map(|i| share(i, GRID))
            .map(|x| (x, layers.shares(x)))
            .collect(),
        kl,
    })
}

/// A signal and what it needs.
#[derive(Clone, Copy)]
struct Mode<'n> {
    signal: NeuronSignal,
    norms: &'n [f32],
}

impl<'n> Mode<'n> {
    const fn with(self, thresholds: &'n [f32]) -> Sparse<'n> {
        Sparse::Approximate(Approximation {
            signal: self.signal,
            rule: NeuronRule::Threshold(thresholds),
            norms: self.norms,
        })
    }
}

/// The smallest density, in steps of 1/256, whose divergence is at most `goal`, and that divergence.
fn search(
    session: &mut Session,
    chunks: &[&[u32]],
    layers: &Layers,
    mode: Mode<'_>,
    goal: f64,
    progress: &mut impl FnMut(SparsifyPhase, usize, usize),
) -> Result<(f64, f64), SparsifyError> {
    // Some chunks, evenly spaced.
    let chosen: Vec<_> = (0..CHUNKS_MIN)
        .map(|i| chunks[i * chunks.len() / CHUNKS_MIN])
        .collect();
    let mut at = |step: usize, n_done: usize| {
        let thresholds = layers.thresholds(share(step, STEPS));
        let found = divergence(session, &chosen, &mode.with(&thresholds));
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

/// The divergence of a mode from the whole model, in nats per token: of the second half of each chunk.
fn divergence(
    session: &mut Session,
    chunks: &[&[u32]],
    sparse: &Sparse<'_>,
) -> Result<f64, SparsifyError> {
    let n_vocab = session.model().config().n_vocab;
    let (mut sum, mut n) = (0.0, 0u32);
    for chunk in chunks {
        let skipped = (chunk.len() / 2).max(chunk.len().saturating_sub(FLOATS_MAX / n_vocab));
        let mut whole: Vec<f32> = Vec::new();
        let hooks = StepHooks {
            sparse: Some(Sparse::Exact),
            ..StepHooks::default()
        };
        session.read_with(&[chunk], skipped, &hooks, |_, _, logits| {
            whole.extend(logits)
        })?;
        let (mut p, mut q) = (Vec::new(), Vec::new());
        let hooks = StepHooks {
            sparse: Some(*sparse),
            ..StepHooks::default()
        };
        session.read_with(&[chunk], skipped, &hooks, |_, at, logits| {
            log_softmax(&whole[(at - skipped) * n_vocab..][..n_vocab], &mut p);
            log_softmax(logits, &mut q);
            sum += p
                .iter()
                .zip(&q)
                .map(|(p, q)| p.exp() * (p - q))
                .sum::<f64>();
            n += 1;
        })?;
    }
    Ok(sum / f64::from(n.max(1)))
}

/// Counts signals of layers by their leading bits.
struct Counter(Vec<Mutex<Vec<u64>>>);

impl Counter {
    fn new(n_layer: usize) -> Self {
        Self((0..n_layer).map(|_| Mutex::default()).collect())
    }

    fn layers(self) -> Result<Layers, SparsifyError> {
        let mut layers = Vec::new();
        for (i, bins) in self.0.into_iter().enumerate() {
            let bins = bins.into_inner().unwrap_or_else(PoisonError::into_inner);
            let finite = bin(f32::INFINITY);
            if bins.iter().skip(finite).any(|n| *n > 0) {
                return Err(SparsifyError::NotFinite(i));
            }
            layers.push(Layer::new(bins));
        }
        Ok(Layers(layers))
    }
}

impl Observer for Counter {
    fn sees(&self, _: SiteInput<'_>) {}

    fn sees_signals(&self, layer: usize, signals: &[f32]) {
        let mut bins = self.0[layer].lock().unwrap_or_else(PoisonError::into_inner);
        if bins.is_empty() {
            bins.resize(bin(f32::NAN) + 1, 0);
        }
        for signal in signals {
            bins[bin(*signal)] += 1;
        }
    }

    fn sees_all(&self) -> bool {
        true
    }
}

/// The distributions of all layers.
struct Layers(Vec<Layer>);

/// The distribution of a layer's signals.
struct Layer {
    /// The number of signals from each bin on.
    from_bin: Vec<u64>,
    n: u64,
    /// The root of the mean square, without the largest.
    rms: f64,
}

impl Layer {
    fn new(bins: Vec<u64>) -> Self {
        let n: u64 = bins.iter().sum();
        let (mut rest, mut squares) = (n - n / OUTLIERS, 0f64);
        for (i, n) in bins.iter().enumerate().filter(|(_, n)| **n > 0) {
            let n = rest.min(*n);
            rest -= n;
            squares += float(n) * f64::from(middle(i)).powi(2);
        }
        let rms = (squares / float(n).max(1.0)).sqrt();
        let mut from_bin = bins;
        for i in (1..from_bin.len()).rev() {
            from_bin[i - 1] += from_bin[i];
        }
        Self { from_bin, n, rms }
    }

    /// The threshold at `lambda` times the root mean square: the last number of its bin.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a threshold is rounded to its bin"
    )]
    fn threshold(&self, lambda: f64) -> f32 {
        let threshold = (lambda * self.rms).clamp(0.0, f64::from(f32::MAX)) as f32;
        match threshold > 0.0 {
            true => f32::from_bits(threshold.to_bits() | ((1 << SHIFT) - 1)),
            false => 0.0,
        }
    }

    /// The number of signals above a threshold.
    fn above(&self, threshold: f32) -> u64 {
        // Of the first bin all are 0, or nearly.
        self.from_bin.get(bin(threshold) + 1).copied().unwrap_or(0)
    }
}

impl Layers {
    /// The thresholds that keep a share of all neurons, or of those that are not 0 if these are fewer.
    fn thresholds(&self, density: f64) -> Vec<f32> {
        let all = |lambda: f64| -> Vec<f32> {
            self.0.iter().map(|layer| layer.threshold(lambda)).collect()
        };
        let (mut low, mut high) = (LAMBDA.0.ln(), LAMBDA.1.ln());
        if self.density(&all(0.0)) <= density {
            return all(0.0);
        }
        for _ in 0..60 {
            let middle = low.midpoint(high);
            match self.density(&all(middle.exp())) > density {
                true => low = middle,
                false => high = middle,
            }
        }
        // The nearer of two steps.
        let [less, more] = [all(low.exp()), all(high.exp())];
        let error = |thresholds: &[f32]| (self.density(thresholds) - density).abs();
        if error(&less) < error(&more) {
            less
        } else {
            more
        }
    }

    /// The share of neurons that thresholds keep over all layers.
    fn density(&self, thresholds: &[f32]) -> f64 {
        let n: u64 = self.0.iter().map(|layer| layer.n).sum();
        let layers = self.0.iter().zip(thresholds);
        let kept: u64 = layers
            .map(|(layer, threshold)| layer.above(*threshold))
            .sum();
        float(kept) / float(n).max(1.0)
    }

    /// The share that each layer's threshold keeps.
    fn densities(&self, thresholds: &[f32]) -> Vec<f64> {
        let layers = self.0.iter().zip(thresholds);
        let density = |(layer, threshold): (&Layer, &f32)| match layer.n {
            0 => 1.0,
            n => float(layer.above(*threshold)) / float(n),
        };
        layers.map(density).collect()
    }

    /// Shares of the layers of which the mean is `density`: neurons that are zero fill up what is left.
    #[expect(clippy::cast_possible_truncation, reason = "a share is rounded")]
    fn shares(&self, density: f64) -> Vec<f32> {
        let thresholds = self.thresholds(density);
        let mean = self.density(&thresholds);
        let fill = ((density - mean) / (1.0 - mean).max(f64::MIN_POSITIVE)).max(0.0);
        let shares = self.densities(&thresholds).into_iter();
        shares
            .map(|share| (share + fill * (1.0 - share)).clamp(0.0, 1.0) as f32)
            .collect()
    }
}

/// The bin of a signal, which is not negative.
const fn bin(signal: f32) -> usize {
    (signal.to_bits() >> SHIFT) as usize
}

/// A number in the middle of a bin; 0 in the first.
fn middle(bin: usize) -> f32 {
    match u32::try_from(bin).unwrap_or(0) {
        0 => 0.0,
        bin => f32::from_bits((bin << SHIFT) | (1 << (SHIFT - 1))),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn float(n: u64) -> f64 {
    n as f64
}

/// `n` of `of`.
#[expect(clippy::cast_precision_loss, reason = "small")]
const fn share(n: usize, of: usize) -> f64 {
    n as f64 / of as f64
}

/// Bits of a signal below those that tell its bin: 128 bins for each power of two.
const SHIFT: u32 = 16;
/// One signal of this many is an outlier: some rows, as the first of a text, have values far beyond all others.
const OUTLIERS: u64 = 100;
/// Range of thresholds, in root mean squares.
const LAMBDA: (f64, f64) = (1e-9, 1e4);
/// Number of densities of the file's shares.
const GRID: usize = 20;
/// Steps of the search for a density.
const STEPS: usize = 256;
/// Maximum floats of the logits that are compared at once: 256 MiB.
const FLOATS_MAX: usize = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of 10,000 signals: of different sizes, one of them mostly zero, one with an outlier.
    fn layers() -> Layers {
        let layer = |scale: f32, zeros: u16, outlier: f32| {
            let mut bins = vec![0; bin(f32::NAN) + 1];
            (0..10_000u16).for_each(|i| bins[bin(scale * f32::from(i.saturating_sub(zeros)))] += 1);
            bins[bin(outlier)] += 1;
            Layer::new(bins)
        };
        Layers(vec![
            layer(1e-4, 0, 0.0),
            layer(3.0, 0, 1e12),
            layer(1.0, 8_000, 0.0),
        ])
    }

    #[test]
    fn thresholds_keep_the_density_that_is_asked_for() {
        for density in [0.05, 0.2, 0.5, 0.7] {
            let layers = layers();
            let thresholds = layers.thresholds(density);
            let found = layers.density(&thresholds);
            assert!((found - density).abs() < 0.005, "{density}: {found}");
            let densities = layers.densities(&thresholds);
            // Layers that are alike but for their scale, and an outlier, keep alike.
            assert!((densities[0] - densities[1]).abs() < 0.02, "{densities:?}");
        }
    }

    #[test]
    fn shares_have_the_mean_that_is_asked_for_even_among_zeros() {
        for density in [0.1, 0.5, 0.75, 0.9, 1.0] {
            let shares = layers().shares(density);
            let mean = shares.iter().map(|x| f64::from(*x)).sum::<f64>() / 3.0;
            assert!((mean - density).abs() < 0.005, "{density}: {shares:?}");
        }
    }
}
