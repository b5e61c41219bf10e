//! The expressions that pre-tokenizers split by, as scanners written by hand.
//!
//! Each is linear in the text. Where an expression backtracks, the scanner says where to.

use super::split::{group_len, isolate, prefix_len};
use super::unicode::{Case, Class, case, class};

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(text: &str) -> usize {
    if let Some(len) = contraction(text, |byte| byte) {
        return len;
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    let front = text.len() - body.len();
    match body.chars().next().map(class) {
        None | Some(Class::Space) => spaces(text),
        Some(Class::Letter) => front + prefix_len(body, is_letter),
        Some(Class::Number) => front + prefix_len(body, is_number),
        Some(_) => front + prefix_len(body, is_other),
    }
}

/// What differs between the expressions that descend from cl100k's:
/// `CONTRACTION|[^\r\n\p{L}\p{N}]?WORD|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+TAIL|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) contraction: Contraction,
    /// What `WORD` is.
    pub(super) word: Word,
    /// The most digits that stay together.
    pub(super) digits_max: usize,
    /// What takes the place of `[^\s\p{L}\p{N}]`.
    pub(super) other: fn(char) -> bool,
    pub(super) tail: Tail,
}

/// What a word is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Length at the front of a text, 0 for none.
    Plain(fn(&str) -> usize),
    /// `U*L+|U+L*` with the character before each alternative: U is
    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, L is `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
    Cased,
}

/// Where `(?i:'s|'t|'re|'ve|'m|'ll|'d)` is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contraction {
    None,
    /// As a word of its own, before all else.
    Alone,
    /// As the end of a word.
    OfWord,
}

/// What a word of punctuation ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    None,
    /// `[\r\n]*`
    LineEnds,
    /// `[\r\n/]*`
    LineEndsAndSlashes,
    /// `[\r\n/]?`
    LineEndOrSlash,
}

impl Tail {
    fn len(self, text: &str) -> usize {
        let or_slash = |c| is_line_end(c) || c == '/';
        match self {
            Self::None => 0,
            Self::LineEnds => prefix_len(text, is_line_end),
            Self::LineEndsAndSlashes => prefix_len(text, or_slash),
            Self::LineEndOrSlash => group_len(text, 1, or_slash),
        }
    }
}

impl Shape {
    /// Length of the first word of `text`.
    #[inline]
    pub(super) fn split(&self, text: &str) -> usize {
        if self.contraction == Contraction::Alone
            && let Some(len) = folded_contraction(text)
        {
            return len;
        }
        let Some(first) = text.chars().next() else {
            return 0;
        };
        let kind = class(first);
        if kind == Class::Number {
            return group_len(text, self.digits_max, is_number);
        }
        let word = self.word_len(text, first);
        if word > 0 {
            let contracts = self.contraction == Contraction::OfWord;
            let suffix = contracts.then(|| folded_contraction(&text[word..]));
            return word + suffix.flatten().unwrap_or(0);
        }
        let body = text.strip_prefix(' ').unwrap_or(text);
        if body.starts_with(self.other) {
            let len = text.len() - body.len() + prefix_len(body, self.other);
            return len + self.tail.len(&text[len..]);
        }
        lines_or_spaces(text)
    }

    /// `[^\r\n\p{L}\p{N}]?WORD` at the front of `text`, whose first character is not a number.
    fn word_len(&self, text: &str, first: char) -> usize {
        let joins = !is_letter(first) && !is_line_end(first);
        let behind = |word: fn(&str) -> usize| match word(&text[first.len_utf8()..]) {
            0 => 0,
            len => first.len_utf8() + len,
        };
        match self.word {
            Word::Plain(word) => match word(text) {
                0 if joins => behind(word),
                // A mark may be either; where it begins a word, the word is the same.
                len => len,
            },
            // Each alternative first takes the character before it, then goes without.
            Word::Cased => [ends_lower, begins_upper]
                .into_iter()
                .flat_map(|word| [if joins { behind(word) } else { 0 }, word(text)])
                .find(|&len| len > 0)
                .unwrap_or(0),
        }
    }
}

/// `\p{L}+`
pub(super) fn letters(text: &str) -> usize {
    prefix_len(text, is_letter)
}

/// `[\p{L}\p{M}]+`
pub(super) fn letters_and_marks(text: &str) -> usize {
    prefix_len(text, is_letter_or_mark)
}

/// `(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: words with single spaces between them.
pub(super) fn phrase(text: &str) -> usize {
    let mut len = 0;
    loop {
        let rest = &text[len..];
        let body = match rest.strip_prefix(' ') {
            Some(body) if len > 0 => body,
            _ => rest,
        };
        if !body.starts_with(is_letter) {
            return len;
        }
        let letters = prefix_len(body, is_letter);
        let marks = prefix_len(&body[letters..], |c| class(c) == Class::Mark);
        len += rest.len() - body.len() + letters + marks;
    }
}

