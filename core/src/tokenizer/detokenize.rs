//! Tokens to text, a token at a time.

use super::byte_level;
use super::error::TokenizerError;
use super::pretokenize::Alphabet;
use super::special::{CONTROL_LIKE, LOOKED_FOR};
use super::spelling::SPACE_MARK;
use super::vocab::attribute;
use super::{Model, SpacePrefix, Tokenizer};
use heapless::Vec;

impl Tokenizer<'_> {
    /// Writes the bytes that token `id` stands for to the front of `out` and returns them: the
    /// byte-level alphabet undone, U+2581 a space, `<0x0A>` its byte. Special tokens give their
    /// names, unused ones are empty.
    ///
    /// The bytes may be part of a character; [`Detokenizer`] puts characters together.
    ///
    /// # Errors
    ///
    /// `id` is not in the vocabulary, or `out` is too small; [`Self::piece_len_max`] bytes
    /// always suffice.
    pub fn decode_piece<'b>(&self, id: u32, out: &'b mut [u8]) -> Result<&'b [u8], TokenizerError> {
        let decoded = self.decoded(id)?;
        let needed_bytes = decoded.clone().count();
        let bytes = out.len();
        let out = out
            .get_mut(..needed_bytes)
            .ok_or(TokenizerError::BufferTooSmall {
                needed_bytes,
                bytes,
            })?;
        out.iter_mut()
            .zip(decoded)
            .for_each(|(slot, byte)| *slot = byte);
        Ok(out)
    }

    /// How this vocabulary writes text.
    fn spelling(&self) -> Spelling {
        match self.model {
            Model::SentencePiece { .. } | Model::Unigram(_) | Model::WordPiece(_) => {
                Spelling::SpaceMarks
            }
            Model::Bpe { pre, .. } => match pre.alphabet() {
                Alphabet::Bytes => Spelling::ByteLevel,
                Alphabet::Characters { escapes: true } => Spelling::SpaceMarks,
                Alphabet::Characters { escapes: false } => Spelling::Plain,
            },
        }
    }

    fn decoded(&self, id: u32) -> Result<Decoded<'_>, TokenizerError> {
        if id >= self.n_vocab() {
            return Err(TokenizerError::UnknownId {
                id,
                n_vocab: self.n_vocab(),
            });
        }
        let piece = self.pieces.get(id);
        let flags = self.attributes.get(id);
        let spelling = if flags & LOOKED_FOR != 0 {
            Spelling::Plain
        } else if flags & attribute::NORMAL != 0 {
            self.spelling()
        } else if flags & attribute::BYTE != 0 {
            byte_of_name(piece).map_or(Spelling::Plain, Spelling::Byte)
        } else {
            return Ok(Decoded {
                rest: &[],
                spelling: Spelling::Plain,
            });
        };
        Ok(Decoded {
            rest: piece,
            spelling,
        })
    }
}

/// The bytes that a piece stands for.
#[derive(Clone, Debug)]
struct Decoded<'a> {
    rest: &'a [u8],
    spelling: Spelling,
}

#[derive(Clone, Copy, Debug)]
enum Spelling {
    Plain,
    SpaceMarks,
    ByteLevel,
    Byte(u8),
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        match self.spelling {
            Spelling::ByteLevel => byte_level::decode_next(&mut self.rest),
            Spelling::SpaceMarks if self.rest.starts_with(&SPACE_MARK) => {
                self.rest = &self.rest[SPACE_MARK.len()..];
                Some(b' ')
            }
            Spelling::Plain | Spelling::SpaceMarks => {
                let (&byte, rest) = self.rest.split_first()?;
                self.rest = rest;
                Some(byte)
            }
            Spelling::Byte(byte) => {
                self.rest = &[];
                self.spelling = Spelling::Plain;
                Some(byte)
            }
        }
    }
}

