//! SentencePiece's normaliser: `tokenizer.ggml.precompiled_charsmap` and the marks for spaces.
//!
//! The map holds strings and their replacements, for the usual tokenizers NFKC and a few rules for
//! white space. It is three parts: the size of the trie in bytes, the trie as a double array
//! (32-bit words, little endian), and the replacements, each ended by a NUL.
//!
//! A word of the trie: bit 31 that it holds a value (in the bits below), bits 0 to 7 its label, bit 8 that
//! the word its label 0 leads to holds a value, bits 10 to 30 the offset to its children, times 256 if
//! bit 9 is set. The child for a byte is at the word's place xor the offset xor the byte.
//!
//! Source: SentencePiece, `src/normalizer.cc`, and Darts-clone.

use super::error::TokenizerError;
use super::vocab::position;
use core::str::Chars;

/// Replacements of strings, in place. Without a map, nothing is replaced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CharsMap<'a> {
    trie: &'a [[u8; 4]],
    /// Each ended by a NUL.
    replacements: &'a str,
    /// Maximum factor by which a text grows, spaces as marks included; 0 without a map.
    growth: usize,
}

impl<'a> CharsMap<'a> {
    /// The parts of a map; an empty one maps nothing.
    ///
    /// # Errors
    ///
    /// It is cut off, or the replacements are not UTF-8.
    pub(super) fn new(blob: &'a [u8]) -> Result<Self, TokenizerError> {
        if blob.is_empty() {
            return Ok(Self::default());
        }
        let parts = || {
            let (size, rest) = blob.split_first_chunk()?;
            let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
            let (trie, replacements) = rest.split_at_checked(size)?;
            let (trie, []) = trie.as_chunks() else {
                return None;
            };
            Some(Self {
                trie,
                replacements: core::str::from_utf8(replacements).ok()?,
                growth: 0,
            })
        };
        parts().ok_or(TokenizerError::MalformedCharsmap)
    }

    /// Words of room that [`Self::checked`] takes.
    pub(super) fn check_words(self) -> usize {
        self.trie.len()
    }

    /// Looks at every key once, and finds the maximum growth of a text.
    ///
    /// # Errors
    ///
    /// A replacement is outside, or a key is longer than [`KEY_LEN_MAX`].
    pub(super) fn checked(mut self, words: &mut [u32]) -> Result<Self, TokenizerError> {
        if !self.trie.is_empty() {
            let growth = self.measure(words);
            self.growth = growth.ok_or(TokenizerError::MalformedCharsmap)?;
        }
        Ok(self)
    }

    /// Maximum bytes of a spelled text for each byte of text: three for a space's mark.
    pub(super) fn growth(self) -> usize {
        self.growth.max(MARK.len_utf8())
    }

    /// The longest key that `text` begins with: its length and its replacement.
    fn replaced(self, text: &str) -> Option<(usize, &'a str)> {
        let mut longest = None;
        let mut at = offset(self.word(0)?);
        for (before, byte) in text.bytes().enumerate().take(KEY_LEN_MAX) {
            let Some((place, word)) = self.child(at, byte) else {
                break;
            };
            at = place ^ offset(word);
            if word & HAS_VALUE != 0 && text.is_char_boundary(before + 1) {
                longest = Some((before + 1, at));
            }
        }
        let (len, at) = longest?;
        Some((len, self.replacement(at)?))
    }

    /// The replacement of a key whose children would be counted from `at`.
    fn replacement(self, at: u32) -> Option<&'a str> {
        let value = self.word(at)? & VALUE;
        let rest = self.replacements.get(value as usize..)?;
        rest.split_once('\0').map(|(replacement, _)| replacement)
    }

    fn word(self, place: u32) -> Option<u32> {
        let word = self.trie.get(place as usize)?;
        Some(u32::from_le_bytes(*word))
    }

    /// The child for `byte`, where its parent's children are counted from `at`: its place and word.
    fn child(self, at: u32, byte: u8) -> Option<(u32, u32)> {
        let place = at ^ u32::from(byte);
        let word = self.word(place)?;
        (byte != 0 && word & LABEL == u32::from(byte)).then_some((place, word))
    }

    /// The maximum number of bytes that a byte becomes. Keys share their ends, so that the way to a place is
    /// one of many; the shortest counts.
    fn measure(self, depths: &mut [u32]) -> Option<usize> {
        // For each place, the minimum number of bytes that lead there; 0 if none do so far.
        depths.fill(0);
        let reach = |at, depth, depths: &mut [u32]| {
            for (place, _) in (1..=u8::MAX).filter_map(|byte| self.child(at, byte)) {
                let known = &mut depths[place as usize];
                *known = if *known == 0 { depth } else { *known };
            }
        };
        reach(offset(self.word(0)?), 1, depths);
        let mut growth = 0;
        for depth in 1..=KEY_LEN_MAX + 1 {
            let mut is_last = true;
            for place in 0..position(self.trie.len()) {
                if depths[place as usize] as usize != depth {
                    continue;
                }
                is_last = false;
                let word = self.word(place)?;
                let at = place ^ offset(word);
                if word & HAS_VALUE != 0 {
                    let spelled = spelled_len(self.replacement(at)?);
                    growth = growth.max(spelled.div_ceil(depth));
                }
                reach(at, position(depth + 1), depths);
            }
            if is_last {
                return Some(growth);
            }
        }
        None
    }
}

