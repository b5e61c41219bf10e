//! The caller's memory while a text is being encoded: output tokens, room for merging,
//! and words seen before.
//!
//! Texts repeat their words, and finding a word again is cheaper than merging its bytes. Nothing
//! is copied to remember one: an entry has the position of the word in the text and of its tokens in
//! the output. Entries are in the part of the workspace that only a very long word would need; such a
//! word overwrites them.

use core::ops::Range;

use super::error::TokenizerError;
use super::merge::{Symbols, words_for};
use super::vocab::position;

/// The output: tokens for the caller. It keeps counting when it is full.
#[derive(Debug)]
pub(super) struct Sink<'o> {
    out: &'o mut [u32],
    count: usize,
}

impl<'o> Sink<'o> {
    pub(super) fn new(out: &'o mut [u32]) -> Self {
        Self { out, count: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, id: u32) {
        if let Some(slot) = self.out.get_mut(self.count) {
            *slot = id;
        }
        self.count += 1;
    }

    /// Pushes the tokens from `first` on again. Tokens that did not fit before do not fit now.
    #[inline]
    pub(super) fn repeat(&mut self, first: usize, count: usize) {
        for i in first..first + count {
            let id = self.out.get(i).copied().unwrap_or(0);
            self.push(id);
        }
    }

    /// Removes all tokens but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = count;
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn finish(self) -> Result<&'o [u32], TokenizerError> {
        let tokens = self.out.len();
        let out: &'o [u32] = self.out;
        out.get(..self.count).ok_or(TokenizerError::OutputTooSmall {
            needed_tokens: self.count,
            tokens,
        })
    }
}

/// Room for merging; words seen before take its front.
#[derive(Debug)]
pub(super) struct Scratch<'w> {
    words: &'w mut [u32],
    /// Slots of [`SLOT_WORDS`] words: a power of two, or 0.
    slot_count: usize,
}

/// A remembered word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Position of the word's tokens in the output, and their number.
    pub(super) tokens: Option<(usize, usize)>,
    hash: u64,
}

impl<'w> Scratch<'w> {
    /// Remembers words of a text of `text_len` bytes, where it pays: clearing the slots
    /// should take no longer than reading the text.
    pub(super) fn new(words: &'w mut [u32], text_len: usize) -> Self {
        let worth = (text_len / 16).min(words.len() / 16).min(SLOTS_MAX);
        let slot_count = match worth.checked_ilog2() {
            Some(bits) if worth >= SLOTS_MIN => 1 << bits,
            _ => 0,
        };
        words[..slot_count * SLOT_WORDS].fill(0);
        Self { words, slot_count }
    }

    /// The whole workspace, for models that remember no words.
    pub(super) fn all(&mut self) -> &mut [u32] {
        self.slot_count = 0;
        self.words
    }

    /// Room for merging `n` bytes.
    ///
    /// # Errors
    ///
    /// The workspace is too small, even without the remembered words.
    pub(super) fn symbols(&mut self, n: usize) -> Result<Symbols<'_>, TokenizerError> {
        if words_for(n) > self.words.len() - self.slot_count * SLOT_WORDS {
            self.slot_count = 0;
        }
        Symbols::new(&mut self.words[self.slot_count * SLOT_WORDS..], n)
    }

    /// Looks for an earlier place of the word at `range` of `text`.
    #[inline]
    pub(super) fn seen(&self, text: &[u8], range: Range<usize>) -> Seen {
        let len = range.len();
        if len > WORD_LEN_MAX || self.slot_count == 0 {
            return Seen {
                tokens: None,
                hash: 0,
            };
        }
        let hash = hash(text, range.start, len);
        let at = self.slot_of(hash);
        let mut tokens = None;
        if let Some(&[tag, place, first, lens]) = self.words[at..].first_chunk() {
            let same = tag == tag_of(hash) && lens >> 16 == position(len);
            if same && equal(text, place as usize, range.start, len) {
                tokens = Some((first as usize, (lens & 0xffff) as usize));
            }
        }
        Seen { tokens, hash }
    }

    /// Records that the word at `range` of the text, which `seen` is about, is `tokens` of the
    /// output.
    #[inline]
    pub(super) fn remember(&mut self, seen: Seen, range: Range<usize>, tokens: Range<usize>) {
        // No word has more tokens than bytes. Without a tag, the word is too long.
        if seen.hash == 0 || self.slot_count == 0 {
            return;
        }
        let at = self.slot_of(seen.hash);
        let lens = position(range.len()) << 16 | position(tokens.len());
        let slot = [
            tag_of(seen.hash),
            position(range.start),
            position(tokens.start),
            lens,
        ];
        self.words[at..at + SLOT_WORDS].copy_from_slice(&slot);
    }

    /// The position of the slot for a word.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the mask takes the low bits anyway"
    )]
    fn slot_of(&self, hash: u64) -> usize {
        (hash as usize & (self.slot_count - 1)) * SLOT_WORDS
    }
}

/// Never 0, which an empty slot has.
#[inline]
fn tag_of(hash: u64) -> u32 {
    let [.., a, b, c, d] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) | 1
}

/// A hash of `len` bytes of `text` from `at` on; never 0.
#[inline]
fn hash(text: &[u8], at: usize, len: usize) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ len as u64;
    let mut done = 0;
    while done < len {
        let part = eight(text, at + done, len - done);
        hash = (hash ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash ^= hash >> 32;
        done += 8;
    }
    hash | 1 << 63
}

/// Equality of `len` bytes of `text` at `a` and `b`.
#[inline]
fn equal(text: &[u8], a: usize, b: usize, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        if eight(text, a + done, len - done) != eight(text, b + done, len - done) {
            return false;
        }
        done += 8;
    }
    true
}

/// The first `len` of 8 bytes of `text` from `at` on, zeros for the rest.
#[inline]
fn eight(text: &[u8], at: usize, len: usize) -> u64 {
    if let Some(&bytes) = text[at..].first_chunk::<8>() {
        let unused = 8 - len.min(8);
        return u64::from_le_bytes(bytes) & u64::MAX >> (8 * unused);
    }
    let mut bytes = [0; 8];
    for (slot, &byte) in bytes.iter_mut().zip(&text[at..at + len.min(8)]) {
        *slot = byte;
    }
    u64::from_le_bytes(bytes)
}

/// Tag, position in the text, position of the tokens, and both lengths.
const SLOT_WORDS: usize = 4;

/// 512 KiB: they should stay in a core's own cache.
const SLOTS_MAX: usize = 1 << 15;

/// Below, texts are too short to repeat words.
const SLOTS_MIN: usize = 16;

/// Longer words are rare, and hashing them does not pay.
const WORD_LEN_MAX: usize = 64;
