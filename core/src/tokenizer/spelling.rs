//! How the pieces of a vocabulary are spelled, and which merges it has.

use super::Tokenizer;
use super::merge::Rules;
use super::vocab::Merges;

/// A text in the spelling of a SentencePiece vocabulary: U+2581 for every space, and one more
/// before the text if `prefix_len` is 1. Positions and lengths refer to the text with a
/// plain space before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escaped<'t> {
    pub text: &'t [u8],
    /// 0 or 1.
    pub prefix_len: usize,
    /// Without it, spaces are unchanged.
    pub escapes: bool,
    /// Consecutive spaces become one.
    pub collapses: bool,
}

impl<'t> Escaped<'t> {
    /// The bytes that `len` bytes from `start` on stand for.
    pub(super) fn range(self, start: usize, len: usize) -> EscapedBytes<'t> {
        let prefixed = start < self.prefix_len && len > 0;
        let end = start + len - self.prefix_len;
        EscapedBytes {
            rest: &self.text[start.saturating_sub(self.prefix_len)..end],
            mark: if prefixed { &SPACE_MARK } else { &[] },
            escapes: self.escapes,
            collapses: self.collapses,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct EscapedBytes<'t> {
    rest: &'t [u8],
    /// The unread part of a space's three bytes.
    mark: &'static [u8],
    escapes: bool,
    collapses: bool,
}

impl Iterator for EscapedBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.mark.is_empty() {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            if byte != b' ' || !self.escapes {
                return Some(byte);
            }
            while let [b' ', rest @ ..] = self.rest
                && self.collapses
            {
                self.rest = rest;
            }
            self.mark = &SPACE_MARK;
        }
        let (&byte, mark) = self.mark.split_first()?;
        self.mark = mark;
        Some(byte)
    }
}

/// Merges of a SentencePiece vocabulary: two symbols that make a piece, the best score first.
#[derive(Debug)]
pub(super) struct Scored<'t> {
    pub tokenizer: &'t Tokenizer<'t>,
    pub score_order: &'t [u32],
    pub text: Escaped<'t>,
}

impl Rules for Scored<'_> {
    fn candidate(&self, _: [u32; 2], start: usize, len: usize) -> Option<u32> {
        let Tokenizer { pieces, index, .. } = *self.tokenizer;
        // Escaping only lengthens.
        (len <= self.tokenizer.piece_len_max)
            .then(|| index.find(pieces, self.text.range(start, len)))?
    }

    fn key(&self, candidate: u32) -> u32 {
        self.score_order[candidate as usize]
    }

    fn merged(&self, candidate: u32) -> u32 {
        candidate
    }
}

/// Merges of a BPE vocabulary: listed pairs, in the order of the list.
#[derive(Debug)]
pub(super) struct Ranked<'t> {
    pub merges: Merges<'t>,
}

impl Rules for Ranked<'_> {
    fn candidate(&self, ids: [u32; 2], _: usize, _: usize) -> Option<u32> {
        self.merges.rank(ids[0], ids[1])
    }

    fn key(&self, candidate: u32) -> u32 {
        candidate
    }

    fn merged(&self, candidate: u32) -> u32 {
        self.merges.merged(candidate)
    }
}

/// `fragment`, at byte `at` of `text`, without the spaces that the text begins and ends with.
pub(super) fn trimmed<'t>(text: &str, at: usize, fragment: &'t str) -> (usize, &'t str) {
    let ends = at + fragment.len() == text.len();
    let front = if at == 0 {
        fragment.trim_start_matches(' ')
    } else {
        fragment
    };
    let at = at + fragment.len() - front.len();
    (
        at,
        if ends {
            front.trim_end_matches(' ')
        } else {
            front
        },
    )
}

/// Lengths of the symbols that merging begins with: characters, or runs of spaces.
pub(super) fn symbol_lens(fragment: &str, collapses: bool) -> impl Iterator<Item = usize> {
    let mut rest = fragment;
    core::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let len = match first {
            ' ' if collapses => rest.len() - rest.trim_start_matches(' ').len(),
            _ => first.len_utf8(),
        };
        rest = &rest[len..];
        Some(len)
    })
}

/// U+2581 in UTF-8: SentencePiece's space.
pub(super) const SPACE_MARK: [u8; 3] = *b"\xe2\x96\x81";
