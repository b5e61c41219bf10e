//! Special tokens: which tokens are special, and where a text names them.
//!
//! A text that names special tokens is cut there before anything else happens: from left to right, at
//! each place by the longest name, as Hugging Face's `added_vocabulary.rs` does it. A token may include the
//! white space next to it, or count only as a word of its own.

use core::ops::Range;

use super::error::TokenizerError;
use super::spelling::SPACE_MARK;
use super::unicode::{Class, class};
use super::vocab::{Attributes, AttributesMut, Pieces, attribute};
use crate::gguf::{Array, Gguf, optional};
use crate::kernels::words;
use crate::sort::sort_indices;

/// The tokens with a role, as the metadata or their names give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Beginning of a sequence.
    pub bos: Option<u32>,
    /// End of a sequence.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message: a tool's turn follows.
    pub eom: Option<u32>,
    /// Stands for text that the vocabulary cannot write.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
    /// Fill in the middle: marks the text before the gap.
    pub fim_pre: Option<u32>,
    /// Fill in the middle: marks the text after the gap.
    pub fim_suf: Option<u32>,
    /// Fill in the middle: before the text to be written.
    pub fim_mid: Option<u32>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: before a repository's name.
    pub fim_rep: Option<u32>,
    /// Fill in the middle: between files.
    pub fim_sep: Option<u32>,
}

impl SpecialTokens {
    /// Reads the metadata. `self` holds the model's defaults; ids that are not in the
    /// vocabulary of `n_vocab` tokens do not count, neither default nor given.
    pub(super) fn read(mut self, gguf: &Gguf<'_>, n_vocab: u32) -> Result<Self, TokenizerError> {
        let in_vocabulary = |id: &u32| *id < n_vocab;
        let roles: [(&str, &mut Option<u32>); 14] = [
            ("tokenizer.ggml.bos_token_id", &mut self.bos),
            ("tokenizer.ggml.eos_token_id", &mut self.eos),
            ("tokenizer.ggml.eot_token_id", &mut self.eot),
            ("tokenizer.ggml.eom_token_id", &mut self.eom),
            ("tokenizer.ggml.unknown_token_id", &mut self.unk),
            ("tokenizer.ggml.seperator_token_id", &mut self.sep), // spelled so in GGUF
            ("tokenizer.ggml.padding_token_id", &mut self.pad),
            ("tokenizer.ggml.mask_token_id", &mut self.mask),
            ("tokenizer.ggml.fim_pre_token_id", &mut self.fim_pre),
            ("tokenizer.ggml.fim_suf_token_id", &mut self.fim_suf),
            ("tokenizer.ggml.fim_mid_token_id", &mut self.fim_mid),
            ("tokenizer.ggml.fim_pad_token_id", &mut self.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut self.fim_rep),
            ("tokenizer.ggml.fim_sep_token_id", &mut self.fim_sep),
        ];
        for (key, role) in roles {
            let given = optional(gguf.u32(key))?.filter(in_vocabulary);
            *role = given.or(role.filter(in_vocabulary));
        }
        let deprecated: [(&str, &mut Option<u32>); 3] = [
            ("tokenizer.ggml.prefix_token_id", &mut self.fim_pre),
            ("tokenizer.ggml.suffix_token_id", &mut self.fim_suf),
            ("tokenizer.ggml.middle_token_id", &mut self.fim_mid),
        ];
        for (key, role) in deprecated {
            let given = optional(gguf.u32(key))?.filter(in_vocabulary);
            *role = given.or(*role);
        }
        Ok(self)
    }

