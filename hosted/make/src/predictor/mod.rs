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
mod network;
mod refine;
mod rows;
mod signs;
mod write;

use collect::{Active, Collector, TextPart};
pub use cut::Measured as PredictorMeasure;
use layer::{ROWS_MIN, Training};
use network::Network;
use sluice::Session;
use sluice::evaluate::EvaluateError;
use sluice::file::OutputError;
use sluice::identity::HashError;
use sluice::sparse::NormsError;
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
    /// The model has no networks.
    #[error("the model has no feed-forward networks")]
    NoNetworks,
    /// All networks missed the recall.
    #[error("no network reaches the recall: nothing was written")]
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

/// A network's predictor.
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

/// What became of a network: a layer's dense one, or an expert.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkOutcome {
    /// Its layer.
    pub layer: usize,
    /// The expert; `None` for a dense network.
    pub expert: Option<u32>,
    /// Rows that it was trained with.
    pub n_rows: usize,
    /// Its predictor, if it has one.
    pub trained: Option<TrainedLayer>,
    /// What the predictor chooses; `None` for an expert with fewer rows than [`EXPERT_ROWS_MIN`], or too few to measure it.
    pub measured: Option<PredictorMeasure>,
}

/// A model's predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedPredictor {
    /// Rows of the first matrices; 0 for signs.
    pub rank: usize,
    /// The number of the model's layers.
    pub n_layer: usize,
    /// Each of the model's networks, by layer, then by expert.
    pub networks: Vec<NetworkOutcome>,
}

impl TrainedPredictor {
    /// The networks of a layer.
    pub fn of_layer(&self, layer: usize) -> impl Iterator<Item = &NetworkOutcome> {
        self.networks
            .iter()
            .filter(move |network| network.layer == layer)
    }
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
    let norms = model.neuron_norms(options.n_threads)?;
    let chunk_len = chunks[0].len();
    let n_held = chunks.len() / CHUNKS_MIN;
    let (train, held) = chunks.split_at(chunks.len() - 2 * n_held);
    let (set, measure) = held.split_at(n_held);
    let training = Training {
        weights: model.weights(),
        rank: rank(config, options),
        norms: &norms,
        options,
    };
    let (n_layer, mut layer, mut networks) = (config.n_layer(), 0, Vec::new());
    progress(0, n_layer);
    while layer < n_layer {
        let end = last_at_once(config, layer, train.len() * chunk_len, n_held * chunk_len);
        let collector = Collector::new(config, layer..end, active, &norms);
        for (part, chunks) in [
            (TextPart::Train, train),
            (TextPart::Set, set),
            (TextPart::Measure, measure),
        ] {
            collector.begin(part);
            session.read(chunks, chunk_len - 1, Some(&collector), |_, _, _| ())?;
        }
        networks.extend(training.networks(collector.into_samples())?);
        layer = end;
        progress(layer, n_layer);
    }
    let rank = match options.kind {
        PredictorKind::Sign => 0,
        _ => training.rank,
    };
    Ok(TrainedPredictor {
        rank,
        n_layer,
        networks,
    })
}

/// The end of the layers from `first` on whose rows are in memory at once.
fn last_at_once(config: &ModelConfig, first: usize, n_train: usize, n_held: usize) -> usize {
    let mut bytes = 0;
    let fits = |layer: &usize| {
        let networks = Network::of(config, *layer).into_iter();
        bytes += networks
            .map(|network| network.bytes(n_train, n_held))
            .sum::<usize>();
        bytes <= SAMPLE_BYTES || *layer == first
    };
    first + (first..config.n_layer()).take_while(fits).count()
}

fn active(config: &ModelConfig, options: &PredictorOptions) -> Result<Active, PredictorError> {
    if Network::all(config).next().is_none() {
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
    let widths = Network::all(config).map(|network| network.n_in.min(network.n_ff));
    let narrowest = widths.min().unwrap_or(0);
    let asked = match options.rank {
        0 => (config.n_embd / 32).max(32),
        rank => rank,
    };
    asked.next_multiple_of(32).min(narrowest)
}

/// The minimum number of rows that an expert's predictor is made from.
pub const EXPERT_ROWS_MIN: usize = ROWS_MIN;
/// Bytes of rows that are in memory at once, about.
const SAMPLE_BYTES: usize = 1 << 30;
/// The minimum number of chunks.
pub const CHUNKS_MIN: usize = 8;

#[cfg(test)]
mod tests;
