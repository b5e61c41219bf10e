//! Where a text may be cut so that its parts have the same tokens as in the whole text.
//!
//! Cuts are between a letter or digit and the space or line end after it. Nothing reaches over such a place if
//!
//! - the pre-tokenizer always ends a word there, or else no piece of the vocabulary contains the character followed by
//!   a space: then no merge and no Unigram path crosses it;
//! - no special token's name contains the character followed by a space, or ends with it: after a special token, some
//!   vocabularies start a new text, and some absorb spaces;
//! - the character is a piece itself, so that it is never an unknown one that could be fused with the next;
//! - the normalizer changes neither of them. NFC does not; for a character map this is not known, so vocabularies with
//!   one have no cuts.
//!
//! The first and the last are decided by the kind of vocabulary, the others by reading it once. So the tokens of a part
//! depend only on the part itself, and on whether it begins the text. A part that does not is encoded after an anchor,
//! a letter whose tokens are then removed.

use sluice::core::gguf::{Array, Gguf, GgufError, optional};
use sluice::core::tokenizer::{EncodeOptions, PreTokenizer, Tokenizer};
use sluice::vocabulary::VocabularyFile;
use std::collections::HashSet;

/// The places at which texts of a vocabulary may be cut.
#[derive(Debug)]
pub(crate) struct Boundaries {
    /// ASCII characters after which a cut is allowed.
    ascii: [bool; 128],
    /// Whether a cut is also allowed after letters of other scripts, except the excluded ones.
    is_wide: bool,
    excluded: HashSet<char>,
    /// Whether a letter must be a piece.
    needs_piece: bool,
    before_line_end: bool,
    anchor: char,
    /// The anchor's tokens when names of control tokens are text, and when they are parsed.
    anchor_tokens: [Vec<u32>; 2],
}

/// How words end in a kind of vocabulary.
#[derive(Clone, Copy)]
struct Kind {
    /// Whether they also end after letters of other scripts.
    is_wide: bool,
    /// Whether both sides could only be joined by a piece that reaches over the cut.
    by_pieces: bool,
    before_line_end: bool,
}

impl Boundaries {
    /// # Errors
    /// Why texts of the vocabulary are not cut.
    pub(crate) fn of(opened: &VocabularyFile) -> Result<Self, &'static str> {
        let kind = Kind::of(opened)?;
        let tokenizer = opened.tokenizer();
        let excluded =
            excluded(opened, kind).map_err(|_| "the vocabulary's types are unreadable")?;
        let mut boundaries = Self {
            ascii: [false; 128],
            is_wide: kind.is_wide,
            excluded,
            needs_piece: kind.by_pieces,
            before_line_end: kind.before_line_end,
            anchor: '\0',
            anchor_tokens: [Vec::new(), Vec::new()],
        };
        let allowed = |c: &char| {
            !boundaries.excluded.contains(c) && (!kind.by_pieces || is_piece(tokenizer, *c))
        };
        let chars = ('a'..='z').chain('A'..='Z').chain('0'..='9');
        let chars: Vec<char> = chars.filter(allowed).collect();
        let anchor = chars
            .first()
            .ok_or("pieces of the vocabulary span spaces")?;
        boundaries.anchor = *anchor;
        for &c in &chars {
            boundaries.ascii[c as usize] = true;
        }
        for parse_special in [false, true] {
            let options = EncodeOptions {
                add_special: false,
                parse_special,
            };
            let tokens = opened.encode_with(anchor.encode_utf8(&mut [0; 4]), options);
            let tokens = tokens.map_err(|_| "the vocabulary cannot represent a letter")?;
            boundaries.anchor_tokens[usize::from(parse_special)] = tokens;
        }
        Ok(boundaries)
    }

    /// The first cut of `text` at or after byte `from`, or the text's end.
    pub(crate) fn next(&self, tokenizer: &Tokenizer<'_>, text: &str, from: usize) -> usize {
        let bytes = text.as_bytes();
        let mut at = from.max(1);
        while let Some(&byte) = bytes.get(at) {
            let is_right = byte == b' ' || (byte == b'\n' && self.before_line_end);
            if is_right && self.ends(tokenizer, bytes, at) {
                return at;
            }
            at += 1;
        }
        text.len()
    }

    /// Whether a part may end at byte `at`, after the character before it.
    fn ends(&self, tokenizer: &Tokenizer<'_>, text: &[u8], at: usize) -> bool {
        let before = text[at - 1];
        if before.is_ascii() {
            return self.ascii[usize::from(before)];
        }
        if !self.is_wide {
            return false;
        }
        let start = text[..at].iter().rposition(|byte| byte & 0xc0 != 0x80);
        let last = start.and_then(|start| core::str::from_utf8(&text[start..at]).ok());
        last.and_then(|last| last.chars().next()).is_some_and(|c| {
            is_letter(c)
                && !self.excluded.contains(&c)
                && (!self.needs_piece || is_piece(tokenizer, c))
        })
    }

    /// The tokens of `part`, which begins after a cut and ends at a cut or with the text; `None` if they cannot be
    /// determined.
    pub(crate) fn encode(
        &self,
        opened: &VocabularyFile,
        part: &str,
        parse_special: bool,
    ) -> Option<Vec<u32>> {
        let mut text = String::with_capacity(self.anchor.len_utf8() + part.len());
        text.push(self.anchor);
        text.push_str(part);
        let options = EncodeOptions {
            add_special: false,
            parse_special,
        };
        let mut tokens = opened.encode_with(&text, options).ok()?;
        let anchor = &self.anchor_tokens[usize::from(parse_special)];
        tokens
            .starts_with(anchor)
            .then(|| tokens.split_off(anchor.len()))
    }
}

