//! A backward pass and its steps, which the ranks of a team run together.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the rows of a phase have one owner: a block's argument is one"
)]

use super::error::BackwardError;
use super::keep::Keeper;
use super::room::{BackwardLimits, BackwardPlan, Rooms};
use super::run::Run;
use super::texts::{NO_LABEL, Texts};
use super::{TrainedPair, head, layer};
use crate::engine::pass::finish_embedding;
use crate::engine::scratch::Carve;
use crate::kernels::{FpEnv, KernelTable};
use crate::memory::{Arena, Shared};
use crate::model::{ModelWeights, Site};
use crate::team::{Meeting, Member, Ranks, Stop, StopFlag, WaitPolicy};
use core::fmt;

/// The memory of backward passes, and the texts of the current one.
#[derive(Debug)]
pub struct Backward<'m> {
    limits: BackwardLimits,
    rooms: Rooms<'m>,
    team: Ranks,
    n_embd: usize,
    n_rows: usize,
}

/// What a step of a backward pass works with.
#[derive(Clone, Copy)]
pub struct BackwardOptions<'s> {
    /// The model.
    pub model: &'s ModelWeights<'s>,
    /// The kernels.
    pub table: &'static KernelTable,
    /// Tokens of each text, as given to [`Backward::begin`].
    pub lengths: &'s [u32],
    /// How workers wait for each other.
    pub wait: &'s dyn WaitPolicy,
    /// Asks the step to stop.
    pub stop: &'s StopFlag,
}

impl fmt::Debug for BackwardOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackwardOptions").finish_non_exhaustive()
    }
}

/// Sums over labelled tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Cross-entropy, in nats, summed in f64 in the order of the rows.
    pub sum: f64,
    /// Labelled tokens.
    pub n_labelled: usize,
    /// Labelled tokens that had the largest logit.
    pub n_correct: usize,
}

impl<'m> Backward<'m> {
    /// Takes the caller's memory, of [`BackwardPlan::bytes`].
    ///
    /// # Errors
    /// As [`BackwardPlan::new`]; memory that is misaligned or too small.
    pub fn new(
        model: &ModelWeights<'_>,
        limits: &BackwardLimits,
        memory: &'m mut [u8],
    ) -> Result<Self, BackwardError> {
        let config = model.config();
        BackwardPlan::new(config, limits)?;
        let mut carve = Carve(Arena::new(memory)?);
        Ok(Self {
            limits: *limits,
            rooms: Rooms::new(config, limits, &mut carve)?,
            team: Ranks::new(limits.n_workers),
            n_embd: config.n_embd,
            n_rows: 0,
        })
    }

    /// The limits it was made with.
    pub const fn limits(&self) -> &BackwardLimits {
        &self.limits
    }

    /// Begins a pass over whole texts, one after the other: computes the embeddings of their tokens, stream 0.
    ///
    /// # Errors
    /// Texts that are empty or too long; a token that is not in the vocabulary.
    pub fn begin(
        &mut self,
        options: BackwardOptions<'_>,
        tokens: &[u32],
    ) -> Result<(), BackwardError> {
        let BackwardOptions {
            model,
            table,
            lengths,
            ..
        } = options;
        let (config, limits) = (model.config(), &self.limits);
        let texts = Texts { lengths };
        if lengths.contains(&0) || texts.n_rows() != tokens.len() || tokens.is_empty() {
            return Err(BackwardError::Lengths);
        }
        let longest = lengths.iter().fold(0, |n, len| n.max(*len as usize));
        for (n, max) in [(tokens.len(), limits.n_tokens), (longest, limits.n_text)] {
            if n > max {
                return Err(BackwardError::TooLong { n, max });
            }
        }
        if let Some(index) = tokens
            .iter()
            .position(|token| *token as usize >= config.n_vocab)
        {
            let token = tokens[index];
            return Err(BackwardError::UnknownToken { index, token });
        }
        self.n_rows = tokens.len();
        // SAFETY: no step is running: this call has the passes exclusively.
        let room = unsafe { self.rooms.rows.of(0).write(0..config.n_embd) };
        for (row, token) in tokens.iter().enumerate() {
            // SAFETY: as above.
            let x = unsafe { self.rooms.streams.row_mut(row) };
            model.embed(*token, x);
            finish_embedding(model, table, texts.position(row), x, room);
        }
        Ok(())
    }

    /// The stream before layer `layer`, or after the last, (rows, n_embd).
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn stream(&self, layer: usize) -> &[f32] {
        // SAFETY: steps and [`Self::stream_mut`] have the passes exclusively.
        unsafe { self.rooms.streams.memory.read(self.stream_range(layer)) }
    }

    /// As [`Self::stream`], to write what the engine computed.
    ///
    /// # Panics
    /// As [`Self::stream`].
    pub fn stream_mut(&mut self, layer: usize) -> &mut [f32] {
        // SAFETY: as in `stream`.
        unsafe { self.rooms.streams.memory.write(self.stream_range(layer)) }
    }

