//! How likely texts are, token by token: a few tokens of one of them a turn, on a session of its own.

use super::embedding::fitting;
use super::entry::Entry;
use super::job::{JobError, Score, ScoreJob};
use crate::Log;
use core::fmt::Display;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sluice::adapter::Blend;
use sluice::sequence::TokenReport;
use sluice::session::StepHooks;
use sluice::{Limits, Model, Session, Team};
use sluice_core::engine::{BatchEntry, Wants};
use sluice_core::sampler::{TokenLogProbability, log_probability, top_log_probabilities};
use sluice_core::state::StateError;
use std::collections::VecDeque;
use std::time::Instant;

/// What scores the texts of a model.
#[derive(Debug)]
pub(super) struct Scoring {
    model: Model,
    team: Team,
    limits: Limits,
    turn: Duration,
    /// Tokens that fit into a turn, about.
    n_tokens: usize,
    /// Made when it is first needed.
    known: Option<Known>,
    jobs: VecDeque<ScoreJob>,
}

/// A text that was read. Of one that begins as it did, only the rest is read.
#[derive(Debug)]
struct Known {
    session: Session,
    adapter: u64,
    tokens: Vec<u32>,
    /// Of the tokens behind the first, with `n_top` likely ones each.
    scores: Vec<Score>,
    n_top: usize,
}

impl Scoring {
    /// `limits` are those of the model's texts.
    pub(super) fn new((model, team): (Model, Team), limits: Limits, turn: Duration) -> Self {
        Self {
            model,
            team,
            limits: Limits {
                n_seq: 1,
                n_outputs: STEP_TOKENS,
                n_held: 0,
                n_checkpoints: 0,
                n_draft: 0,
                ..limits
            },
            turn,
            n_tokens: STEP_TOKENS,
            known: None,
            jobs: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, job: ScoreJob) {
        self.jobs.push_back(job);
    }

    pub(super) fn has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// A step of the text that is first in line; false if there is none.
    pub(super) fn turn(&mut self, entry: &Entry, log: &Log) -> bool {
        let Some(job) = self.jobs.pop_front() else {
            return false;
        };
        let outcome = if job.answer.is_closed() {
            Ok(true)
        } else {
            self.step(&job, log)
        };
        match outcome {
            Ok(false) => self.jobs.push_front(job),
            outcome => {
                entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
                let scores = self.known.as_ref().map(|known| known.told(job.n_top));
                // Nobody may be left to hear it.
                let _sent = job.answer.send(outcome.map(|_| scores.unwrap_or_default()));
            }
        }
        true
    }

    /// Whether the text was read to its end.
    fn step(&mut self, job: &ScoreJob, log: &Log) -> Result<bool, JobError> {
        let known = match &mut self.known {
            Some(known) => known,
            none => {
                let session = self.model.session_on(&self.team, self.limits);
                none.insert(Known::new(session.map_err(failed)?))
            }
        };
        known.begin(job).map_err(failed)?;
        let at = known.tokens.len();
        // What follows the last token is of no interest.
        let rest = &job.tokens[at..job.tokens.len() - 1];
        let now = &rest[..rest.len().min(self.n_tokens)];
        if !now.is_empty() {
            let start = Instant::now();
            known.read(now, &job.tokens[at + 1..], log)?;
            self.n_tokens = fitting(now.len(), start.elapsed(), self.turn).min(STEP_TOKENS);
        }
        Ok(now.len() == rest.len())
    }

    /// Answers all jobs with an error.
    pub(super) fn close(&mut self, error: &JobError) {
        for job in self.jobs.drain(..) {
            // Nobody may be left to hear it.
            let _sent = job.answer.send(Err(error.clone()));
        }
    }
}

impl Known {
    const fn new(session: Session) -> Self {
        Self {
            session,
            adapter: 0,
            tokens: Vec::new(),
            scores: Vec::new(),
            n_top: 0,
        }
    }

    /// Forgets what the job's text does not have.
    fn begin(&mut self, job: &ScoreJob) -> Result<(), StateError> {
        let adapter = job.adapter.as_ref().map_or(0, Blend::fingerprint);
        let pairs = self.tokens.iter().zip(&job.tokens[..job.tokens.len() - 1]);
        let mut same = pairs.take_while(|(a, b)| a == b).count();
        if self.adapter != adapter || self.n_top < job.n_top {
            (same, self.adapter, self.n_top) = (0, adapter, job.n_top);
            self.session.set_adapter(job.adapter.clone());
        }
        // The last score is of the token behind those that are known.
        let is_next = |score: &Score| score.report.chosen.id == job.tokens[same];
        if same > 0 && !self.scores.get(same - 1).is_some_and(is_next) {
            same -= 1;
        }
        if same < self.tokens.len() {
            same = self
                .session
                .with_state(|state| match state.rewind(0, same) {
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

    /// Reads `tokens`; `next` has what follows each.
    fn read(&mut self, tokens: &[u32], next: &[u32], log: &Log) -> Result<(), JobError> {
        let (adapter, from) = (self.session.adapter().map(|_| 0), self.tokens.len());
        let entry = |(position, &token)| BatchEntry {
            adapter,
            ..BatchEntry::new(token, 0, position, Wants::Logits)
        };
        let first = u32::try_from(from).map_err(failed)?;
        let batch: Vec<_> = (first..).zip(tokens).map(entry).collect();
        let (scores, n_top) = (&mut self.scores, self.n_top);
        let ran = self
            .session
            .run(&batch, &StepHooks::default(), |outputs, _| {
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

    fn told(&self, n_top: usize) -> Vec<Score> {
        let mut scores = self.scores.clone();
        for score in &mut scores {
            score.report.top.truncate(n_top);
        }
        scores
    }
}

/// How likely `token` was.
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

/// Most tokens of a step: each has logits.
const STEP_TOKENS: usize = 64;
