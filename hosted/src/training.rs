//! Passes of training: the loss of texts, and the gradients of an adapter over a model's frozen weights.

use crate::host::memory::{AlignedMemory, OutOfMemory};
use crate::model::Model;
use crate::owned::{Borrower, Owned};
use crate::session::{Limits, Session, SessionError, StepError, StepHooks};
use crate::team::Team;
use sluice_core::engine::backward::{
    Backward, BackwardError, BackwardLimits, BackwardOptions, BackwardPlan, BackwardStep,
    GradientType, Loss, TrainedPair,
};
use sluice_core::engine::{
    Adapter, AdapterError, AdapterPair, BatchEntry, Blend, BlendPart, Wants,
};
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::lora::{LoraMatrix, LoraType};
use sluice_core::kernels::{KernelTable, KvType};
use sluice_core::model::{ModelConfig, Site};
use sluice_core::team::WaitPolicy;
use thiserror::Error;

/// The size of passes.
#[derive(Clone, Copy, Debug)]
pub struct TrainingLimits {
    /// Maximum tokens of a pass, over all of its texts.
    pub n_tokens: usize,
    /// Maximum tokens of a text.
    pub n_text: usize,
    /// Maximum texts of a pass.
    pub n_texts: usize,
    /// Whether the products of all layers are kept for the backward pass. Otherwise each layer is computed once more, and the
    /// memory of one is enough (gradient checkpointing).
    pub keeps_all: bool,
    /// How gradients of layers' inputs are computed.
    pub gradients: GradientType,
    /// Element types of keys and values in the KV cache: f32, f16 or bf16.
    pub types: (KvType, KvType),
    /// The kernels; `None` for the fastest that run here.
    pub table: Option<&'static KernelTable>,
}

/// The place of a matrix that is trained, and the rank of its adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainedMatrix {
    /// The layer.
    pub layer: usize,
    /// The matrix in it.
    pub site: Site,
    /// The rank.
    pub rank: usize,
    /// α / r, or what stands in its place.
    pub scale: f32,
}

/// A matrix of [`TrainedAdapter`]: where its numbers are.
#[derive(Clone, Copy, Debug)]
struct Place {
    matrix: TrainedMatrix,
    n_in: usize,
    n_out: usize,
    /// The first element of A, (rank, n_in), and of B, (n_out, rank).
    a: usize,
    b: usize,
}

/// The matrices of an adapter in f32, and a gradient of the same shape: A, then B of each, in the order of the matrices.
#[derive(Clone, Debug)]
pub struct TrainedAdapter {
    places: Vec<Place>,
    /// All elements.
    pub values: Vec<f32>,
    /// The sum of the gradients since they were set to zero.
    pub gradients: Vec<f32>,
    /// A of each matrix, column after column; B as the engine multiplies it, and A.
    columns: Vec<f32>,
    packed: Vec<[Vec<u8>; 2]>,
}

