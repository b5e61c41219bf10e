//! SentencePiece's `tokenizer.model`: pieces, and the text processing before and after them.
//!
//! The file is a protobuf message (google/sentencepiece, `sentencepiece_model.proto`): field 1
//! repeats a piece (1: text, 2: score as f32, 3: kind), field 2 is the trainer's specification, 3
//! the normalizer's, 5 the denormalizer's. Most of the trainer's fields are about training; unknown
//! ones are collected, so callers can decide what to do with them.

/// A piece of a SentencePiece vocabulary; its index is its ID.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The text, with U+2581 for spaces.
    pub text: String,
    /// Pieces with higher scores are merged earlier.
    pub score: f32,
    /// The piece's purpose.
    pub kind: PieceKind,
}

/// A piece's purpose; numbered as in the file and in GGUF's token types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is the kind of that name in the format"
)]
pub enum PieceKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Why a `tokenizer.model` was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum PiecesError {
    /// The bytes are not a valid message of this kind.
    #[error("malformed at byte {at}")]
    Malformed { at: usize },
    /// A piece that is not UTF-8.
    #[error("piece {index} is not UTF-8")]
    NotUtf8 { index: usize },
    /// An unknown kind of model.
    #[error("unknown model kind {kind}: expected Unigram (1), BPE (2), word (3) or char (4)")]
    UnknownKind { kind: u64 },
    /// The file has no pieces, so it is something else.
    #[error("not a SentencePiece model: it has no pieces")]
    NoPieces,
}

/// A `tokenizer.model`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PieceModel {
    /// The pieces; a piece's index is its ID.
    pub pieces: Vec<Piece>,
    /// How a text is cut into pieces.
    pub kind: ModelKind,
    /// Whether U+2581 is placed after words instead of before them.
    pub whitespace_is_suffix: bool,
    /// The normalisation that is applied first.
    pub normalizer: Normalizer,
    /// Whether separate rules turn tokens into text.
    pub has_denormalizer: bool,
    /// Unknown fields of the trainer's and the normalizer's specification.
    pub unknown_fields: Vec<(&'static str, u64)>,
}

/// How a text is cut into pieces; numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is the kind of that name in the format"
)]
pub enum ModelKind {
    Unigram = 1,
    Bpe = 2,
    Word = 3,
    Char = 4,
}

/// The normalisation of a text before it is cut. The defaults are the format's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Normalizer {
    /// The name, such as `nmt_nfkc` or `identity`.
    pub name: String,
    /// A trie of replacements, as SentencePiece stores it; empty for none.
    pub charsmap: Vec<u8>,
    /// Whether a space is prepended to a text.
    pub add_dummy_prefix: bool,
    /// Whether spaces at both ends are removed, and repeated spaces become one.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces become U+2581.
    pub escape_whitespaces: bool,
}

impl Default for Normalizer {
    fn default() -> Self {
        Self {
            name: String::new(),
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

/// Reads a `tokenizer.model`.
///
/// # Errors
/// [`PiecesError`].
pub fn parse_model(bytes: &[u8]) -> Result<PieceModel, PiecesError> {
    let mut model = PieceModel {
        pieces: Vec::new(),
        kind: ModelKind::Unigram,
        whitespace_is_suffix: false,
        normalizer: Normalizer::default(),
        has_denormalizer: false,
        unknown_fields: Vec::new(),
    };
    let mut message = Message {
        bytes,
        base: 0,
        at: 0,
    };
    while let Some((field, value)) = message.next_field()? {
        match (field, value) {
            (1, Field::Bytes(piece)) => {
                let piece = parse_piece(piece, model.pieces.len())?;
                model.pieces.push(piece);
            }
            (2, Field::Bytes(trainer)) => parse_trainer(trainer, &mut model)?,
            (3, Field::Bytes(normalizer)) => parse_normalizer(normalizer, &mut model)?,
            // Sample encodings, for the model's own tests.
            (4, _) => {}
            (5, Field::Bytes(mut denormalizer)) => {
                while let Some((field, value)) = denormalizer.next_field()? {
                    if let (2, Field::Bytes(charsmap)) = (field, value) {
                        model.has_denormalizer |= !charsmap.bytes.is_empty();
                    }
                }
            }
            (field, _) => model.unknown_fields.push(("ModelProto", field)),
        }
    }
    model.unknown_fields.dedup();
    if model.pieces.is_empty() {
        return Err(PiecesError::NoPieces);
    }
    Ok(model)
}

fn parse_trainer(mut trainer: Message<'_>, model: &mut PieceModel) -> Result<(), PiecesError> {
    while let Some((field, value)) = trainer.next_field()? {
        match (field, value) {
            (3, Field::Varint(kind)) => {
                model.kind = match kind {
                    1 => ModelKind::Unigram,
                    2 => ModelKind::Bpe,
                    3 => ModelKind::Word,
                    4 => ModelKind::Char,
                    kind => return Err(PiecesError::UnknownKind { kind }),
                };
            }
            (24, Field::Varint(flag)) => model.whitespace_is_suffix = flag != 0,
            // Training settings, or already known from the pieces' kinds.
            (1 | 2 | 4..=7 | 10..=23 | 25 | 26 | 30..=36 | 40..=54, _) => {}
            (field, _) => model.unknown_fields.push(("TrainerSpec", field)),
        }
    }
    Ok(())
}

fn parse_normalizer(mut spec: Message<'_>, model: &mut PieceModel) -> Result<(), PiecesError> {
    let normalizer = &mut model.normalizer;
    while let Some((field, value)) = spec.next_field()? {
        match (field, value) {
            (1, Field::Bytes(name)) => {
                normalizer.name = String::from_utf8_lossy(name.bytes).into_owned();
            }
            (2, Field::Bytes(charsmap)) => normalizer.charsmap = charsmap.bytes.into(),
            (3, Field::Varint(flag)) => normalizer.add_dummy_prefix = flag != 0,
            (4, Field::Varint(flag)) => normalizer.remove_extra_whitespaces = flag != 0,
            (5, Field::Varint(flag)) => normalizer.escape_whitespaces = flag != 0,
            // The rules in text form, from which the charsmap was compiled.
            (6, _) => {}
            (field, _) => model.unknown_fields.push(("NormalizerSpec", field)),
        }
    }
    Ok(())
}

fn parse_piece(mut message: Message<'_>, index: usize) -> Result<Piece, PiecesError> {
    let base = message.base;
    let mut piece = Piece {
        text: String::new(),
        score: 0.0,
        kind: PieceKind::Normal,
    };
    while let Some((field, value)) = message.next_field()? {
        match (field, value) {
            (1, Field::Bytes(text)) => {
                let text = core::str::from_utf8(text.bytes);
                piece.text = text.map_err(|_| PiecesError::NotUtf8 { index })?.into();
            }
            (2, Field::Fixed32(bits)) => piece.score = f32::from_bits(bits),
            (3, Field::Varint(kind)) => {
                piece.kind = match kind {
                    1 => PieceKind::Normal,
                    2 => PieceKind::Unknown,
                    3 => PieceKind::Control,
                    4 => PieceKind::UserDefined,
                    5 => PieceKind::Unused,
                    6 => PieceKind::Byte,
                    _ => return Err(PiecesError::Malformed { at: base }),
                };
            }
            _ => {}
        }
    }
    Ok(piece)
}

/// A protobuf message being read.
struct Message<'a> {
    bytes: &'a [u8],
    /// Its offset in the file.
    base: usize,
    at: usize,
}

enum Field<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(Message<'a>),
}

impl<'a> Message<'a> {
    fn next_field(&mut self) -> Result<Option<(u64, Field<'a>)>, PiecesError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| self.malformed())?;
                let base = self.base + self.at;
                let bytes = self.take(len)?;
                Field::Bytes(Message { bytes, base, at: 0 })
            }
            5 => {
                let bytes = self.take(4)?.first_chunk::<4>().expect("four were taken");
                Field::Fixed32(u32::from_le_bytes(*bytes))
            }
            _ => return Err(self.malformed()),
        };
        Ok(Some((tag >> 3, field)))
    }

