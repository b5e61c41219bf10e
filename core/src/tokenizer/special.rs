//! Special tokens: which tokens are special, and where a text names them.
//!
//! A text that names special tokens is cut there before anything else happens. Where names
//! overlap, the longest name anywhere in the text goes first, then the next longest in what is
//! left, and so on; of one name, the leftmost. That is llama.cpp's order, and it differs from
//! the leftmost-longest one: with `abc` and `bcde`, `abcde` is `a` and `bcde`.
//!
//! To keep that order in linear time, one pass over the text notes where any name starts; only
//! those places are looked at again, once for each token that occurs.

use super::error::TokenizerError;
use super::vocab::{Attributes, AttributesMut, Pieces, attribute, position};
use crate::gguf::{Gguf, optional};
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
    /// Stands for what the vocabulary cannot write.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
    /// Fill in the middle: before the text that comes before.
    pub fim_pre: Option<u32>,
    /// Fill in the middle: before the text that comes after.
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

    /// Fills roles that the metadata leaves open by the tokens' names, and marks tokens of
    /// such names as control tokens and those that end generation as such.
    ///
    /// Names and order of the rules as in llama.cpp, except that of several names for a role
    /// the first of the list is taken, not whichever a hash map holds first.
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
        // The frame around messages of the Harmony format is always to be seen.
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

    /// Replaces what llama.cpp keeps as attributes, and keeps the mark of an end.
    fn replace_kind(&mut self, id: u32, kind: u8) {
        self.set(id, self.get(id) & attribute::END | kind);
    }
}

/// The tokens whose names are looked for in texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Specials<'a> {
    pieces: Pieces<'a>,
    attributes: Attributes<'a>,
    /// Ids in the order of their names; no two names are equal.
    by_name: &'a [u32],
    /// Positions in `by_name`, longest name first.
    by_length: &'a [u32],
    /// The token that includes the white space before it.
    strips_left: Option<u32>,
    /// First bytes of names of user-defined tokens, a bit each.
    first_bytes_user: [u32; 8],
    /// First bytes of all names.
    first_bytes_all: [u32; 8],
}

impl<'a> Specials<'a> {
    /// `by_name` and `by_length` have room for [`specials_max`] words each.
    pub(super) fn new(
        pieces: Pieces<'a>,
        attributes: Attributes<'a>,
        strips_left: Option<u32>,
        by_name: &'a mut [u32],
        by_length: &'a mut [u32],
    ) -> Self {
        let mut count = 0;
        for id in 0..pieces.len() {
            // Texts are UTF-8, so that other names could only match the inside of a character.
            let name = pieces.get(id);
            if attributes.get(id) & LOOKED_FOR != 0
                && !name.is_empty()
                && core::str::from_utf8(name).is_ok()
                && count < by_name.len()
            {
                by_name[count] = id;
                count += 1;
            }
        }
        let name_order = |a, b| (pieces.get(a), a).cmp(&(pieces.get(b), b));
        sort_indices(&mut by_name[..count], &name_order);
        let count = dedup(&mut by_name[..count], |a, b| pieces.get(a) == pieces.get(b));
        let by_name = &by_name[..count];
        let by_length = &mut by_length[..count];
        for (i, index) in by_length.iter_mut().enumerate() {
            *index = position(i);
        }
        let length_key = |index| {
            let id = by_name[index as usize];
            (core::cmp::Reverse(pieces.get(id).len()), id)
        };
        sort_indices(by_length, &|a, b| length_key(a).cmp(&length_key(b)));
        let mut specials = Self {
            pieces,
            attributes,
            by_name,
            by_length,
            strips_left,
            first_bytes_user: [0; 8],
            first_bytes_all: [0; 8],
        };
        for &id in by_name {
            let first = usize::from(pieces.get(id)[0]);
            set_bit(&mut specials.first_bytes_all, first);
            if attributes.get(id) & CONTROL_LIKE == 0 {
                set_bit(&mut specials.first_bytes_user, first);
            }
        }
        specials
    }

    /// Words of workspace that [`Self::cut`] needs for a text of `n` bytes.
    pub(super) fn words_for(self, n: usize) -> usize {
        MAPS * n.div_ceil(32) + self.by_name.len().div_ceil(32)
    }