    /// Fills roles that the metadata leaves open by the tokens' names. Marks tokens of such names as
    /// control tokens, and those that end generation as such.
    ///
    /// The rules have llama.cpp's names and order, except that for a role with several names the first
    /// in the list is taken, not the first in a hash map.
    pub(super) fn detect(
        &mut self,
        find: &impl Fn(&str) -> Option<u32>,
        attributes: &mut AttributesMut<'_>,
    ) {
        let roles: [(&[&str], &mut Option<u32>); 8] = [
            (&EOT_NAMES, &mut self.eot),
            (&["<|eom_id|>"], &mut self.eom),
            (&FIM_PRE_NAMES, &mut self.fim_pre),
            (&FIM_SUF_NAMES, &mut self.fim_suf),
            (&FIM_MID_NAMES, &mut self.fim_mid),
            (&FIM_PAD_NAMES, &mut self.fim_pad),
            (&FIM_REP_NAMES, &mut self.fim_rep),
            (&["<|file_sep|>"], &mut self.fim_sep),
        ];
        for (names, role) in roles {
            if role.is_none() {
                *role = names.iter().find_map(|name| find(name));
                role.inspect(|&id| attributes.add(id, attribute::CONTROL));
            }
        }
        for id in END_NAMES.iter().filter_map(|name| find(name)) {
            attributes.add(id, attribute::CONTROL | attribute::END);
        }
        // The frame around messages of the Harmony format is always shown.
        for id in FRAME_NAMES.iter().filter_map(|name| find(name)) {
            attributes.replace_kind(id, attribute::USER_DEFINED);
        }
        let ends = [
            self.fim_pad,
            self.fim_rep,
            self.fim_sep,
            self.eos,
            self.eot,
            self.eom,
        ];
        for id in ends.into_iter().flatten() {
            attributes.add(id, attribute::END);
        }
        exempt(find, attributes);
    }
}

/// Removes the end mark from names that do not end generation in the vocabularies where certain
/// other tokens do.
fn exempt(find: &impl Fn(&str) -> Option<u32>, attributes: &mut AttributesMut<'_>) {
    let end = |attributes: &AttributesMut<'_>, name: &str| {
        find(name).filter(|&id| attributes.get(id) & attribute::END != 0)
    };
    let has = |attributes: &AttributesMut<'_>, name| end(attributes, name).is_some();
    let calls = has(attributes, "<|call|>") || has(attributes, "<|calls|>");
    let end_is_none = calls && (has(attributes, "<|return|>") || has(attributes, "<|flush|>"));
    if let Some(id) = end(attributes, "<|end|>").filter(|_| end_is_none) {
        attributes.set(id, attribute::USER_DEFINED);
    }
    let s_is_none = has(attributes, "<|tool_response>") || has(attributes, "<|plamo:eos|>");
    if let Some(id) = end(attributes, "</s>").filter(|_| s_is_none) {
        attributes.set(id, attribute::NORMAL);
    }
}

impl AttributesMut<'_> {
    fn add(&mut self, id: u32, flags: u8) {
        self.set(id, self.get(id) | flags);
    }

    /// Replaces the attributes that llama.cpp keeps, except for the mark of an end.
    fn replace_kind(&mut self, id: u32, kind: u8) {
        self.set(id, self.get(id) & attribute::END | kind);
    }
}

/// The tokens whose names are looked for in texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Specials<'a> {
    pieces: Pieces<'a>,
    attributes: Attributes<'a>,
    /// Whether names have a mark before them, as the words of a WordPiece vocabulary do.
    is_marked: bool,
    /// Ids in the order of their names; no two names are equal.
    by_name: &'a [u32],
    flags: Flags<'a>,
    /// First bytes of names of user-defined tokens, a bit each.
    first_bytes_user: [u32; 8],
    /// First bytes of all names.
    first_bytes_all: [u32; 8],
}

impl<'a> Specials<'a> {
    /// `by_name` has room for [`specials_max`] words. `normalized` are those that are found elsewhere, in the order of
    /// their ids.
    pub(super) fn new(
        pieces: Pieces<'a>,
        attributes: Attributes<'a>,
        is_marked: bool,
        flags: Flags<'a>,
        normalized: &[u32],
        by_name: &'a mut [u32],
    ) -> Self {
        let name = |id| name(pieces, id, is_marked);
        let mut count = 0;
        let listed = flags.as_written.and_then(Array::u32s).into_iter().flatten();
        let listed = listed.filter(|&id| id < pieces.len() && attributes.get(id) & LOOKED_FOR == 0);
        let of_a_kind = (0..pieces.len()).filter(|&id| attributes.get(id) & LOOKED_FOR != 0);
        for id in of_a_kind.chain(listed) {
            if is_name(name(id)) && normalized.binary_search(&id).is_err() && count < by_name.len()
            {
                by_name[count] = id;
                count += 1;
            }
        }
        let name_order = |a, b| (name(a), a).cmp(&(name(b), b));
        sort_indices(&mut by_name[..count], &name_order);
        let count = dedup(&mut by_name[..count], |a, b| name(a) == name(b));
        let by_name = &by_name[..count];
        let mut specials = Self {
            pieces,
            attributes,
            is_marked,
            by_name,
            flags,
            first_bytes_user: [0; 8],
            first_bytes_all: [0; 8],
        };
        for &id in by_name {
            let first = usize::from(name(id)[0]);
            set_bit(&mut specials.first_bytes_all, first);
            if attributes.get(id) & CONTROL_LIKE == 0 {
                set_bit(&mut specials.first_bytes_user, first);
            }
        }
        specials
    }

