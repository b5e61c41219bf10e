//! Work other than texts: embeddings and scores. The scheduler gives one task of each kind a step a turn; each kind
//! has a session of its own, made when it is first needed.

mod embedding;
mod scoring;
mod session;
mod size;

use super::job::{EmbedJob, JobError, ScoreJob};
use crate::Log;
use crate::metrics::EndFigures;
use core::time::Duration;
use embedding::{EmbedTask, Embedder};
use scoring::{ScoreTask, Scorer};
use sluice::{Limits, Session};

/// A task, and how far it is.
#[derive(Debug)]
pub(super) enum Task {
    Embed(Box<EmbedTask>),
    Score(ScoreTask),
}

/// A kind of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskKind {
    Embed,
    Score,
}

impl TaskKind {
    /// In the order in which they have their steps.
    pub(super) const ALL: [Self; 2] = [Self::Embed, Self::Score];
}

/// How far a step has brought a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It holds its session: no other of its kind may come between.
    Unfinished,
    /// Another of its kind may come before it goes on.
    Between,
    Done,
}

impl From<EmbedJob> for Task {
    fn from(job: EmbedJob) -> Self {
        Self::Embed(Box::new(EmbedTask {
            job,
            vectors: Vec::new(),
            n_done: 0,
            group: None,
        }))
    }
}

impl From<ScoreJob> for Task {
    fn from(job: ScoreJob) -> Self {
        let scores = Vec::new();
        Self::Score(ScoreTask { job, scores })
    }
}

impl Task {
    pub(super) const fn kind(&self) -> TaskKind {
        match self {
            Self::Embed(_) => TaskKind::Embed,
            Self::Score(_) => TaskKind::Score,
        }
    }

    /// Whether the receiver of its answer was dropped.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Embed(task) => task.job.answer.is_closed(),
            Self::Score(task) => task.job.answer.is_closed(),
        }
    }

    /// What is counted when it has ended.
    pub(super) fn finished(&self) -> Option<EndFigures> {
        let Self::Embed(task) = self else { return None };
        let e2e = task.job.arrived.elapsed();
        Some(EndFigures {
            reason: "stop",
            e2e,
            inference: e2e,
            prefill: e2e,
            decode: Duration::ZERO,
            n_prompt: task.job.texts.iter().map(Vec::len).sum(),
            n_predicted: 0,
        })
    }

    /// Sends its answer, or an error in its place. The receiver may have been dropped.
    pub(super) fn answer(self, outcome: Result<(), JobError>) {
        match self {
            Self::Embed(task) => {
                let EmbedTask { job, vectors, .. } = *task;
                let _sent = job.answer.send(outcome.map(|()| vectors));
            }
            Self::Score(task) => {
                let _sent = task.job.answer.send(outcome.map(|()| task.scores));
            }
        }
    }
}

/// What tasks of each kind are computed with.
pub(super) struct TaskEngines {
    embedder: Embedder,
    scorer: Scorer,
    log: Log,
}

impl TaskEngines {
    /// For the model of `session`; `scored` are the limits of its texts without room for caches. A step takes about
    /// `turn`.
    pub(super) fn new(session: &Session, scored: Limits, turn: Duration, log: Log) -> Self {
        Self {
            embedder: Embedder::new(session, turn),
            scorer: Scorer::new(session, scored, turn),
            log,
        }
    }

    /// Computes a step of a task.
    pub(super) fn step(&mut self, task: &mut Task) -> Result<Progress, JobError> {
        match task {
            Task::Embed(task) => self.embedder.step(task, &self.log),
            Task::Score(task) => self.scorer.step(task, &self.log),
        }
    }
}
