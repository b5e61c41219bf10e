//! Texts to be embedded: a step of a group of them a turn, on a session of their own.

use super::Entry;
use super::job::{EmbedJob, JobError};
use crate::Log;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sluice::core::engine;
use sluice::core::kernels::activation::ActivationKinds;
use sluice::embed::{EmbedGroup, EmbedOptions, Normalization};
use sluice::evaluate::EvaluateError;
use sluice::{Limits, Model, Session, Team};
use sluice_core::pooling::Pooling;
use std::collections::VecDeque;
use std::time::Instant;

/// Tokens of a group, where texts are not longer.
const GROUP_TOKENS: usize = 512;
/// Least tokens of a step.
const STEP_TOKENS_MIN: usize = 16;

/// A job, and how far it is.
#[derive(Debug)]
struct Embedded {
    job: EmbedJob,
    /// Those of texts that are done, in one buffer.
    vectors: Vec<f32>,
    n_done: usize,
    group: Option<EmbedGroup>,
}

impl Embedded {
    /// Makes room for the vectors of all texts, when the first are there.
    fn reserve(&mut self, n_embd: usize) -> Result<(), JobError> {
        let texts = &self.job.texts;
        let n_rows = match self.job.pooling {
            Pooling::None => texts.iter().map(Vec::len).sum(),
            _ => texts.len(),
        };
        let n_floats = n_rows.saturating_mul(n_embd);
        let left = n_floats.saturating_sub(self.vectors.len());
        let reserved = self.vectors.try_reserve_exact(left);
        reserved.map_err(|_| JobError::Failed(format!("no memory for {n_floats} numbers")))
    }
}

/// What embeds the texts of a model.
#[derive(Debug)]
pub(super) struct Embedding {
    model: Model,
    team: Team,
    longest: usize,
    turn: Duration,
    adapter_rank: usize,
    adapter_kinds: ActivationKinds,
    /// Tokens of a decoder that fit into a turn, about. An encoder's text is one piece.
    n_tokens: usize,
    /// Made when it is first needed.
    session: Option<Session>,
    jobs: VecDeque<Embedded>,
}

impl Embedding {
    pub(super) fn new(
        (model, team): (Model, Team),
        limits: &engine::Limits,
        turn: Duration,
    ) -> Self {
        Self {
            model,
            team,
            longest: limits.n_ctx,
            turn,
            adapter_rank: limits.adapter_rank,
            adapter_kinds: limits.adapter_kinds,
            n_tokens: 64,
            session: None,
            jobs: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, job: EmbedJob) {
        self.jobs.push_back(Embedded {
            job,
            vectors: Vec::new(),
            n_done: 0,
            group: None,
        });
    }

    pub(super) fn has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// A step of the job that is first in line; false if there is none. Jobs take turns between two groups of
    /// texts.
    pub(super) fn turn(&mut self, entry: &Entry, log: &Log) -> bool {
        let Some(mut embedded) = self.jobs.pop_front() else {
            return false;
        };
        if embedded.job.answer.is_closed() {
            entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
            return true;
        }
        match self.step(&mut embedded, log) {
            Ok(()) if embedded.group.is_some() => self.jobs.push_front(embedded),
            Ok(()) if embedded.n_done < embedded.job.texts.len() => {
                self.jobs.push_back(embedded);
            }
            outcome => {
                entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
                entry.embedded(&embedded.job);
                // Nobody may be left to hear it.
                let _sent = embedded.job.answer.send(outcome.map(|()| embedded.vectors));
            }
        }
        true
    }

    fn step(&mut self, embedded: &mut Embedded, log: &Log) -> Result<(), JobError> {
        let failed = |error: &dyn core::fmt::Display| JobError::Failed(error.to_string());
        if self.session.is_none() {
            let limits = Limits {
                adapter_rank: self.adapter_rank,
                adapter_kinds: self.adapter_kinds,
                ..Limits::for_embedding(&self.model, self.longest, GROUP_TOKENS)
            };
            let session = self.model.session_on(&self.team, limits);
            self.session = Some(session.map_err(|error| failed(&error))?);
        }
        let session = self.session.as_mut().ok_or(JobError::Gone)?;
        let pooling = embedded.job.pooling;
        let mut group = match embedded.group.take() {
            Some(group) => group,
            None => {
                let rest = &embedded.job.texts[embedded.n_done..];
                session.set_adapter(embedded.job.adapter.clone());
                let begun = session.begin_group(rest, pooling);
                // The group has its own.
                session.set_adapter(None);
                begun.map_err(|error| failed(&error))?
            }
        };
        let (start, before) = (Instant::now(), group.n_left());
        let stepped = session.step_group(&mut group, self.n_tokens);
        let is_done = stepped.map_err(|error| {
            log(&format!("a step failed: {error}"));
            let step = match &error {
                EvaluateError::Step(step) => Some(step),
                _ => None,
            };
            JobError::of_step(step, &error)
        })?;
        let (n_read, time) = (before - group.n_left(), start.elapsed());
        if n_read == self.n_tokens || time > self.turn {
            self.n_tokens = fitting(n_read, time, self.turn);
        }
        if !is_done {
            embedded.group = Some(group);
            return Ok(());
        }
        embedded.reserve(self.model.config().n_embd)?;
        let options = EmbedOptions {
            pooling,
            normalization: Normalization::None,
        };
        let vectors = &mut embedded.vectors;
        group.finish(&options, |_, vector| vectors.extend_from_slice(vector));
        embedded.n_done += group.len();
        Ok(())
    }

    /// Answers all jobs with an error.
    pub(super) fn close(&mut self, error: &JobError) {
        for embedded in self.jobs.drain(..) {
            // Nobody may be left to hear it.
            let _sent = embedded.job.answer.send(Err(error.clone()));
        }
    }
}

/// Tokens that fit into `turn`, where `n` took `time`.
pub(super) fn fitting(n: usize, time: Duration, turn: Duration) -> usize {
    let fitting = n as u128 * turn.as_micros() / time.as_micros().max(1);
    let most = (2 * n).min(GROUP_TOKENS);
    usize::try_from(fitting)
        .unwrap_or(most)
        .clamp(STEP_TOKENS_MIN, most.max(STEP_TOKENS_MIN))
}