    /// Where `text` names special tokens: control and unknown ones only if `parse_special`,
    /// user-defined ones always. `None` if it names none, which takes no workspace.
    ///
    /// # Errors
    ///
    /// `words` is shorter than [`Self::words_for`] the text's length.
    pub(super) fn cut<'w>(
        self,
        text: &[u8],
        parse_special: bool,
        words: &'w mut [u32],
    ) -> Result<Option<Cuts<'w>>, TokenizerError> {
        let first_bytes = self.first_bytes(parse_special);
        if *first_bytes == [0; 8] {
            return Ok(None);
        }
        let mut begins = text.iter().map(|&byte| bit(first_bytes, byte.into()));
        let mut next = 0;
        let first = loop {
            // The loop over most of the text.
            let Some(skipped) = begins.position(|begins| begins) else {
                break None;
            };
            next += skipped + 1;
            if self.starts_at(text, next - 1, parse_special) {
                break Some(next - 1);
            }
        };
        let Some(first) = first else {
            return Ok(None);
        };
        let given = words.len();
        let needed_words = self.words_for(text.len());
        let words = words
            .get_mut(..needed_words)
            .ok_or(TokenizerError::WorkspaceTooSmall {
                needed_words,
                words: given,
            })?;
        words.fill(0);
        let map_words = text.len().div_ceil(32);
        let (candidates, words) = words.split_at_mut(map_words);
        let (claimed, words) = words.split_at_mut(map_words);
        let (starts, words) = words.split_at_mut(map_words);
        let (lasts, occurring) = words.split_at_mut(map_words);
        for at in first..text.len() {
            self.matches(text, at, parse_special, |index| {
                set_bit(candidates, at);
                set_bit(occurring, index);
            });
        }
        for &index in self.by_length {
            if bit(occurring, index as usize) {
                self.claim(text, index, candidates, claimed, starts, lasts);
            }
        }
        Ok(Some(Cuts { starts, lasts }))
    }

    /// The special token that is named `name`.
    pub(super) fn named(self, name: &[u8]) -> Option<u32> {
        let found = self
            .by_name
            .binary_search_by_key(&name, |&id| self.pieces.get(id));
        found.ok().map(|index| self.by_name[index])
    }

    /// White space after token `id` belongs to it.
    pub(super) fn strips_right(self, id: u32) -> bool {
        self.attributes.get(id) & attribute::STRIPS_RIGHT != 0
    }

    /// White space before token `id` belongs to it.
    pub(super) fn strips_left(self, id: u32) -> bool {
        self.strips_left == Some(id)
    }

    /// Claims every place that names token `index` and is still free.
    fn claim(
        self,
        text: &[u8],
        index: u32,
        candidates: &[u32],
        claimed: &mut [u32],
        starts: &mut [u32],
        lasts: &mut [u32],
    ) {
        let id = self.by_name[index as usize];
        let name = self.pieces.get(id);
        let mut from = 0;
        while let Some(at) = next_bit(candidates, from) {
            from = at + 1;
            let mut end = at + name.len();
            if text.get(at..end) != Some(name) || (at..end).any(|i| bit(claimed, i)) {
                continue;
            }
            set_bit(starts, at);
            set_bit(lasts, end - 1);
            if self.strips_right(id) {
                let free = |i: usize| i < text.len() && !bit(claimed, i);
                end += (end..)
                    .take_while(|&i| free(i) && is_space(text[i]))
                    .count();
            }
            let spaces = (0..at).rev();
            let before = spaces.take_while(|&i| is_space(text[i]) && !bit(claimed, i));
            let before = if self.strips_left(id) {
                before.count()
            } else {
                0
            };
            (at - before..end).for_each(|i| set_bit(claimed, i));
        }
    }

    /// First bytes of the names that are looked for.
    fn first_bytes(&self, parse_special: bool) -> &[u32; 8] {
        if parse_special {
            &self.first_bytes_all
        } else {
            &self.first_bytes_user
        }
    }

    fn starts_at(self, text: &[u8], at: usize, parse_special: bool) -> bool {
        let mut any = false;
        self.matches(text, at, parse_special, |_| any = true);
        any
    }

    /// Reports the position in `by_name` of every name that `text` has at `at`.
    fn matches(self, text: &[u8], at: usize, parse_special: bool, mut report: impl FnMut(usize)) {
        if !bit(self.first_bytes(parse_special), usize::from(text[at])) {
            return;
        }
        // Names that agree with the text so far are neighbours, the shortest first.
        let (mut low, mut high) = (0, self.by_name.len());
        for (depth, &byte) in text[at..].iter().enumerate() {
            let names = &self.by_name[low..high];
            let byte_of = |id: u32| self.pieces.get(id).get(depth).copied();
            let start = names.partition_point(|&id| byte_of(id) < Some(byte));
            let end = names.partition_point(|&id| byte_of(id) <= Some(byte));
            (low, high) = (low + start, low + end);
            if low == high {
                return;
            }
            let id = self.by_name[low];
            let enabled = parse_special || self.attributes.get(id) & CONTROL_LIKE == 0;
            if self.pieces.get(id).len() == depth + 1 && enabled {
                report(low);
            }
        }
    }
}

/// The special tokens of a text, as two bit maps of its bytes.
#[derive(Debug)]
pub(super) struct Cuts<'w> {
    /// First bytes of names.
    starts: &'w [u32],
    /// Last bytes of names.
    lasts: &'w [u32],
}

impl Cuts<'_> {
    /// First and last byte of the first name that starts at or after `from`.
    pub(super) fn next(&self, from: usize) -> Option<(usize, usize)> {
        let start = next_bit(self.starts, from)?;
        Some((start, next_bit(self.lasts, start)?))
    }
}

/// How many special tokens a vocabulary can have, if its metadata marks `marked` as such:
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

/// `isspace` of the C locale.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0d)
}

/// Moves the first of each run of equals to the front; how many they are.
fn dedup(ids: &mut [u32], equal: impl Fn(u32, u32) -> bool) -> usize {
    let mut count = 0;
    for i in 0..ids.len() {
        if count == 0 || !equal(ids[count - 1], ids[i]) {
            ids[count] = ids[i];
            count += 1;
        }
    }
    count
}

fn bit(map: &[u32], at: usize) -> bool {
    map[at / 32] >> (at % 32) & 1 != 0
}

fn set_bit(map: &mut [u32], at: usize) {
    map[at / 32] |= 1 << (at % 32);
}

/// The first bit set at or after `from`.
fn next_bit(map: &[u32], from: usize) -> Option<usize> {
    let mut word = *map.get(from / 32)? & u32::MAX << (from % 32);
    let mut at = from / 32;
    while word == 0 {
        at += 1;
        word = *map.get(at)?;
    }
    Some(at * 32 + word.trailing_zeros() as usize)
}

/// Bit maps of the text that a cut takes.
const MAPS: usize = 4;

// Source of all names: llama.cpp, `src/llama-vocab.cpp`, as vendored by llama-cpp-python 0.3.36.
const EOT_NAMES: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const FIM_PRE_NAMES: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF_NAMES: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID_NAMES: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD_NAMES: [&str; 5] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP_NAMES: [&str; 5] = [
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];
const FRAME_NAMES: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
const END_NAMES: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
