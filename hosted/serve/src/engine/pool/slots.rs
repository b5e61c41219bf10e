//! llama-server's slot actions: the text and state of a sequence are saved, restored, or erased.

use super::{Pool, n_pages};
use crate::engine::job::JobError;
use crate::engine::slot::{SlotAction, SlotDone};
use core::fmt::Display;
use sluice::Settings;
use sluice::adapter::AdapterBlend;
use sluice::generate::prompt_cache::PromptCache;
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
        let mut saved = None;
        let n_tokens = match action {
            SlotAction::Erase => self.erase(slot)?,
            SlotAction::Save => {
                let idle = self.idle.get(slot);
                let (idle, salt) =
                    idle.ok_or_else(|| JobError::Slot(format!("slot {slot} is empty")))?;
                let text = self.session.save(idle).map_err(failed)?;
                let salt = salt.clone();
                saved = Some(Box::new(PromptCache { text, salt }));
                idle.tokens().len()
            }
            SlotAction::Restore(cache, adapter) => self.restore(slot, cache, adapter.clone())?,
        };
        Ok(SlotDone {
            n_tokens,
            saved,
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
        cache: &PromptCache,
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
        let restored = self.session.restore(&mut sequence, &cache.text);
        restored.map_err(failed)?;
        sequence.release_adapter();
        let n_tokens = sequence.tokens().len();
        self.idle.push(sequence, cache.salt.clone());
        Ok(n_tokens)
    }
}

fn failed(error: impl Display) -> JobError {
    JobError::Slot(error.to_string())
}
