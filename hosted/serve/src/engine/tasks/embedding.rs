//! Embeds texts, one group at a time.

use super::Progress;
use super::session::LazySession;
use super::size::StepSize;
use crate::Log;
use crate::engine::job::{EmbedJob, JobError};
use core::fmt::Display;
use core::time::Duration;
use sluice::embed::{EmbedGroup, EmbedOptions, Normalization};
use sluice::evaluate::EvaluateError;
use sluice::{Limits, Session};
use sluice_core::pooling::Pooling;
use std::time::Instant;

/// Maximum number of tokens of a group, unless a single text is longer.
const GROUP_TOKENS: usize = 512;
/// Number of tokens of the first step.
const STEP_TOKENS: usize = 64;

/// A job, and its progress.
#[derive(Debug)]
pub(crate) struct EmbedTask {
    pub(super) job: EmbedJob,
    /// The vectors of the finished texts, in one buffer.
    pub(super) vectors: Vec<f32>,
    pub(super) n_done: usize,
    pub(super) group: Option<EmbedGroup>,
}

impl EmbedTask {
    /// Allocates the vectors of all texts, once the first are computed.
    fn reserve(&mut self, n_embd: usize) -> Result<(), JobError> {
        let texts = &self.job.texts;
        let n_rows = match self.job.pooling {
            Pooling::None => texts.iter().map(Vec::len).sum(),
            _ => texts.len(),
        };
        let n_floats = n_rows.saturating_mul(n_embd);
        let left = n_floats.saturating_sub(self.vectors.len());
        let reserved = self.vectors.try_reserve_exact(left);
        reserved.map_err(|_| JobError::Failed(format!("cannot allocate {n_floats} numbers")))
    }
}

/// Embeds the texts of a model.
#[derive(Debug)]
pub(super) struct Embedder {
    session: LazySession,
    /// For the texts of a decoder; an encoder reads each text in one step.
    size: StepSize,
}

impl Embedder {
    /// An embedder for the model of `session`.
    pub(super) fn new(session: &Session, turn: Duration) -> Self {
        let limits = session.limits();
        let limits = Limits {
            sparse: Some(session.sparse()),
            adapter_rank: limits.adapter_rank,
            adapter_kinds: limits.adapter_kinds,
            ..Limits::for_embedding(session.model(), limits.n_ctx, GROUP_TOKENS)
        };
        Self {
            session: LazySession::new(session, limits),
            size: StepSize::new(turn, STEP_TOKENS, GROUP_TOKENS),
        }
    }

    /// Computes a step for a group of texts.
    pub(super) fn step(&mut self, task: &mut EmbedTask, log: &Log) -> Result<Progress, JobError> {
        let session = self.session.get()?;
        let pooling = task.job.pooling;
        let mut group = match task.group.take() {
            Some(group) => group,
            None => {
                let rest = &task.job.texts[task.n_done..];
                session.set_adapter(task.job.adapter.clone());
                let begun = session.begin_group(rest, pooling);
                // The group has an adapter of its own.
                session.set_adapter(None);
                begun.map_err(failed)?
            }
        };
        let (start, before) = (Instant::now(), group.n_left());
        let stepped = session.step_group(&mut group, self.size.n_tokens());
        let is_done = stepped.map_err(|error| {
            log(&format!("a step failed: {error}"));
            let step = match &error {
                EvaluateError::Step(step) => Some(step),
                _ => None,
            };
            JobError::of_step(step, &error)
        })?;
        self.size.note(before - group.n_left(), start);
        if !is_done {
            task.group = Some(group);
            return Ok(Progress::Unfinished);
        }
        task.reserve(session.model().config().n_embd)?;
        let options = EmbedOptions {
            pooling,
            normalization: Normalization::None,
        };
        let vectors = &mut task.vectors;
        group.finish(&options, |_, vector| vectors.extend_from_slice(vector));
        task.n_done += group.len();
        Ok(if task.n_done < task.job.texts.len() {
            Progress::Between
        } else {
            Progress::Done
        })
    }
}

fn failed(error: impl Display) -> JobError {
    JobError::Failed(error.to_string())
}
