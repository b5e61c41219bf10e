//! Building a [`Tokenizer`]: the contents of the file, the memory that they need, and the tables.

mod kind;
mod spaces;
mod unigram;

use kind::Kind;
use spaces::{normalizer, read_flags, space_prefix};
use unigram::{charsmap, unigram_bytes};

use core::mem;

use super::charsmap::CharsMap;
use super::cover::WordPieces;
use super::error::TokenizerError;
use super::normalized::NormalizedNames;
use super::special::{LOOKED_FOR, Specials, dedup, is_name, name, specials_max};
use super::vocab::{
    AttributesMut, Merges, NONE, PieceIndex, Pieces, attribute, position, slots_for,
};
use super::{Model, Tokenizer};
use crate::gguf::{Array, Gguf, GgufError, Value, ValueType, optional};
use crate::sort::sort_indices;

/// The memory that a tokenizer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerPlan {
    /// Words of 32 bits.
    pub words: usize,
}

impl TokenizerPlan {
    /// Its bytes, aligned to [`Self::ALIGN_BYTES`].
    pub fn bytes(self) -> usize {
        self.words * size_of::<u32>()
    }

    /// Alignment of the memory in bytes: the alignment of a word.
    pub const ALIGN_BYTES: usize = align_of::<u32>();
}

/// Returns the memory that [`Tokenizer::new`] needs for the vocabulary of `gguf`: 10 to 20 bytes a
/// token, and 18 to 24 bytes a merge.
///
/// # Errors
///
/// As [`Tokenizer::new`], as far as types and lengths of arrays tell.
pub fn plan(gguf: &Gguf<'_>) -> Result<TokenizerPlan, TokenizerError> {
    let words = Parts::of(gguf)?.words();
    Ok(TokenizerPlan { words })
}

impl<'a> Tokenizer<'a> {
    /// Builds the tables for the vocabulary of `gguf` in `memory`, which has at least the number of words
    /// that [`plan`] returns; their previous contents do not matter.
    ///
    /// # Errors
    ///
    /// The model or pre-tokenizer is not supported, an array is missing, of a wrong type or
    /// too short, or the memory is too small.
    pub fn new(gguf: &Gguf<'a>, memory: &'a mut [u32]) -> Result<Self, TokenizerError> {
        let parts = Parts::of(gguf)?;
        let mut room = Room::new(memory, parts.words())?;

        let starts = room.take(parts.n_vocab + 1);
        let strings = parts.tokens.strings().into_iter().flatten();
        let pieces = Pieces::new(parts.tokens.data_bytes(), strings, starts);
        let index = PieceIndex::new(pieces, room.take(slots_for(parts.n_vocab)))?;

        let mut attributes = AttributesMut::new(room.take(parts.n_vocab.div_ceil(4)));
        parts.read_attributes(&mut attributes);
        let mut special_tokens = parts.kind.default_specials().read(gguf, pieces.len())?;
        let find = |name: &str| index.find(pieces, name.bytes());
        special_tokens.detect(&find, &mut attributes);
        let flags = read_flags(gguf, pieces, &find, &mut attributes)?;
        let attributes = attributes.freeze();

        let is_marked = matches!(parts.kind, Kind::WordPiece);
        let normalized = parts.normalized_names(pieces, room.take(parts.n_normalized));
        let by_name = room.take(parts.specials_max());
        let specials = Specials::new(pieces, attributes, is_marked, flags, normalized, by_name);
        let suppressed = optional(gguf.array(SUPPRESSED))?;
        if let Some(ids) = suppressed {
            elements(ids, SUPPRESSED, ValueType::I32)?;
        }
        let byte_ids = match parts.kind {
            Kind::Unigram => unigram_bytes(pieces, index, attributes, room.take(256)),
            kind => kind.byte_tokens(pieces, index, room.take(256)),
        };
        let model = match parts.kind {
            Kind::Unigram => Model::Unigram(parts.unigram(gguf, pieces, attributes, &mut room)?),
            Kind::WordPiece => {
                let normalizer = normalizer(gguf)?;
                Model::WordPiece(WordPieces {
                    normalizer,
                    longest: longest_by_byte(pieces, room.take(256)),
                    added: NormalizedNames::new(pieces, attributes, flags, normalizer, normalized),
                })
            }
            _ => parts.model(gguf, pieces, index, &mut room)?,
        };
        let is_unigram = matches!(parts.kind, Kind::Unigram);
        if is_unigram && special_tokens.unk.is_none() && byte_ids.contains(&NONE) {
            return Err(TokenizerError::NoUnknownToken);
        }

        let flag = |key, default| Ok::<_, GgufError>(optional(gguf.bool(key))?.unwrap_or(default));
        Ok(Self {
            pieces,
            index,
            attributes,
            specials,
            byte_ids,
            model,
            special_tokens,
            piece_len_max: longest(pieces),
            space_prefix: space_prefix(gguf, parts.kind)?,
            prefix_if_missing: flag("tokenizer.ggml.add_space_prefix_if_missing", false)?,
            collapses_spaces: flag("tokenizer.ggml.remove_extra_whitespaces", false)?,
            splits_whitespace: flag("tokenizer.ggml.split_whitespace", false)?,
            composes: match parts.kind {
                Kind::Bpe(traits) => flag("tokenizer.ggml.normalizer.nfc", traits.composes)?,
                _ => false,
            },
            fuses_unknown: flag(
                "tokenizer.ggml.fuse_unk",
                matches!(parts.kind, Kind::SentencePiece | Kind::Unigram),
            )?,
            add_bos: flag("tokenizer.ggml.add_bos_token", parts.kind.adds_bos())?
                || parts.kind.forces_bos(),
            add_eos: flag("tokenizer.ggml.add_eos_token", is_unigram)?,
            add_sep: flag("tokenizer.ggml.add_sep_token", parts.kind.adds_sep())?,
            suppressed,
        })
    }
}

