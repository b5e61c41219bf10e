//! The tables of a Unigram vocabulary.

use super::super::charsmap::CharsMap;
use super::super::error::TokenizerError;
use super::super::special::CONTROL_LIKE;
use super::super::unigram::{PIECE_LEN_MAX, Unigram};
use super::super::vocab::{Attributes, NONE, PieceIndex, Pieces, Prefixes, attribute, slots_for};
use super::kind::byte_name;
use super::{CHARSMAP, Parts, Room, number, wrong_elements};
use crate::gguf::{Array, Gguf, GgufError, ValueType, optional};

impl<'a> Parts<'a> {
    /// Room for prefixes; before, the character map is checked there.
    pub(super) fn prefix_words(&self) -> usize {
        slots_for(self.n_vocab).max(self.map.check_words())
    }

    /// Scores and pieces of texts: of normal, user-defined and unused tokens.
    pub(super) fn unigram(
        &self,
        gguf: &Gguf<'a>,
        pieces: Pieces<'_>,
        attributes: Attributes<'_>,
        room: &mut Room<'a>,
    ) -> Result<Unigram<'a>, TokenizerError> {
        const OF_TEXTS: u8 = attribute::NORMAL | attribute::USER_DEFINED | attribute::UNUSED;
        let bits = room.take(self.n_vocab);
        bits.fill(NONE);
        let mut lowest: Option<f32> = None;
        let ids = (0..).zip(bits.iter_mut());
        for ((id, bits), score) in ids.zip(self.scores.into_iter().flat_map(Array::iter)) {
            let (flags, len_bytes) = (attributes.get(id), pieces.get(id).len());
            if flags & OF_TEXTS == 0 || flags & CONTROL_LIKE != 0 || len_bytes == 0 {
                continue;
            }
            if len_bytes > PIECE_LEN_MAX {
                return Err(TokenizerError::PieceTooLong {
                    id,
                    len_bytes,
                    limit_bytes: PIECE_LEN_MAX,
                });
            }
            let score = match flags & attribute::USER_DEFINED {
                0 => number(score),
                _ => 0.0,
            };
            if !score.is_finite() {
                return Err(TokenizerError::ScoreNotFinite { id });
            }
            if flags & attribute::NORMAL != 0 {
                lowest = Some(lowest.map_or(score, |lowest| lowest.min(score)));
            }
            *bits = score.to_bits();
        }
        let scores: &[u32] = bits;
        let words = room.take(self.prefix_words());
        let map = self.map.checked(&mut words[..self.map.check_words()])?;
        let of_texts = (0..pieces.len()).filter(|&id| scores[id as usize] != NONE);
        let (words, _) = words.split_at_mut(slots_for(self.n_vocab));
        let prefixes = Prefixes::new(of_texts.map(|id| pieces.get(id)), words);
        Ok(Unigram {
            map,
            scores,
            prefixes,
            unknown_score: f64::from(lowest.unwrap_or(0.0)) - UNKNOWN_PENALTY,
            treats_space_as_suffix: is_suffix(gguf)?,
        })
    }
}

pub(super) fn is_suffix(gguf: &Gguf<'_>) -> Result<bool, GgufError> {
    let given = optional(gguf.bool("tokenizer.ggml.treat_whitespace_as_suffix"))?;
    Ok(given.unwrap_or(false))
}

/// The map that texts are normalised by.
pub(super) fn charsmap<'a>(gguf: &Gguf<'a>) -> Result<CharsMap<'a>, TokenizerError> {
    let Some(map) = optional(gguf.array(CHARSMAP))? else {
        return Ok(CharsMap::default());
    };
    match map.element_type() {
        ValueType::U8 | ValueType::I8 => CharsMap::new(map.data_bytes()),
        _ => Err(wrong_elements(CHARSMAP, map, ValueType::U8)),
    }
}

/// The byte tokens of a Unigram vocabulary: all 256, or none. A name alone makes none.
pub(super) fn unigram_bytes<'a>(
    pieces: Pieces<'_>,
    index: PieceIndex<'_>,
    attributes: Attributes<'_>,
    words: &'a mut [u32],
) -> &'a [u32] {
    let is_byte = |&id: &u32| attributes.get(id) & attribute::BYTE != 0;
    for (byte, id) in (0..=u8::MAX).zip(words.iter_mut()) {
        let named = index.find(pieces, byte_name(byte));
        *id = named.filter(is_byte).unwrap_or(NONE);
    }
    if words.contains(&NONE) {
        words.fill(NONE);
    }
    words
}

/// How far below the lowest score an unknown character is.
pub(super) const UNKNOWN_PENALTY: f64 = 10.0;