    /// The first special token that `text` names at or after byte `from`: control and unknown ones
    /// only if `parse_special`, user-defined ones always.
    pub(super) fn next(self, text: &str, from: usize, parse_special: bool) -> Option<Named> {
        let bytes = text.as_bytes();
        let first_bytes = self.first_bytes(parse_special);
        let mut at = from;
        loop {
            // The loop over most of the text.
            let begins = |&byte: &u8| is_bit(first_bytes, byte.into());
            at += bytes.get(at..)?.iter().position(begins)?;
            let Some(id) = self.longest(bytes, at, parse_special) else {
                at += 1;
                continue;
            };
            let end = at + self.name(id).len();
            if self.flags.is_single_word(id) && is_in_word(&text[..at], &text[end..]) {
                at = end;
                continue;
            }
            return Some(
                self.flags
                    .with_spaces(text, from, at..end, id, self.attributes),
            );
        }
    }

    /// Whether white space next to some of them belongs to them.
    pub(super) fn strip(self) -> bool {
        let strips = |&id: &u32| self.attributes.get(id) & attribute::STRIPS_RIGHT != 0;
        let left = self.flags.strip_left.is_some_and(|ids| !ids.is_empty());
        left || self.flags.mask.is_some() || self.by_name.iter().any(strips)
    }

    /// First bytes of the names that are looked for.
    fn first_bytes(&self, parse_special: bool) -> &[u32; 8] {
        if parse_special {
            &self.first_bytes_all
        } else {
            &self.first_bytes_user
        }
    }

    /// The token with the longest name that `text` has at `at`.
    fn longest(self, text: &[u8], at: usize, parse_special: bool) -> Option<u32> {
        let mut longest = None;
        // Names that agree with the text so far are neighbours, the shortest first.
        let (mut low, mut high) = (0, self.by_name.len());
        for (depth, &byte) in text[at..].iter().enumerate() {
            let names = &self.by_name[low..high];
            let byte_of = |id: u32| self.name(id).get(depth).copied();
            let start = names.partition_point(|&id| byte_of(id) < Some(byte));
            let end = names.partition_point(|&id| byte_of(id) <= Some(byte));
            (low, high) = (low + start, low + end);
            if low == high {
                break;
            }
            let id = self.by_name[low];
            let enabled = parse_special || self.attributes.get(id) & CONTROL_LIKE == 0;
            if self.name(id).len() == depth + 1 && enabled {
                longest = Some(id);
            }
        }
        longest
    }

    fn name(self, id: u32) -> &'a [u8] {
        name(self.pieces, id, self.is_marked)
    }
}

/// The name of a token in texts: its piece, without the mark before it if `is_marked`.
pub(super) fn name<'a>(pieces: Pieces<'a>, id: u32, is_marked: bool) -> &'a [u8] {
    let piece = pieces.get(id);
    let name = piece.strip_prefix(&SPACE_MARK).filter(|_| is_marked);
    name.unwrap_or(piece)
}

/// Whether a text can have this name. Texts are UTF-8, so that others could only match the inside of a character.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && core::str::from_utf8(name).is_ok()
}

/// Where a text names a special token, including the white space that the token takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) start: usize,
    /// The byte after it.
    pub(super) stop: usize,
    pub(super) id: u32,
}

/// The lists of token ids that a file has for its added tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags<'a> {
    /// A token that includes the white space before it, by its model's name.
    pub(super) mask: Option<u32>,
    /// `tokenizer.ggml.added_tokens.lstrip`
    pub(super) strip_left: Option<Array<'a>>,
    /// `tokenizer.ggml.added_tokens.single_word`
    pub(super) single_word: Option<Array<'a>>,
    /// `tokenizer.ggml.added_tokens.as_written`: pieces that texts may also name as they are written.
    pub(super) as_written: Option<Array<'a>>,
}