/// Why a training pass failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// Memory for the passes cannot be had.
    #[error("no {bytes} bytes of memory for the passes: {error}")]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// Why not.
        error: OutOfMemory,
    },
    /// The session was not made.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The model has a part that cannot be trained, or texts do not fit.
    #[error(transparent)]
    Backward(#[from] BackwardError),
    /// A step of the forward pass failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The model has no such matrix.
    #[error("layer {} has no matrix {:?}", .0.layer, .0.site)]
    NoMatrix(TrainedMatrix),
    /// Matrices are not sorted by layer and site, or do not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A number of the adapter is not finite.
    #[error("a number of the adapter is not finite: {0:?}")]
    NotFinite(TrainedMatrix),
    /// There are more texts than the limits allow.
    #[error("{n} texts in a pass, at most {max}")]
    TooManyTexts {
        /// Texts.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// A worker panicked.
    #[error("a worker panicked")]
    Panicked,
}

impl TrainedAdapter {
    /// An adapter of these matrices, sorted by layer and site, all zero.
    ///
    /// # Errors
    /// [`TrainingError::NoMatrix`].
    pub fn new(model: &Model, matrices: &[TrainedMatrix]) -> Result<Self, TrainingError> {
        let config = model.config();
        let (mut n, mut n_columns) = (0, 0);
        let mut places = Vec::with_capacity(matrices.len());
        let mut packed = Vec::with_capacity(matrices.len());
        for matrix in matrices {
            let kind = (matrix.layer < config.n_layer()).then(|| config.kind(matrix.layer));
            let shape = kind.and_then(|kind| matrix.site.shape(kind, config.n_embd));
            let [n_out, n_in] = shape.ok_or(TrainingError::NoMatrix(*matrix))?;
            let (a, b) = (n, n + matrix.rank * n_in);
            n = b + n_out * matrix.rank;
            n_columns += matrix.rank * n_in;
            let of = |rows, cols| LoraMatrix::bytes_of(LoraType::F32, rows, cols).unwrap_or(0);
            packed.push([of(matrix.rank, n_in), of(n_out, matrix.rank)].map(|n| vec![0; n]));
            places.push(Place {
                matrix: *matrix,
                n_in,
                n_out,
                a,
                b,
            });
        }
        Ok(Self {
            places,
            values: vec![0.0; n],
            gradients: vec![0.0; n],
            columns: vec![0.0; n_columns],
            packed,
        })
    }

    /// The matrices, with the ranges of their A, (rank, columns), and B, (rows, rank), in the values.
    pub fn matrices(
        &self,
    ) -> impl Iterator<Item = (TrainedMatrix, [core::ops::Range<usize>; 2], [usize; 2])> {
        self.places.iter().map(|place| {
            let rank = place.matrix.rank;
            let [a, b] = [
                place.a..place.a + rank * place.n_in,
                place.b..place.b + place.n_out * rank,
            ];
            (place.matrix, [a, b], [place.n_out, place.n_in])
        })
    }

    /// Makes copies of changed values in the order in which the engine and the backward pass read them.
    ///
    /// # Errors
    /// [`TrainingError::NotFinite`].
    pub fn publish(&mut self) -> Result<(), TrainingError> {
        let mut start = 0;
        for (place, [a, b]) in self.places.iter().zip(&mut self.packed) {
            let (rank, n_in, n_out) = (place.matrix.rank, place.n_in, place.n_out);
            let of_a = &self.values[place.a..place.b];
            let of_b = &self.values[place.b..place.b + n_out * rank];
            let columns = &mut self.columns[start..start + rank * n_in];
            for (column, out) in columns.chunks_exact_mut(rank).enumerate() {
                for (row, out) in out.iter_mut().enumerate() {
                    *out = of_a[row * n_in + column];
                }
            }
            start += columns.len();
            let pack = |shape, values, memory| {
                LoraMatrix::pack(LoraType::F32, shape, values, memory).is_some()
            };
            if !pack([rank, n_in], of_a, a) || !pack([n_out, rank], of_b, b) {
                return Err(TrainingError::NotFinite(place.matrix));
            }
        }
        Ok(())
    }

    fn pairs(&self) -> Vec<AdapterPair<'_>> {
        let packed = self.places.iter().zip(&self.packed);
        let pairs = packed.filter_map(|(place, [a, b])| {
            let TrainedMatrix {
                layer,
                site,
                rank,
                scale,
            } = place.matrix;
            Some(AdapterPair {
                layer,
                site,
                part: None,
                a: LoraMatrix::new(LoraType::F32, [rank, place.n_in], a)?,
                b: LoraMatrix::new(LoraType::F32, [place.n_out, rank], b)?,
                scale,
            })
        });
        pairs.collect()
    }

    fn trained(&self) -> Vec<TrainedPair<'_>> {
        let mut start = 0;
        let pairs = self.places.iter().map(|place| {
            let TrainedMatrix {
                layer,
                site,
                rank,
                scale,
            } = place.matrix;
            let len = rank * place.n_in;
            start += len;
            TrainedPair {
                layer,
                site,
                rank,
                a: &self.values[place.a..place.b],
                a_columns: &self.columns[start - len..start],
                b: &self.values[place.b..place.b + place.n_out * rank],
                scale,
                gradient_a: place.a,
                gradient_b: place.b,
            }
        });
        pairs.collect()
    }
}

/// A text, and which of its tokens are predicted.
#[derive(Clone, Copy, Debug)]
pub struct TrainingText<'a> {
    /// Its tokens.
    pub tokens: &'a [u32],
    /// The label of each token: the one after it, or [`NO_LABEL`](sluice_core::engine::backward::NO_LABEL).
    pub labels: &'a [u32],
}

/// A model that is trained: a session for the forward pass, and the memory of backward passes.
pub struct Training {
    session: Session,
    backward: Owned<Backwards, AlignedMemory>,
    limits: TrainingLimits,
    batch: Vec<BatchEntry>,
    lengths: Vec<u32>,
    tokens: Vec<u32>,
    labels: Vec<u32>,
}

