//! Errors of a vocabulary, a text or the memory for either.

use core::fmt::{self, Write as _};

use crate::gguf::{GgufError, ValueType};
use static_assertions::const_assert;

/// Why a tokenizer could not be built or could not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata key is missing or of the wrong type.
    Metadata(GgufError),
    /// `tokenizer.ggml.model` is not one of those that the module names.
    UnsupportedModel {
        /// The model that the file names.
        name: ShortName,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented for this model.
    UnsupportedPreTokenizer {
        /// The pre-tokenizer that the file names.
        name: ShortName,
    },
    /// `tokenizer.ggml.tokens` has no elements.
    EmptyVocabulary,
    /// An array has more elements than the tokenizer supports.
    ArrayTooLong {
        /// The metadata key.
        key: &'static str,
        /// Its number of elements.
        len: u64,
        /// The maximum number of elements.
        limit: u64,
    },
    /// An array has fewer elements than the vocabulary has tokens.
    ArrayTooShort {
        /// The metadata key.
        key: &'static str,
        /// Its number of elements.
        len: u64,
        /// The number of tokens.
        n_vocab: u64,
    },
    /// An array has elements of the wrong type.
    ElementType {
        /// The metadata key.
        key: &'static str,
        /// The elements' type.
        expected: ValueType,
        /// The type that the file has.
        found: ValueType,
    },
    /// Too many pieces or merges collide in a hash table: the file was built to be slow.
    TooManyCollisions,
    /// `tokenizer.ggml.precompiled_charsmap` is cut off, or points outside of itself.
    MalformedCharsmap,
    /// A token's score is infinite or not a number.
    ScoreNotFinite {
        /// The token.
        id: u32,
    },
    /// A piece of a Unigram vocabulary is longer than the maximum.
    PieceTooLong {
        /// The token.
        id: u32,
        /// Its length in bytes.
        len_bytes: usize,
        /// The maximum length in bytes.
        limit_bytes: usize,
    },
    /// A Unigram vocabulary has no unknown token, nor tokens for all bytes.
    NoUnknownToken,
    /// The memory is smaller than [`plan`](super::plan) returned.
    MemoryTooSmall {
        /// Words of 32 bits needed.
        needed_words: usize,
        /// Words of 32 bits given.
        words: usize,
    },
    /// The text is longer than positions of 32 bits reach.
    TextTooLong {
        /// Its length in bytes.
        len_bytes: usize,
        /// The maximum length of a text in bytes.
        limit_bytes: usize,
    },
    /// The workspace is too small for this text.
    WorkspaceTooSmall {
        /// Words of 32 bits that suffice for any text of this length.
        needed_words: usize,
        /// Words of 32 bits given.
        words: usize,
    },
    /// There are more tokens than the output has room for.
    OutputTooSmall {
        /// The exact number of tokens of the text.
        needed_tokens: usize,
        /// The number of tokens that the output has room for.
        tokens: usize,
    },
    /// The vocabulary has no token for a character of the text, none for the bytes of the
    /// character and no unknown token.
    NoTokenFor {
        /// The first byte without a token.
        byte: u8,
        /// Position of the byte in the text.
        at_byte: usize,
    },
    /// No token has this id.
    UnknownId {
        /// The id.
        id: u32,
        /// The number of tokens: ids are below it.
        n_vocab: u32,
    },
    /// The bytes of a token do not fit into the buffer.
    BufferTooSmall {
        /// Length of the token in bytes.
        needed_bytes: usize,
        /// Length of the buffer in bytes.
        bytes: usize,
    },
}

impl From<GgufError> for TokenizerError {
    fn from(error: GgufError) -> Self {
        Self::Metadata(error)
    }
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Metadata(error) => error.fmt(f),
            Self::UnsupportedModel { name } => write!(f, "tokenizer model {name} is not supported"),
            Self::UnsupportedPreTokenizer { name } => {
                write!(f, "pre-tokenizer {name} is not supported")
            }
            Self::EmptyVocabulary => f.write_str("the vocabulary has no tokens"),
            Self::ArrayTooLong { key, len, limit } => {
                write!(f, "{key} has {len} elements, more than {limit}")
            }
            Self::ArrayTooShort { key, len, n_vocab } => {
                write!(f, "{key} has {len} elements for {n_vocab} tokens")
            }
            Self::ElementType {
                key,
                expected,
                found,
            } => write!(f, "{key} has elements of type {found}, expected {expected}"),
            Self::TooManyCollisions => {
                f.write_str("the vocabulary's pieces or merges collide in a hash table")
            }
            Self::MalformedCharsmap => {
                f.write_str("tokenizer.ggml.precompiled_charsmap is cut off or malformed")
            }
            Self::ScoreNotFinite { id } => {
                write!(f, "the score of token {id} is not a finite number")
            }
            Self::PieceTooLong {
                id,
                len_bytes,
                limit_bytes,
            } => write!(
                f,
                "token {id} has {len_bytes} bytes, more than the {limit_bytes} of a piece"
            ),
            Self::NoUnknownToken => {
                f.write_str("the vocabulary has no unknown token (tokenizer.ggml.unknown_token_id)")
            }
            _ => self.fmt_room(f),
        }
    }
}

impl TokenizerError {
    /// The variants about a text, an id or room.
    fn fmt_room(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::MemoryTooSmall {
                needed_words,
                words,
            } => write!(
                f,
                "the tokenizer needs {needed_words} words of memory, not {words}"
            ),
            Self::TextTooLong {
                len_bytes,
                limit_bytes,
            } => write!(f, "the text has {len_bytes} bytes, more than {limit_bytes}"),
            Self::WorkspaceTooSmall {
                needed_words,
                words,
            } => write!(
                f,
                "a text of this length may need {needed_words} words of workspace, not {words}"
            ),
            Self::OutputTooSmall {
                needed_tokens,
                tokens,
            } => write!(
                f,
                "the text has {needed_tokens} tokens, the output room for {tokens}"
            ),
            Self::NoTokenFor { byte, at_byte } => write!(
                f,
                "the vocabulary has no token for byte {byte:#04x} at byte {at_byte} of the text, \
                 and no unknown token"
            ),
            Self::UnknownId { id, n_vocab } => {
                write!(f, "token {id} is not in a vocabulary of {n_vocab}")
            }
            Self::BufferTooSmall {
                needed_bytes,
                bytes,
            } => write!(
                f,
                "the token has {needed_bytes} bytes, the buffer room for {bytes}"
            ),
            _ => Ok(()),
        }
    }
}

impl core::error::Error for TokenizerError {}

/// The start of a name from the file, copied so that an error outlives the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShortName {
    bytes: [u8; NAME_KEPT_BYTES],
    /// 0 to [`NAME_KEPT_BYTES`].
    len: u8,
    cut: bool,
}

impl ShortName {
    pub(super) fn new(name: &[u8]) -> Self {
        let mut kept = Self {
            bytes: [0; NAME_KEPT_BYTES],
            len: 0,
            cut: name.len() > NAME_KEPT_BYTES,
        };
        for (slot, &byte) in kept.bytes.iter_mut().zip(name) {
            *slot = byte;
            kept.len += 1;
        }
        kept
    }

    /// The first 48 bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Quoted and escaped: a name from a hostile file must not reach a terminal as it is.
impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        write!(f, "{}", self.as_bytes().escape_ascii())?;
        f.write_str(if self.cut { "...\"" } else { "\"" })
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const NAME_KEPT_BYTES: usize = 48;

// Errors travel by value through every call.
const_assert!(size_of::<TokenizerError>() <= 128);
