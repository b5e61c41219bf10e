//! Lets texts start from cached data and caches theirs: full pages and recurrent states, in memory and on disk.

use super::backing::Backing;
use super::disk::{FileKind, StoredFile};
use super::prefix::{Chain, Key};
use super::text::Text;
use super::{Pool, n_pages};
use crate::engine::request::Request;
use sluice::generate::common_prefix;
use sluice::session::GenerateError;
use sluice_core::state::PAGE_TOKENS;
use std::rc::Rc;

impl Pool {
    /// Starts a text with its prompt. Returns the number of tokens that need not be read.
    pub(in crate::engine) fn enter_prompt(
        &mut self,
        text: &mut Text,
    ) -> Result<usize, GenerateError> {
        let request = Rc::clone(text.request());
        self.enter(text, &request.prompt)
    }

    /// Starts a text with `tokens`: with those its sequence already has, or with pages of the cache; the rest is
    /// queued. Returns the number of tokens that need not be read.
    pub(super) fn enter(
        &mut self,
        text: &mut Text,
        tokens: &[u32],
    ) -> Result<usize, GenerateError> {
        let head = &tokens[..tokens.len() - 1];
        // What was computed with other rotary divisors is read again.
        self.session.fit(text.sequence_mut(), tokens.len())?;
        text.fit(self.session.is_long(text.sequence()));
        let same = common_prefix(text.sequence().tokens(), head);
        let mut known = self.session.truncate(text.sequence_mut(), same)?;
        if known == 0 && text.request().uses_cache {
            let keys = text.keys_of(head).to_vec();
            let n = self.cache.n_usable(&keys);
            if n > 0 {
                let (pages, state) = self.cache.pages(&keys[..n]);
                known = n * PAGE_TOKENS;
                let sequence = text.sequence_mut();
                self.session
                    .attach(sequence, &tokens[..known], &pages, state)?;
                self.cache.touch(&keys[..n]);
            }
        }
        let n_wanted = text.n_wanted();
        text.sequence_mut().push(&tokens[known..], n_wanted);
        self.ensure_free(n_pages(tokens.len() + 1).saturating_sub(known / PAGE_TOKENS) + 1);
        Ok(known)
    }

    /// Where to save the recurrent state of a text next: at the last full page of its prompt, at the last ones before
    /// its borders, and at regular distances in between. `None` for models that have only attention layers.
    pub(in crate::engine) fn next_checkpoint(&self, text: &Text) -> Option<usize> {
        let request = text.request();
        let is_recurrent = self.session.model().config().is_recurrent();
        if !is_recurrent || !request.uses_cache || self.session.limits().n_checkpoints == 0 {
            return None;
        }
        let at = text.n_read();
        let every = (at / self.checkpoint_every + 1) * self.checkpoint_every;
        let borders = request
            .borders
            .iter()
            .copied()
            .chain([request.head().len()]);
        let pages = borders.map(|border| border / PAGE_TOKENS * PAGE_TOKENS);
        pages.chain([every]).filter(|place| *place > at).min()
    }

    /// Offers a text's full pages to the cache, and the state at the end of the last one.
    pub(in crate::engine) fn keep(&mut self, text: &mut Text) {
        if !text.request().uses_cache || text.sequence().n_shifted() > 0 {
            return;
        }
        text.fit(self.session.is_long(text.sequence()));
        let (n_read, n_kept) = (text.n_read(), text.n_kept);
        let n = n_read / PAGE_TOKENS;
        if n <= n_kept {
            return;
        }
        text.n_kept = n;
        let keys = text.keys().to_vec();
        for index in n_kept..n {
            let key = keys[index];
            if self.cache.contains(&key) {
                continue;
            }
            // Pages outside the attention window have been freed already.
            let Ok(page) = self.session.retain(text.sequence(), index) else {
                break;
            };
            self.cache
                .insert(&mut self.session, key, &keys[..index], page);
            if let Some(backing) = &mut self.backing
                && self.cache.contains(&key)
            {
                backing.push(key, FileKind::Page);
            }
        }
        let last = keys[n - 1];
        if n_read.is_multiple_of(PAGE_TOKENS)
            && let Some(name) = self.cache.name_for(&mut self.session, &last)
        {
            match self.session.checkpoint(text.sequence(), name) {
                Ok(()) => {
                    self.cache.named(&last, name);
                    if let Some(backing) = &mut self.backing {
                        backing.push(last, FileKind::State);
                    }
                }
                Err(error) => (self.log)(&format!("a state is not cached: {error}")),
            }
        }
    }

    /// Whether pages are still to be written to disk.
    pub(in crate::engine) fn has_unwritten(&self) -> bool {
        self.backing.as_ref().is_some_and(Backing::has_unwritten)
    }

    /// Queues up to `n` pages for writing; false if there are fewer.
    pub(in crate::engine) fn write_behind(&mut self, n: usize) -> bool {
        let backing = self.backing.as_mut();
        backing.is_some_and(|backing| backing.write(n, &self.cache, &self.session, &self.identity))
    }

    /// Looks on the disk for pages of a prompt that memory does not have; false if memory has them all.
    pub(in crate::engine) fn fetch(&self, request: &Request, chain: &mut Chain) -> bool {
        let backing = self.backing.as_ref().filter(|_| request.uses_cache);
        backing.is_some_and(|backing| {
            chain.fit(self.session.is_long_at(request.prompt.len()));
            let keys = chain.of(request.head());
            backing.fetch(&self.cache, keys, request.arrival)
        })
    }

    /// Takes pages that the disk has read for a prompt.
    pub(in crate::engine) fn put_pages(
        &mut self,
        request: &Request,
        chain: &mut Chain,
        files: Vec<StoredFile>,
    ) {
        chain.fit(self.session.is_long_at(request.prompt.len()));
        let keys = chain.of(request.head());
        for StoredFile { name, bytes } in files {
            let Some(index) = keys.iter().position(|known| *known == name.key) else {
                continue;
            };
            match name.kind {
                FileKind::Page => self.put_page(&keys[..index], name.key, &bytes),
                FileKind::State => self.put_state(&name.key, (index + 1) * PAGE_TOKENS, &bytes),
            }
        }
    }

    fn put_page(&mut self, before: &[Key], key: Key, bytes: &[u8]) {
        self.ensure_free(2);
        match self
            .session
            .with_state(|state| state.write_page(&self.identity, bytes))
        {
            Ok(page) => self.cache.insert(&mut self.session, key, before, page),
            Err(error) => (self.log)(&format!("a cached page is ignored: {error}")),
        }
    }

    fn put_state(&mut self, key: &Key, len: usize, bytes: &[u8]) {
        let Some(name) = self.cache.name_for(&mut self.session, key) else {
            return;
        };
        match self
            .session
            .with_state(|state| state.write_state(name, &self.identity, bytes))
        {
            Ok(found) if found == len => self.cache.named(key, name),
            Ok(_) => self.session.with_state(|state| state.forget(name)),
            Err(error) => (self.log)(&format!("a cached state is ignored: {error}")),
        }
    }
}
