//! Embeddings of texts by a real model, and streams of them in lanes of few bits.

use super::error::{SparseInferenceError, SparseResult};
use crate::embed::EmbedOptions;
use crate::model::Model;
use crate::session::{Limits, Session};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::{max_abs, quantize_rows};
use sluice_core::sparse::pi::{DriftDetector, QuantizationHonesty};
use sluice_core::sparse::{
    GraduationDecision, GraduationPolicy, LaneConfig, LaneTelemetry, ObservationMetrics,
    PrecisionLane, SparsityError, check_len, check_within,
};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Elements of a block of a lane.
const BLOCK: usize = 32;
/// Tokens computed at once.
const N_BATCH: usize = 512;

/// Makes vectors of texts.
pub trait EmbeddingProvider: Send + Sync {
    /// The vector of a text.
    ///
    /// # Errors
    /// A text that is empty, too long, or cannot be made into tokens.
    fn embed_text(&self, text: &str) -> SparseResult<Vec<f32>>;

    /// The vector of tokens.
    ///
    /// # Errors
    /// No tokens, too many, or one that the vocabulary does not have.
    fn embed_tokens(&self, tokens: &[u32]) -> SparseResult<Vec<f32>>;

    /// Elements of a vector.
    fn dimension(&self) -> usize;

    /// Its name.
    fn name(&self) -> &str;
}

/// Embeds texts with a model, as [`Session::embed`] does: pooled as its file asks for, of length 1. Modes that leave neurons
/// out are the model's ([`crate::model::ModelSource::with_sparse`]).
#[derive(Debug)]
pub struct SparseEmbeddingProvider {
    model: Model,
    session: Mutex<Session>,
    name: String,
}

impl SparseEmbeddingProvider {
    /// Of a GGUF or `.slc` file.
    ///
    /// # Errors
    /// The file is not a model that can be run, or memory does not suffice.
    pub fn from_gguf(path: impl AsRef<Path>) -> SparseResult<Self> {
        Self::from_model(&Model::open(path)?)
    }

    /// Of a loaded model.
    ///
    /// # Errors
    /// No memory for a session.
    pub fn from_model(model: &Model) -> SparseResult<Self> {
        let longest = model.config().n_ctx_train.max(1);
        let limits = Limits::for_embedding(model, longest, N_BATCH);
        Ok(Self {
            name: model.name().to_owned(),
            session: Mutex::new(model.session(limits)?),
            model: model.clone(),
        })
    }

    /// [`EmbeddingProvider::embed_text`]
    ///
    /// # Errors
    /// A text that is empty, too long, or cannot be made into tokens.
    pub fn embed(&self, text: &str) -> SparseResult<Vec<f32>> {
        let mut all = self.embed_batch(&[text])?;
        Ok(all.pop().unwrap_or_default())
    }

    /// A vector for each text; each is as alone.
    ///
    /// # Errors
    /// As [`SparseEmbeddingProvider::embed`].
    pub fn embed_batch<T: AsRef<str>>(&self, texts: &[T]) -> SparseResult<Vec<Vec<f32>>> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(session.embed(texts)?)
    }

    /// Elements of a vector.
    #[must_use]
    pub fn embedding_dim(&self) -> usize {
        self.model.config().n_embd
    }

    /// An empty stream of vectors as wide as this provider's.
    ///
    /// # Errors
    /// A width that is not a multiple of 32.
    pub fn stream(&self, config: impl Into<LaneConfig>) -> SparseResult<StreamedEmbedding> {
        StreamedEmbedding::with_width(self.embedding_dim(), config)
    }
}

impl EmbeddingProvider for SparseEmbeddingProvider {
    fn embed_text(&self, text: &str) -> SparseResult<Vec<f32>> {
        self.embed(text)
    }

    fn embed_tokens(&self, tokens: &[u32]) -> SparseResult<Vec<f32>> {
        let options = EmbedOptions::of(&self.model);
        let mut vector = Vec::new();
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.embed_tokens(&[tokens.to_vec()], &options, |_, embedding| {
            vector.extend_from_slice(embedding);
        })?;
        Ok(vector)
    }