/// The arrays of a vocabulary, with lengths and types checked.
#[derive(Clone, Copy)]
struct Parts<'a> {
    kind: Kind,
    tokens: Array<'a>,
    token_types: Option<Array<'a>>,
    scores: Option<Array<'a>>,
    merges: Option<Array<'a>>,
    map: CharsMap<'a>,
    /// The added tokens of a WordPiece vocabulary that are looked for in normalised text.
    normalized: Option<Array<'a>>,
    n_vocab: usize,
    n_merges: usize,
    n_normalized: usize,
    n_as_written: usize,
}

impl<'a> Parts<'a> {
    fn of(gguf: &Gguf<'a>) -> Result<Self, TokenizerError> {
        let kind = Kind::of(gguf)?;
        let tokens = gguf.array(TOKENS)?;
        elements(tokens, TOKENS, ValueType::String)?;
        let n_vocab = count(tokens, TOKENS, TOKENS_MAX)?;
        if n_vocab == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let token_types = optional(gguf.array(TOKEN_TYPES))?;
        if let Some(types) = token_types {
            elements(types, TOKEN_TYPES, ValueType::I32)?;
            at_least(types, TOKEN_TYPES, tokens.len())?;
        }
        let mut scores = None;
        let mut merges = None;
        let mut map = CharsMap::default();
        let mut n_merges = 0;
        let mut normalized = None;
        if let Kind::SentencePiece | Kind::Unigram = kind {
            scores = match gguf.array(SCORES) {
                list if matches!(kind, Kind::Unigram) => Some(list?),
                list => optional(list)?,
            };
            if let Some(scores) = scores {
                if scores.f32s().is_none() && scores.i32s().is_none() {
                    return Err(wrong_elements(SCORES, scores, ValueType::F32));
                }
                at_least(scores, SCORES, tokens.len())?;
            }
            if let Kind::Unigram = kind {
                map = charsmap(gguf)?;
            }
        } else if let Kind::Bpe(traits) = kind {
            merges = match gguf.array(MERGES) {
                lines if traits.needs_merges => Some(lines?),
                lines => optional(lines)?,
            };
            if let Some(lines) = merges {
                elements(lines, MERGES, ValueType::String)?;
                n_merges = count(lines, MERGES, MERGES_MAX)?;
            }
        } else {
            normalized = optional(gguf.array(NORMALIZED))?;
            if let Some(ids) = normalized {
                elements(ids, NORMALIZED, ValueType::U32)?;
            }
        }
        let at_most = |ids: Option<Array<'_>>| {
            let len = ids.map_or(0, Array::len);
            usize::try_from(len).unwrap_or(n_vocab).min(n_vocab)
        };
        Ok(Self {
            kind,
            tokens,
            token_types,
            scores,
            merges,
            map,
            normalized,
            n_vocab,
            n_merges,
            n_normalized: at_most(normalized),
            n_as_written: at_most(optional(gguf.array(AS_WRITTEN))?),
        })
    }

    /// The ids that are looked for in normalised text, in order and each once.
    fn normalized_names<'w>(&self, pieces: Pieces<'_>, words: &'w mut [u32]) -> &'w mut [u32] {
        let mut n = 0;
        let ids = self.normalized.and_then(Array::u32s).into_iter().flatten();
        let is_one = |&id: &u32| is_name(name(pieces, id, true));
        for (word, id) in words.iter_mut().zip(ids.filter(is_one)) {
            *word = id;
            n += 1;
        }
        let ids = &mut words[..n];
        sort_indices(ids, &|a, b| a.cmp(&b));
        let n = dedup(ids, |a, b| a == b);
        &mut ids[..n]
    }

    /// Words of memory for all tables, in the order in which they are taken.
    fn words(&self) -> usize {
        // Limits keep each below 2^27.
        let tables = [
            self.n_vocab + 1,
            slots_for(self.n_vocab),
            self.n_vocab.div_ceil(4),
            self.n_normalized,
            self.specials_max(),
            256,
            match self.kind {
                Kind::SentencePiece => self.n_vocab,
                Kind::Unigram => self.n_vocab + self.prefix_words(),
                Kind::Bpe(_) => 3 * self.n_merges + slots_for(self.n_merges),
                Kind::WordPiece => 256,
            },
        ];
        tables.iter().sum()
    }

    fn specials_max(&self) -> usize {
        let marked = self.attributes().filter(|flags| flags & LOOKED_FOR != 0);
        specials_max(marked.count() + self.n_as_written).min(self.n_vocab)
    }

    /// The flags of each token, by its type in the metadata. A type that is not defined has
    /// none, and its tokens are not shown.
    fn attributes(&self) -> impl Iterator<Item = u8> {
        let types = self.token_types.and_then(Array::i32s);
        let given = types.into_iter().flatten().map(|kind| match kind {
            1 => attribute::NORMAL,
            2 => attribute::UNKNOWN,
            3 => attribute::CONTROL,
            4 => attribute::USER_DEFINED,
            5 => attribute::UNUSED,
            6 => attribute::BYTE,
            _ => 0,
        });
        let typed = self.token_types.is_some();
        let untyped = core::iter::repeat_n(attribute::NORMAL, if typed { 0 } else { self.n_vocab });
        given.take(self.n_vocab).chain(untyped)
    }

    fn read_attributes(&self, attributes: &mut AttributesMut<'_>) {
        for (id, flags) in (0..).zip(self.attributes()) {
            attributes.set(id, flags);
        }
    }

    fn model(
        &self,
        gguf: &Gguf<'_>,
        pieces: Pieces<'_>,
        index: PieceIndex<'_>,
        room: &mut Room<'a>,
    ) -> Result<Model<'a>, TokenizerError> {
        let traits = match self.kind {
            Kind::Bpe(traits) => traits,
            // The other two's are apart.
            Kind::SentencePiece | Kind::Unigram | Kind::WordPiece => {
                let score_order = room.take(self.n_vocab);
                score_order.fill(order_of(0.0));
                if let Some(scores) = self.scores {
                    for (order, score) in score_order.iter_mut().zip(scores) {
                        *order = order_of(number(score));
                    }
                }
                return Ok(Model::SentencePiece { score_order });
            }
        };
        let words = room.take(3 * self.n_merges);
        let slots = room.take(slots_for(self.n_merges));
        let lines = self.merges.and_then(Array::strings).into_iter().flatten();
        Ok(Model::Bpe {
            merges: Merges::new(lines, pieces, index, words, slots)?,
            pre: traits.family,
            ignore_merges: optional(gguf.bool("tokenizer.ggml.ignore_merges"))?
                .unwrap_or(traits.ignore_merges),
        })
    }
}