impl Flags<'_> {
    /// White space before token `id` belongs to it.
    fn strips_left(self, id: u32) -> bool {
        self.mask == Some(id) || holds(self.strip_left, id)
    }

    /// Whether token `id` is not recognised inside a word.
    pub(super) fn is_single_word(self, id: u32) -> bool {
        holds(self.single_word, id)
    }
}

impl Flags<'_> {
    /// Token `id` at `range` of a text that is read from byte `from` on, with the white space that it takes.
    pub(super) fn with_spaces(
        self,
        text: &str,
        from: usize,
        range: Range<usize>,
        id: u32,
        attributes: Attributes<'_>,
    ) -> Named {
        let (before, after) = (&text[from..range.start], &text[range.end..]);
        let (mut start, mut stop) = (range.start, range.end);
        if self.strips_left(id) {
            start = from + before.trim_end().len();
        }
        if attributes.get(id) & attribute::STRIPS_RIGHT != 0 {
            stop += after.len() - after.trim_start().len();
        }
        Named { start, stop, id }
    }
}

fn holds(list: Option<Array<'_>>, id: u32) -> bool {
    let ids = list.and_then(Array::u32s);
    ids.into_iter().flatten().any(|listed| listed == id)
}

/// Whether a character of words (`\w`) stands on either side.
fn is_in_word(before: &str, behind: &str) -> bool {
    let is_of_word = |c: char| {
        let kind = class(c);
        c == '_' || matches!(kind, Class::Letter | Class::Number | Class::Mark)
    };
    before.ends_with(is_of_word) || behind.starts_with(is_of_word)
}

/// Maximum number of special tokens of a vocabulary whose metadata marks `marked` as such:
/// names make further tokens special.
pub(super) fn specials_max(marked: usize) -> usize {
    let lists = [
        EOT_NAMES.len(),
        FIM_PRE_NAMES.len(),
        FIM_SUF_NAMES.len(),
        FIM_MID_NAMES.len(),
        FIM_PAD_NAMES.len(),
        FIM_REP_NAMES.len(),
        END_NAMES.len(),
        FRAME_NAMES.len(),
    ];
    marked + lists.iter().sum::<usize>() + 2
}

/// Phi-3's special tokens include the white space after them, except these.
pub(super) const PHI3_NOT_STRIPPING: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The kinds of tokens whose names are looked for in texts.
pub(super) const LOOKED_FOR: u8 = CONTROL_LIKE | attribute::USER_DEFINED;

/// The kinds of tokens that are not text: looked for only on demand, and not shown.
pub(super) const CONTROL_LIKE: u8 = attribute::CONTROL | attribute::UNKNOWN;

/// Moves the first of each run of equal elements to the front; returns their number.
pub(super) fn dedup(ids: &mut [u32], equal: impl Fn(u32, u32) -> bool) -> usize {
    let mut count = 0;
    for i in 0..ids.len() {
        if count == 0 || !equal(ids[count - 1], ids[i]) {
            ids[count] = ids[i];
            count += 1;
        }
    }
    count
}

pub(super) fn is_bit(map: &[u32], at: usize) -> bool {
    map[at / 32] >> (at % 32) & 1 != 0
}

pub(super) fn set_bit(map: &mut [u32], at: usize) {
    map[at / 32] |= 1 << (at % 32);
}

// Source of all names: llama.cpp, `src/llama-vocab.cpp`, as vendored by llama-cpp-python 0.3.36.
const EOT_NAMES: [&str; 11] = words(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] \
     <｜end▁of▁sentence｜> <end_of_utterance>",
);
const FIM_PRE_NAMES: [&str; 8] = words(
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> \
     <|prefix|>",
);
const FIM_SUF_NAMES: [&str; 8] = words(
    "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
);
const FIM_MID_NAMES: [&str; 8] = words(
    "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
);
const FIM_PAD_NAMES: [&str; 5] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP_NAMES: [&str; 5] = words("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>");
const FRAME_NAMES: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
const END_NAMES: [&str; 22] = words(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> \
     <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> \
     <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~[",
);
