//! Text to tokens and back, as llama.cpp does it for the vocabulary of a GGUF file.
//!
//! Five kinds of vocabulary are known, by `tokenizer.ggml.model`:
//!
//! - `llama`: SentencePiece's byte-pair model. The characters of a text merge by the scores of
//!   the pieces they make; characters that the vocabulary lacks become byte tokens; a space is
//!   put before the text (`tokenizer.ggml.add_space_prefix`).
//! - `gpt2`: byte-level byte-pair encoding. The text is split into words ([`PreTokenizer`]),
//!   whose bytes (for a few pre-tokenizers: characters) merge by the ranks of
//!   `tokenizer.ggml.merges`.
//! - `gemma4`: as `gpt2`, with characters, and U+2581 for spaces.
//! - `t5`: Unigram, SentencePiece's other model (T5, XLM-RoBERTa). A text is normalised by
//!   `tokenizer.ggml.precompiled_charsmap`, and written with the pieces of the highest sum of scores.
//! - `bert`: WordPiece. Words in lower case and without accents, as the metadata have it, are
//!   written with the longest pieces that fit.
//!
//! Every other model (`rwkv`, `plamo2`, `hybriddna`, `whitespace`) and every name in
//! `tokenizer.ggml.pre` that llama.cpp does not know is an error that names it; so is a `gpt2`
//! vocabulary without a name, which llama.cpp splits by its default with a warning: tokens that
//! are slightly wrong make a model that is slightly stupid. The other models have no
//! pre-tokenizer, and like llama.cpp do not look at the name.
//!
//! The tokenizer owns no memory. [`plan`] returns the number of 32-bit words that its tables take; the
//! pieces themselves stay in the file's header. [`Tokenizer::encode`] takes a workspace and the
//! room for the tokens, [`Detokenizer`] does not need either. Encoding takes O(n log n) of the length
//! of any text (SentencePiece and WordPiece: times the longest piece).
//!
//! Where it differs from llama.cpp on purpose:
//!
//! - A character without a piece and without byte tokens becomes one unknown token (llama.cpp
//!   aborts or drops it), and an error where the vocabulary has no unknown token either.
//! - Of equal pieces the last is found, and an empty piece never (llama.cpp aborts on the first
//!   and renames the second). A merge that does not lead from pieces to a piece never applies.
//! - [`Detokenizer`] does not tidy spaces before punctuation.
//!
//! Source: llama.cpp, `src/llama-vocab.cpp` and `src/unicode.cpp`, as vendored by
//! llama-cpp-python 0.3.36.

#![forbid(unsafe_code)]

mod build;
mod byte_level;
mod cache;
mod charsmap;
mod classes;
mod cover;
mod decimal;
mod detokenize;
mod encode;
mod error;
mod merge;
mod nfc;
mod normalized;
mod pretokenize;
mod queue;
mod scan;
mod special;
mod spelling;
mod split;
#[cfg(test)]
mod tests;
mod unicode;
mod unigram;
mod unread;
mod vocab;
mod window;
mod wordpiece;

pub use build::{TokenizerPlan, plan};
pub use byte_level::char_of as byte_level_char;
pub use detokenize::Detokenizer;
pub use encode::EncodeOptions;
pub use error::{ShortName, TokenizerError};
pub use pretokenize::PreTokenizer;
pub use special::SpecialTokens;

use crate::gguf::Array;
use cover::WordPieces;
use pretokenize::Alphabet;
use special::Specials;
use unigram::Unigram;
use vocab::{Attributes, Merges, NONE, PieceIndex, Pieces, attribute};

/// A vocabulary and its tables. Shared freely between threads: nothing in it changes.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer<'a> {
    pieces: Pieces<'a>,
    index: PieceIndex<'a>,
    attributes: Attributes<'a>,
    specials: Specials<'a>,
    /// 256 words: the token for each byte, or [`NONE`].
    byte_ids: &'a [u32],
    model: Model<'a>,
    special_tokens: SpecialTokens,
    piece_len_max: usize,
    space_prefix: SpacePrefix,
    /// No space is put before a part that begins with one.
    prefix_if_missing: bool,
    /// Spaces around a text are ignored, and several in a row count as one.
    collapses_spaces: bool,
    /// Unigram: words end at all white space, which is not part of them.
    splits_whitespace: bool,
    /// Texts are converted to NFC before they are cut.
    composes: bool,
    /// Unknown characters in a row are one unknown token.
    fuses_unknown: bool,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    suppressed: Option<Array<'a>>,
}