    fn dimension(&self) -> usize {
        self.embedding_dim()
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A vector in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVector {
    lane: PrecisionLane,
    n: usize,
    bytes: Box<[u8]>,
}

impl StoredVector {
    /// Stores a vector: blocks of 32 elements, quantised by least squares.
    ///
    /// # Errors
    /// A width that is not a multiple of 32, a number that is not finite, or above 65504 in a lane of few bits.
    pub fn new(lane: PrecisionLane, vector: &[f32]) -> SparseResult<Self> {
        let (what, n, ty) = ("vector", vector.len(), lane.tensor_type());
        check_width(n)?;
        let refused = SparseInferenceError::Quantization;
        check_within(what, vector, max_abs(ty)).map_err(refused)?;
        let mut bytes = vec![0; n / ty.block_len() * ty.block_bytes()].into_boxed_slice();
        let (width, block) = (n, BLOCK);
        quantize_rows(ty, vector, n, None, &mut bytes)
            .map_err(|_| refused(SparsityError::Width { what, width, block }))?;
        Ok(Self { lane, n, bytes })
    }

    /// How it compares with `vector`, from which it was made, both as if that had the length 1.
    fn compare(&self, vector: &[f32]) -> QuantizationHonesty {
        let length = length(vector);
        let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
        #[expect(clippy::cast_possible_truncation, reason = "to the nearest f32")]
        let scaled =
            |x: &[f32]| -> Vec<f32> { x.iter().map(|x| (f64::from(*x) * scale) as f32).collect() };
        DriftDetector::new(self.lane).compare(&scaled(vector), &scaled(&self.decode()))
    }

    /// The lane.
    #[must_use]
    pub const fn lane(&self) -> PrecisionLane {
        self.lane
    }

    /// Bytes in memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The vector, as far as the lane keeps it.
    #[must_use]
    pub fn decode(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.n];
        dequantize_row(self.lane.tensor_type(), &self.bytes, &mut out);
        out
    }
}

/// Vectors one after the other, each in the lane that a [`GraduationPolicy`] chooses.
///
/// What the policy observes of a vector v, with m the mean of the vectors before it and a that mean at the last change of
/// lane:
///
/// | | is |
/// |---|---|
/// | novelty | 1 - cos(v, m) |
/// | drift | 1 - cos(m, a); 1 where action is needed, so that a lane that goes on losing too much is raised |
/// | stability | cos with the vector before |
/// | velocity | the angle to the vector before, by π |
/// | confidence | n / (n + 1) for n vectors so far |
/// | uncertainty | 1 - length of m by the mean length of the vectors: near 1 where they point everywhere |
/// | active set | elements above a hundredth of the largest |
/// | action needed | whether the vector before, at length 1, lost over three times what its lane may ([`DriftDetector`]) |
///
/// A lower lane is not taken while the vector would lose over twice what that lane may.
#[derive(Clone, Debug)]
pub struct StreamedEmbedding {
    policy: GraduationPolicy,
    telemetry: LaneTelemetry,
    stored: Vec<StoredVector>,
    /// Elements of each vector; `None` before the first, where it may have any number.
    width: Option<usize>,
    mean: Vec<f32>,
    mean_length: f64,
    anchor: Vec<f32>,
    last: Vec<f32>,
    is_action_needed: bool,
}

impl StreamedEmbedding {
    /// An empty stream of any width, in the default lane. Takes a [`LaneConfig`] or a [`super::GraduationConfig`].
    pub fn new(config: impl Into<LaneConfig>) -> Self {
        let config = config.into();
        let lane = config.default_lane;
        Self {
            policy: GraduationPolicy::new(lane, config),
            telemetry: LaneTelemetry::new(lane),
            stored: Vec::new(),
            width: None,
            mean: Vec::new(),
            mean_length: 0.0,
            anchor: Vec::new(),
            last: Vec::new(),
            is_action_needed: false,
        }
    }

    /// An empty stream of vectors of `width` elements: [`StreamedEmbedding::new`].
    ///
    /// # Errors
    /// A width that is not a multiple of 32.
    pub fn with_width(width: usize, config: impl Into<LaneConfig>) -> SparseResult<Self> {
        check_width(width)?;
        Ok(Self {
            width: Some(width),
            ..Self::new(config)
        })
    }

    /// Adds a text's vector.
    ///
    /// # Errors
    /// As [`EmbeddingProvider::embed_text`] and [`StreamedEmbedding::push_vector`].
    pub fn push(
        &mut self,
        provider: &dyn EmbeddingProvider,
        text: &str,
    ) -> SparseResult<&StoredVector> {
        let vector = provider.embed_text(text)?;
        self.push_vector(&vector)
    }

