//! Unigram, of SentencePiece: the pieces that cover a text and have the highest sum of scores.
//!
//! Viterbi's algorithm: at each character, every piece that the rest begins with makes an offer for
//! the place where it ends. The best way to a place is kept as its last piece. Where no piece is
//! just the next character, it may also be unknown, at a price below all scores. Once no offer
//! reaches beyond the current character, the way up to it is settled and its pieces are pushed: for
//! usual vocabularies at the end of a word at the latest. The sums start again at every word, as in
//! Hugging Face's tokenizers, which splits words first.
//!
//! Source: SentencePiece, `src/unigram_model.cc`; tokenizers, `src/models/unigram/model.rs`.

use super::Tokenizer;
use super::cache::Sink;
use super::charsmap::{CharsMap, MARK, Spaces, Spelled};
use super::error::TokenizerError;
use super::spelling::SPACE_MARK;
use super::vocab::{FNV_START, NONE, Prefixes, fnv, position};
use super::window::{self, Window};

/// The tables of a Unigram vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unigram<'a> {
    pub(super) map: CharsMap<'a>,
    /// The bits of each token's score as `f32`, or [`NONE`] for one that texts do not have.
    pub(super) scores: &'a [u32],
    pub(super) prefixes: Prefixes<'a>,
    pub(super) unknown_score: f64,
    pub(super) treats_space_as_suffix: bool,
}

impl Unigram<'_> {
    fn score(&self, id: u32) -> Option<f64> {
        let bits = self.scores[id as usize];
        (bits != NONE).then(|| f32::from_bits(bits).into())
    }
}

impl Tokenizer<'_> {
    /// The best pieces for `fragment`, at byte `at` of the text.
    pub(super) fn encode_unigram(
        &self,
        fragment: &str,
        at: usize,
        unigram: &Unigram<'_>,
        workspace: &mut [u32],
        sink: &mut Sink<'_>,
    ) -> Result<(), TokenizerError> {
        let spaces = Spaces {
            adds: self.space_prefix.stands_at(at),
            if_missing: self.prefix_if_missing,
            as_suffix: unigram.treats_space_as_suffix,
            collapses: self.collapses_spaces || self.splits_whitespace,
            splits: self.splits_whitespace,
        };
        let chars = Spelled::new(unigram.map, spaces, fragment);
        let mut bytes = [0; window::LEN];
        let stream = chars.flat_map(|c| {
            let mut utf8 = [0; 4];
            let len = c.encode_utf8(&mut utf8).len();
            utf8.into_iter().take(len)
        });
        let mut window = Window::new(stream, &mut bytes);
        let mut lattice = Lattice::new(workspace)?;
        let mut was_unknown = false;
        let mut emit = |piece| {
            was_unknown = self.push_piece(piece, at, was_unknown, sink)?;
            Ok(())
        };
        loop {
            let ahead = window.ahead();
            let Some(&first) = ahead.first() else {
                break;
            };
            if lattice.is_settled() {
                let is_word = ahead.starts_with(&SPACE_MARK);
                lattice.settle(self, is_word, &mut emit)?;
            }
            let len = char_len(first);
            self.offer(unigram, ahead, len, &mut lattice)?;
            lattice.pass(len);
            window.pass(len);
        }
        lattice.settle(self, true, &mut emit)
    }

    /// Offers every piece that `ahead` begins with; its first character is of `char_len` bytes.
    fn offer(
        &self,
        unigram: &Unigram<'_>,
        ahead: &[u8],
        char_len: usize,
        lattice: &mut Lattice<'_>,
    ) -> Result<(), TokenizerError> {
        let mut hash = FNV_START;
        let mut has_char = false;
        for (before, &byte) in ahead.iter().enumerate() {
            hash = fnv(hash, byte);
            let (piece, rest) = ahead.split_at(before + 1);
            let ends = rest.first().is_none_or(|byte| byte & 0xc0 != 0x80);
            let id = ends.then(|| {
                let bytes = piece.iter().copied();
                self.index
                    .find_hashed(self.pieces, hash, piece.len(), bytes)
            });
            if let Some(id) = id.flatten()
                && let Some(score) = unigram.score(id)
            {
                lattice.offer(piece.len(), id, score)?;
                has_char |= piece.len() == char_len;
            }
            if !unigram.prefixes.may_have(hash) {
                break;
            }
        }
        if has_char {
            return Ok(());
        }
        let c = core::str::from_utf8(&ahead[..char_len]).ok();
        let c = c.and_then(|c| c.chars().next()).unwrap_or(MARK);
        lattice.offer(char_len, UNKNOWN | u32::from(c), unigram.unknown_score)
    }

    /// Pushes a piece of the best way, and returns whether it is unknown.
    fn push_piece(
        &self,
        piece: u32,
        at: usize,
        was_unknown: bool,
        sink: &mut Sink<'_>,
    ) -> Result<bool, TokenizerError> {
        let Some(c) = unknown_char(piece) else {
            sink.push(piece);
            return Ok(false);
        };
        let mut utf8 = [0; 4];
        let bytes = c.encode_utf8(&mut utf8).bytes();
        if bytes.clone().all(|byte| self.byte_id(byte).is_some()) {
            let ids = bytes.filter_map(|byte| self.byte_id(byte));
            ids.for_each(|id| sink.push(id));
            return Ok(false);
        }
        let id = self.unknown(utf8[0], at)?;
        if !(was_unknown && self.fuses_unknown) {
            sink.push(id);
        }
        Ok(true)
    }

    /// Number of bytes that a piece covers.
    fn covered(&self, piece: u32) -> usize {
        unknown_char(piece).map_or_else(|| self.pieces.get(piece).len(), char::len_utf8)
    }
}

