//! Texts to be embedded: a group of them a turn, on a session of their own.

use super::Entry;
use super::job::{EmbedJob, JobError};
use sluice::embed::{EmbedOptions, Normalization};
use sluice::{Limits, Model, Session, Team};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Tokens of a group, where texts are not longer.
const GROUP_TOKENS: usize = 512;

/// A job, and how far it is.
#[derive(Debug)]
struct Embedded {
    job: EmbedJob,
    vectors: Vec<Vec<f32>>,
}

/// What embeds the texts of a model.
#[derive(Debug)]
pub(super) struct Embedding {
    model: Model,
    team: Team,
    longest: usize,
    /// Made when it is first needed.
    session: Option<Session>,
    jobs: VecDeque<Embedded>,
}

impl Embedding {
    pub(super) const fn new(model: Model, team: Team, longest: usize) -> Self {
        Self {
            model,
            team,
            longest,
            session: None,
            jobs: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, job: EmbedJob) {
        self.jobs.push_back(Embedded {
            job,
            vectors: Vec::new(),
        });
    }

    pub(super) fn has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Embeds a group of texts of the job that is first in line, which then goes to its end; false if there is
    /// none.
    pub(super) fn turn(&mut self, entry: &Entry) -> bool {
        let Some(mut embedded) = self.jobs.pop_front() else {
            return false;
        };
        if embedded.job.answer.is_closed() {
            entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
            return true;
        }
        let outcome = self.group(&mut embedded);
        match outcome {
            Ok(()) if embedded.vectors.len() < embedded.job.texts.len() => {
                self.jobs.push_back(embedded)
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

    fn group(&mut self, embedded: &mut Embedded) -> Result<(), JobError> {
        let failed = |error: &dyn core::fmt::Display| JobError::Failed(error.to_string());
        if self.session.is_none() {
            let limits = Limits::for_embedding(&self.model, self.longest, GROUP_TOKENS);
            let session = self.model.session_on(&self.team, limits);
            self.session = Some(session.map_err(|error| failed(&error))?);
        }
        let session = self.session.as_mut().ok_or(JobError::Gone)?;
        let done = embedded.vectors.len();
        let mut n_tokens = 0;
        let fits = |text: &&Vec<u32>| {
            n_tokens += text.len();
            n_tokens <= GROUP_TOKENS
        };
        let rest = &embedded.job.texts[done..];
        let n = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let mut vectors = vec![Vec::new(); n];
        let options = EmbedOptions {
            pooling: embedded.job.pooling,
            normalization: Normalization::None,
        };
        session
            .embed_tokens(&rest[..n], &options, |i, vector| {
                vectors[i].extend_from_slice(vector)
            })
            .map_err(|error| failed(&error))?;
        embedded.vectors.extend(vectors);
        Ok(())
    }

    /// Answers all jobs with an error.
    pub(super) fn close(&mut self, error: &JobError) {
        for embedded in self.jobs.drain(..) {
            let _sent = embedded.job.answer.send(Err(error.clone()));
        }
    }
}
