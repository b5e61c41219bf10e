//! Predictors of active neurons, made from a model and a text.
//!
//! While the model reads the text, an observer keeps what each network reads and which of its neurons are active. Three
//! kinds of predictors say the latter from the former: the best fit of low rank of the gate's weights (`svd`) or of what the
//! text makes of them (`ridge`, refined by logistic regression where that chooses fewer neurons), and the signs of the
//! gate's weights (`sign`). Thresholds are set for a recall on chunks that nothing was made from, and measured on others.

mod collect;
mod cut;
mod fit;
mod labels;
mod layer;
mod refine;
mod rows;
mod signs;
mod write;

use collect::{Active, Collector, n_ff};
pub use cut::Measured as PredictorMeasure;
use layer::Training;
use sluice::Session;
use sluice::evaluate::EvaluateError;
use sluice::file::OutputError;
use sluice::identity::HashError;
use sluice::sparse::{NormsError, neuron_norms};
use sluice_core::model::ModelConfig;
use write::Encoded;

/// How a predictor is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorKind {
    /// The best fit of low rank of the gate's weights.
    Svd,
    /// The best fit of low rank of the gate's values on a text, refined.
    Ridge,
    /// Signs of the gate's weights, without training.
    Sign,
}

impl PredictorKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Svd, Self::Ridge, Self::Sign];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Svd => "svd",
            Self::Ridge => "ridge",
            Self::Sign => "sign",
        }
    }
}

/// What kind of predictor is made, and for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictorOptions {
    /// How it is made.
    pub kind: PredictorKind,
    /// Rows of the first of its two matrices; 0 for a 32nd of the model's width, at least 32. Rounded up to 32.
    pub rank: usize,
    /// Share of active neurons that it has to choose in each layer.
    pub recall: f64,
    /// Share of neurons that count as active, those that add the most to each token; `None` for those that are not 0.
    pub density: Option<f32>,
    /// Threads that layers are shared out to.
    pub n_threads: usize,
}

/// Why no predictor was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictorError {
    /// The text was not read to its end.
    #[error(transparent)]
    Read(#[from] EvaluateError),
    /// The text has too few chunks.
    #[error("the text has {0} chunks: a predictor needs {CHUNKS_MIN}")]
    TooShort(usize),
    /// No neuron is 0 by the activation.
    #[error(
        "the model's activation gives no zeros: set the share of neurons that count as active (--density)"
    )]
    NoZeros,
    /// The model has no dense networks.
    #[error("the model has no dense feed-forward networks")]
    NoNetworks,
    /// All layers missed the recall.
    #[error("no layer reaches the recall: nothing was written")]
    NoLayer,
    /// Values that are not finite.
    #[error("the model's activations or weights are not finite")]
    NotFinite,
    /// The norms of neurons cannot be computed.
    #[error(transparent)]
    Norms(#[from] NormsError),
    /// The model's file cannot be hashed.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// A layer's predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedLayer {
    /// (rank, n_embd)
    pub(crate) down: Option<Encoded>,
    /// (n_ff, rank), or (n_ff, n_embd)
    pub(crate) up: Encoded,
    /// (n_ff)
    pub(crate) bias: Vec<f32>,
    /// Neurons with scores above it are chosen.
    pub(crate) threshold: f32,
    /// What it chooses on chunks that it was not made from.
    pub measured: PredictorMeasure,
    /// Whether logistic regression made it better.
    pub is_refined: bool,
}

/// What became of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerOutcome {
    /// Its predictor, if it has one.
    pub trained: Option<TrainedLayer>,
    /// What the predictor chooses; `None` without a dense network.
    pub measured: Option<PredictorMeasure>,
}

impl LayerOutcome {
    fn bias_bytes(&self) -> Vec<u8> {
        let bias = self.trained.iter().flat_map(|layer| &layer.bias);
        bias.flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// A model's predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedPredictor {
    /// Rows of the first matrices; 0 for signs.
    pub rank: usize,
    /// Each of the model's layers.
    pub layers: Vec<LayerOutcome>,
}

/// Makes a predictor of the session's model from chunks of equal length. `progress` gets the numbers of layers done
/// and of all.
///
/// # Errors
/// [`PredictorError`].
pub fn train(
    session: &mut Session,
    chunks: &[&[u32]],
    options: &PredictorOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<TrainedPredictor, PredictorError> {
    let model = session.model().clone();
    let config = model.config();
    let active = active(config, options)?;
    if chunks.len() < CHUNKS_MIN {
        return Err(PredictorError::TooShort(chunks.len()));
    }
    let norms = neuron_norms(model.weights(), options.n_threads)?;
    let chunk_len = chunks[0].len();
    let n_held = chunk_len * (chunks.len() / CHUNKS_MIN);
    let n_train = chunk_len * chunks.len() - 2 * n_held;
    let plan = Training {
        weights: model.weights(),
        rank: rank(config, options),
        norms: &norms,
        options,
        n_train,
        n_held,
    };
    let (n_layer, mut layers) = (config.n_layer(), Vec::new());
    progress(0, n_layer);
    while layers.len() < n_layer {
        let end = (layers.len() + plan.layers_at_once(config)).min(n_layer);
        let collector = Collector::new(config, layers.len()..end, active, n_train, &norms);
        session.read(chunks, chunk_len - 1, Some(&collector), |_, _, _| ())?;
        let samples = collector.into_samples();
        layers.extend(plan.layers(layers.len(), samples)?);
        progress(layers.len(), n_layer);
    }
    let rank = match options.kind {
        PredictorKind::Sign => 0,
        _ => plan.rank,
    };
    Ok(TrainedPredictor { rank, layers })
}

fn active(config: &ModelConfig, options: &PredictorOptions) -> Result<Active, PredictorError> {
    let dense = |layer| n_ff(config, layer).is_some();
    if !(0..config.n_layer()).any(dense) {
        return Err(PredictorError::NoNetworks);
    }
    let has_zeros = config
        .activation()
        .is_some_and(|activation| activation.has_zeros());
    match options.density {
        Some(share) => Ok(Active::Largest(share)),
        None if has_zeros => Ok(Active::NotZero),
        None => Err(PredictorError::NoZeros),
    }
}

/// The rank, within the dimensions of the narrowest network.
fn rank(config: &ModelConfig, options: &PredictorOptions) -> usize {
    let n_ff = (0..config.n_layer()).filter_map(|layer| n_ff(config, layer));
    let narrowest = n_ff.min().unwrap_or(0).min(config.n_embd);
    let asked = match options.rank {
        0 => (config.n_embd / 32).max(32),
        rank => rank,
    };
    asked.next_multiple_of(32).min(narrowest)
}

/// The minimum number of chunks.
pub const CHUNKS_MIN: usize = 8;

#[cfg(test)]
mod tests;