/// `U*L+` of [`Word::Cased`].
fn ends_lower(text: &str) -> usize {
    let upper = prefix_len(text, may_begin);
    match prefix_len(&text[upper..], may_end) {
        // U gives characters back until one is L.
        0 => {
            let last = text[..upper].char_indices().rfind(|&(_, c)| may_end(c));
            last.map_or(0, |(at, c)| at + c.len_utf8())
        }
        lower => upper + lower,
    }
}

/// `U+L*` of [`Word::Cased`].
fn begins_upper(text: &str) -> usize {
    match prefix_len(text, may_begin) {
        0 => 0,
        upper => upper + prefix_len(&text[upper..], may_end),
    }
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
fn may_begin(c: char) -> bool {
    is_letter_or_mark(c) && case(c) != Case::Lower
}

/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
fn may_end(c: char) -> bool {
    is_letter_or_mark(c) && case(c) != Case::Upper
}

/// Kimi K2's: `\p{Han}+` before the expression of `shape`, whose words have no Han in them.
pub(super) fn kimi_k2(text: &str, shape: &Shape) -> usize {
    match prefix_len(text, is_han) {
        0 => shape.split(text),
        len => len,
    }
}

/// `\p{L}+` without Han.
pub(super) fn letters_but_han(text: &str) -> usize {
    prefix_len(text, |c| is_letter(c) && !is_han(c))
}

/// DeepSeek V3's main expression:
/// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``,
/// isolated: it matches neither numbers nor controls.
pub(super) fn deepseek_v3(text: &str) -> usize {
    isolate(text, |text| match deepseek_words(text, Tail::LineEnds) {
        0 if text.starts_with(is_space) => lines_or_spaces(text),
        len => len,
    })
}

/// The same with `[\r\n]` in place of `\s*[\r\n]+` and no line ends after punctuation.
pub(super) fn spark(text: &str) -> usize {
    isolate(text, |text| match deepseek_words(text, Tail::None) {
        0 if text.starts_with(is_line_end) => 1,
        0 if text.starts_with(is_space) => spaces(text),
        len => len,
    })
}

fn deepseek_words(text: &str, tail: Tail) -> usize {
    let Some(first) = text.chars().next() else {
        return 0;
    };
    let rest = &text[first.len_utf8()..];
    if first.is_ascii_punctuation() && rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return 1 + prefix_len(rest, |c| c.is_ascii_alphabetic());
    }
    let joins = !is_line_end(first) && !is_letter(first) && !is_sign(first);
    if is_letter_or_mark(first) || (joins && rest.starts_with(is_letter_or_mark)) {
        return first.len_utf8() + letters_and_marks(rest);
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    match prefix_len(body, is_sign) {
        0 => 0,
        signs => {
            let len = text.len() - body.len() + signs;
            len + tail.len(&text[len..])
        }
    }
}

/// `\s?x+`, or ` ?x+` if `space` says so; isolated.
#[inline]
pub(super) fn after_space(
    text: &str,
    space: impl Fn(char) -> bool,
    belongs: impl Fn(char) -> bool,
) -> usize {
    isolate(text, |text| {
        let front = group_len(text, 1, &space);
        match prefix_len(&text[front..], &belongs) {
            0 if front > 0 => prefix_len(text, &belongs),
            0 => 0,
            len => front + len,
        }
    })
}

/// `\s+$`, isolated.
pub(super) fn trailing_space(text: &str) -> usize {
    match text.trim_end_matches(is_space).len() {
        0 => text.len(),
        len => len,
    }
}

/// The first of two rules that cut numbers into groups of three from their end, as llama.cpp
/// does it for AFMoE and Tiny Aya: text goes with the first group of the number after it. Here
/// the groups that follow stay together.
pub(super) fn number_heads(text: &str) -> usize {
    let front = prefix_len(text, |c| !is_number(c));
    let number = &text[front..prefix_len(&text[front..], is_number) + front];
    match (number.chars().count() % 3, front) {
        (0, 0) => number.len(),
        (0, _) => front + group_len(number, 3, is_number),
        (head, _) => front + group_len(number, head, is_number),
    }
}

/// The second: groups of three in a piece that begins with a number.
pub(super) fn number_groups(text: &str) -> usize {
    match group_len(text, 3, is_number) {
        0 => text.len(),
        len => len,
    }
}

/// The first of two rules for `(?=(\d{3})+(?!\d))`, which cuts before every group of three
/// digits as counted from their end. The groups before the last stay together here.
pub(super) fn digit_heads(text: &str) -> usize {
    let digits_at = |at: usize| prefix_len(&text[at..], |c| c.is_ascii_digit());
    let mut at = digits_at(0);
    if at > 3 {
        return if at % 3 == 0 { at - 3 } else { at % 3 };
    }
    while let Some(next) = text[at..].find(|c: char| c.is_ascii_digit()) {
        at += next;
        let digits = digits_at(at);
        if digits >= 3 {
            return at + digits % 3;
        }
        at += digits;
    }
    text.len()
}

/// The second: cuts such groups apart. No other piece begins with four digits.
pub(super) fn digit_groups(text: &str) -> usize {
    match text.as_bytes().first_chunk::<4>() {
        Some(front) if front.iter().all(u8::is_ascii_digit) => 3,
        _ => text.len(),
    }
}

/// Jais 2's `\s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`, for the pieces
/// that `\s+(?!\S)|\s+` makes: white space of a halving number of characters.
pub(super) fn halving_spaces(text: &str) -> usize {
    let mut chars = text.chars();
    let both = [chars.next(), chars.next()];
    let more_than_one = both.iter().all(|c| c.is_some_and(is_space));
    if !more_than_one || text.ends_with(is_line_end) {
        return text.len();
    }
    let count = text.chars().take(512).count();
    group_len(text, 1 << count.ilog2(), |_| true)
}

/// `<sentinel:[0-9]+>`, isolated.
pub(super) fn sentinels(text: &str) -> usize {
    isolate(text, |text| {
        let Some(body) = text.strip_prefix("<sentinel:") else {
            return 0;
        };
        let digits = prefix_len(body, |c| c.is_ascii_digit());
        let closed = digits > 0 && body[digits..].starts_with('>');
        if closed {
            text.len() - body.len() + digits + 1
        } else {
            0
        }
    })
}

/// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`, isolated.
pub(super) fn image_tokens(text: &str) -> usize {
    isolate(text, |text| {
        let Some(body) = text.strip_prefix("IMGIMG") else {
            return 0;
        };
        let letters = group_len(body, 4, |c| ('A'..='I').contains(&c));
        let closed = letters > 0 && body[letters..].starts_with('Z');
        if closed {
            text.len() - body.len() + letters + 1
        } else {
            0
        }
    })
}

/// `([\t\n]|    |  )`, isolated.
pub(super) fn indents(text: &str) -> usize {
    isolate(text, |text| match text.as_bytes() {
        [b'\t' | b'\n', ..] => 1,
        [b' ', b' ', b' ', b' ', ..] => 4,
        [b' ', b' ', ..] => 2,
        _ => 0,
    })
}

/// Youtu's first expression: runs of Hangul, of Chinese punctuation, of Bopomofo, of Chinese
/// and Japanese characters; isolated.
pub(super) fn east_asian_runs(text: &str) -> usize {
    isolate(text, |text| {
        EAST_ASIAN
            .iter()
            .map(|set| prefix_len(text, |c| is_in(set, c)))
            .find(|&len| len > 0)
            .unwrap_or(0)
    })
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: of white space with line ends in it, all up to the last of them.
fn lines_or_spaces(text: &str) -> usize {
    let run = &text[..prefix_len(text, is_space)];
    match run.rfind(is_line_end) {
        Some(line_end) => line_end + 1,
        None => spaces(text),
    }
}

/// `\s+(?!\S)|\s+`: white space up to the end of the text, or all but the last character of it
/// (which the next word may want as its leading space).
fn spaces(text: &str) -> usize {
    let len = prefix_len(text, is_space);
    if len == text.len() {
        return len;
    }
    match text[..len].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => len,
    }
}

fn folded_contraction(text: &str) -> Option<usize> {
    // The only other character that is folded to one of these letters.
    if text.starts_with("'\u{17f}") {
        return Some("'\u{17f}".len());
    }
    contraction(text, |byte| byte.to_ascii_lowercase())
}

/// `'s|'t|'re|'ve|'m|'ll|'d` after `fold`.
fn contraction(text: &str, fold: fn(u8) -> u8) -> Option<usize> {
    let rest = text.as_bytes().strip_prefix(b"'")?;
    let letter = |i: usize| rest.get(i).copied().map(fold);
    match (letter(0)?, letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

pub(super) fn is_line_end(c: char) -> bool {
    c == '\r' || c == '\n'
}

pub(super) fn is_letter(c: char) -> bool {
    class(c) == Class::Letter
}

pub(super) fn is_number(c: char) -> bool {
    class(c) == Class::Number
}

pub(super) fn is_space(c: char) -> bool {
    class(c) == Class::Space
}

pub(super) fn is_punctuation(c: char) -> bool {
    class(c) == Class::Punctuation
}

/// `[^\s\p{L}\p{N}]`
pub(super) fn is_other(c: char) -> bool {
    !matches!(class(c), Class::Letter | Class::Number | Class::Space)
}

/// `[^\s\p{L}\p{M}\p{N}]`
pub(super) fn is_other_but_mark(c: char) -> bool {
    is_other(c) && class(c) != Class::Mark
}

fn is_letter_or_mark(c: char) -> bool {
    matches!(class(c), Class::Letter | Class::Mark)
}

/// `[\p{P}\p{S}]`
fn is_sign(c: char) -> bool {
    matches!(class(c), Class::Punctuation | Class::Symbol)
}

/// ``[^(\s|.,!?…。，、।۔،)]``
pub(super) fn is_in_bloom_word(c: char) -> bool {
    !is_space(c) && !"(|.,!?…。，、।۔،)".contains(c)
}

/// `[一-龥ࠀ-一가-퟿]` of DeepSeek's first models.
pub(super) fn is_deepseek_cjk(c: char) -> bool {
    matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
}

/// Code points in one of the ranges, which ascend.
pub(super) fn is_in(ranges: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let index = ranges.partition_point(|&(_, last)| last < code);
    ranges.get(index).is_some_and(|&(first, _)| first <= code)
}

/// Han as llama.cpp has it for Kimi K2: by blocks.
fn is_han(c: char) -> bool {
    is_in(&HAN, c)
}

const HAN: [(u32, u32); 8] = [
    (0x3400, 0x4dbf),
    (0x4e00, 0x9fff),
    (0xf900, 0xfaff),
    (0x2_0000, 0x2_a6df),
    (0x2_a700, 0x2_b73f),
    (0x2_b740, 0x2_b81f),
    (0x2_b820, 0x2_ebef),
    (0x2_f800, 0x2_fa1f),
];

/// Chinese and Japanese characters of DeepSeek V3.
pub(super) const CJK: [(u32, u32); 2] = [(0x3040, 0x30ff), (0x4e00, 0x9fa5)];

const EAST_ASIAN: [&[(u32, u32)]; 4] = [
    &[(0x3131, 0x318e), (0xac00, 0xd7a3)],
    &[
        (0x2014, 0x2014),
        (0x2018, 0x2019),
        (0x201c, 0x201d),
        (0x2026, 0x2026),
        (0x3001, 0x303f),
        (0xfe30, 0xfe4f),
        (0xff01, 0xff01),
        (0xff0c, 0xff0c),
        (0xff1a, 0xff1b),
    ],
    &[(0x3105, 0x312f)],
    &CJK,
];

/// AFMoE's Asian scripts. That U+8C48 begins a range which reaches beyond compatibility
/// ideographs is so in llama.cpp.
pub(super) const AFMOE_ASIAN: [(u32, u32); 9] = [
    (0x0e40, 0x0eff),
    (0x1000, 0x109f),
    (0x1100, 0x11ff),
    (0x1780, 0x17ff),
    (0x2f00, 0x2fdf),
    (0x3040, 0x30ff),
    (0x3400, 0x4dbf),
    (0x4e00, 0xfaff),
    (0xff65, 0xff9f),
];

/// ``[!-/:-~！-／：-～‘-‟　-。]`` without the ideographic space, as it is white space first.
pub(super) const DEEPSEEK_SIGNS: [(u32, u32); 6] = [
    (0x21, 0x2f),
    (0x3a, 0x7e),
    (0x2018, 0x201f),
    (0x3000, 0x3002),
    (0xff01, 0xff0f),
    (0xff1a, 0xff5e),
];

/// The letters of cased scripts that DeepSeek LLM knows.
#[rustfmt::skip]
pub(super) const DEEPSEEK_LETTERS: [(u32, u32); 84] = [
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba),
    (0x1bc, 0x1bf), (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x377),
    (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c),
    (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556),
    (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf),
    (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d),
    (0x1f20, 0x1f45), (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b),
    (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe),
    (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec),
    (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128),
    (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149),
    (0x214e, 0x214e), (0x2183, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee),
    (0x2cf2, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b), (0xa722, 0xa76f), (0xa771, 0xa787),
    (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a),
    (0xff41, 0xff5a), (0x1_0400, 0x1_044f), (0x1_04b0, 0x1_04d3), (0x1_04d8, 0x1_04fb),
    (0x1_0c80, 0x1_0cb2), (0x1_0cc0, 0x1_0cf2), (0x1_18a0, 0x1_18df), (0x1_e900, 0x1_e943),
];
