//! The kinds of vocabularies, and the settings that each implies.

use super::super::byte_level;
use super::super::error::{ShortName, TokenizerError};
use super::super::pretokenize::{Alphabet, PreTokenizerTraits};
use super::super::special::SpecialTokens;
use super::super::vocab::{NONE, PieceIndex, Pieces};
use crate::gguf::{Gguf, optional};

/// The kind of vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    SentencePiece,
    Unigram,
    Bpe(PreTokenizerTraits),
    WordPiece,
}

impl Kind {
    pub(super) fn of(gguf: &Gguf<'_>) -> Result<Self, TokenizerError> {
        let model = gguf.bytes("tokenizer.ggml.model")?;
        let pre = optional(gguf.bytes("tokenizer.ggml.pre"))?;
        match (model, pre) {
            // As in llama.cpp, only merges by rank have pre-tokenizers.
            (b"llama", _) => Ok(Self::SentencePiece),
            (b"t5", _) => Ok(Self::Unigram),
            (b"bert", _) => Ok(Self::WordPiece),
            (b"gemma4", _) => Ok(Self::Bpe(PreTokenizerTraits::gemma4())),
            (b"gpt2", name) => {
                // Files from before there was such a key: llama.cpp's own rules.
                let name = name.filter(|name| !name.is_empty()).unwrap_or(b"default");
                let traits = PreTokenizerTraits::of(name);
                traits
                    .map(Self::Bpe)
                    .ok_or(TokenizerError::UnsupportedPreTokenizer {
                        name: ShortName::new(name),
                    })
            }
            (name, _) => Err(TokenizerError::UnsupportedModel {
                name: ShortName::new(name),
            }),
        }
    }

    pub(super) fn adds_bos(self) -> bool {
        match self {
            Self::SentencePiece | Self::WordPiece => true,
            Self::Unigram => false,
            Self::Bpe(traits) => traits.add_bos,
        }
    }

    /// Two texts are separated by a separator, unless the metadata disable it.
    pub(super) fn adds_sep(self) -> bool {
        match self {
            Self::WordPiece => true,
            Self::SentencePiece | Self::Unigram => false,
            Self::Bpe(traits) => traits.add_sep,
        }
    }

    /// BOS is always prepended, even if the metadata disable it.
    pub(super) fn forces_bos(self) -> bool {
        match self {
            Self::SentencePiece | Self::Unigram => false,
            Self::Bpe(traits) => traits.forces_bos,
            Self::WordPiece => true,
        }
    }

    /// Pieces are of GPT-2's byte-level alphabet.
    pub(super) fn is_byte_level(self) -> bool {
        match self {
            Self::Bpe(traits) => traits.family.alphabet() == Alphabet::Bytes,
            Self::SentencePiece | Self::Unigram | Self::WordPiece => false,
        }
    }

    /// The ids that apply where the metadata names none.
    pub(super) fn default_specials(self) -> SpecialTokens {
        let none = SpecialTokens::default();
        match self {
            Self::SentencePiece => SpecialTokens {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                ..none
            },
            Self::Unigram => SpecialTokens {
                eos: Some(1),
                unk: Some(2),
                pad: Some(0),
                ..none
            },
            Self::Bpe(traits) => SpecialTokens {
                bos: traits.has_default_bos.then_some(11),
                eos: traits.has_default_eos.then_some(11),
                ..none
            },
            Self::WordPiece => SpecialTokens {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                ..none
            },
        }
    }

    /// The token for each byte, or [`NONE`], in 256 words.
    pub(super) fn byte_tokens<'a>(
        self,
        pieces: Pieces<'_>,
        index: PieceIndex<'_>,
        words: &'a mut [u32],
    ) -> &'a [u32] {
        for (byte, id) in (0..=u8::MAX).zip(words.iter_mut()) {
            *id = self.byte_token(byte, pieces, index).unwrap_or(NONE);
        }
        words
    }

    /// The token for a single byte: of the byte-level alphabet, or `<0x0A>`, or the byte.
    pub(super) fn byte_token(
        self,
        byte: u8,
        pieces: Pieces<'_>,
        index: PieceIndex<'_>,
    ) -> Option<u32> {
        if self.is_byte_level() {
            return index.find(pieces, byte_level::encode(&[byte]));
        }
        let named = index.find(pieces, byte_name(byte));
        named.or_else(|| index.find(pieces, [byte].into_iter()))
    }
}

/// `<0x0A>` for its byte.
pub(super) fn byte_name(byte: u8) -> impl Iterator<Item = u8> + Clone {
    let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
    let name = [b'<', b'0', b'x', digit(byte >> 4), digit(byte & 15), b'>'];
    name.into_iter()
}
