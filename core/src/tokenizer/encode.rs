//! Text to tokens.

use core::ops::Range;

use super::byte_level;
use super::cache::{Scratch, Sink};
use super::error::TokenizerError;
use super::merge::{Rules, SHORT, ShortWord, words_for};
use super::nfc::{self, Composer};
use super::pretokenize::Alphabet;
use super::special::Named;
use super::spelling::{Escaped, Ranked, SPACE_MARK, Scored, symbol_lens, trimmed};
use super::vocab::{Merges, NONE, attribute};
use super::{Model, PreTokenizer, SpacePrefix, Tokenizer, charsmap, unigram};

/// How [`Tokenizer::encode`] treats special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Prepend BOS and append EOS, if the vocabulary asks for them.
    pub add_special: bool,
    /// The names of control tokens in the text stand for the tokens. Without this they are
    /// text, as untrusted prompts should be. User-defined tokens are found in either case.
    pub parse_special: bool,
}

impl Tokenizer<'_> {
    /// Writes the tokens of `text` to the front of `out` and returns them.
    ///
    /// `workspace` has [`Self::encode_workspace_words`] words, or fewer: a byte-level
    /// vocabulary needs only as much as the longest word takes, so that a few thousand words are
    /// enough for ordinary text of any length. `out` too may be shorter than
    /// [`Self::max_tokens`]; their previous contents do not matter.
    ///
    /// # Errors
    ///
    /// The workspace or the output is too small (the error gives a sufficient size; if only the
    /// output is too small, its front holds the first tokens); the text is too long; or it has
    /// a character for which the vocabulary has neither a piece nor bytes nor an unknown token.
    pub fn encode<'o>(
        &self,
        text: &str,
        options: EncodeOptions,
        workspace: &mut [u32],
        out: &'o mut [u32],
    ) -> Result<&'o [u32], TokenizerError> {
        if text.len() > TEXT_LEN_MAX {
            return Err(TokenizerError::TextTooLong {
                len_bytes: text.len(),
                limit_bytes: TEXT_LEN_MAX,
            });
        }
        let mut sink = Sink::new(out);
        if options.add_special && self.add_bos {
            self.bos().inspect(|&bos| sink.push(bos));
        }
        let words = workspace.len();
        let encoded = match self.composed(text, options, workspace) {
            Some((text, rest)) => self.encode_fragments(text, options, rest, &mut sink),
            // The same error as if it were too small for the words after it.
            None => Err(TokenizerError::WorkspaceTooSmall {
                needed_words: words + 1,
                words,
            }),
        };
        encoded.map_err(|error| match error {
            TokenizerError::WorkspaceTooSmall { .. } => TokenizerError::WorkspaceTooSmall {
                needed_words: self.encode_workspace_words(text.len()),
                words,
            },
            other => other,
        })?;
        if options.add_special {
            self.closing().inspect(|&id| sink.push(id));
        }
        sink.finish()
    }

    /// The text to cut, in NFC between special tokens if the vocabulary asks for that, and the words that are
    /// left; `None` if there are too few.
    fn composed<'t>(
        &self,
        text: &'t str,
        options: EncodeOptions,
        workspace: &'t mut [u32],
    ) -> Option<(&'t str, &'t mut [u32])> {
        if !self.composes || nfc::is_stable(text) {
            return Some((text, workspace));
        }
        let mut composer = Composer::new(workspace);
        let mut from = 0;
        while let Some(named) = self.specials.next(text, from, options.parse_special) {
            composer.compose(&text[from..named.start])?;
            composer.push(&text[named.start..named.stop])?;
            from = named.stop;
        }
        composer.compose(&text[from..])?;
        composer.finish()
    }

    /// Words of workspace that suffice for any text of `text_len_bytes` bytes: unless the vocabulary
    /// is WordPiece, 5.5 words a byte to merge, should the text be a single word. Unigram: a word for
    /// each byte of the normalised text, of which NFKC makes up to 13 of one byte.
    pub fn encode_workspace_words(&self, text_len_bytes: usize) -> usize {
        let text_len_bytes = text_len_bytes.min(TEXT_LEN_MAX);
        match self.model {
            Model::WordPiece(_) => 0,
            Model::Unigram(unigram) => {
                let spelled = text_len_bytes.saturating_mul(unigram.map.growth());
                unigram::words_for(spelled.saturating_add(SPACE_MARK.len()))
            }
            _ if self.composes => {
                // Composing is done with its own room before merging begins.
                let composed = text_len_bytes.saturating_mul(nfc::GROWTH);
                let merging = composed / 4 + 1 + words_for(composed + 1);
                merging.max(nfc::words_for(text_len_bytes))
            }
            _ => words_for(text_len_bytes + 1),
        }
    }

    /// Maximum number of tokens of a text of `text_len_bytes` bytes, with BOS and EOS. Ordinary
    /// text has a quarter of a token a byte.
    pub fn max_tokens(&self, text_len_bytes: usize) -> usize {
        if self.is_byte_level() {
            let growth = if self.composes { nfc::GROWTH } else { 1 };
            return text_len_bytes.saturating_mul(growth).saturating_add(2);
        }
        if let Model::Unigram(unigram) = self.model {
            // Every byte a token, and a mark of three bytes next to every special token.
            let each = unigram.map.growth() + SPACE_MARK.len() + 1;
            return text_len_bytes.saturating_mul(each).saturating_add(8);
        }
        // The worst are one-byte special tokens in between spaces, which are three byte tokens
        // each, as is the space put before each: seven tokens for two bytes. Of a WordPiece
        // vocabulary, words of one byte with three pieces for the mark before them.
        text_len_bytes.saturating_mul(4).saturating_add(8)
    }

    /// The token that ends a sequence.
    fn closing(&self) -> Option<u32> {
        match self.model {
            Model::WordPiece(_) => self.special_tokens.sep,
            _ => self.eos().filter(|_| self.add_eos),
        }
    }

    /// Cuts the text at special tokens, and encodes what is between them.
    fn encode_fragments(
        &self,
        text: &str,
        options: EncodeOptions,
        workspace: &mut [u32],
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let cached_len = if self.is_byte_level() { text.len() } else { 0 };
        let mut scratch = Scratch::new(workspace, cached_len);
        let mut from = 0;
        loop {
            let named = self.specials.next(text, from, options.parse_special);
            let end = named.map_or(text.len(), |named| named.start);
            if named.is_some_and(|named| self.has_prefix_alone(text, from, named)) {
                let mark = self.index.find(self.pieces, SPACE_MARK.into_iter());
                sink.push(mark.map_or_else(|| self.unknown(b' ', 0), Ok)?);
            }
            let parse_special = options.parse_special;
            self.encode_fragment(text, from..end, parse_special, &mut scratch, sink)?;
            let Some(named) = named else {
                return Ok(());
            };
            sink.push(named.id);
            from = named.stop;
        }
    }

    /// Whether the space before the text is a token of its own: no text is left before `named` that takes it.
    fn has_prefix_alone(&self, text: &str, from: usize, named: Named) -> bool {
        let before = match self.collapses_spaces {
            true => text[from..named.start].trim_start_matches(' '),
            false => &text[from..named.start],
        };
        self.space_prefix == SpacePrefix::Text
            && from == 0
            && before.is_empty()
            && self.has(named.id, attribute::USER_DEFINED)
    }

    /// Encodes a part of the text without special tokens: the whole text, or the part after a special
    /// token. A space may be put before each such part.
    fn encode_fragment(
        &self,
        text: &str,
        part: Range<usize>,
        parse_special: bool,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let (at, part_start) = (part.start, part.start);
        let fragment = &text[part];
        match self.model {
            _ if fragment.is_empty() => Ok(()),
            Model::SentencePiece { score_order } => {
                let (at, fragment) = match self.collapses_spaces {
                    true => trimmed(text, at, fragment),
                    false => (at, fragment),
                };
                if fragment.is_empty() {
                    return Ok(());
                }
                let is_there =
                    self.prefix_if_missing && fragment.starts_with([' ', charsmap::MARK]);
                let text = Escaped {
                    text: fragment.as_bytes(),
                    prefix_len: usize::from(!is_there && self.space_prefix.stands_at(part_start)),
                    escapes: true,
                    collapses: self.collapses_spaces,
                };
                let rules = Scored {
                    tokenizer: self,
                    score_order,
                    text,
                };
                self.encode_characters(fragment, at, text, &rules, scratch, sink)
            }
            Model::Bpe { merges, pre, .. } => match pre.alphabet() {
                Alphabet::Bytes => self.encode_words(text, at, fragment, scratch, sink),
                Alphabet::Characters { .. } => {
                    self.encode_lines(fragment, at, merges, pre, scratch, sink)
                }
            },
            Model::WordPiece(table) => {
                self.encode_word_pieces(fragment, at, &table, parse_special, sink)
            }
            Model::Unigram(unigram) => {
                self.encode_unigram(fragment, at, &unigram, scratch.all(), sink)
            }
        }
    }

    /// Byte-level merging of every word of `fragment`, which is at byte `at` of `text`.
    fn encode_words(
        &self,
        text: &str,
        at: usize,
        fragment: &str,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let Model::Bpe {
            merges,
            pre,
            ignore_merges,
        } = self.model
        else {
            return Ok(());
        };
        let rules = Ranked { merges };
        let bytes = text.as_bytes();
        let mut end = at;
        for word in pre.words(fragment) {
            let start = end;
            end += word.len();
            if let &[byte] = word.as_bytes() {
                match self.byte_ids[usize::from(byte)] {
                    NONE => sink.push(self.unknown(byte, start)?),
                    id => sink.push(id),
                }
                continue;
            }
            let seen = scratch.seen(bytes, start..end);
            if let Some((first, count)) = seen.tokens {
                sink.repeat(first, count);
                continue;
            }
            let first = sink.count();
            self.encode_word(
                &bytes[start..end],
                start,
                &rules,
                ignore_merges,
                scratch,
                sink,
            )?;
            scratch.remember(seen, start..end, first..sink.count());
        }
        Ok(())
    }

    fn encode_word(
        &self,
        word: &[u8],
        at: usize,
        rules: &Ranked<'_>,
        ignore_merges: bool,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        if ignore_merges && word.len() <= self.piece_len_max {
            let whole = self.index.find(self.pieces, byte_level::encode(word));
            if let Some(id) = whole {
                sink.push(id);
                return Ok(());
            }
        }
        let mut push = |start: usize, id| {
            sink.push(match id {
                NONE => self.unknown(word[start], at + start)?,
                id => id,
            });
            Ok(())
        };
        let ids = word.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        if word.len() <= SHORT {
            let mut short = ShortWord::new(ids);
            short.merge(rules);
            return short.iter().try_for_each(|(start, id)| push(start, id));
        }
        let mut symbols = scratch.symbols(word.len())?;
        ids.for_each(|id| symbols.push(1, id));
        symbols.merge(rules);
        symbols
            .iter()
            .try_for_each(|(start, _, id)| push(start, id))
    }

    /// Merging of the characters of every word.
    fn encode_lines(
        &self,
        fragment: &str,
        at: usize,
        merges: Merges<'_>,
        pre: PreTokenizer,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let escapes = matches!(pre.alphabet(), Alphabet::Characters { escapes: true });
        let mut end = at;
        for word in pre.words(fragment) {
            let start = end;
            end += word.len();
            if pre == PreTokenizer::Gemma4 && word.starts_with('\n') {
                let whole = self.index.find(self.pieces, word.bytes());
                if let Some(id) = whole {
                    sink.push(id);
                    continue;
                }
            }
            let text = Escaped {
                text: word.as_bytes(),
                prefix_len: 0,
                escapes,
                collapses: false,
            };
            self.encode_characters(word, start, text, &Ranked { merges }, scratch, sink)?;
        }
        Ok(())
    }

    /// Merges the characters of `fragment`, in the spelling of `text`.
    fn encode_characters(
        &self,
        fragment: &str,
        at: usize,
        text: Escaped<'_>,
        rules: &impl Rules,
        scratch: &mut Scratch<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let prefix_len = text.prefix_len;
        let mut symbols = scratch.symbols(prefix_len + fragment.len())?;
        let lens = symbol_lens(fragment, text.collapses);
        let mut start = 0;
        for len in core::iter::repeat_n(1, prefix_len).chain(lens) {
            let id = self.index.find(self.pieces, text.range(start, len));
            symbols.push(len, id.unwrap_or(NONE));
            start += len;
        }
        symbols.merge(rules);
        let mut was_unknown = false;
        for (start, len, id) in symbols.iter() {
            if id != NONE {
                sink.push(id);
                was_unknown = false;
                continue;
            }
            // A character that is not a piece: its bytes, or all of it as unknown.
            let bytes = text.range(start, len);
            match bytes.clone().find(|&byte| self.byte_id(byte).is_none()) {
                None => {
                    let ids = bytes.filter_map(|byte| self.byte_id(byte));
                    ids.for_each(|id| sink.push(id));
                    was_unknown = false;
                }
                Some(byte) => {
                    let id = self.unknown(byte, at + start.saturating_sub(prefix_len))?;
                    if !(was_unknown && self.fuses_unknown) {
                        sink.push(id);
                    }
                    was_unknown = true;
                }
            }
        }
        Ok(())
    }

    /// The unknown token, in place of a byte that the vocabulary has no token for.
    pub(super) fn unknown(&self, byte: u8, at_byte: usize) -> Result<u32, TokenizerError> {
        self.unk()
            .ok_or(TokenizerError::NoTokenFor { byte, at_byte })
    }
}

/// Maximum length of a text: positions and lengths fit in 32 bits, and room in a `usize` of 32 bits does not overflow.
const TEXT_LEN_MAX: usize = 1 << 29;