/// The rest of the caller's memory.
struct Room<'a>(&'a mut [u32]);

impl<'a> Room<'a> {
    fn new(memory: &'a mut [u32], needed_words: usize) -> Result<Self, TokenizerError> {
        let words = memory.len();
        if words < needed_words {
            return Err(TokenizerError::MemoryTooSmall {
                needed_words,
                words,
            });
        }
        Ok(Self(memory))
    }

    fn take(&mut self, words: usize) -> &'a mut [u32] {
        let (taken, rest) = mem::take(&mut self.0).split_at_mut(words);
        self.0 = rest;
        taken
    }
}

/// Fails unless an array has elements of the type asked for.
fn elements(
    array: Array<'_>,
    key: &'static str,
    expected: ValueType,
) -> Result<(), TokenizerError> {
    match array.element_type() == expected {
        true => Ok(()),
        false => Err(wrong_elements(key, array, expected)),
    }
}

fn wrong_elements(key: &'static str, array: Array<'_>, expected: ValueType) -> TokenizerError {
    let found = array.element_type();
    TokenizerError::ElementType {
        key,
        expected,
        found,
    }
}

/// The length of an array that has at most `limit` elements.
fn count(array: Array<'_>, key: &'static str, limit: u32) -> Result<usize, TokenizerError> {
    match u32::try_from(array.len()) {
        Ok(len) if len <= limit => Ok(len as usize),
        _ => Err(TokenizerError::ArrayTooLong {
            key,
            len: array.len(),
            limit: limit.into(),
        }),
    }
}