/// What differs between the kinds of vocabulary.
#[derive(Clone, Copy, Debug)]
enum Model<'a> {
    /// `llama`.
    SentencePiece {
        /// For each token a number that falls as the score rises.
        score_order: &'a [u32],
    },
    /// `gpt2` and `gemma4`.
    Bpe {
        merges: Merges<'a>,
        pre: PreTokenizer,
        ignore_merges: bool,
    },
    /// `t5`.
    Unigram(Unigram<'a>),
    /// `bert`.
    WordPiece(WordPieces<'a>),
}

impl Tokenizer<'_> {
    /// Tokens that are never to be chosen: `tokenizer.ggml.suppress_tokens`.
    pub fn suppressed(&self) -> impl Iterator<Item = u32> + Clone {
        let ids = self.suppressed.and_then(Array::i32s).into_iter().flatten();
        let n_vocab = self.n_vocab();
        let ids = ids.filter_map(|id| u32::try_from(id).ok());
        ids.filter(move |&id| id < n_vocab)
    }
}

/// Before which parts of a text, cut at special tokens, a space is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpacePrefix {
    None,
    /// Only before the text's first byte.
    First,
    /// Likewise, and before a user-defined token that the text begins with.
    Text,
    /// Before each part.
    Each,
}

impl SpacePrefix {
    fn stands_at(self, at: usize) -> bool {
        match self {
            Self::None => false,
            Self::First | Self::Text => at == 0,
            Self::Each => true,
        }
    }
}

impl<'a> Tokenizer<'a> {
    /// Number of tokens; ids are below it.
    pub fn n_vocab(&self) -> u32 {
        self.pieces.len()
    }

    /// The tokens with a role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special_tokens
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.special_tokens.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.special_tokens.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.special_tokens.eot
    }

    /// The token for text that the vocabulary cannot write.
    pub fn unk(&self) -> Option<u32> {
        self.special_tokens.unk
    }

    /// [`Self::encode`] prepends BOS when special tokens are asked for.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos().is_some()
    }

    /// [`Self::encode`] appends EOS when special tokens are asked for.
    pub fn adds_eos(&self) -> bool {
        self.add_eos && self.eos().is_some()
    }

    /// Whether the vocabulary ends its texts with EOS, even without such a token.
    pub fn asks_for_eos(&self) -> bool {
        self.add_eos
    }

    /// The token that separates two texts of one sequence, if the vocabulary asks for one.
    pub fn separator(&self) -> Option<u32> {
        self.special_tokens.sep.filter(|_| self.add_sep)
    }

    /// The pre-tokenizer of a vocabulary that merges by rank.
    pub fn pre_tokenizer(&self) -> Option<PreTokenizer> {
        match self.model {
            Model::SentencePiece { .. } | Model::Unigram(_) | Model::WordPiece(_) => None,
            Model::Bpe { pre, .. } => Some(pre),
        }
    }

    /// Whether `id` ends generation: EOS, end of turn, and other tokens that are known to do so by
    /// their names.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.has(id, attribute::END)
    }

    /// `id` is a control token: not text, but the frame around it.
    pub fn is_control(&self, id: u32) -> bool {
        self.has(id, attribute::CONTROL)
    }

    /// The token that the vocabulary writes as `piece`, in its own spelling (of the byte-level
    /// alphabet, or with U+2581 for spaces). The last one, should there be several.
    pub fn token(&self, piece: &[u8]) -> Option<u32> {
        self.index.find(self.pieces, piece.iter().copied())
    }

    /// The bytes of token `id` as the vocabulary writes it, in its own spelling; empty for an
    /// id that is not in the vocabulary.
    pub fn piece(&self, id: u32) -> &'a [u8] {
        self.pieces.get(id)
    }

    /// The length of the longest piece in bytes: no token decodes to more.
    pub fn piece_len_max(&self) -> usize {
        self.piece_len_max
    }

    /// The largest number of bytes of a text that one token of [`Self::encode`] can stand for. `None` if there is no bound:
    /// a run of spaces or of unknown characters may be one token, or the text is normalised.
    pub fn text_len_max(&self) -> Option<usize> {
        let fuses = self.fuses_unknown && self.byte_ids.contains(&NONE);
        let is_bounded = match self.model {
            Model::Bpe { .. } => self.is_byte_level() || !fuses,
            Model::SentencePiece { .. } => !self.collapses_spaces && !fuses,
            Model::Unigram(_) | Model::WordPiece(_) => false,
        };
        let shrinks = if self.composes { nfc::SHRINKAGE } else { 1 };
        // An unknown character is a token as well.
        let longest = self.piece_len_max.max(char::MAX.len_utf8());
        (is_bounded && !self.specials.strip()).then(|| longest.saturating_mul(shrinks))
    }

    /// Merging begins with bytes, each in GPT-2's alphabet.
    fn is_byte_level(&self) -> bool {
        let pre = self.pre_tokenizer();
        pre.is_some_and(|pre| pre.alphabet() == Alphabet::Bytes)
    }

    fn has(&self, id: u32, flags: u8) -> bool {
        self.attributes.get(id) & flags != 0
    }

    fn byte_id(&self, byte: u8) -> Option<u32> {
        Some(self.byte_ids[usize::from(byte)]).filter(|&id| id != NONE)
    }
}
