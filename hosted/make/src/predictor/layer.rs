//! A network's predictor: candidates, their thresholds, and what the best one chooses.

use super::collect::{NetworkSamples, Samples};
use super::cut;
use super::fit::{self, Fit, Inputs};
use super::rows::Rows;
use super::write::Encoded;
use super::{
    NetworkOutcome, PredictorError, PredictorKind, PredictorMeasure, PredictorOptions,
    TrainedLayer, refine, signs,
};
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::panel::{PANEL_ROWS, dequantize_gguf_row};
use sluice_core::model::{Activation, ModelWeights, Site, Weight};
use std::sync::Mutex;

/// What layers are trained with.
pub(super) struct Training<'a> {
    pub(super) weights: &'a ModelWeights<'a>,
    pub(super) options: &'a PredictorOptions,
    pub(super) rank: usize,
    /// Norms of neurons' columns of down, [`ModelConfig::neurons_max`] for each layer.
    pub(super) norms: &'a [f32],
}

impl Training<'_> {
    /// Trains networks, each on one thread.
    pub(super) fn networks(
        &self,
        samples: Vec<NetworkSamples>,
    ) -> Result<Vec<NetworkOutcome>, PredictorError> {
        let n = samples.len();
        let samples: Vec<_> = samples
            .into_iter()
            .map(|one| Mutex::new(Some(one)))
            .collect();
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(samples) = samples.get(i).and_then(|one| lock(one).take()) else {
                    return;
                };
                let result = self.network(samples);
                lock(&results).push((i, result));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.options.n_threads.clamp(1, n.max(1)) {
                scope.spawn(work);
            }
        });
        let mut results = core::mem::take(&mut *lock(&results));
        results.sort_by_key(|(i, _)| *i);
        results.into_iter().map(|(_, result)| result).collect()
    }

    fn network(&self, samples: NetworkSamples) -> Result<NetworkOutcome, PredictorError> {
        let NetworkSamples { network, parts } = samples;
        let rows = parts.iter().map(|part| &part.inputs);
        if rows
            .clone()
            .any(|rows| rows.values.iter().any(|x| !x.is_finite()))
        {
            return Err(PredictorError::NotFinite);
        }
        let [n_rows, n_set, n_measure] = parts.each_ref().map(|part| part.inputs.n_rows());
        let outcome = NetworkOutcome {
            layer: network.layer,
            expert: network.expert,
            n_rows,
            trained: None,
            measured: None,
        };
        if network.expert.is_some() && (n_rows < ROWS_MIN || n_set.min(n_measure) < HELD_MIN) {
            return Ok(outcome);
        }
        let gate = network.matrix(self.weights, network.site);
        let bias = gate
            .bias
            .map_or_else(|| vec![0.0; network.n_ff], <[f32]>::to_vec);
        let gate = matrix(&gate);
        let parts = Parts::new(parts, network.norms(self.weights.config(), self.norms));
        let cut = match network.activation {
            Activation::Relu { threshold } => threshold,
            _ => 0.0,
        };
        let mut best: Option<TrainedLayer> = None;
        for (fit, is_refined) in self.fits(&gate, &bias, &parts, cut) {
            let trained = self.trained(fit?, is_refined, &parts)?;
            let chosen = |layer: &TrainedLayer| layer.measured.selected;
            if best
                .as_ref()
                .is_none_or(|best| chosen(&trained) < chosen(best))
            {
                best = Some(trained);
            }
        }
        let mut trained = best.ok_or(PredictorError::NotFinite)?;
        let down = matrix(&network.matrix(self.weights, Site::FfnDown));
        let held = &parts.measure;
        let scores = scores(&trained, &held.rows.inputs);
        trained.measured = measured(&trained, held, &scores);
        trained.measured.output_error =
            cut::output_error(&scores, &held.rows.values, &down, trained.threshold);
        let is_of_use = trained.measured.recall >= self.options.recall
            && trained.measured.selected <= SELECTED_MAX;
        Ok(NetworkOutcome {
            measured: Some(trained.measured),
            trained: is_of_use.then_some(trained),
            ..outcome
        })
    }

    /// The predictors to choose from.
    fn fits(
        &self,
        gate: &Rows,
        bias: &[f32],
        parts: &Parts<'_>,
        cut: f32,
    ) -> Vec<(Result<Scorer, PredictorError>, bool)> {
        match self.options.kind {
            PredictorKind::Sign => {
                let up = signs::signs(gate).ok_or(PredictorError::NotFinite);
                let centred = up.map(|up| Scorer {
                    bias: centred(gate, &up.rows(), bias, &parts.train.inputs),
                    down: None,
                    up,
                });
                vec![(centred, false)]
            }
            PredictorKind::Svd => {
                vec![(Scorer::of(&fit::fit(gate, bias, None, self.rank)), false)]
            }
            PredictorKind::Ridge => {
                let inputs = Inputs::of(&parts.train.inputs, RIDGE);
                let plain = fit::fit(gate, bias, Some(&inputs), self.rank);
                let refined =
                    refine::refined(&plain, &parts.train.inputs, &parts.train.labels, cut);
                vec![(Scorer::of(&plain), false), (Scorer::of(&refined), true)]
            }
        }
    }

    /// A predictor with its threshold, measured where that was set.
    fn trained(
        &self,
        scorer: Scorer,
        is_refined: bool,
        parts: &Parts<'_>,
    ) -> Result<TrainedLayer, PredictorError> {
        let Scorer { down, up, bias } = scorer;
        let mut trained = TrainedLayer {
            down,
            up,
            bias,
            threshold: 0.0,
            measured: PredictorMeasure::default(),
            is_refined,
        };
        let recall = self.options.recall + MARGIN * (1.0 - self.options.recall);
        let scores = scores(&trained, &parts.set.rows.inputs);
        if scores.values.iter().any(|x| !x.is_finite()) {
            return Err(PredictorError::NotFinite);
        }
        trained.threshold = cut::threshold(&scores, &parts.set.rows.labels, recall);
        trained.measured = measured(&trained, &parts.set, &scores);
        Ok(trained)
    }
}