fn offset(word: u32) -> u32 {
    (word >> 10) << ((word & 0x200) >> 6)
}

/// The length of `text` with a mark for every space.
fn spelled_len(text: &str) -> usize {
    let marked = |c: char| match c {
        c if c.is_whitespace() => MARK.len_utf8(),
        c => c.len_utf8(),
    };
    text.chars().map(marked).sum()
}

/// How the spaces of a text are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spaces {
    /// Whether a mark is added, before the text or after it.
    pub(super) adds: bool,
    /// None is added before a text that begins with a space.
    pub(super) if_missing: bool,
    /// Marks follow words: `tokenizer.ggml.treat_whitespace_as_suffix`.
    pub(super) as_suffix: bool,
    /// Several spaces become one, and only an added one remains at either end:
    /// `tokenizer.ggml.remove_extra_whitespaces`.
    pub(super) collapses: bool,
    /// All white space is a space, and a mark in the text begins a word: `tokenizer.ggml.split_whitespace`.
    pub(super) splits: bool,
}

/// A text in the vocabulary's spelling, character by character: replaced by the map, with U+2581 for
/// spaces.
#[derive(Clone, Debug)]
pub(super) struct Spelled<'t> {
    map: CharsMap<'t>,
    rest: &'t str,
    /// The rest of a replacement.
    replacement: Chars<'t>,
    collapses: bool,
    splits: bool,
    /// A mark precedes the next character that is not a space.
    held: bool,
    /// The character after a mark.
    behind: Option<char>,
    /// A mark is added at the end, if there was anything but spaces.
    suffix: bool,
    /// A character was returned.
    started: bool,
    /// A character was removed by its replacement.
    removed: bool,
}

impl<'t> Spelled<'t> {
    pub(super) fn new(map: CharsMap<'t>, spaces: Spaces, text: &'t str) -> Self {
        let before = spaces.adds && !spaces.as_suffix;
        let mut spelled = Self {
            map,
            rest: text,
            replacement: "".chars(),
            collapses: spaces.collapses,
            splits: spaces.splits,
            held: before && spaces.collapses,
            behind: Some(MARK).filter(|_| before && !spaces.collapses && !text.is_empty()),
            suffix: spaces.adds && spaces.as_suffix,
            started: false,
            removed: false,
        };
        let first = spelled.clone().normal();
        if spaces.if_missing && matches!(first, Some(' ' | MARK)) {
            spelled.behind = None;
            spelled.held &= first != Some(MARK);
        }
        spelled
    }

    /// The next character of the normalised text.
    fn normal(&mut self) -> Option<char> {
        loop {
            if let Some(c) = self.replacement.next() {
                return Some(c);
            }
            let c = self.rest.chars().next()?;
            let Some((len, replacement)) = self.map.replaced(self.rest) else {
                self.rest = &self.rest[c.len_utf8()..];
                return Some(c);
            };
            self.rest = &self.rest[len..];
            self.removed |= replacement.is_empty();
            self.replacement = replacement.chars();
        }
    }
}

impl Iterator for Spelled<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        if let Some(c) = self.behind.take() {
            self.started = true;
            return Some(c);
        }
        loop {
            let Some(c) = self.normal() else {
                let ends = core::mem::take(&mut self.suffix);
                return (ends && (self.started || self.removed)).then_some(MARK);
            };
            if c != ' ' && !(self.splits && c.is_whitespace()) {
                self.started = true;
                if !core::mem::take(&mut self.held) || self.splits && c == MARK {
                    return Some(c);
                }
                self.behind = Some(c);
                return Some(MARK);
            }
            if !self.collapses {
                self.started = true;
                return Some(MARK);
            }
            // Spaces before the first word are removed.
            self.held |= self.started;
        }
    }
}

/// SentencePiece's space.
pub(super) const MARK: char = '\u{2581}';

/// Bits of a word of the trie.
const LABEL: u32 = 0x8000_00ff;
const HAS_VALUE: u32 = 0x100;
const VALUE: u32 = 0x7fff_ffff;

/// Keys are characters with their marks: NFKC's are of at most 18 bytes.
const KEY_LEN_MAX: usize = 64;
