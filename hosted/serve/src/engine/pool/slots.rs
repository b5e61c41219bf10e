//! llama-server's slot actions: the text and state of a sequence are saved to a file, restored, or erased.

use super::{Pool, n_pages};
use crate::engine::job::JobError;
use crate::engine::slot::{SlotAction, SlotDone};
use core::fmt::Display;
use sluice::Settings;
use sluice::adapter::AdapterBlend;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

impl Pool {
    /// Performs an action on a slot without a running text.
    pub(in crate::engine) fn act(
        &mut self,
        slot: u32,
        action: &SlotAction,
    ) -> Result<SlotDone, JobError> {
        let start = Instant::now();
        let n_seq = self.session.limits().n_seq;
        if slot as usize >= n_seq {
            return Err(JobError::Slot(format!(
                "slot {slot} does not exist: the model has {n_seq} slots"
            )));
        }
        let (n_tokens, path) = match action {
            SlotAction::Erase => (self.erase(slot)?, None),
            SlotAction::Save(path) => {
                let idle = self.idle.get(slot);
                let idle = idle.ok_or_else(|| JobError::Slot(format!("slot {slot} is empty")))?;
                self.session.save(idle, path).map_err(failed)?;
                (idle.tokens().len(), Some(path))
            }
            SlotAction::Restore(path, adapter) => {
                (self.restore(slot, path, adapter.clone())?, Some(path))
            }
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

    /// Removes the text of a slot; returns its number of tokens.
    fn erase(&mut self, slot: u32) -> Result<usize, JobError> {
        let Some(idle) = self.idle.take(slot) else {
            return Ok(0);
        };
        let n_tokens = idle.tokens().len();
        self.session.remove(idle).map_err(failed)?;
        Ok(n_tokens)
    }

    fn restore(
        &mut self,
        slot: u32,
        path: &Path,
        adapter: Option<AdapterBlend>,
    ) -> Result<usize, JobError> {
        self.erase(slot)?;
        // The maximum number of pages that a file may need.
        self.ensure_free(n_pages(self.session.limits().n_ctx));
        let settings = Settings {
            adapter,
            ..Settings::default()
        };
        let mut sequence = self.session.add_at(slot, &settings).map_err(failed)?;
        let restored = self.session.restore(&mut sequence, path);
        let missing = || JobError::Slot(format!("{} does not exist or is empty", path.display()));
        let n_tokens = restored.map_err(failed)?.ok_or_else(missing)?;
        sequence.release_adapter();
        self.idle.push(sequence, Arc::from(""));
        Ok(n_tokens)
    }
}

fn failed(error: impl Display) -> JobError {
    JobError::Slot(error.to_string())
}