    fn varint(&mut self) -> Result<u64, PiecesError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], PiecesError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or_else(|| self.malformed())?;
        self.at += len;
        Ok(taken)
    }

    const fn malformed(&self) -> PiecesError {
        PiecesError::Malformed {
            at: self.base + self.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One piece "▁a" of score -1.5, one control piece, a trainer of BPE kind, a normalizer
    /// without a space before the text.
    fn file() -> Vec<u8> {
        let mut file = vec![0x0a, 11, 0x0a, 4];
        file.extend("▁a".as_bytes());
        file.push(0x15);
        file.extend((-1.5f32).to_le_bytes());
        file.extend([0x0a, 7, 0x0a, 3, b'<', b's', b'>', 0x18, 3]);
        file.extend([0x12, 5, 0x18, 2, 0xc0, 0x01, 1]);
        file.extend([0x1a, 4, 0x0a, 2, b'i', b'd']);
        file.extend([0x1a, 6, 0x12, 2, 7, 8, 0x18, 0]);
        // An unknown field.
        file.extend([0x39, 1, 2, 3, 4, 5, 6, 7, 8]);
        file
    }

    #[test]
    fn everything_is_read() {
        let model = parse_model(&file()).unwrap();
        let expected = [
            ("▁a", -1.5, PieceKind::Normal),
            ("<s>", 0.0, PieceKind::Control),
        ];
        let expected = expected.map(|(text, score, kind)| Piece {
            text: text.into(),
            score,
            kind,
        });
        assert_eq!(model.pieces, expected);
        assert_eq!(model.kind, ModelKind::Bpe);
        assert!(model.whitespace_is_suffix);
        let normalizer = Normalizer {
            name: "id".into(),
            charsmap: vec![7, 8],
            add_dummy_prefix: false,
            ..Normalizer::default()
        };
        assert_eq!(model.normalizer, normalizer);
        assert_eq!(model.unknown_fields, [("ModelProto", 7)]);
    }

    #[test]
    fn malformed_files_are_errors() {
        let whole = file();
        for len in 1..whole.len() {
            let _either = parse_model(&whole[..len]);
        }
        assert_eq!(
            parse_model(&[0x0a, 200]),
            Err(PiecesError::Malformed { at: 2 })
        );
        assert_eq!(
            parse_model(&[0xff; 20]),
            Err(PiecesError::Malformed { at: 10 })
        );
        assert_eq!(parse_model(&[]), Err(PiecesError::NoPieces));
        let kind = parse_model(&[0x12, 2, 0x18, 9]);
        assert_eq!(kind, Err(PiecesError::UnknownKind { kind: 9 }));
        let not_utf8 = parse_model(&[0x0a, 3, 0x0a, 1, 0xff]);
        assert_eq!(not_utf8, Err(PiecesError::NotUtf8 { index: 0 }));
    }
}
