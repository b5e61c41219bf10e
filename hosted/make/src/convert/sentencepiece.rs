//! SentencePiece's `tokenizer.model`, of which only the pieces matter.
//!
//! The file is a protobuf message (google/sentencepiece, `sentencepiece_model.proto`): field 1
//! repeats a piece (1: text, 2: score as f32, 3: kind), field 2 is the trainer's specification
//! (3: kind of model). Other fields are skipped.
#![forbid(unsafe_code)]

/// A piece of a SentencePiece vocabulary; its place is its id.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// With U+2581 for spaces.
    pub text: String,
    /// Higher is merged earlier.
    pub score: f32,
    /// What it is for.
    pub kind: PieceKind,
}

/// What a piece is for; numbered as in the file, and as GGUF's token types.
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

/// Why a `tokenizer.model` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum PiecesError {
    /// The bytes are no protobuf message of this kind.
    #[error("malformed at byte {at}")]
    Malformed { at: usize },
    /// A piece that is not UTF-8.
    #[error("piece {index} is not UTF-8")]
    NotUtf8 { index: usize },
    /// A unigram or word model: its text is not cut by merging the best pair.
    #[error("it is not a BPE model (kind {kind}); only those are supported")]
    NotBpe { kind: u64 },
}

/// Reads all pieces of a `tokenizer.model`.
///
/// # Errors
/// [`PiecesError`].
pub fn parse_pieces(bytes: &[u8]) -> Result<Vec<Piece>, PiecesError> {
    let mut pieces = Vec::new();
    let mut model_kind = UNIGRAM;
    let mut message = Message {
        bytes,
        base: 0,
        at: 0,
    };
    while let Some((field, value)) = message.next_field()? {
        match (field, value) {
            (1, Field::Bytes(piece)) => pieces.push(parse_piece(piece, pieces.len())?),
            (2, Field::Bytes(mut trainer)) => {
                while let Some((field, value)) = trainer.next_field()? {
                    if let (3, Field::Varint(kind)) = (field, value) {
                        model_kind = kind;
                    }
                }
            }
            _ => {}
        }
    }
    if model_kind != BPE {
        return Err(PiecesError::NotBpe { kind: model_kind });
    }
    Ok(pieces)
}

/// The trainer's model kinds; unigram where it is silent.
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

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
    /// Where it starts in the file.
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

    /// One piece "▁a" of score -1.5, one control piece, and a trainer of BPE kind.
    fn file() -> Vec<u8> {
        let mut file = vec![0x0a, 11, 0x0a, 4];
        file.extend("▁a".as_bytes());
        file.push(0x15);
        file.extend((-1.5f32).to_le_bytes());
        file.extend([0x0a, 7, 0x0a, 3, b'<', b's', b'>', 0x18, 3]);
        file.extend([0x12, 2, 0x18, 2]);
        // A field that is not known: skipped.
        file.extend([0x19, 1, 2, 3, 4, 5, 6, 7, 8]);
        file
    }

    #[test]
    fn pieces_are_read() {
        let pieces = parse_pieces(&file()).unwrap();
        let expected = [
            ("▁a", -1.5, PieceKind::Normal),
            ("<s>", 0.0, PieceKind::Control),
        ];
        let expected = expected.map(|(text, score, kind)| Piece {
            text: text.into(),
            score,
            kind,
        });
        assert_eq!(pieces, expected);
    }

    #[test]
    fn malformed_files_are_errors() {
        let whole = file();
        for len in 1..whole.len() {
            let _either = parse_pieces(&whole[..len]);
        }
        assert_eq!(
            parse_pieces(&[0x0a, 200]),
            Err(PiecesError::Malformed { at: 2 })
        );
        assert_eq!(
            parse_pieces(&[0xff; 20]),
            Err(PiecesError::Malformed { at: 10 })
        );
        assert_eq!(parse_pieces(&[]), Err(PiecesError::NotBpe { kind: 1 }));
        let not_utf8 = parse_pieces(&[0x0a, 3, 0x0a, 1, 0xff]);
        assert_eq!(not_utf8, Err(PiecesError::NotUtf8 { index: 0 }));
    }
}
