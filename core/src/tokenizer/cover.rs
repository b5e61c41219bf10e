//! Words of a WordPiece vocabulary, written with its longest pieces.

use super::Tokenizer;
use super::cache::Sink;
use super::error::TokenizerError;
use super::normalized::NormalizedNames;
use super::special::LOOKED_FOR;
use super::spelling::SPACE_MARK;
use super::window::{self, Window};
use super::wordpiece::{Normalizer, WORD_CHARS_MAX};

/// The tables of a WordPiece vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct WordPieces<'a> {
    pub(super) normalizer: Normalizer,
    /// 256 words: the length of the longest piece by its first byte.
    pub(super) longest: &'a [u32],
    pub(super) added: NormalizedNames<'a>,
}

impl Tokenizer<'_> {
    /// The added tokens of normalised text in `fragment`, at byte `at`, and the pieces of the words between them.
    pub(super) fn encode_word_pieces(
        &self,
        fragment: &str,
        at: usize,
        table: &WordPieces<'_>,
        parse_special: bool,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let mut from = 0;
        while let Some(named) = table.added.next(fragment, from, parse_special) {
            self.encode_words_between(&fragment[from..named.start], at + from, table, sink)?;
            sink.push(named.id);
            from = named.stop;
        }
        self.encode_words_between(&fragment[from..], at + from, table, sink)
    }

    /// The longest pieces that every word begins with, one after another.
    fn encode_words_between(
        &self,
        text: &str,
        at: usize,
        table: &WordPieces<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let normalizer = table.normalizer;
        let mut window = [0; window::LEN];
        for (start, word) in normalizer.words(text) {
            let count = sink.count();
            // The mark before the word is one more; continuation bytes of a character do not count.
            let starts = normalizer.bytes(word).filter(|byte| byte & 0xc0 != 0x80);
            let is_short = word.len() <= WORD_CHARS_MAX || starts.count() <= WORD_CHARS_MAX + 1;
            let bytes = normalizer.bytes(word);
            if !is_short || !self.cover(bytes, table.longest, &mut window, sink) {
                sink.truncate(count);
                sink.push(self.unknown(word.as_bytes()[0], at + start)?);
            }
        }
        Ok(())
    }

    /// Pushes the pieces of a word of these bytes; false if they do not reach its end.
    fn cover(
        &self,
        word: impl Iterator<Item = u8>,
        longest: &[u32],
        bytes: &mut [u8; window::LEN],
        sink: &mut Sink<'_>,
    ) -> bool {
        // Added tokens are not parts of words, unless they are words of the vocabulary too.
        let is_of_words = |id| !self.has(id, LOOKED_FOR) || self.piece(id).starts_with(&SPACE_MARK);
        let mut window = Window::new(word, bytes);
        loop {
            let ahead = window.ahead();
            let Some(&first) = ahead.first() else {
                return true;
            };
            let len_max = ahead.len().min(longest[usize::from(first)] as usize);
            let ahead = &ahead[..len_max];
            let Some((id, len)) = self.index.find_longest(self.pieces, ahead, is_of_words) else {
                return false;
            };
            sink.push(id);
            window.pass(len);
        }
    }
}
