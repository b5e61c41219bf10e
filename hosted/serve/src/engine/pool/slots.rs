//! llama-server's slot actions: the text and state of a sequence are saved, restored, or erased.

use super::idle::IdleText;
use super::prefix::{Chain, Key};
use super::{Pool, n_pages};
use crate::engine::domain::CacheDomain;
use crate::engine::job::JobError;
use crate::engine::slot::{SlotAction, SlotDone};
use core::fmt::Display;
use sluice::Settings;
use sluice::adapter::AdapterBlend;
use sluice::generate::prompt_cache::{CacheSalt, PromptCache};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

impl Pool {
    /// Performs an action of a client of `group` on a slot without a running text; `running` has the keys of the pages
    /// of those that run.
    pub(in crate::engine) fn act(
        &mut self,
        slot: u32,
        group: &Arc<str>,
        action: &SlotAction,
        running: &HashSet<Key>,
    ) -> Result<SlotDone, JobError> {
        let start = Instant::now();
        let n_seq = self.session.limits().n_seq;
        if slot as usize >= n_seq {
            return Err(JobError::Slot(format!(
                "slot {slot} does not exist: the model has {n_seq} slots"
            )));
        }
        let is_restore = matches!(action, SlotAction::Restore(..));
        if !is_restore && self.idle.is_foreign(slot, group) {
            return Err(JobError::Foreign { slot });
        }
        let mut saved = None;
        let n_tokens = match action {
            SlotAction::Erase => self.erase(slot, running)?,
            SlotAction::Save => {
                let idle = self.idle.get(slot);
                let idle = idle.ok_or_else(|| JobError::Slot(format!("slot {slot} is empty")))?;
                let text = self.session.save(&idle.sequence).map_err(failed)?;
                let salt = idle.salt.clone();
                saved = Some(Box::new(PromptCache { text, salt }));
                idle.sequence.tokens().len()
            }
            SlotAction::Restore(cache, adapter) => {
                self.restore(slot, group, cache, adapter.clone())?
            }
        };
        Ok(SlotDone {
            n_tokens,
            saved,
            time: start.elapsed(),
        })
    }

    /// Removes the text of a slot, also from the prefix cache and its disk, but for pages that other texts in slots
    /// share (`running` has the keys of those that run). Returns its number of tokens.
    fn erase(&mut self, slot: u32, running: &HashSet<Key>) -> Result<usize, JobError> {
        let Some(idle) = self.idle.get(slot) else {
            return Ok(0);
        };
        let n_tokens = idle.sequence.tokens().len();
        let keys = self.keys_of(idle);
        self.clear(slot)?;
        let others = self.idle.texts().flat_map(|idle| self.keys_of(idle));
        let others: HashSet<Key> = others.collect();
        for key in keys {
            if !others.contains(&key) && !running.contains(&key) {
                self.cache.remove(&mut self.session, &key);
                if let Some(backing) = &mut self.backing {
                    backing.remove(key);
                }
            }
        }
        Ok(n_tokens)
    }

    /// The keys of an ended text's pages. A restored text, whose salt is not known, has not been in the cache.
    fn keys_of(&self, idle: &IdleText) -> Vec<Key> {
        let CacheSalt::Plain(salt) = &idle.salt else {
            return Vec::new();
        };
        let domain = CacheDomain {
            group: Arc::clone(&idle.group),
            salt: Arc::clone(salt),
        };
        let sequence = &idle.sequence;
        let mut chain = Chain::new(&self.base, sequence.adapter_identity(), &domain);
        chain.fit(self.session.is_long(sequence));
        chain.of(sequence.tokens()).to_vec()
    }

    /// Frees a slot.
    fn clear(&mut self, slot: u32) -> Result<(), JobError> {
        match self.idle.take(slot) {
            Some(idle) => self.session.remove(idle).map_err(failed),
            None => Ok(()),
        }
    }

    fn restore(
        &mut self,
        slot: u32,
        group: &Arc<str>,
        cache: &PromptCache,
        adapter: Option<AdapterBlend>,
    ) -> Result<usize, JobError> {
        self.clear(slot)?;
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
        self.idle
            .push(sequence, Arc::clone(group), cache.salt.clone());
        Ok(n_tokens)
    }
}

fn failed(error: impl Display) -> JobError {
    JobError::Slot(error.to_string())
}
