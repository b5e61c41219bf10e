//! Building a [`Tokenizer`]: what the file holds, how much room it takes, and the tables.

use core::mem;

use super::byte_level;
use super::charsmap::CharsMap;
use super::error::{Name, TokenizerError};
use super::pretokenize::{Alphabet, PreTokenizerTraits};
use super::special::{
    CONTROL_LIKE, Flags, LOOKED_FOR, PHI3_NOT_STRIPPING, SpecialTokens, Specials, specials_max,
};
use super::unigram::{PIECE_LEN_MAX, Unigram};
use super::vocab::{
    Attributes, AttributesMut, Merges, NONE, PieceIndex, Pieces, Prefixes, attribute, position,
    slots_for,
};
use super::wordpiece::Normalizer;
use super::{Model, SpacePrefix, Tokenizer};
use crate::gguf::{Array, Gguf, GgufError, Value, ValueType, optional};

/// How much memory a tokenizer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerPlan {
    /// Words of 32 bits.
    pub words: usize,
}

impl TokenizerPlan {
    /// The same in bytes, aligned to [`Self::ALIGN_BYTES`].
    pub fn bytes(self) -> usize {
        self.words * size_of::<u32>()
    }

    /// Alignment of the memory in bytes: that of a word.
    pub const ALIGN_BYTES: usize = align_of::<u32>();
}

/// How much memory [`Tokenizer::new`] needs for the vocabulary of `gguf`: 10 to 20 bytes a
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
    /// Builds the tables for the vocabulary of `gguf` in `memory`, which has at least the words
    /// that [`plan`] said; what they hold does not matter.
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

        let by_name = room.take(parts.specials_max());
        let specials = Specials::new(pieces, attributes, flags, by_name);
        let suppressed = optional(gguf.array(SUPPRESSED))?;
        if let Some(ids) = suppressed {
            elements(ids.i32s(), SUPPRESSED)?;
        }
        let byte_ids = match parts.kind {
            Kind::Unigram => unigram_bytes(pieces, index, attributes, room.take(256)),
            kind => kind.byte_tokens(pieces, index, room.take(256)),
        };
        let model = match parts.kind {
            Kind::Unigram => Model::Unigram(parts.unigram(gguf, pieces, attributes, &mut room)?),
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
            collapses_spaces: flag("tokenizer.ggml.remove_extra_whitespaces", false)?,
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
            suppressed,
        })
    }
}

/// The kind of vocabulary.
#[derive(Clone, Copy, Debug)]
enum Kind {
    SentencePiece,
    Unigram,
    Bpe(PreTokenizerTraits),
    WordPiece,
}

impl Kind {
    fn of(gguf: &Gguf<'_>) -> Result<Self, TokenizerError> {
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
                        name: Name::new(name),
                    })
            }
            (name, _) => Err(TokenizerError::UnsupportedModel {
                name: Name::new(name),
            }),
        }
    }

    fn adds_bos(self) -> bool {
        match self {
            Self::SentencePiece | Self::WordPiece => true,
            Self::Unigram => false,
            Self::Bpe(traits) => traits.add_bos,
        }
    }

    /// BOS is always prepended, even if the metadata say otherwise.
    fn forces_bos(self) -> bool {
        match self {
            Self::SentencePiece | Self::Unigram => false,
            Self::Bpe(traits) => traits.forces_bos,
            Self::WordPiece => true,
        }
    }

    /// Pieces are of GPT-2's byte-level alphabet.
    fn is_byte_level(self) -> bool {
        match self {
            Self::Bpe(traits) => traits.family.alphabet() == Alphabet::Bytes,
            Self::SentencePiece | Self::Unigram | Self::WordPiece => false,
        }
    }

    /// The ids that count where the metadata names none.
    fn default_specials(self) -> SpecialTokens {
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
    fn byte_tokens<'a>(
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
    fn byte_token(self, byte: u8, pieces: Pieces<'_>, index: PieceIndex<'_>) -> Option<u32> {
        if self.is_byte_level() {
            return index.find(pieces, byte_level::encode(&[byte]));
        }
        let named = index.find(pieces, byte_name(byte));
        named.or_else(|| index.find(pieces, [byte].into_iter()))
    }
}

/// `<0x0A>` for its byte.
fn byte_name(byte: u8) -> impl Iterator<Item = u8> + Clone {
    let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
    let name = [b'<', b'0', b'x', digit(byte >> 4), digit(byte & 15), b'>'];
    name.into_iter()
}

/// The byte tokens of a Unigram vocabulary: all 256, or none. A name alone makes none.
fn unigram_bytes<'a>(
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

/// The arrays of a vocabulary, with lengths and types checked.
#[derive(Clone, Copy)]
struct Parts<'a> {
    kind: Kind,
    tokens: Array<'a>,
    token_types: Option<Array<'a>>,
    scores: Option<Array<'a>>,
    merges: Option<Array<'a>>,
    map: CharsMap<'a>,
    n_vocab: usize,
    n_merges: usize,
}

