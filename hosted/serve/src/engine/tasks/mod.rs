//! Work other than texts: embeddings and scores. In each turn, the scheduler runs one step of one task of each kind.
//! Each kind has a session of its own, made on first use.

mod embedding;
mod scoring;
mod session;
mod size;

use super::job::{EmbedJob, JobError, ScoreJob};
use super::share::Share;
use crate::Log;
use crate::metrics::EndFigures;
use core::time::Duration;
use embedding::{EmbedTask, Embedder};
use scoring::{ScoreTask, Scorer};
use sluice::{Limits, Session};

/// A task, and its progress.
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
    /// In the order in which their steps run.
    pub(super) const ALL: [Self; 2] = [Self::Embed, Self::Score];
}

/// The progress of a task after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The task holds its session: no other task of its kind may run in between.
    Unfinished,
    /// Another task of its kind may run before it continues.
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

    /// Forgets the part of it that its session holds, which is computed again.
    pub(super) fn leave_session(&mut self) {
        match self {
            Self::Embed(task) => task.group = None,
            Self::Score(_) => {}
        }
    }

    pub(super) fn share(&self) -> &Share {
        match self {
            Self::Embed(task) => &task.job.share,
            Self::Score(task) => &task.job.share,
        }
    }

    /// Whether the receiver of its answer was dropped.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Embed(task) => task.job.answer.is_closed(),
            Self::Score(task) => task.job.answer.is_closed(),
        }
    }

    /// The figures to record when it has ended.
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

    /// Sends its answer, or an error instead. The receiver may have been dropped.
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

/// The engines for each kind of task.
pub(super) struct TaskEngines {
    embedder: Embedder,
    scorer: Scorer,
    log: Log,
}

impl TaskEngines {
    /// Engines for the model of `session`; `scored` are the session's limits without the room for caches. A step takes
    /// about `turn`.
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
