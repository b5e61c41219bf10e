//! What stays of a text that is being read and written: full pages, and states of recurrent layers.

use super::disk::Kind;
use super::running::Running;
use super::served::Served;
use sluice_core::state::PAGE_TOKENS;

impl Served {
    /// Where the recurrent state of a text is to be kept next, behind `at` tokens: at the last full page of its
    /// prompt and those before its borders, and every so often in between. `None` in a model of attention alone.
    pub(super) fn next_checkpoint(&self, running: &Running, at: usize) -> Option<usize> {
        let request = &running.request;
        let is_recurrent = self.session.model().config().is_recurrent();
        if !is_recurrent || !request.uses_cache || self.session.limits().n_checkpoints == 0 {
            return None;
        }
        let n_prompt = request.prompt.len();
        let every = (at / self.checkpoint_every + 1) * self.checkpoint_every;
        let borders = request.borders.iter().copied().chain([n_prompt - 1]);
        let pages = borders.map(|border| border / PAGE_TOKENS * PAGE_TOKENS);
        pages.chain([every]).filter(|place| *place > at).min()
    }

    /// Offers the full pages of a text to the cache, and the state at the end of the last one.
    pub(super) fn keep_pages(&mut self, i: usize) {
        let running = &mut self.running[i];
        let sequence = &running.sequence;
        if !running.request.uses_cache || sequence.n_shifted() > 0 {
            return;
        }
        let n_tokens = sequence.tokens().len();
        let n = n_tokens / PAGE_TOKENS;
        if n <= running.n_kept {
            return;
        }
        let keys = running.chain.of(sequence.tokens());
        for index in running.n_kept..n {
            if self.cache.contains(&keys[index]) {
                continue;
            }
            // A page that a window has left is no longer there to be kept.
            let Ok(page) = self.session.retain(sequence, index) else {
                break;
            };
            self.cache
                .insert(&mut self.session, keys[index], &keys[..index], page);
            if self.disk.is_some() && self.cache.contains(&keys[index]) {
                self.unwritten.push_back(keys[index]);
            }
        }
        running.n_kept = n;
        let last = keys[n - 1];
        if n_tokens.is_multiple_of(PAGE_TOKENS)
            && let Some(name) = self.cache.name_for(&mut self.session, &last)
        {
            match self.session.checkpoint(&running.sequence, name) {
                Ok(()) => self.cache.named(&last, name),
                Err(error) => (self.log)(&format!("a state is not kept: {error}")),
            }
            if self.disk.is_some() {
                self.unwritten.push_back(last);
            }
        }
        while self.unwritten.len() > UNWRITTEN_MAX {
            self.unwritten.pop_front();
        }
    }

    /// Hands at most `n` pages to the disk; false if there were none.
    pub(super) fn write_behind(&mut self, n: usize) -> bool {
        let Some(disk) = self.disk.clone() else {
            return false;
        };
        let fingerprint = self.session.model().fingerprint();
        for _ in 0..n {
            let Some(key) = self.unwritten.front().copied() else {
                return false;
            };
            if let Some((page, state)) = self.cache.page(&key) {
                let known = self.session.state();
                let name = (key, Kind::Page);
                if !disk.contains(&name) {
                    let mut bytes = vec![0; known.page_bytes()];
                    let read = known.read_page(page, fingerprint, &mut bytes);
                    if read.is_ok() && !disk.write(name, bytes) {
                        return false;
                    }
                }
                let name = (key, Kind::State);
                if let Some(state) = state.filter(|_| !disk.contains(&name)) {
                    let mut bytes = vec![0; known.state_bytes()];
                    let read = known.read_state(state, fingerprint, &mut bytes);
                    if read.is_ok() && !disk.write(name, bytes) {
                        return false;
                    }
                }
            }
            self.unwritten.pop_front();
        }
        true
    }
}

/// Pages that wait for the disk, at most; the oldest are left out.
const UNWRITTEN_MAX: usize = 1 << 14;