impl Kind {
    fn of(opened: &VocabularyFile) -> Result<Self, &'static str> {
        let words = Self {
            is_wide: true,
            by_pieces: false,
            before_line_end: true,
        };
        let pieces = Self {
            by_pieces: true,
            ..words
        };
        if let Some(pre) = opened.tokenizer().pre_tokenizer() {
            return match pre {
                // Their words end after letters of Latin scripts; words of other scripts may continue with a space.
                PreTokenizer::DeepSeekLlm | PreTokenizer::DeepSeekCoder => Ok(Self {
                    is_wide: false,
                    ..words
                }),
                PreTokenizer::Gemma4 | PreTokenizer::Sarvam => Ok(pieces),
                _ if ends_words(pre) => Ok(words),
                _ => Err("words of the pre-tokenizer span spaces"),
            };
        }
        let gguf = opened.gguf();
        match gguf.bytes("tokenizer.ggml.model") {
            Ok(b"llama") => Ok(pieces),
            Ok(b"bert") if !listed(gguf, "normalized").is_empty() => {
                Err("the vocabulary finds tokens in normalised text")
            }
            Ok(b"bert") => Ok(words),
            Ok(b"t5") if maps_characters(gguf) => Err("the vocabulary maps characters"),
            Ok(b"t5") => Ok(Self {
                // Score sums only start from zero at spaces.
                before_line_end: false,
                ..pieces
            }),
            _ => Err("unknown kind of vocabulary"),
        }
    }
}

/// Whether a word of `pre` always ends between a letter or number and white space.
fn ends_words(pre: PreTokenizer) -> bool {
    matches!(
        pre,
        PreTokenizer::Default
            | PreTokenizer::Gpt2
            | PreTokenizer::Llama3
            | PreTokenizer::Qwen2
            | PreTokenizer::Qwen35
            | PreTokenizer::Jais2
            | PreTokenizer::DeepSeekV3
            | PreTokenizer::Spark
            | PreTokenizer::Youtu
            | PreTokenizer::Falcon
            | PreTokenizer::StarCoder
            | PreTokenizer::Bloom
            | PreTokenizer::Viking
            | PreTokenizer::Tekken
            | PreTokenizer::Gpt4o
            | PreTokenizer::GraniteEmbedding
            | PreTokenizer::Chameleon
            | PreTokenizer::TinyAya
            | PreTokenizer::KimiK2
            | PreTokenizer::SeedCoder
            | PreTokenizer::Ufakzeka
            | PreTokenizer::Afmoe
            | PreTokenizer::Laguna
            | PreTokenizer::MiniCpm5
            | PreTokenizer::Whitespace
    )
}