    /// Adds a vector.
    ///
    /// # Errors
    /// A width that is not a multiple of 32, or another one than the stream's; a number that is not finite, or above
    /// 65504; a threshold of the policy that is not a number. Nothing has changed then.
    pub fn push_vector(&mut self, vector: &[f32]) -> SparseResult<&StoredVector> {
        let start = Instant::now();
        check_width(vector.len())?;
        check_len("vector", vector.len(), self.width.unwrap_or(vector.len()))?;
        // Refuses what cannot be stored in any lane, before anything changes.
        let most = max_abs(PrecisionLane::Bit3.tensor_type());
        check_within("vector", vector, most).map_err(SparseInferenceError::Quantization)?;
        let seen = self.observe(vector);
        let mut decision = self.policy.try_evaluate(&seen)?;
        let before = self.policy.current_lane;
        let mut stored = StoredVector::new(lane_after(before, decision), vector)?;
        let mut honesty = stored.compare(vector);
        if matches!(decision, GraduationDecision::Demote(_)) && !honesty.is_honest {
            decision = GraduationDecision::Stay;
            stored = StoredVector::new(before, vector)?;
            honesty = stored.compare(vector);
        }
        if let Some(reason) = self.policy.reason(decision) {
            self.telemetry
                .record_transition(before, stored.lane, reason);
            self.anchor.clone_from(&self.mean);
        }
        self.policy.apply_decision(decision);
        self.is_action_needed = honesty.should_escalate;
        self.remember(vector);
        let bytes = stored.bytes() as u64;
        self.telemetry
            .record_operation(start.elapsed(), bytes, seen.active_set_size);
        self.stored.push(stored);
        Ok(&self.stored[self.stored.len() - 1])
    }

    fn observe(&self, vector: &[f32]) -> ObservationMetrics {
        let n = self.stored.len();
        let largest = vector.iter().fold(0f32, |most, x| most.max(x.abs()));
        let active = vector.iter().filter(|x| x.abs() > largest * 0.01).count();
        let alike = match n {
            0 => [1.0; 3],
            _ => [
                cosine(vector, &self.mean),
                cosine(&self.mean, &self.anchor),
                cosine(vector, &self.last),
            ],
        };
        #[expect(clippy::cast_possible_truncation, reason = "from 0 to 1")]
        let concentration = match self.mean_length > 0.0 {
            true => (length(&self.mean) / self.mean_length) as f32,
            false => 0.0,
        };
        let drift = match self.is_action_needed {
            true => 1.0,
            false => (1.0 - alike[1]).clamp(0.0, 1.0),
        };
        ObservationMetrics {
            novelty: (1.0 - alike[0]).clamp(0.0, 1.0),
            drift,
            confidence: n as f32 / (n as f32 + 1.0),
            stability: alike[2].clamp(0.0, 1.0),
            velocity: alike[2].clamp(-1.0, 1.0).acos() / core::f32::consts::PI,
            uncertainty: (1.0 - concentration).clamp(0.0, 1.0),
            active_set_size: active,
            action_needed: self.is_action_needed,
        }
    }

    fn remember(&mut self, vector: &[f32]) {
        let n = self.stored.len() as f32 + 1.0;
        self.width = Some(vector.len());
        self.mean.resize(vector.len(), 0.0);
        for (mean, x) in self.mean.iter_mut().zip(vector) {
            *mean += (x - *mean) / n;
        }
        self.mean_length += (length(vector) - self.mean_length) / f64::from(n);
        if self.anchor.is_empty() {
            self.anchor.clone_from(&self.mean);
        }
        self.last.clear();
        self.last.extend_from_slice(vector);
    }

    /// The stored vectors, in their order.
    #[must_use]
    pub fn stored(&self) -> &[StoredVector] {
        &self.stored
    }

    /// The lane in use.
    #[must_use]
    pub const fn lane(&self) -> PrecisionLane {
        self.policy.current_lane
    }

    /// The policy and its averages.
    #[must_use]
    pub const fn policy(&self) -> &GraduationPolicy {
        &self.policy
    }

    /// Counts by lane.
    #[must_use]
    pub const fn telemetry(&self) -> &LaneTelemetry {
        &self.telemetry
    }

    /// Bytes of all vectors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.stored.iter().map(StoredVector::bytes).sum()
    }
}

/// The lane that a decision leads to.
const fn lane_after(lane: PrecisionLane, decision: GraduationDecision) -> PrecisionLane {
    match decision {
        GraduationDecision::Stay => lane,
        GraduationDecision::Escalate(lane) | GraduationDecision::Demote(lane) => lane,
    }
}

/// Whether vectors of a width are whole blocks.
fn check_width(width: usize) -> SparseResult<()> {
    let (what, block) = ("vector", BLOCK);
    match width > 0 && width.is_multiple_of(block) {
        true => Ok(()),
        false => Err(SparsityError::Width { what, width, block }.into()),
    }
}

/// 0 for a vector of zeros.
#[expect(clippy::cast_possible_truncation, reason = "within ±1")]
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let lengths = length(a) * length(b);
    match lengths > 0.0 {
        true => (dot(a, b) / lengths) as f32,
        false => 0.0,
    }
}

fn length(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}
