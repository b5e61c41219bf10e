//! Text to tokens.

use super::byte_level;
use super::error::TokenizerError;
use super::merge::{Rules, Symbols, words_for};
use super::special::is_space;
use super::vocab::{Merges, NONE};
use super::{Model, PreTokenizer, Tokenizer};

/// What [`Tokenizer::encode`] does with special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Prepend BOS and append EOS, as far as the vocabulary asks for them.
    pub add_special: bool,
    /// The names of control tokens in the text stand for the tokens. Without this they are
    /// text, as prompts from strangers should be. User-defined tokens are found in either case.
    pub parse_special: bool,
}

impl Tokenizer<'_> {
    /// Writes the tokens of `text` to the front of `out` and returns them.
    ///
    /// `workspace` has [`Self::encode_workspace_words`] words, or fewer: a byte-level
    /// vocabulary needs only as much as the longest word takes, so that a few thousand words do
    /// for ordinary text of any length. Likewise `out` may be shorter than
    /// [`Self::max_tokens`]; what they hold does not matter.
    ///
    /// # Errors
    ///
    /// The workspace or the output is too small (the error says what suffices; if only the
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
        let mut sink = Sink { out, count: 0 };
        if options.add_special && self.add_bos {
            self.bos().inspect(|&bos| sink.push(bos));
        }
        let words = workspace.len();
        let encoded = self.encode_fragments(text, options, workspace, &mut sink);
        encoded.map_err(|error| match error {
            TokenizerError::WorkspaceTooSmall { .. } => TokenizerError::WorkspaceTooSmall {
                needed_words: self.encode_workspace_words(text.len()),
                words,
            },
            other => other,
        })?;
        if options.add_special && self.add_eos {
            self.eos().inspect(|&eos| sink.push(eos));
        }
        sink.finish()
    }

    /// Words of workspace that suffice for any text of `text_len_bytes` bytes: 5.6 a byte.
    pub fn encode_workspace_words(&self, text_len_bytes: usize) -> usize {
        let text_len_bytes = text_len_bytes.min(TEXT_LEN_MAX);
        self.specials.words_for(text_len_bytes) + words_for(text_len_bytes + 1)
    }

    /// No text of `text_len_bytes` bytes has more tokens than this, with BOS and EOS. Ordinary
    /// text has a quarter of a token a byte.
    pub fn max_tokens(&self, text_len_bytes: usize) -> usize {
        match self.model {
            Model::ByteLevel { .. } => text_len_bytes.saturating_add(2),
            // The worst is one-byte special tokens in between spaces, which are three byte
            // tokens each, as is the space put before each: seven tokens for two bytes.
            Model::SentencePiece { .. } => text_len_bytes.saturating_mul(4).saturating_add(8),
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
        let bytes = text.as_bytes();
        let maps_words = self.specials.words_for(text.len()).min(workspace.len());
        // Without special tokens in the text, its maps are not needed and leave the room.
        let (maps, scratch) = workspace.split_at_mut(maps_words);
        let cuts = self.specials.cut(bytes, options.parse_special, maps)?;
        let Some(cuts) = cuts else {
            return self.encode_fragment(text, 0, workspace, sink);
        };
        let mut from = 0;
        while from < text.len() {
            let cut = cuts.next(from);
            let end = cut.map_or(text.len(), |(first, _)| first);
            if from < end {
                let fragment = text.get(from..end).expect("names are whole characters");
                self.encode_fragment(fragment, from, scratch, sink)?;
            }
            let Some((first, last)) = cut else { break };
            let id = self.specials.named(&bytes[first..=last]);
            let id = id.expect("only names were marked");
            sink.push(id);
            from = last + 1;
            if self.specials.strips_right(id) {
                let next = cuts.next(from).map_or(text.len(), |(first, _)| first);
                let spaces = bytes[from..next].iter().take_while(|&&byte| is_space(byte));
                from += spaces.count();
            }
        }
        Ok(())
    }

    /// Encodes a part of the text without special tokens: the text or what follows a special
    /// token, from byte `at` of the text on. A space is put before each such part.
    fn encode_fragment(
        &self,
        fragment: &str,
        at: usize,
        scratch: &mut [u32],
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        match self.model {
            _ if fragment.is_empty() => Ok(()),
            Model::SentencePiece { score_order } => {
                let rules = Scored {
                    tokenizer: self,
                    score_order,
                    text: Escaped {
                        text: fragment.as_bytes(),
                        prefix_len: usize::from(self.add_space_prefix),
                    },
                };
                self.encode_sentence(fragment, at, &rules, scratch, sink)
            }
            Model::ByteLevel {
                merges,
                pre,
                ignore_merges,
            } => self.encode_words(fragment, at, (merges, pre, ignore_merges), scratch, sink),
        }
    }

    fn encode_words(
        &self,
        fragment: &str,
        at: usize,
        (merges, pre, ignore_merges): (Merges<'_>, PreTokenizer, bool),
        scratch: &mut [u32],
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let mut end = at;
        for word in pre.words(fragment) {
            let word_at = end;
            end += word.len();
            let word = word.as_bytes();
            if ignore_merges && word.len() <= self.piece_len_max {
                let whole = self.index.find(self.pieces, byte_level::encode(word));
                if let Some(id) = whole {
                    sink.push(id);
                    continue;
                }
            }
            let mut symbols = Symbols::new(scratch, word.len())?;
            for &byte in word {
                symbols.push(1, self.byte_ids[usize::from(byte)]);
            }
            symbols.merge(&Ranked { merges });
            for (start, _, id) in symbols.iter() {
                match id {
                    NONE => sink.push(self.unknown(word[start], word_at + start)?),
                    id => sink.push(id),
                }
            }
        }
        Ok(())
    }

    fn encode_sentence(
        &self,
        fragment: &str,
        at: usize,
        rules: &Scored<'_>,
        scratch: &mut [u32],
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let prefix_len = rules.text.prefix_len;
        let mut symbols = Symbols::new(scratch, prefix_len + fragment.len())?;
        let lens = fragment.chars().map(char::len_utf8);
        let mut start = 0;
        for len in core::iter::repeat_n(1, prefix_len).chain(lens) {
            let id = self.index.find(self.pieces, rules.text.range(start, len));
            symbols.push(len, id.unwrap_or(NONE));
            start += len;
        }
        symbols.merge(rules);
        for (start, len, id) in symbols.iter() {
            if id != NONE {
                sink.push(id);
                continue;
            }
            // A character that is no piece: its bytes, or all of it as unknown.
            let bytes = rules.text.range(start, len);
            match bytes.clone().find(|&byte| self.byte_id(byte).is_none()) {
                None => bytes
                    .filter_map(|byte| self.byte_id(byte))
                    .for_each(|id| sink.push(id)),
                Some(byte) => sink.push(self.unknown(byte, at + start.saturating_sub(prefix_len))?),
            }
        }
        Ok(())
    }

    /// The unknown token, in place of a byte that the vocabulary has no token for.
    fn unknown(&self, byte: u8, at_byte: usize) -> Result<u32, TokenizerError> {
        self.unk()
            .ok_or(TokenizerError::NoTokenFor { byte, at_byte })
    }
}

/// A text in the spelling of a SentencePiece vocabulary: U+2581 for every space, and one more
/// before the text if `prefix_len` is 1. Positions and lengths are those of the text with a
/// plain space before it.
#[derive(Clone, Copy, Debug)]
struct Escaped<'t> {
    text: &'t [u8],
    /// 0 or 1.
    prefix_len: usize,
}

