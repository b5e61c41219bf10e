//! The prefix cache: finds pages of keys and values, and states of recurrent layers, by a hash of all tokens up to
//! their end.
//!
//! A page's key is the SHA-256 of the previous page's key and the page's 64 tokens. The first page's is based on
//! everything else the values depend on (model, types, layout version, adapter) and on the request's domain. So equal
//! keys mean equal bytes, whichever request computed them. A shifted text never gets a key, because its values depend
//! on tokens that it no longer contains.

use crate::engine::domain::CacheDomain;
use crate::engine::job::Job;
use sha2::{Digest as _, Sha256};
use sluice::Session;
use sluice_core::state::{HeldPage, Identity, PAGE_TOKENS};
use std::collections::{BTreeMap, HashMap};

/// The key of a page.
pub(crate) type Key = [u8; 32];

/// The keys of a text's full pages.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    seed: Key,
    keys: Vec<Key>,
    /// Whether the text is computed with the long divisors of a longrope model.
    is_long: bool,
}

impl Chain {
    /// Keys for texts with this domain and these adapters; `base` stands for everything else that pages depend on.
    pub(super) fn new(base: &Key, adapter: Option<Identity>, domain: &CacheDomain) -> Self {
        let mut hash = Sha256::new();
        hash.update(base);
        hash.update(adapter.map_or([0; 32], |adapter| adapter.0));
        domain.write(&mut hash);
        Self {
            seed: hash.finalize().into(),
            keys: Vec::new(),
            is_long: false,
        }
    }

    /// Turns to the keys for a text that is computed with the long divisors of a longrope model, or without.
    pub(super) fn fit(&mut self, is_long: bool) {
        if self.is_long != is_long {
            self.is_long = is_long;
            self.keys.clear();
        }
    }

    pub(super) const fn is_long(&self) -> bool {
        self.is_long
    }

    /// The keys of a job's pages.
    pub(crate) fn of_job(base: &Key, job: &Job) -> Self {
        let adapter = job.adapter.as_ref();
        let adapter = adapter.map(|(blend, _)| blend.identity());
        Self::new(base, adapter, &job.domain)
    }

    /// The keys so far.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The keys of all full pages of `tokens`, which must begin with the tokens of the last call.
    pub(super) fn of(&mut self, tokens: &[u32]) -> &[Key] {
        let n = tokens.len() / PAGE_TOKENS;
        for page in tokens.chunks_exact(PAGE_TOKENS).skip(self.keys.len()) {
            let mut hash = Sha256::new();
            hash.update(self.keys.last().unwrap_or(&self.seed));
            if self.is_long {
                hash.update(b"long");
            }
            page.iter()
                .for_each(|token| hash.update(token.to_le_bytes()));
            self.keys.push(hash.finalize().into());
        }
        &self.keys[..n]
    }
}

/// A page in memory, and the name of the recurrent state at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedPage<'c> {
    pub(super) page: &'c HeldPage,
    pub(super) state: Option<u32>,
}

/// A page in memory.
#[derive(Debug)]
struct Entry {
    page: HeldPage,
    /// When it was last used; a page is never older than those after it.
    stamp: u64,
    /// Name of the recurrent state at its end.
    state: Option<u32>,
}

/// Pages in memory that no running text needs, or that several texts share.
#[derive(Debug)]
pub(super) struct PrefixCache {
    entries: HashMap<Key, Entry>,
    /// Ordered by last use.
    order: BTreeMap<u64, Key>,
    clock: u64,
    n_pages_max: usize,
    /// Free names for states.
    names: Vec<u32>,
    is_recurrent: bool,
}

