//! Tokens of parts of texts, in bounded memory.

use core::hash::BuildHasher as _;
use core::hint::spin_loop;
use core::mem;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Parts that were encoded before, and their tokens.
///
/// There are two generations, each of half the memory. What is found moves to the younger one; when that is full, the
/// older one is dropped and the younger takes its place. So what is used goes on living, at the price of a comparison.
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

/// What the tokens of a part depend on besides its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// It begins the text.
    pub(crate) is_first: bool,
    /// Names of control tokens are those.
    pub(crate) parse_special: bool,
}

/// What was looked for, and what is there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Tokens that were found.
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

    /// Appends the tokens of `text` to `tokens`: those that were kept, or those that `encode` makes.
    ///
    /// # Errors
    /// As `encode`.
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
        // Hashes may be equal; texts are compared while others may look.
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

    /// What there is; `None` where another thread does not leave it.
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

    /// Nobody waits for it long: it is held for less than a microsecond, or for ever in the child of a fork.
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

/// What a part takes besides its text and tokens: its own fields, and its place in a table.
const PART_BYTES: usize = size_of::<Part>() + 64;

const SPINS: usize = 1000;