impl Training {
    /// Memory for passes over `model` on the threads of `team`, for adapters of up to rank `rank`.
    ///
    /// # Errors
    /// [`TrainingError`]: a part of the model that cannot be trained, limits out of range, memory.
    pub fn new(
        model: &Model,
        team: &Team,
        rank: usize,
        limits: TrainingLimits,
    ) -> Result<Self, TrainingError> {
        let of_backward = backward_limits(model.config(), team, rank, &limits);
        let plan = BackwardPlan::new(model.config(), &of_backward)?;
        let session = model.session_on(
            team,
            Limits {
                n_ctx: limits.n_tokens + limits.n_texts * sluice_core::state::PAGE_TOKENS,
                n_seq: limits.n_texts,
                n_batch: limits.n_tokens,
                n_outputs: 1,
                n_hidden: limits.n_tokens,
                types: Some(limits.types),
                adapter_rank: rank.next_multiple_of(16),
                adapter_kinds: ActivationKinds::F32,
                observes: true,
                n_behind: 0,
                table: limits.table,
                ..Limits::default()
            },
        )?;
        let memory = AlignedMemory::zeroed(plan.bytes).map_err(|error| TrainingError::Memory {
            bytes: plan.bytes,
            error,
        })?;
        let weights = model.weights();
        let backward = Owned::new(memory, |memory| {
            Backward::new(weights, &of_backward, memory)
        })?;
        Ok(Self {
            session,
            backward,
            limits,
            batch: Vec::with_capacity(limits.n_tokens),
            lengths: Vec::with_capacity(limits.n_texts),
            tokens: Vec::with_capacity(limits.n_tokens),
            labels: Vec::with_capacity(limits.n_tokens),
        })
    }