    fn stream_range(&self, layer: usize) -> core::ops::Range<usize> {
        let start = layer * self.limits.n_tokens * self.n_embd;
        start..start + self.n_rows * self.n_embd
    }

    /// The gradient of the stream before the layer whose backward pass ran last, (rows, n_embd).
    pub fn gradient(&self) -> &[f32] {
        // SAFETY: steps have the passes exclusively.
        unsafe { self.rooms.d.memory.read(0..self.n_rows * self.n_embd) }
    }

    /// Keeps the products of layer `layer` while the engine computes it.
    ///
    /// # Panics
    /// If the model has no such layer.
    pub fn observer(&self, model: &ModelWeights<'_>, layer: usize) -> Keeper<'_> {
        let (config, limits) = (model.config(), &self.limits);
        let slot = if limits.n_kept == 1 { 0 } else { layer };
        let kept = self
            .rooms
            .kept
            .of(slot, limits.n_tokens, config.kind(layer), config.n_embd);
        Keeper { layer, kept }
    }

    /// Prepares the backward pass of the output layer: the cross-entropy of every row with a label, not [`NO_LABEL`], and
    /// the gradient of the last stream. The label of a row is the token that follows it.
    ///
    /// # Errors
    /// Another number of labels than rows; a label that is not in the vocabulary.
    pub fn head<'s>(
        &'s mut self,
        options: BackwardOptions<'s>,
        labels: &[u32],
    ) -> Result<BackwardStep<'s, 'm>, BackwardError> {
        if labels.len() != self.n_rows || self.n_rows == 0 {
            return Err(BackwardError::Lengths);
        }
        let n_vocab = options.model.config().n_vocab;
        let room = &self.rooms.head;
        // SAFETY: no step is running: this call has the passes exclusively.
        let (rows, of_rows) = unsafe {
            (
                room.labelled.write(0..self.n_rows),
                room.labels.write(0..self.n_rows),
            )
        };
        let mut n = 0;
        for (row, label) in labels
            .iter()
            .enumerate()
            .filter(|(_, label)| **label != NO_LABEL)
        {
            if *label as usize >= n_vocab {
                let (index, token) = (row, *label);
                return Err(BackwardError::UnknownToken { index, token });
            }
            (rows[n], of_rows[n]) = (u32::try_from(row).unwrap_or(u32::MAX), *label);
            n += 1;
        }
        self.step(options, Work::Head { n_labelled: n }, &[], &mut [])
    }

    /// Prepares the backward pass of a layer: adds the gradients of its pairs to `gradients`, and computes the gradient of
    /// its input where pairs of lower layers need it.
    ///
    /// # Errors
    /// A pair that does not fit.
    pub fn layer<'s>(
        &'s mut self,
        options: BackwardOptions<'s>,
        layer: usize,
        pairs: &'s [TrainedPair<'s>],
        gradients: &'s mut [f32],
    ) -> Result<BackwardStep<'s, 'm>, BackwardError> {
        check_pairs(options.model, &self.limits, pairs, gradients.len())?;
        if layer >= options.model.config().n_layer() {
            return Err(BackwardError::Limit {
                name: "layer",
                value: layer,
            });
        }
        self.step(options, Work::Layer(layer), pairs, gradients)
    }

    fn step<'s>(
        &'s mut self,
        options: BackwardOptions<'s>,
        work: Work,
        pairs: &'s [TrainedPair<'s>],
        gradients: &'s mut [f32],
    ) -> Result<BackwardStep<'s, 'm>, BackwardError> {
        let texts = Texts {
            lengths: options.lengths,
        };
        if texts.n_rows() != self.n_rows {
            return Err(BackwardError::Lengths);
        }
        self.team.reset();
        Ok(BackwardStep {
            backward: self,
            options,
            work,
            pairs,
            gradients: Shared::new(gradients),
        })
    }
}