impl<'t> Escaped<'t> {
    /// The bytes that `len` bytes from `start` on stand for.
    fn range(self, start: usize, len: usize) -> EscapedBytes<'t> {
        let prefixed = start < self.prefix_len && len > 0;
        let end = start + len - self.prefix_len;
        EscapedBytes {
            rest: &self.text[start.saturating_sub(self.prefix_len)..end],
            mark: if prefixed { &SPACE_MARK } else { &[] },
        }
    }
}

#[derive(Clone, Debug)]
struct EscapedBytes<'t> {
    rest: &'t [u8],
    /// What is left of a space's three bytes.
    mark: &'static [u8],
}

impl Iterator for EscapedBytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.mark.is_empty() {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            if byte != b' ' {
                return Some(byte);
            }
            self.mark = &SPACE_MARK;
        }
        let (&byte, mark) = self.mark.split_first()?;
        self.mark = mark;
        Some(byte)
    }
}

/// Merges of a SentencePiece vocabulary: whatever makes a piece, the best score first.
#[derive(Debug)]
struct Scored<'t> {
    tokenizer: &'t Tokenizer<'t>,
    score_order: &'t [u32],
    text: Escaped<'t>,
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

/// Merges of a byte-level vocabulary: listed pairs, in the order of the list.
#[derive(Debug)]
struct Ranked<'t> {
    merges: Merges<'t>,
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

/// Tokens on their way to the caller. Goes on counting when there is no more room.
#[derive(Debug)]
struct Sink<'o> {
    out: &'o mut [u32],
    count: usize,
}

impl<'o> Sink<'o> {
    fn push(&mut self, id: u32) {
        if let Some(slot) = self.out.get_mut(self.count) {
            *slot = id;
        }
        self.count += 1;
    }

    fn finish(self) -> Result<&'o [u32], TokenizerError> {
        let tokens = self.out.len();
        let out: &'o [u32] = self.out;
        out.get(..self.count).ok_or(TokenizerError::OutputTooSmall {
            needed_tokens: self.count,
            tokens,
        })
    }
}

/// U+2581 in UTF-8: SentencePiece's space.
pub(super) const SPACE_MARK: [u8; 3] = *b"\xe2\x96\x81";

/// Positions and lengths fit in 32 bits, and room in a `usize` of 32 bits does not overflow.
const TEXT_LEN_MAX: usize = 1 << 29;