impl PrefixCache {
    /// A cache of up to `n_pages_max` pages and `n_states` states; if `is_recurrent`, a page is unusable without a
    /// state.
    pub(super) fn new(n_pages_max: usize, n_states: usize, is_recurrent: bool) -> Self {
        let n_states = u32::try_from(n_states).unwrap_or(u32::MAX);
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            n_pages_max,
            names: (0..n_states).rev().collect(),
            is_recurrent,
        }
    }

    /// The number of pages in the cache.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Maximum number of pages.
    pub(super) const fn n_pages_max(&self) -> usize {
        self.n_pages_max
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the state at a page's end is cached, or the model does not need one.
    pub(super) fn has_state(&self, key: &Key) -> bool {
        !self.is_recurrent
            || self
                .entries
                .get(key)
                .is_some_and(|entry| entry.state.is_some())
    }

    /// How many of the first pages are cached.
    pub(super) fn n_leading(&self, keys: &[Key]) -> usize {
        keys.iter().take_while(|key| self.contains(key)).count()
    }

    /// How many of the first pages a text can start with.
    pub(super) fn n_usable(&self, keys: &[Key]) -> usize {
        let n = self.n_leading(keys);
        let usable = (1..=n).rev().find(|&n| self.has_state(&keys[n - 1]));
        usable.unwrap_or(0)
    }

    /// The first `n` pages, which must be cached, and the state at their end.
    pub(super) fn pages(&self, keys: &[Key]) -> (Vec<&HeldPage>, Option<u32>) {
        let entries: Vec<_> = keys
            .iter()
            .filter_map(|key| self.entries.get(key))
            .collect();
        let state = entries.last().and_then(|entry| entry.state);
        (entries.iter().map(|entry| &entry.page).collect(), state)
    }

    /// A cached page, to be written to disk.
    pub(super) fn page(&self, key: &Key) -> Option<CachedPage<'_>> {
        self.entries.get(key).map(|entry| CachedPage {
            page: &entry.page,
            state: entry.state,
        })
    }

    /// Marks these pages as used now, the first ones last, because all later ones depend on them.
    pub(super) fn touch(&mut self, keys: &[Key]) {
        for key in keys.iter().rev() {
            if let Some(entry) = self.entries.get_mut(key) {
                self.order.remove(&entry.stamp);
                self.clock += 1;
                entry.stamp = self.clock;
                self.order.insert(entry.stamp, *key);
            }
        }
    }

    /// Adds the page after the pages of `before`, unless it is cached already. Makes room for it first.
    pub(super) fn insert(
        &mut self,
        session: &mut Session,
        key: Key,
        before: &[Key],
        page: HeldPage,
    ) {
        let is_here = self.n_pages_max == 0 || self.contains(&key);
        if is_here || self.n_leading(before) < before.len() {
            session.with_state(|state| state.release(page));
            return;
        }
        while self.entries.len() >= self.n_pages_max {
            // If a text is longer than the cache, its beginning is kept.
            let oldest = self.order.values().next();
            if oldest.is_some_and(|oldest| before.contains(oldest)) || !self.evict(session) {
                session.with_state(|state| state.release(page));
                return;
            }
        }
        self.clock += 1;
        let entry = Entry {
            page,
            stamp: self.clock,
            state: None,
        };
        self.order.insert(entry.stamp, key);
        self.entries.insert(key, entry);
        self.touch(before);
    }

    /// A name for the state at the end of a cached page without a state; if all names are in use, the oldest state is
    /// dropped. `None` if states have no room.
    pub(super) fn name_for(&mut self, session: &mut Session, key: &Key) -> Option<u32> {
        let entry = self.entries.get(key)?;
        if !self.is_recurrent || entry.state.is_some() {
            return None;
        }
        if self.names.is_empty() {
            let oldest = self.order.values().find(|key| {
                let entry = self.entries.get(*key);
                entry.is_some_and(|entry| entry.state.is_some())
            });
            let oldest = *oldest?;
            self.forget_state(session, &oldest);
        }
        self.names.last().copied()
    }

    /// Records that the state at the end of a page has the name returned by [`Self::name_for`].
    pub(super) fn named(&mut self, key: &Key, name: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = Some(name);
            self.names.retain(|free| *free != name);
        }
    }

    fn forget_state(&mut self, session: &mut Session, key: &Key) {
        let state = self
            .entries
            .get_mut(key)
            .and_then(|entry| entry.state.take());
        if let Some(name) = state {
            session.with_state(|state| state.forget(name));
            self.names.push(name);
        }
    }

    /// Evicts the least recently used page; false if the cache is empty.
    pub(super) fn evict(&mut self, session: &mut Session) -> bool {
        let oldest = self.order.values().next().copied();
        if let Some(key) = &oldest {
            self.remove(session, key);
        }
        oldest.is_some()
    }

    /// Removes a page, if it is cached.
    pub(super) fn remove(&mut self, session: &mut Session, key: &Key) {
        self.forget_state(session, key);
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.stamp);
            session.with_state(|state| state.release(entry.page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_all_before_and_on_the_domain() {
        let tokens: Vec<u32> = (0..200).collect();
        let domain = |group: &str, salt: &str| CacheDomain {
            group: group.into(),
            salt: salt.into(),
        };
        let of = |domain: CacheDomain, tokens: &[u32]| {
            Chain::new(&[7; 32], None, &domain).of(tokens).to_vec()
        };
        let keys = |salt: &str, tokens: &[u32]| of(domain("", salt), tokens);
        let plain = keys("", &tokens);
        assert_eq!(plain.len(), 3);
        assert_eq!(keys("", &tokens[..130]), plain[..2]);
        let mut other = tokens.clone();
        other[3] += 1;
        let changed = keys("", &other);
        assert!(plain.iter().zip(&changed).all(|(a, b)| a != b));
        assert!(plain.iter().zip(&keys("x", &tokens)).all(|(a, b)| a != b));
        // A salt cannot name another group.
        let both = [
            ("a", "b"),
            ("ab", ""),
            ("", "ab"),
            ("", "\u{1}\0\0\0\0\0\0\0ab"),
        ];
        let both = both.map(|(group, salt)| of(domain(group, salt), &tokens)[0]);
        assert!((1..both.len()).all(|n| !both[..n].contains(&both[n])));
        let adapted = Chain::new(&[7; 32], Some(Identity([9; 32])), &domain("", ""))
            .of(&tokens)
            .to_vec();
        assert!(plain.iter().zip(&adapted).all(|(a, b)| a != b));
        let mut long = Chain::new(&[7; 32], None, &domain("", ""));
        long.fit(true);
        assert!(plain.iter().zip(long.of(&tokens)).all(|(a, b)| a != b));
        long.fit(false);
        assert_eq!(plain, long.of(&tokens));
        let mut grown = Chain::new(&[7; 32], None, &domain("", ""));
        for n in 0..=tokens.len() {
            assert_eq!(grown.of(&tokens[..n]), &plain[..n / PAGE_TOKENS]);
        }
    }
}