    /// Bytes of the backward passes' memory.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn plan(
        config: &ModelConfig,
        team: &Team,
        rank: usize,
        limits: &TrainingLimits,
    ) -> Result<BackwardPlan, TrainingError> {
        let limits = backward_limits(config, team, rank, limits);
        Ok(BackwardPlan::new(config, &limits)?)
    }

    /// The limits it was made with.
    #[must_use]
    pub const fn limits(&self) -> &TrainingLimits {
        &self.limits
    }

    /// The session of the forward pass.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Adds the losses of texts to `sums`, without gradients.
    ///
    /// # Errors
    /// [`TrainingError`].
    pub fn evaluate(
        &mut self,
        texts: &[TrainingText<'_>],
        factors: &TrainedAdapter,
        sums: &mut Loss,
    ) -> Result<(), TrainingError> {
        self.begin(texts)?;
        self.forward(factors, false)?;
        self.head(sums)
    }

    /// Adds the losses of texts to `sums`, and the gradients of their sum to `factors`: text by text, in their order.
    ///
    /// # Errors
    /// [`TrainingError`]. The gradients are then undefined.
    pub fn accumulate(
        &mut self,
        texts: &[TrainingText<'_>],
        factors: &mut TrainedAdapter,
        sums: &mut Loss,
    ) -> Result<(), TrainingError> {
        self.begin(texts)?;
        self.forward(factors, self.limits.keeps_all)?;
        self.head(sums)?;
        let lowest = factors
            .places
            .first()
            .map_or(usize::MAX, |place| place.matrix.layer);
        let mut gradients = core::mem::take(&mut factors.gradients);
        let result = (lowest..self.session.model().config().n_layer())
            .rev()
            .try_for_each(|layer| self.layer(layer, factors, &mut gradients));
        factors.gradients = gradients;
        result
    }

    fn begin(&mut self, texts: &[TrainingText<'_>]) -> Result<(), TrainingError> {
        let max = self.limits.n_texts;
        if texts.len() > max {
            let n = texts.len();
            return Err(TrainingError::TooManyTexts { n, max });
        }
        for list in [&mut self.lengths, &mut self.tokens, &mut self.labels] {
            list.clear();
        }
        self.batch.clear();
        for (sequence, text) in (0..).zip(texts) {
            self.lengths
                .push(u32::try_from(text.tokens.len()).unwrap_or(u32::MAX));
            self.tokens.extend(text.tokens);
            self.labels.extend(text.labels);
            let entries = (0..).zip(text.tokens).map(|(position, token)| BatchEntry {
                token: *token,
                sequence,
                position,
                wants: Wants::Hidden,
                adapter: Some(0),
            });
            self.batch.extend(entries);
        }
        let Self {
            session,
            backward,
            lengths,
            tokens,
            ..
        } = self;
        let wait = session.team().wait_policy();
        let options = options(session, lengths, &wait);
        backward.with_mut(|backward| backward.begin(options, tokens))?;
        Ok(())
    }

    /// Runs all layers one by one; their inputs are kept, and the products of all of them if they `are_kept`.
    fn forward(&mut self, factors: &TrainedAdapter, are_kept: bool) -> Result<(), TrainingError> {
        for layer in 0..self.session.model().config().n_layer() {
            self.run_layer(layer, factors, are_kept, true)?;
        }
        Ok(())
    }

    fn run_layer(
        &mut self,
        layer: usize,
        factors: &TrainedAdapter,
        is_kept: bool,
        writes: bool,
    ) -> Result<(), TrainingError> {
        let pairs = factors.pairs();
        let model = self.session.model().clone();
        let adapter = Adapter::new(model.config(), &pairs, None)?;
        let parts = [BlendPart {
            adapter: &adapter,
            scale: 1.0,
        }];
        let adapters = [Blend { parts: &parts }];
        let Self {
            session,
            backward,
            batch,
            ..
        } = self;
        backward.with_mut(|backward| {
            let n = batch.len() * model.config().n_embd;
            let mut output = vec![0.0; if writes { n } else { 0 }];
            let keeper = is_kept.then(|| backward.observer(model.weights(), layer));
            let hooks = StepHooks {
                adapters: &adapters,
                observer: keeper.as_ref().map(|keeper| keeper as _),
                ..StepHooks::default()
            };
            session.run_layers(
                layer..layer + 1,
                backward.stream(layer),
                batch,
                &hooks,
                |outputs| {
                    let rows = output.chunks_exact_mut(model.config().n_embd);
                    for (entry, row) in rows.enumerate() {
                        if let Some(hidden) = outputs.hidden(entry) {
                            row.copy_from_slice(hidden);
                        }
                    }
                },
            )?;
            if writes {
                backward.stream_mut(layer + 1).copy_from_slice(&output);
            }
            Ok(())
        })
    }

    fn head(&mut self, sums: &mut Loss) -> Result<(), TrainingError> {
        let Self {
            session,
            backward,
            lengths,
            labels,
            ..
        } = self;
        let team = session.team().clone();
        let wait = team.wait_policy();
        let options = options(session, lengths, &wait);
        backward.with_mut(|backward| run(&team, backward.head(options, labels)?, sums))
    }

    fn layer(
        &mut self,
        layer: usize,
        factors: &TrainedAdapter,
        gradients: &mut [f32],
    ) -> Result<(), TrainingError> {
        if !self.limits.keeps_all {
            self.run_layer(layer, factors, true, false)?;
        }
        let pairs = factors.trained();
        let Self {
            session,
            backward,
            lengths,
            ..
        } = self;
        let team = session.team().clone();
        let wait = team.wait_policy();
        let options = options(session, lengths, &wait);
        backward.with_mut(|backward| {
            let step = backward.layer(options, layer, &pairs, gradients)?;
            run(&team, step, &mut Loss::default())
        })
    }
}

/// What a step of the backward pass needs.
fn options<'s>(
    session: &'s Session,
    lengths: &'s [u32],
    wait: &'s dyn WaitPolicy,
) -> BackwardOptions<'s> {
    BackwardOptions {
        model: session.model().weights(),
        table: session.table(),
        lengths,
        wait,
        stop: session.stop(),
    }
}

/// Runs a step on all threads.
fn run(team: &Team, step: BackwardStep<'_, '_>, sums: &mut Loss) -> Result<(), TrainingError> {
    let outcome = team.run(|rank| {
        if let Some(worker) = step.join(rank) {
            // `finish` returns why it stopped, the same for all ranks.
            let _stopped = worker.run();
        }
    });
    outcome.map_err(|_| TrainingError::Panicked)?;
    Ok(step.finish(sums)?)
}

fn backward_limits(
    config: &ModelConfig,
    team: &Team,
    rank: usize,
    limits: &TrainingLimits,
) -> BackwardLimits {
    BackwardLimits {
        n_tokens: limits.n_tokens,
        n_text: limits.n_text,
        rank,
        n_workers: team.count(),
        n_kept: if limits.keeps_all {
            config.n_layer()
        } else {
            1
        },
        gradients: limits.gradients,
        type_k: limits.types.0,
        type_v: limits.types.1,
    }
}

impl core::fmt::Debug for Training {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Training")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Memories of backward passes.
struct Backwards;

impl Borrower for Backwards {
    type Of<'a> = Backward<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Backward<'a>) -> &'s Backward<'s> {
        value
    }
}
