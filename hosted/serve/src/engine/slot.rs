//! Slots as llama-server has them: what stands in a sequence is saved to a file, restored, forgotten.

use super::job::JobError;
use super::served::{Idle, Served};
use core::time::Duration;
use sluice::Settings;
use sluice::adapter::Blend;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// What is to be done with a slot.
#[derive(Clone, Debug)]
pub enum SlotAction {
    /// Its text and state go to a file.
    Save(PathBuf),
    /// They come from one, and were computed with these adapters.
    Restore(PathBuf, Option<Blend>),
    /// They are forgotten.
    Erase,
}

/// What was done with a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotDone {
    /// Tokens that were saved, restored or forgotten.
    pub n_tokens: usize,
    /// Bytes written or read.
    pub n_bytes: u64,
    /// How long it took.
    pub time: Duration,
}

/// Where the answer goes.
pub(super) type SlotAnswer = oneshot::Sender<Result<SlotDone, JobError>>;

impl Served {
    /// Does it, between two steps.
    pub(super) fn slot(&mut self, slot: u32, action: &SlotAction) -> Result<SlotDone, JobError> {
        let start = Instant::now();
        let n_seq = self.session.limits().n_seq;
        if slot as usize >= n_seq {
            return Err(JobError::Slot(format!(
                "there is no slot {slot}: the model has {n_seq}"
            )));
        }
        let running = self
            .running
            .iter()
            .any(|running| running.sequence.slot() == slot);
        if running {
            return Err(JobError::Slot(format!("slot {slot} is in use")));
        }
        let at = self
            .idle
            .iter()
            .position(|idle| idle.sequence.slot() == slot);
        let n_tokens = match action {
            SlotAction::Erase => match at.and_then(|at| self.idle.remove(at)) {
                Some(idle) => {
                    let n_tokens = idle.sequence.tokens().len();
                    self.session
                        .remove(idle.sequence)
                        .map_err(|error| failed(&error))?;
                    n_tokens
                }
                None => 0,
            },
            SlotAction::Save(path) => {
                let idle = at.and_then(|at| self.idle.get(at));
                let idle = idle.ok_or_else(|| JobError::Slot(format!("slot {slot} is empty")))?;
                self.session
                    .save(&idle.sequence, path)
                    .map_err(|error| failed(&error))?;
                idle.sequence.tokens().len()
            }
            SlotAction::Restore(path, adapter) => {
                self.restore((slot, at), path, adapter.clone())?
            }
        };
        let path = match action {
            SlotAction::Save(path) | SlotAction::Restore(path, _) => Some(path),
            SlotAction::Erase => None,
        };
        let n_bytes = path
            .and_then(|path| path.metadata().ok())
            .map_or(0, |file| file.len());
        Ok(SlotDone {
            n_tokens,
            n_bytes,
            time: start.elapsed(),
        })
    }

    fn restore(
        &mut self,
        (slot, at): (u32, Option<usize>),
        path: &std::path::Path,
        adapter: Option<Blend>,
    ) -> Result<usize, JobError> {
        if let Some(idle) = at.and_then(|at| self.idle.remove(at)) {
            self.session
                .remove(idle.sequence)
                .map_err(|error| failed(&error))?;
        }
        // The pages that a file may need at most.
        self.ensure_free(super::admission::n_pages(self.session.limits().n_ctx));
        let settings = Settings {
            adapter,
            ..Settings::default()
        };
        let added = self.session.add_at(slot, &settings);
        let mut sequence = added.map_err(|error| failed(&error))?;
        let restored = self.session.restore(&mut sequence, path);
        let missing = || JobError::Slot(format!("{} is not there, or empty", path.display()));
        let n_tokens = restored
            .map_err(|error| failed(&error))?
            .ok_or_else(missing)?;
        sequence.release_adapter();
        self.idle.push_back(Idle {
            sequence,
            salt: Arc::from(""),
        });
        Ok(n_tokens)
    }
}

fn failed(error: &dyn core::fmt::Display) -> JobError {
    JobError::Slot(error.to_string())
}
