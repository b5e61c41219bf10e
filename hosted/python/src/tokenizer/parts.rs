//! A bounded cache of the tokens of text parts.

use core::hash::BuildHasher as _;
use core::hint::spin_loop;
use core::mem;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Encoded parts and their tokens.
///
/// There are two generations, each with half of the memory. A part that is found moves to the younger one; when that is
/// full, the older one is dropped and the younger takes its place. So parts in use survive, at the price of a
/// comparison.
#[derive(Debug)]
pub(crate) struct Parts {
    state: Mutex<State>,
    hasher: RandomState,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    young: Generation,
    old: Generation,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Generation {
    parts: HashMap<u64, Arc<Part>>,
    bytes: usize,
}

#[derive(Debug)]
struct Part {
    key: Key,
    text: Box<str>,
    tokens: Box<[u32]>,
}

/// Everything that the tokens of a part depend on besides its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Whether the part begins the text.
    pub(crate) is_first: bool,
    /// Whether names of control tokens are parsed.
    pub(crate) parse_special: bool,
}

/// Counts of lookups and contents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Tokens found in the cache.
    pub(crate) tokens_found: u64,
    pub(crate) parts: usize,
    pub(crate) bytes: usize,
}

impl Parts {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            hasher: RandomState::new(),
            bytes_max,
        }
    }

    /// Appends the tokens of `text` to `tokens`: from the cache, or made by `encode`.
    ///
    /// # Errors
    /// The errors of `encode`.
    pub(crate) fn extend<E>(
        &self,
        tokens: &mut Vec<u32>,
        text: &str,
        key: Key,
        encode: impl FnOnce() -> Result<Vec<u32>, E>,
    ) -> Result<(), E> {
        let hash = self.hasher.hash_one((text, key));
        let found = self.state().and_then(|mut state| {
            let part = state.find(hash, self.bytes_max)?;
            Some(part).filter(|part| part.key == key)
        });
        // Hashes may collide, so compare the texts, without holding the lock.
        if let Some(part) = found.filter(|part| *part.text == *text) {
            tokens.extend_from_slice(&part.tokens);
            if let Some(mut state) = self.state() {
                state.counts.hits += 1;
                state.counts.tokens_found += part.tokens.len() as u64;
            }
            return Ok(());
        }
        let made = encode()?;
        tokens.extend_from_slice(&made);
        let part = Part {
            key,
            text: text.into(),
            tokens: made.into(),
        };
        if let Some(mut state) = self.state() {
            state.counts.misses += 1;
            state.add(hash, Arc::new(part), self.bytes_max);
        }
        Ok(())
    }

    /// The counts; `None` if another thread never releases the lock.
    pub(crate) fn counts(&self) -> Option<Counts> {
        let state = self.state()?;
        Some(Counts {
            parts: state.young.parts.len() + state.old.parts.len(),
            bytes: state.young.bytes + state.old.bytes,
            ..state.counts
        })
    }

    pub(crate) fn clear(&self) {
        if let Some(mut state) = self.state() {
            *state = State::default();
        }
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The lock, or `None` if it is not released soon: it is held for less than a microsecond, except in the child of a
    /// fork, where it may never be released.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..SPINS {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(_)) => return None,
                Err(TryLockError::WouldBlock) => spin_loop(),
            }
        }
        None
    }
}

impl State {
    fn find(&mut self, hash: u64, bytes_max: usize) -> Option<Arc<Part>> {
        if let Some(part) = self.young.parts.get(&hash) {
            return Some(Arc::clone(part));
        }
        let part = self.old.parts.remove(&hash)?;
        self.old.bytes -= part.bytes();
        self.add(hash, Arc::clone(&part), bytes_max);
        Some(part)
    }

    fn add(&mut self, hash: u64, part: Arc<Part>, bytes_max: usize) {
        let (bytes, half) = (part.bytes(), bytes_max / 2);
        if bytes > half / 4 {
            return;
        }
        if self.young.bytes + bytes > half {
            self.old = mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        if let Some(replaced) = self.young.parts.insert(hash, part) {
            self.young.bytes -= replaced.bytes();
        }
    }
}

impl Part {
    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(&*self.tokens) + PART_BYTES
    }
}

/// The memory of a part in addition to its text and tokens: its fields, and its entry in a table.
const PART_BYTES: usize = size_of::<Part>() + 64;

const SPINS: usize = 1000;