/// Whether pairs are sorted, fit their matrices, and have their gradients in place.
fn check_pairs(
    model: &ModelWeights<'_>,
    limits: &BackwardLimits,
    pairs: &[TrainedPair<'_>],
    n_gradients: usize,
) -> Result<(), BackwardError> {
    let config = model.config();
    let is_sound = |index: usize| {
        let pair = &pairs[index];
        let follows =
            |before: &TrainedPair<'_>| (before.layer, before.site) < (pair.layer, pair.site);
        let is_sorted = index == 0 || follows(&pairs[index - 1]);
        let is_trained = TRAINED.contains(&pair.site);
        if !is_sorted || !is_trained || pair.layer >= config.n_layer() {
            return false;
        }
        let Some([n_out, n_in]) = pair.site.shape(config.kind(pair.layer), config.n_embd) else {
            return false;
        };
        let [of_a, of_b] = [n_in, n_out].map(|n| n.saturating_mul(pair.rank));
        let is_inside =
            |start: usize, len: usize| start.checked_add(len).is_some_and(|end| end <= n_gradients);
        (1..=limits.rank).contains(&pair.rank)
            && pair.a.len() == of_a
            && pair.a_columns.len() == of_a
            && pair.b.len() == of_b
            && is_inside(pair.gradient_a, of_a)
            && is_inside(pair.gradient_b, of_b)
    };
    let first = (0..pairs.len()).find(|index| !is_sound(*index));
    first.map_or(Ok(()), |index| Err(BackwardError::Pair { index }))
}

/// Matrices that may have an adapter.
const TRAINED: [Site; 7] = [
    Site::AttnQ,
    Site::AttnK,
    Site::AttnV,
    Site::AttnOutput,
    Site::FfnGate,
    Site::FfnUp,
    Site::FfnDown,
];

/// What a step computes.
#[derive(Clone, Copy, Debug)]
enum Work {
    Head { n_labelled: usize },
    Layer(usize),
}

/// A step of a backward pass, to be joined by all ranks.
#[derive(Debug)]
pub struct BackwardStep<'s, 'm> {
    backward: &'s mut Backward<'m>,
    options: BackwardOptions<'s>,
    work: Work,
    pairs: &'s [TrainedPair<'s>],
    gradients: Shared<'s, f32>,
}

impl<'s, 'm> BackwardStep<'s, 'm> {
    /// Ranks that must join.
    pub const fn n_workers(&self) -> usize {
        self.backward.limits.n_workers
    }

    /// Takes the place of rank `rank`, once: `None` if it is taken. All ranks must run at the same time.
    ///
    /// # Panics
    /// If `rank` is not below [`Self::n_workers`].
    pub fn join(&self, rank: usize) -> Option<BackwardWorker<'_, 's, 'm>> {
        self.backward.team.join(rank).then(|| {
            let meeting = Meeting {
                team: &self.backward.team,
                wait: self.options.wait,
                stop: self.options.stop,
                deadline: None,
            };
            BackwardWorker {
                step: self,
                member: Member::new(meeting, rank),
            }
        })
    }

    /// Ends the step. The losses of [`Backward::head`] are added to `sums` one by one, in the order of the rows: a sum does not
    /// depend on which texts share a pass. A layer adds nothing.
    ///
    /// # Errors
    /// [`BackwardError::Stopped`] if it was cancelled or a worker failed; [`BackwardError::NotRun`] if not every rank has run.
    pub fn finish(self, sums: &mut Loss) -> Result<(), BackwardError> {
        if let Some(stop) = self.backward.team.stopped() {
            return Err(BackwardError::Stopped(stop));
        }
        if !self.backward.team.all_finished() {
            return Err(BackwardError::NotRun);
        }
        let Work::Head { n_labelled } = self.work else {
            return Ok(());
        };
        let room = &self.backward.rooms.head;
        // SAFETY: every rank has finished.
        let (losses, hits) = unsafe {
            (
                room.losses.read(0..n_labelled),
                room.hits.read(0..n_labelled),
            )
        };
        sums.sum = losses.iter().fold(sums.sum, |sum, loss| sum + loss);
        sums.n_labelled += n_labelled;
        sums.n_correct += hits.iter().filter(|hit| **hit == 1).count();
        Ok(())
    }
}

/// One rank of a step.
#[must_use = "the other ranks wait for this one: run it"]
pub struct BackwardWorker<'t, 's, 'm> {
    step: &'t BackwardStep<'s, 'm>,
    member: Member<'t>,
}

impl fmt::Debug for BackwardWorker<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackwardWorker")
            .field("rank", &self.member.rank())
            .finish_non_exhaustive()
    }
}

impl BackwardWorker<'_, '_, '_> {
    /// Runs this rank's part of the step, in the numeric contract's floating-point environment.
    ///
    /// # Errors
    /// Why the step stopped; all ranks leave together.
    pub fn run(mut self) -> Result<(), Stop> {
        let _env = FpEnv::enter();
        let (step, backward) = (self.step, &*self.step.backward);
        let options = &step.options;
        let run = Run {
            model: options.model,
            table: options.table,
            kernels: options.table.backward(),
            limits: &backward.limits,
            room: &backward.rooms,
            texts: Texts {
                lengths: options.lengths,
            },
            pairs: step.pairs,
            gradients: step.gradients,
            rank: self.member.rank(),
        };
        let result = match step.work {
            Work::Head { n_labelled } => head::run(&run, &mut self.member, n_labelled),
            Work::Layer(index) => {
                let keeper = backward.observer(options.model, index);
                let at = layer::At {
                    index,
                    weights: &options.model.layers()[index],
                    kept: keeper.kept,
                    goes_on: step.pairs.first().is_some_and(|pair| pair.layer < index),
                };
                layer::run(&run, &mut self.member, &at)
            }
        };
        self.member.finish(result)
    }
}