/// A predictor without a threshold.
struct Scorer {
    down: Option<Encoded>,
    up: Encoded,
    bias: Vec<f32>,
}

impl Scorer {
    fn of(fit: &Fit) -> Result<Self, PredictorError> {
        Ok(Self {
            down: Some(Encoded::new(&fit.down)?),
            up: Encoded::new(&fit.up)?,
            bias: fit.bias.clone(),
        })
    }
}

/// A network's rows, divided.
struct Parts<'n> {
    train: Samples,
    /// For the threshold.
    set: Held<'n>,
    /// For what is reported.
    measure: Held<'n>,
}

/// Rows that are held back.
struct Held<'n> {
    /// (n_ff)
    norms: &'n [f32],
    rows: Samples,
}

impl<'n> Parts<'n> {
    fn new([train, set, measure]: [Samples; 3], norms: &'n [f32]) -> Self {
        let held = |rows| Held { norms, rows };
        Self {
            train,
            set: held(set),
            measure: held(measure),
        }
    }
}

fn measured(layer: &TrainedLayer, held: &Held<'_>, scores: &Rows) -> PredictorMeasure {
    cut::measure(
        scores,
        &held.rows.labels,
        &held.rows.values,
        held.norms,
        layer.threshold,
    )
}

/// The scores of rows, by the values that the file has.
fn scores(layer: &TrainedLayer, inputs: &Rows) -> Rows {
    let mut scores = match &layer.down {
        Some(down) => inputs
            .times_turned(&down.rows())
            .times_turned(&layer.up.rows()),
        None => inputs.times_turned(&layer.up.rows()),
    };
    for row in scores.values.chunks_exact_mut(layer.bias.len()) {
        row.iter_mut()
            .zip(&layer.bias)
            .for_each(|(x, bias)| *x += bias);
    }
    scores
}

/// The bias that makes an approximation right on the mean of rows.
fn centred(gate: &Rows, approximation: &Rows, bias: &[f32], rows: &Rows) -> Vec<f32> {
    let mean = Rows {
        values: Inputs::mean_of(rows),
        n_cols: rows.n_cols,
    };
    let (gate, found) = (mean.times_turned(gate), mean.times_turned(approximation));
    let both = gate.values.iter().zip(&found.values).zip(bias);
    both.map(|((gate, found), bias)| bias + gate - found)
        .collect()
}

/// A matrix of the model, in f32.
fn matrix(weight: &Weight<'_>) -> Rows {
    let layout = &weight.layout;
    let mut rows = Rows::zeros(weight.n_rows, layout.n_cols());
    let row_bytes = layout.gguf_row_bytes();
    let mut band = vec![0; PANEL_ROWS * row_bytes];
    let outs = rows.values.chunks_exact_mut(layout.n_cols());
    for (i, out) in (weight.first_row..).zip(outs) {
        if layout.form() == Form::Panels {
            layout.dequantize_row(i, weight.panels, out);
            continue;
        }
        let at = i % PANEL_ROWS;
        if at == 0 {
            layout.unpack_band(i, weight.panels, &mut band);
        }
        dequantize_gguf_row(layout.ty(), &band[at * row_bytes..][..row_bytes], out);
    }
    if let Some(factor) = weight.factor {
        rows.values.iter_mut().for_each(|x| *x *= factor);
    }
    rows
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The ridge, as a share of the inputs' mean variance.
const RIDGE: f32 = 1e-3;
/// Thresholds are set for a recall that is closer to 1 by this share, so that other texts reach it, too.
const MARGIN: f64 = 0.25;
/// A predictor that chooses more costs more than it saves.
const SELECTED_MAX: f64 = 0.9;
/// The minimum number of rows that an expert is trained with, and of those that set and measure its threshold.
pub(super) const ROWS_MIN: usize = 256;
const HELD_MIN: usize = 32;
