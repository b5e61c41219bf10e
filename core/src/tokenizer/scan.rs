//! The expressions that pre-tokenizers split by, as scanners written by hand.
//!
//! Each is linear in the text. Where an expression backtracks, the scanner says where to.

use super::classes::{
    EAST_ASIAN, is_han, is_in, is_letter, is_letter_or_mark, is_line_end, is_number, is_other,
    is_sign, is_space,
};
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

/// The parts that differ between the expressions that descend from cl100k's:
/// `CONTRACTION|[^\r\n\p{L}\p{N}]?WORD|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+TAIL|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) contraction: Contraction,
    /// The expression for `WORD`.
    pub(super) word: Word,
    /// Maximum number of digits that stay together.
    pub(super) digits_max: usize,
    /// Replaces `[^\s\p{L}\p{N}]`.
    pub(super) other: fn(char) -> bool,
    pub(super) tail: Tail,
}

/// The form of a word.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    /// Length at the front of a text, 0 for none.
    Plain(fn(&str) -> usize),
    /// `U*L+|U+L*` with the character before each alternative: U is
    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, L is `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, both of the letters and marks that are
    /// accepted.
    Cased(fn(char) -> bool),
}

/// Where `(?i:'s|'t|'re|'ve|'m|'ll|'d)` is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contraction {
    None,
    /// As a separate word, before all else.
    Alone,
    /// As the end of a word.
    OfWord,
}

/// The end of a word of punctuation.
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
        let joined = |word: &dyn Fn(&str) -> usize| match word(&text[first.len_utf8()..]) {
            0 => 0,
            len => first.len_utf8() + len,
        };
        match self.word {
            Word::Plain(word) => match word(text) {
                0 if joins => joined(&word),
                // A mark may be either; where it begins a word, the word is the same.
                len => len,
            },
            // Each alternative is tried first with the character before it, then without it.
            Word::Cased(accepts) => [ends_lower, begins_upper]
                .into_iter()
                .flat_map(|word| {
                    let joined = || joined(&|text| word(text, accepts));
                    [if joins { joined() } else { 0 }, word(text, accepts)]
                })
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
fn ends_lower(text: &str, accepts: fn(char) -> bool) -> usize {
    let upper = prefix_len(text, |c| accepts(c) && may_begin(c));
    match prefix_len(&text[upper..], |c| accepts(c) && may_end(c)) {
        // U gives characters back until one is L.
        0 => {
            let last = text[..upper].char_indices().rfind(|&(_, c)| may_end(c));
            last.map_or(0, |(at, c)| at + c.len_utf8())
        }
        lower => upper + lower,
    }
}

/// `U+L*` of [`Word::Cased`].
fn begins_upper(text: &str, accepts: fn(char) -> bool) -> usize {
    match prefix_len(text, |c| accepts(c) && may_begin(c)) {
        0 => 0,
        upper => upper + prefix_len(&text[upper..], |c| accepts(c) && may_end(c)),
    }
}

/// A letter or mark of `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
fn may_begin(c: char) -> bool {
    case(c) != Case::Lower
}

/// One of `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
fn may_end(c: char) -> bool {
    case(c) != Case::Upper
}

/// Kimi K2's: `\p{Han}+` before the expression of `shape`, whose words have no Han in them.
pub(super) fn kimi_k2(text: &str, shape: &Shape) -> usize {
    match prefix_len(text, is_han) {
        0 => shape.split(text),
        len => len,
    }
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

/// `\s?x+`, or ` ?x+` if `space` is set; isolated.
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
/// does it for AFMoE: text stays with the first group of the number after it. Here
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