/// Whether a Unigram vocabulary changes characters, or has spaces at the ends of words.
fn maps_characters(gguf: &Gguf<'_>) -> bool {
    let map = optional(gguf.array("tokenizer.ggml.precompiled_charsmap"));
    let suffix = optional(gguf.bool("tokenizer.ggml.treat_whitespace_as_suffix"));
    !map.is_ok_and(|map| map.is_none_or(Array::is_empty))
        || suffix != Ok(None) && suffix != Ok(Some(false))
}

/// The added tokens in one of the file's lists.
fn listed(gguf: &Gguf<'_>, list: &str) -> HashSet<u32> {
    let ids = optional(gguf.array(&format!("tokenizer.ggml.added_tokens.{list}")));
    let ids = ids.ok().flatten().and_then(Array::u32s);
    ids.into_iter().flatten().collect()
}

/// Characters from which a token may reach over to a following space.
fn excluded(opened: &VocabularyFile, kind: Kind) -> Result<HashSet<char>, GgufError> {
    let tokenizer = opened.tokenizer();
    let types = optional(opened.gguf().array("tokenizer.ggml.token_type"))?;
    let mut types = types.and_then(Array::i32s).into_iter().flatten();
    let as_written = listed(opened.gguf(), "as_written");
    let mut excluded = HashSet::new();
    for id in 0..tokenizer.n_vocab() {
        let kind_of = types.next();
        let is_looked_for =
            matches!(kind_of, Some(UNKNOWN | CONTROL | USER_DEFINED)) || as_written.contains(&id);
        // Unigram does not match a text against a single-character piece of one of these types.
        let is_odd = kind.by_pieces && !matches!(kind_of, None | Some(NORMAL | UNUSED));
        // Texts are UTF-8 and cut at characters, so other pieces never match.
        let Ok(piece) = core::str::from_utf8(tokenizer.piece(id)) else {
            continue;
        };
        let mut last = None;
        for c in piece.chars() {
            if matches!(c, ' ' | '\n') || (c == SPACE_MARK && kind.by_pieces) {
                excluded.extend(last);
            }
            last = Some(c);
        }
        if is_looked_for || is_odd || tokenizer.is_control(id) {
            excluded.extend(last);
        }
    }
    Ok(excluded)
}

/// Whether `c` is a token that texts can contain.
fn is_piece(tokenizer: &Tokenizer<'_>, c: char) -> bool {
    let id = tokenizer.token(c.encode_utf8(&mut [0; 4]).as_bytes());
    id.is_some_and(|id| !tokenizer.is_control(id))
}

/// Letters of scripts with spaces between words. NFC does not change them, whatever follows the space.
fn is_letter(c: char) -> bool {
    matches!(
        c,
        '\u{c0}'..='\u{d6}'
            | '\u{d8}'..='\u{f6}'
            | '\u{f8}'..='\u{17f}'
            | '\u{391}'..='\u{3a1}'
            | '\u{3a3}'..='\u{3a9}'
            | '\u{3ac}'..='\u{3ce}'
            | '\u{400}'..='\u{481}'
            | '\u{5d0}'..='\u{5ea}'
            | '\u{621}'..='\u{63a}'
            | '\u{641}'..='\u{64a}'
            | '\u{905}'..='\u{939}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fa5}'
            | '\u{ac00}'..='\u{d7a3}'
    )
}

/// SentencePiece's space.
const SPACE_MARK: char = '\u{2581}';

// Values of `tokenizer.ggml.token_type`. Texts are searched for the names of the second to the fourth.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