/// Puts text together from tokens, for showing it while it is being generated.
///
/// Only whole characters are returned: up to three bytes of an incomplete one wait for the next token.
/// Bytes that are not UTF-8 become U+FFFD, as `String::from_utf8_lossy` does it for the whole text, so the
/// text does not depend on how it was cut into tokens.
///
/// A SentencePiece vocabulary writes a space before a text, a WordPiece one before every word,
/// also where the text had none; the space that the first token with text begins with is left
/// out. Control and unknown tokens have no text unless asked for.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// Between calls, up to 3 bytes that begin a character.
    buffer: Vec<u8, BUFFER_BYTES>,
    /// Whether the next space was added by the encoder.
    drop_space: bool,
    show_special: bool,
}

impl Detokenizer {
    /// For the tokens of a whole text, from its first on.
    pub fn new(tokenizer: &Tokenizer<'_>) -> Self {
        Self {
            drop_space: match tokenizer.model {
                Model::WordPiece(_) => true,
                Model::Unigram(_) if tokenizer.collapses_spaces => true,
                _ => tokenizer.space_prefix != SpacePrefix::None,
            },
            ..Self::continuing()
        }
    }

    /// For tokens that continue a text, such as the answer to a prompt: the first keeps its
    /// space.
    pub fn continuing() -> Self {
        Self {
            buffer: Vec::new(),
            drop_space: false,
            show_special: false,
        }
    }

    /// Control and unknown tokens are shown by their names.
    #[must_use]
    pub fn showing_special(mut self) -> Self {
        self.show_special = true;
        self
    }

    /// Adds a token, and passes on the text that it completes: in no, one or several calls
    /// of `emit`, as a piece may be of any length.
    ///
    /// # Errors
    ///
    /// `id` is not in the vocabulary; the detokenizer is unchanged then.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        id: u32,
        mut emit: impl FnMut(&str),
    ) -> Result<(), TokenizerError> {
        let mut decoded = tokenizer.decoded(id)?;
        let special = tokenizer.has(id, CONTROL_LIKE);
        if special && !self.show_special {
            return Ok(());
        }
        if self.drop_space && !special {
            let mut after = decoded.clone();
            match after.next() {
                Some(b' ') => decoded = after,
                Some(_) => {}
                None => return Ok(()),
            }
            self.drop_space = false;
        }
        for byte in decoded {
            if self.buffer.is_full() {
                self.flush(&mut emit);
            }
            let pushed = self.buffer.push(byte);
            debug_assert!(pushed.is_ok(), "a flush leaves at most 3 bytes");
        }
        self.flush(&mut emit);
        Ok(())
    }

    /// Ends the text: a character that is still not complete becomes U+FFFD. The detokenizer is
    /// then as after [`Self::continuing`].
    pub fn finish(&mut self, mut emit: impl FnMut(&str)) {
        if !self.buffer.is_empty() {
            emit(REPLACEMENT);
        }
        self.buffer.clear();
        self.drop_space = false;
    }

    /// Passes on everything but an incomplete character at the end, of up to 3 bytes.
    fn flush(&mut self, emit: &mut impl FnMut(&str)) {
        let mut rest = &self.buffer[..];
        let mut kept = 0;
        while !rest.is_empty() {
            let error = match core::str::from_utf8(rest) {
                Ok(text) => {
                    emit(text);
                    break;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            match core::str::from_utf8(valid) {
                Ok(text) if !text.is_empty() => emit(text),
                _ => {}
            }
            match error.error_len() {
                Some(len) => {
                    emit(REPLACEMENT);
                    rest = &after[len..];
                }
                None => {
                    kept = after.len();
                    break;
                }
            }
        }
        let flushed = self.buffer.len() - kept;
        self.buffer.drain(..flushed);
    }
}

/// The byte that `<0x0A>` names.
fn byte_of_name(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16)?).ok();
    match digits {
        &[high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    }
}

const REPLACEMENT: &str = "\u{fffd}";

/// Most pieces fit; longer ones are passed on in parts.
const BUFFER_BYTES: usize = 64;