/// The ways to the places of a text from the last settled one on.
#[derive(Debug)]
struct Lattice<'w> {
    /// For the places that pieces reach, in turn: the bits of the sum up to there.
    sums: &'w mut [[u32; 2]],
    /// For each place the last piece of the best way to it, or [`NONE`].
    last: &'w mut [u32],
    /// The current place, and the last that was offered.
    at: usize,
    reached: usize,
    words: usize,
}

impl<'w> Lattice<'w> {
    fn new(workspace: &'w mut [u32]) -> Result<Self, TokenizerError> {
        let words = workspace.len();
        let Some((sums, last)) = workspace.split_at_mut_checked(SUMS_WORDS) else {
            return Err(too_small(words));
        };
        let (sums, _) = sums.as_chunks_mut();
        if last.is_empty() {
            return Err(too_small(words));
        }
        let mut lattice = Self {
            sums,
            last,
            at: 0,
            reached: 0,
            words,
        };
        lattice.set_sum(0, 0.0);
        Ok(lattice)
    }

    /// A piece of `len` bytes from the current place on.
    fn offer(&mut self, len: usize, piece: u32, score: f64) -> Result<(), TokenizerError> {
        let end = self.at + len;
        if end >= self.last.len() {
            return Err(too_small(self.words));
        }
        if end > self.reached {
            self.last[self.reached + 1..=end].fill(NONE);
            self.reached = end;
        }
        let sum = self.sum(self.at) + score;
        if self.last[end] == NONE || sum > self.sum(end) {
            self.last[end] = piece;
            self.set_sum(end, sum);
        }
        Ok(())
    }

    /// Advances by a character, to a place that was offered.
    fn pass(&mut self, len: usize) {
        self.at += len;
    }

    /// Whether no offer reaches beyond the current place.
    fn is_settled(&self) -> bool {
        self.at == self.reached
    }

    /// Emits the pieces up to the current place, which is the first from now on. A word begins
    /// there: then sums are counted from there.
    fn settle(
        &mut self,
        tokenizer: &Tokenizer<'_>,
        is_word: bool,
        emit: &mut impl FnMut(u32) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        // From the last piece to the first, each is stored at the place where it begins.
        let mut at = self.at;
        let mut piece = self.last[at];
        while at > 0 {
            at -= tokenizer.covered(piece);
            core::mem::swap(&mut self.last[at], &mut piece);
        }
        while at < self.at {
            let piece = self.last[at];
            emit(piece)?;
            at += tokenizer.covered(piece);
        }
        let sum = if is_word { 0.0 } else { self.sum(self.at) };
        (self.at, self.reached) = (0, 0);
        self.set_sum(0, sum);
        Ok(())
    }

    fn sum(&self, place: usize) -> f64 {
        let [low, high] = self.sums[place % SUMS];
        f64::from_bits(u64::from(high) << 32 | u64::from(low))
    }

    fn set_sum(&mut self, place: usize, sum: f64) {
        let bits = sum.to_bits();
        let halves = [bits, bits >> 32].map(|half| position((half & 0xffff_ffff) as usize));
        self.sums[place % SUMS] = halves;
    }
}

/// The error for too small a workspace; the caller replaces the size by a sufficient one.
fn too_small(words: usize) -> TokenizerError {
    TokenizerError::WorkspaceTooSmall {
        needed_words: words + 1,
        words,
    }
}

/// The character that is unknown, where a way has no piece.
fn unknown_char(piece: u32) -> Option<char> {
    (piece & UNKNOWN != 0).then(|| char::from_u32(piece & !UNKNOWN))?
}

fn char_len(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}

/// Words of workspace for a text that is spelled in `len_bytes`.
pub(super) fn words_for(len_bytes: usize) -> usize {
    SUMS_WORDS + len_bytes + 1
}

/// No token has this bit; the rest is a character.
const UNKNOWN: u32 = 1 << 31;

/// No piece reaches further.
pub(super) const PIECE_LEN_MAX: usize = window::AHEAD;

/// Places that sums are kept for: the current one, and all that pieces reach.
const SUMS: usize = 2 * PIECE_LEN_MAX;
const SUMS_WORDS: usize = 2 * SUMS;
