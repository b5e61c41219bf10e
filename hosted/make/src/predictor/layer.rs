//! A layer's predictor: candidates, their thresholds, and what the best one chooses.

use super::collect::Samples;
use super::cut;
use super::fit::{self, Fit, Inputs};
use super::labels::Labels;
use super::rows::Rows;
use super::write::Encoded;
use super::{
    LayerOutcome, PredictorError, PredictorKind, PredictorMeasure, PredictorOptions, TrainedLayer,
    refine, signs,
};
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::panel::{PANEL_ROWS, dequantize_gguf_row};
use sluice_core::model::{Activation, Channel, ModelConfig, ModelWeights, Site, Weight};
use std::sync::Mutex;

/// What layers are trained with.
pub(super) struct Training<'a> {
    pub(super) weights: &'a ModelWeights<'a>,
    pub(super) options: &'a PredictorOptions,
    pub(super) rank: usize,
    /// Norms of neurons' columns of down, [`ModelConfig::neurons_max`] for each layer.
    pub(super) norms: &'a [f32],
    /// Tokens to train with, and then twice as many as are held back, for thresholds and for measuring.
    pub(super) n_train: usize,
    pub(super) n_held: usize,
}

impl Training<'_> {
    /// Layers whose rows are in memory at once.
    pub(super) fn layers_at_once(&self, config: &ModelConfig) -> usize {
        let n_ff = config.neurons_max();
        let tokens = self.n_train + 2 * self.n_held;
        let bytes = tokens * (4 * config.n_embd + n_ff / 8) + 8 * self.n_held * n_ff;
        (SAMPLE_BYTES / bytes.max(1)).max(1)
    }

    /// Trains layers from `first` on, each on one thread.
    pub(super) fn layers(
        &self,
        first: usize,
        samples: Vec<Samples>,
    ) -> Result<Vec<LayerOutcome>, PredictorError> {
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
                let result = self.layer(first + i, samples);
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

    fn layer(&self, layer: usize, samples: Samples) -> Result<LayerOutcome, PredictorError> {
        let config = self.weights.config();
        let Channel::Ffn(shape) = &config.kind(layer).channel else {
            return Ok(LayerOutcome {
                trained: None,
                measured: None,
            });
        };
        if samples.inputs.values.iter().any(|x| !x.is_finite()) {
            return Err(PredictorError::NotFinite);
        }
        let site = match shape.is_gated {
            true => Site::FfnGate,
            false => Site::FfnUp,
        };
        let gate = self.weights.site(layer, site);
        let bias = gate
            .bias
            .map_or_else(|| vec![0.0; shape.n_ff], <[f32]>::to_vec);
        let gate = matrix(&gate);
        let start = layer * config.neurons_max();
        let norms = &self.norms[start..start + shape.n_ff];
        let parts = Parts::new(samples, norms, self.n_train, self.n_held);
        let cut = match shape.activation {
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
        let down = matrix(&self.weights.site(layer, Site::FfnDown));
        let held = &parts.measure;
        let scores = scores(&trained, &held.inputs);
        trained.measured = measured(&trained, held, &scores);
        trained.measured.output_error =
            cut::output_error(&scores, &held.values, &down, trained.threshold);
        let is_of_use = trained.measured.recall >= self.options.recall
            && trained.measured.selected <= SELECTED_MAX;
        Ok(LayerOutcome {
            measured: Some(trained.measured),
            trained: is_of_use.then_some(trained),
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
                    bias: centred(gate, &up.rows(), bias, &parts.train),
                    down: None,
                    up,
                });
                vec![(centred, false)]
            }
            PredictorKind::Svd => {
                vec![(Scorer::of(&fit::fit(gate, bias, None, self.rank)), false)]
            }
            PredictorKind::Ridge => {
                let inputs = Inputs::of(&parts.train, RIDGE);
                let plain = fit::fit(gate, bias, Some(&inputs), self.rank);
                let refined = refine::refined(&plain, &parts.train, &parts.labels, cut);
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
        let scores = scores(&trained, &parts.set.inputs);
        if scores.values.iter().any(|x| !x.is_finite()) {
            return Err(PredictorError::NotFinite);
        }
        trained.threshold = cut::threshold(&scores, &parts.set.labels, recall);
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

/// A layer's rows, divided.
struct Parts<'n> {
    train: Rows,
    labels: Labels,
    /// For the threshold.
    set: Held<'n>,
    /// For what is reported.
    measure: Held<'n>,
}

/// Rows that are held back.
struct Held<'n> {
    /// (n_ff)
    norms: &'n [f32],
    inputs: Rows,
    labels: Labels,
    values: Rows,
}

impl<'n> Parts<'n> {
    fn new(mut samples: Samples, norms: &'n [f32], n_train: usize, n_held: usize) -> Self {
        let mut held = samples.labels.split_off(n_train);
        let later = held.split_off(n_held);
        let part = |labels, first: usize| Held {
            norms,
            inputs: samples
                .inputs
                .some(n_train + first..n_train + first + n_held),
            values: samples.values.some(first..first + n_held),
            labels,
        };
        Self {
            set: part(held, 0),
            measure: part(later, n_held),
            train: samples.inputs.some(0..n_train),
            labels: samples.labels,
        }
    }
}

fn measured(layer: &TrainedLayer, held: &Held<'_>, scores: &Rows) -> PredictorMeasure {
    cut::measure(
        scores,
        &held.labels,
        &held.values,
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
/// Bytes of rows that are in memory at once, about.
const SAMPLE_BYTES: usize = 1 << 30;
