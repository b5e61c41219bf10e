//! A session that is made on first use.

use crate::engine::job::JobError;
use sluice::{Limits, Model, Session, Team};

/// A separate session for one kind of task.
#[derive(Debug)]
pub(super) struct LazySession {
    model: Model,
    team: Team,
    limits: Limits,
    session: Option<Session>,
}

impl LazySession {
    /// A session for the model of `session`, on the same threads.
    pub(super) fn new(session: &Session, limits: Limits) -> Self {
        Self {
            model: session.model().clone(),
            team: session.team().clone(),
            limits,
            session: None,
        }
    }

    pub(super) fn get(&mut self) -> Result<&mut Session, JobError> {
        match &mut self.session {
            Some(session) => Ok(session),
            none => {
                let session = self.model.session_on(&self.team, self.limits);
                let session = session.map_err(|error| JobError::Failed(error.to_string()))?;
                Ok(none.insert(session))
            }
        }
    }
}
