//! Added tokens that a WordPiece vocabulary has in normalised text: `tokenizer.ggml.added_tokens.normalized`.
//!
//! Their names are normalised as the text is, so that `GPT4` is found in `gpt4` where a vocabulary is of lower case.
//! Other added tokens are found first, in the text as it was written, as Hugging Face's `added_vocabulary.rs` does it.

use super::special::{CONTROL_LIKE, Flags, Named, is_bit, name, set_bit};
use super::vocab::{Attributes, Pieces};
use super::wordpiece::Normalizer;
use crate::sort::sort_indices;

/// The tokens that are looked for in normalised text.
#[derive(Clone, Copy, Debug)]
pub(super) struct NormalizedNames<'a> {
    pieces: Pieces<'a>,
    attributes: Attributes<'a>,
    flags: Flags<'a>,
    normalizer: Normalizer,
    /// Ids in the order of their normalised names; of equal names the first.
    by_name: &'a [u32],
    first_bytes: [u32; 8],
}

impl<'a> NormalizedNames<'a> {
    /// `ids` are of the vocabulary, each once.
    pub(super) fn new(
        pieces: Pieces<'a>,
        attributes: Attributes<'a>,
        flags: Flags<'a>,
        normalizer: Normalizer,
        ids: &'a mut [u32],
    ) -> Self {
        let mut names = Self {
            pieces,
            attributes,
            flags,
            normalizer,
            by_name: &[],
            first_bytes: [0; 8],
        };
        let order = |a, b| names.bytes(a).cmp(names.bytes(b)).then(a.cmp(&b));
        sort_indices(ids, &order);
        let mut first_bytes = [0; 8];
        let firsts = ids.iter().filter_map(|&id| names.bytes(id).next());
        firsts.for_each(|byte| set_bit(&mut first_bytes, byte.into()));
        names.by_name = ids;
        names.first_bytes = first_bytes;
        names
    }

    /// The first of them that `text` has at or after byte `from`; control tokens only if `parse_special`.
    pub(super) fn next(self, text: &str, from: usize, parse_special: bool) -> Option<Named> {
        let mut skipped = from;
        for (at, c) in text[from..].char_indices() {
            let at = from + at;
            let first = self.normalizer.looked_at(c).next();
            if at < skipped || !first.is_some_and(|byte| is_bit(&self.first_bytes, byte.into())) {
                continue;
            }
            let Some((id, len)) = self.longest(&text[at..], parse_special) else {
                continue;
            };
            let (before, after) = (&text[..at], &text[at + len..]);
            let joins = |c| self.normalizer.joins(c);
            let is_in_word = before.chars().rev().find_map(joins) == Some(true)
                || after.chars().find_map(joins) == Some(true);
            if self.flags.is_single_word(id) && is_in_word {
                skipped = at + len;
                continue;
            }
            return Some(
                self.flags
                    .with_spaces(text, from, at..at + len, id, self.attributes),
            );
        }
        None
    }

    /// The token with the longest name that `text` begins with, and the number of bytes of the text that are its.
    fn longest(self, text: &str, parse_special: bool) -> Option<(u32, usize)> {
        let mut longest = None;
        let (mut low, mut high) = (0, self.by_name.len());
        let mut depth = 0;
        for (at, c) in text.char_indices() {
            let before = depth;
            for byte in self.normalizer.looked_at(c) {
                let ids = &self.by_name[low..high];
                let byte_of = |id: u32| self.bytes(id).nth(depth);
                let start = ids.partition_point(|&id| byte_of(id) < Some(byte));
                let end = ids.partition_point(|&id| byte_of(id) <= Some(byte));
                (low, high) = (low + start, low + end);
                depth += 1;
            }
            if low == high {
                break;
            }
            let is_enabled =
                |&&id: &&u32| parse_special || self.attributes.get(id) & CONTROL_LIKE == 0;
            let ends = |&&id: &&u32| depth > before && self.bytes(id).count() == depth;
            let ids = self.by_name[low..high].iter();
            let found = ids.take_while(ends).find(is_enabled);
            longest = found.map(|&id| (id, at + c.len_utf8())).or(longest);
        }
        longest
    }

    /// The normalised name of a token.
    fn bytes(&self, id: u32) -> impl Iterator<Item = u8> + Clone {
        let name = core::str::from_utf8(name(self.pieces, id, true)).unwrap_or_default();
        let normalizer = self.normalizer;
        name.chars().flat_map(move |c| normalizer.looked_at(c))
    }
}