fn at_least(array: Array<'_>, key: &'static str, n_vocab: u64) -> Result<(), TokenizerError> {
    if array.len() < n_vocab {
        return Err(TokenizerError::ArrayTooShort {
            key,
            len: array.len(),
            n_vocab,
        });
    }
    Ok(())
}

/// A score; the array holds `f32` or `i32`.
fn number(score: Value<'_>) -> f32 {
    match score {
        #[expect(clippy::cast_precision_loss, reason = "as llama.cpp converts them")]
        Value::I32(score) => score as f32,
        _ => score.as_f32().unwrap_or(0.0),
    }
}

/// Falls as the score rises; equal for equal scores, so for both zeros. NaN is sorted after all
/// numbers.
fn order_of(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    // Adding a positive zero makes one of a negative zero.
    let bits = (score + 0.0).to_bits();
    // As integers, floats of one sign are in order, the negative ones backwards.
    if bits >> 31 == 0 {
        !(1 << 31) - bits
    } else {
        bits
    }
}

/// The length of the longest piece by its first byte.
fn longest_by_byte<'a>(pieces: Pieces<'_>, longest: &'a mut [u32]) -> &'a [u32] {
    longest.fill(0);
    for piece in (0..pieces.len()).map(|id| pieces.get(id)) {
        if let Some(&first) = piece.first() {
            let longest = &mut longest[usize::from(first)];
            *longest = position(piece.len()).max(*longest);
        }
    }
    longest
}

fn longest(pieces: Pieces<'_>) -> usize {
    (0..pieces.len())
        .map(|id| pieces.get(id).len())
        .max()
        .unwrap_or(0)
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const AS_WRITTEN: &str = "tokenizer.ggml.added_tokens.as_written";
const NORMALIZED: &str = "tokenizer.ggml.added_tokens.normalized";
const MERGES: &str = "tokenizer.ggml.merges";

/// The largest known vocabularies have a quarter of a million tokens. The limit leaves eight
/// bits for the tags of [`PieceIndex`].
const TOKENS_MAX: u32 = (1 << 24) - 1;
const MERGES_MAX: u32 = (1 << 25) - 1;
