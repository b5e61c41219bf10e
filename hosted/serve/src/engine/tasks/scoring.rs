//! Scores the tokens of texts, a few tokens per step.

use super::Progress;
use super::session::LazySession;
use super::size::StepSize;
use crate::Log;
use crate::engine::domain::CacheDomain;
use crate::engine::job::{JobError, Score, ScoreJob};
use core::fmt::Display;
use core::time::Duration;
use sluice::adapter::AdapterBlend;
use sluice::sequence::TokenReport;
use sluice::session::StepHooks;
use sluice::{Limits, Session};
use sluice_core::engine::{BatchEntry, Wants};
use sluice_core::sampler::{TokenLogProbability, log_probability, top_log_probabilities};
use sluice_core::state::{Identity, StateError};
use std::time::Instant;

/// Maximum number of tokens in a step: each of them needs logits.
const STEP_TOKENS: usize = 64;

/// A job, and its scores once they are computed.
#[derive(Debug)]
pub(crate) struct ScoreTask {
    pub(super) job: ScoreJob,
    pub(super) scores: Vec<Score>,
}

/// Scores the texts of a model.
#[derive(Debug)]
pub(super) struct Scorer {
    session: LazySession,
    size: StepSize,
    known: KnownText,
}

/// The last text that was read. Of the next one, only the part that differs is read.
#[derive(Debug, Default)]
struct KnownText {
    domain: CacheDomain,
    adapter: Option<Identity>,
    tokens: Vec<u32>,
    /// The scores of the tokens after the first, with `n_top` likely tokens each.
    scores: Vec<Score>,
    n_top: usize,
}

impl Scorer {
    /// A scorer for the model of `session`; `limits` are the session's limits without the room for caches.
    pub(super) fn new(session: &Session, limits: Limits, turn: Duration) -> Self {
        let limits = Limits {
            n_seq: 1,
            n_outputs: STEP_TOKENS,
            n_held: 0,
            n_checkpoints: 0,
            n_draft: 0,
            ..limits
        };
        Self {
            session: LazySession::new(session, limits),
            size: StepSize::new(turn, STEP_TOKENS, STEP_TOKENS),
            known: KnownText::default(),
        }
    }

    /// Reads the next tokens of a text.
    pub(super) fn step(&mut self, task: &mut ScoreTask, log: &Log) -> Result<Progress, JobError> {
        let (session, known, job) = (self.session.get()?, &mut self.known, &task.job);
        if session.fit_slot(0, job.tokens.len()).map_err(failed)? {
            (known.tokens, known.scores) = (Vec::new(), Vec::new());
        }
        known.begin(session, job).map_err(failed)?;
        let at = known.tokens.len();
        // Nothing follows the last token, so it need not be read.
        let rest = &job.tokens[at..job.tokens.len() - 1];
        let now = &rest[..rest.len().min(self.size.n_tokens())];
        if !now.is_empty() {
            let start = Instant::now();
            known.read(session, now, &job.tokens[at + 1..], log)?;
            if let Some(meter) = &job.meter {
                meter.prompt(now.len(), 0);
            }
            self.size.note(now.len(), start);
        }
        if now.len() < rest.len() {
            return Ok(Progress::Unfinished);
        }
        task.scores = known.scores_with(job.n_top);
        Ok(Progress::Done)
    }
}

impl KnownText {
    /// Drops the tokens that the job's text does not share.
    fn begin(&mut self, session: &mut Session, job: &ScoreJob) -> Result<(), StateError> {
        let adapter = job.adapter.as_ref().map(AdapterBlend::identity);
        let pairs = self.tokens.iter().zip(&job.tokens[..job.tokens.len() - 1]);
        let mut same = pairs.take_while(|(a, b)| a == b).count();
        if self.adapter != adapter || self.n_top < job.n_top || self.domain != job.domain {
            (same, self.adapter, self.n_top) = (0, adapter, job.n_top);
            self.domain = job.domain.clone();
            session.set_adapter(job.adapter.clone());
        }
        // The last score is for the token after the shared ones.
        let is_next = |score: &Score| score.report.chosen.id == job.tokens[same];
        if same > 0 && !self.scores.get(same - 1).is_some_and(is_next) {
            same -= 1;
        }
        if same < self.tokens.len() {
            same = session.with_state(|state| match state.rewind(0, same) {
                Err(StateError::CannotRewind { nearest, .. }) => {
                    state.rewind(0, nearest).map(|()| nearest)
                }
                result => result.map(|()| same),
            })?;
        }
        self.tokens.truncate(same);
        self.scores.truncate(same);
        Ok(())
    }

    /// Reads `tokens`; `next` has the token that follows each of them.
    fn read(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        next: &[u32],
        log: &Log,
    ) -> Result<(), JobError> {
        let (adapter, from) = (session.adapter().map(|_| 0), self.tokens.len());
        let entry = |(position, &token)| BatchEntry {
            adapter,
            ..BatchEntry::new(token, 0, position, Wants::Logits)
        };
        let first = u32::try_from(from).map_err(failed)?;
        let batch: Vec<_> = (first..).zip(tokens).map(entry).collect();
        let (scores, n_top) = (&mut self.scores, self.n_top);
        let ran = session.run(&batch, &StepHooks::default(), |outputs, _| {
            for (i, &token) in next.iter().enumerate().take(batch.len()) {
                scores.push(score(outputs.logits(i).unwrap_or_default(), token, n_top)?);
            }
            Ok::<_, String>(())
        });
        let scored = ran.map_err(|error| {
            log(&format!("a step failed: {error}"));
            JobError::of_step(Some(&error), &error)
        })?;
        scored.map_err(failed)?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn scores_with(&self, n_top: usize) -> Vec<Score> {
        let mut scores = self.scores.clone();
        for score in &mut scores {
            score.report.top.truncate(n_top);
        }
        scores
    }
}

/// The score of `token`.
fn score(logits: &[f32], token: u32, n_top: usize) -> Result<Score, String> {
    let probability = log_probability(logits, token).map_err(|error| error.to_string())?;
    let mut top = vec![TokenLogProbability::default(); n_top];
    if n_top > 0 {
        let n = top_log_probabilities(logits, &mut top).map_err(|error| error.to_string())?;
        top.truncate(n);
    }
    let own = logits[token as usize];
    Ok(Score {
        report: TokenReport {
            chosen: TokenLogProbability {
                id: token,
                log_probability: probability,
            },
            top,
        },
        rank: 1 + logits.iter().filter(|&&logit| logit > own).count(),
    })
}

fn failed(error: impl Display) -> JobError {
    JobError::Failed(error.to_string())
}