impl<'a> Parts<'a> {
    fn of(gguf: &Gguf<'a>) -> Result<Self, TokenizerError> {
        let kind = Kind::of(gguf)?;
        let tokens = gguf.array(TOKENS)?;
        elements(tokens.strings(), TOKENS)?;
        let n_vocab = count(tokens, TOKENS, TOKENS_MAX)?;
        if n_vocab == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let token_types = optional(gguf.array(TOKEN_TYPES))?;
        if let Some(types) = token_types {
            elements(types.i32s(), TOKEN_TYPES)?;
            at_least(types, TOKEN_TYPES, tokens.len())?;
        }
        let mut scores = None;
        let mut merges = None;
        let mut map = CharsMap::default();
        let mut n_merges = 0;
        if let Kind::SentencePiece | Kind::Unigram = kind {
            scores = match gguf.array(SCORES) {
                list if matches!(kind, Kind::Unigram) => Some(list?),
                list => optional(list)?,
            };
            if let Some(scores) = scores {
                if scores.f32s().is_none() && scores.i32s().is_none() {
                    return Err(TokenizerError::ElementType { key: SCORES });
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
                elements(lines.strings(), MERGES)?;
                n_merges = count(lines, MERGES, MERGES_MAX)?;
            }
        }
        Ok(Self {
            kind,
            tokens,
            token_types,
            scores,
            merges,
            map,
            n_vocab,
            n_merges,
        })
    }

    /// Words of memory for all tables, in the order in which they are taken.
    fn words(&self) -> usize {
        // Limits keep each below 2^27.
        let tables = [
            self.n_vocab + 1,
            slots_for(self.n_vocab),
            self.n_vocab.div_ceil(4),
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
        specials_max(marked.count()).min(self.n_vocab)
    }

    /// The flags of each token as its type in the metadata says. A type that is not defined has
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
            Kind::WordPiece => {
                let longest = room.take(256);
                longest.fill(0);
                for piece in (0..pieces.len()).map(|id| pieces.get(id)) {
                    if let Some(&first) = piece.first() {
                        let longest = &mut longest[usize::from(first)];
                        *longest = position(piece.len()).max(*longest);
                    }
                }
                return Ok(Model::WordPiece {
                    normalizer: normalizer(gguf)?,
                    longest,
                });
            }
            // Unigram's are apart.
            Kind::SentencePiece | Kind::Unigram => {
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

impl<'a> Parts<'a> {
    /// Room for prefixes; before, the character map is checked there.
    fn prefix_words(&self) -> usize {
        slots_for(self.n_vocab).max(self.map.check_words())
    }

    /// Scores and pieces of texts: of normal, user-defined and unused tokens.
    fn unigram(
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

fn is_suffix(gguf: &Gguf<'_>) -> Result<bool, GgufError> {
    let given = optional(gguf.bool("tokenizer.ggml.treat_whitespace_as_suffix"))?;
    Ok(given.unwrap_or(false))
}

/// The map that texts are normalised by.
fn charsmap<'a>(gguf: &Gguf<'a>) -> Result<CharsMap<'a>, TokenizerError> {
    let Some(map) = optional(gguf.array(CHARSMAP))? else {
        return Ok(CharsMap::default());
    };
    match map.element_type() {
        ValueType::U8 | ValueType::I8 => CharsMap::new(map.data_bytes()),
        _ => Err(TokenizerError::ElementType { key: CHARSMAP }),
    }
}

/// What is left of the caller's memory.
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
fn elements<T>(elements: Option<T>, key: &'static str) -> Result<(), TokenizerError> {
    elements
        .map(drop)
        .ok_or(TokenizerError::ElementType { key })
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

/// Falls as the score rises; equal for equal scores, so for both zeros. NaN comes after all
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

fn longest(pieces: Pieces<'_>) -> usize {
    (0..pieces.len())
        .map(|id| pieces.get(id).len())
        .max()
        .unwrap_or(0)
}

/// The special tokens that include the white space beside them.
enum SpacesTaken {
    None,
    /// Phi-3's, nearly all of them: what follows them.
    AfterSpecials,
    /// The mask token of this name: what is before it.
    BeforeMask(&'static str),
}

/// Where the metadata do not say it, the model is known by its architecture, or as in llama.cpp by
/// its name.
fn spaces_taken_along(gguf: &Gguf<'_>) -> Result<SpacesTaken, TokenizerError> {
    let holds = |key, parts: &[&str]| {
        let name = optional(gguf.bytes(key))?.unwrap_or_default();
        let held = |part: &&str| {
            let mut windows = name.windows(part.len());
            windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
        };
        Ok::<_, GgufError>(parts.iter().any(held))
    };
    // Phi-4 is of the same architecture, with merges by rank.
    let is_phi3 = optional(gguf.bytes("general.architecture"))? == Some(b"phi3")
        && optional(gguf.bytes("tokenizer.ggml.model"))? == Some(b"llama");
    let jina = ["jina-v2-de", "jina-v2-es", "jina-v2-code"];
    let encoders = ["nomic-bert-moe", "jina-bert-v3"];
    Ok(
        if holds("tokenizer.ggml.pre", &jina)? || holds("general.architecture", &encoders)? {
            SpacesTaken::BeforeMask("<mask>")
        } else if is_phi3 || holds("general.name", &["phi-3", "phi3"])? {
            SpacesTaken::AfterSpecials
        } else if holds("general.name", &["modern-bert"])? {
            SpacesTaken::BeforeMask("[MASK]")
        } else {
            SpacesTaken::None
        },
    )
}

/// Where a space is put before a text.
fn space_prefix(gguf: &Gguf<'_>, kind: Kind) -> Result<SpacePrefix, GgufError> {
    let flag = |key| optional(gguf.bool(key));
    let given = flag("tokenizer.ggml.add_space_prefix")?;
    // As in llama.cpp: where spaces are merged, the first word begins with one as all others do.
    let merges = matches!(kind, Kind::Unigram)
        && flag("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false)
        && !is_suffix(gguf)?;
    let is_added = merges || given.unwrap_or(matches!(kind, Kind::SentencePiece | Kind::Unigram));
    let is_first = flag("tokenizer.ggml.add_space_prefix_first")?.unwrap_or(false);
    Ok(match (is_added, is_first) {
        (_, true) => SpacePrefix::First,
        (true, false) => SpacePrefix::Each,
        (false, false) => SpacePrefix::None,
    })
}

/// What white space added tokens take along, and which of them are words of their own: lists in
/// the file, or what its model is known for.
fn read_flags<'a>(
    gguf: &Gguf<'a>,
    pieces: Pieces<'_>,
    find: &impl Fn(&str) -> Option<u32>,
    attributes: &mut AttributesMut<'_>,
) -> Result<Flags<'a>, TokenizerError> {
    let list = |key| -> Result<Option<Array<'a>>, TokenizerError> {
        let Some(ids) = optional(gguf.array(key))? else {
            return Ok(None);
        };
        elements(ids.u32s(), key)?;
        Ok(Some(ids))
    };
    let strip_right = list("tokenizer.ggml.added_tokens.rstrip")?;
    let mut flags = Flags {
        mask: None,
        strip_left: list("tokenizer.ggml.added_tokens.lstrip")?,
        single_word: list("tokenizer.ggml.added_tokens.single_word")?,
    };
    let ids = strip_right.and_then(Array::u32s).into_iter().flatten();
    for id in ids.filter(|&id| id < pieces.len()) {
        attributes.set(id, attributes.get(id) | attribute::STRIPS_RIGHT);
    }
    let ends = list("tokenizer.ggml.eog_token_ids")?;
    let ids = ends.and_then(Array::u32s).into_iter().flatten();
    for id in ids.filter(|&id| id < pieces.len()) {
        attributes.set(id, attributes.get(id) | attribute::END);
    }
    if strip_right.is_none() && flags.strip_left.is_none() {
        match spaces_taken_along(gguf)? {
            SpacesTaken::None => {}
            SpacesTaken::BeforeMask(name) => flags.mask = find(name),
            SpacesTaken::AfterSpecials => mark_phi3(find, pieces, attributes),
        }
    }
    Ok(flags)
}

/// How texts of a WordPiece vocabulary become words.
fn normalizer(gguf: &Gguf<'_>) -> Result<Normalizer, GgufError> {
    let flag = |key| optional(gguf.bool(key));
    let lowercase = flag("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = flag("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    Ok(Normalizer {
        lowercase,
        strip_accents,
    })
}

fn mark_phi3(
    find: &impl Fn(&str) -> Option<u32>,
    pieces: Pieces<'_>,
    attributes: &mut AttributesMut<'_>,
) {
    for id in 0..pieces.len() {
        let flags = attributes.get(id);
        if flags & LOOKED_FOR != 0 {
            attributes.set(id, flags | attribute::STRIPS_RIGHT);
        }
    }
    for id in PHI3_NOT_STRIPPING.iter().filter_map(|name| find(name)) {
        attributes.set(id, attributes.get(id) & !attribute::STRIPS_RIGHT);
    }
}

/// How far below the lowest score an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const MERGES: &str = "tokenizer.ggml.merges";

/// The largest known vocabularies have a quarter of a million tokens. The limit leaves eight
/// bits for the tags of [`PieceIndex`].
const TOKENS_MAX: u32 = (1 << 24) - 1;
const MERGES_MAX: u32 = (1 << 25) - 1;
