//! WordPiece, of BERT: words in lower case and without accents, each written with the longest
//! pieces that fit.
//!
//! A text becomes words as BERT's normaliser makes them (Hugging Face's `BertNormalizer`: canonical
//! decomposition, without marks of category Mn): words are separated by white space; punctuation,
//! ASCII symbols and Chinese characters are separate words, and controls are removed. Nothing is
//! stored: a word is a part of the text, and its bytes are computed again where they are read.
//!
//! A word begins with U+2581 in the vocabulary of a GGUF file; pieces that continue one are
//! without the `##` of BERT's own. A word that pieces cannot cover to its end, or one of more
//! than 100 characters, is one unknown token.

use super::spelling::SPACE_MARK;
use super::unicode::{Class, base, class, lower, without_accents};

/// How characters are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Normalizer {
    /// `tokenizer.ggml.normalizer.lowercase`
    pub(super) lowercase: bool,
    /// `tokenizer.ggml.normalizer.strip_accents`
    pub(super) strip_accents: bool,
}

/// The role of a character for the words around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Space,
    /// It is removed.
    Nothing,
    /// Part of a word.
    Part,
    /// A separate word.
    Alone,
}

impl Normalizer {
    /// The words of `text`: where each is, and the part of the text that it is made from.
    pub(super) fn words(self, text: &str) -> impl Iterator<Item = (usize, &str)> {
        let mut rest = text;
        core::iter::from_fn(move || {
            let is_in_word = |c| matches!(self.role(c), Role::Part | Role::Alone);
            rest = &rest[rest.find(is_in_word)?..];
            let start = text.len() - rest.len();
            let mut chars = rest.char_indices();
            let alone = |c| self.role(c) == Role::Alone;
            let len = match chars.next() {
                Some((_, c)) if alone(c) => c.len_utf8(),
                _ => chars
                    .find(|&(_, c)| matches!(self.role(c), Role::Space | Role::Alone))
                    .map_or(rest.len(), |(at, _)| at),
            };
            let (word, after) = rest.split_at(len);
            rest = after;
            Some((start, word))
        })
    }

    /// The bytes of a word in the vocabulary's spelling.
    pub(super) fn bytes(self, word: &str) -> impl Iterator<Item = u8> + Clone {
        let normal = word.chars().flat_map(move |c| {
            let (utf8, len) = self.spelled(c);
            utf8.into_iter().take(len)
        });
        SPACE_MARK.into_iter().chain(normal)
    }

    /// The bytes that stand for a character where tokens are looked for in normalised text: a space for white space,
    /// and one on either side of a Chinese character.
    pub(super) fn looked_at(self, c: char) -> impl Iterator<Item = u8> + Clone {
        let (utf8, len) = match self.role(c) {
            Role::Space => {
                let mut space = [0; SPELLED_MAX];
                space[0] = b' ';
                (space, 1)
            }
            _ => self.spelled(c),
        };
        let around = is_chinese(self.base(c)).then_some(b' ').into_iter();
        let own = utf8.into_iter().take(len);
        around.clone().chain(own).chain(around)
    }

    /// Whether a word continues from one side of `c` to the other in normalised text, as `\w` has it; `None` if nothing is left
    /// of it.
    pub(super) fn joins(self, c: char) -> Option<bool> {
        match self.role(c) {
            Role::Nothing => None,
            Role::Space => Some(false),
            Role::Part | Role::Alone => {
                let c = self.base(c);
                let kind = class(c);
                let is_of_word = matches!(kind, Class::Letter | Class::Number | Class::Mark);
                Some(c == '_' || is_of_word && !is_chinese(c))
            }
        }
    }

    /// The bytes that stand for a character, and their number.
    #[inline]
    fn spelled(self, c: char) -> ([u8; SPELLED_MAX], usize) {
        let (mut utf8, mut len) = ([0; SPELLED_MAX], 0);
        let mut push = |c: char| len += c.encode_utf8(&mut utf8[len..]).len();
        let mut push_cased = |c: char| match self.lowercase {
            true if c.is_ascii() => push(c.to_ascii_lowercase()),
            true => lower(c).for_each(&mut push),
            false => push(c),
        };
        match self.role(c) {
            Role::Nothing => {}
            _ if self.strip_accents && !c.is_ascii() => {
                without_accents(c).for_each(push_cased);
            }
            _ => push_cased(c),
        }
        (utf8, len)
    }

    #[inline]
    fn base(self, c: char) -> char {
        let decomposes = self.strip_accents && !c.is_ascii();
        if decomposes { base(c) } else { c }
    }

    #[inline]
    fn role(self, whole: char) -> Role {
        let c = self.base(whole);
        match class(c) {
            // Controls that are white space too, except for the usual three, are removed.
            Class::Space if c.is_control() && !matches!(c, '\t' | '\n' | '\r') => Role::Nothing,
            Class::Space => Role::Space,
            Class::Control => Role::Nothing,
            _ if c == char::REPLACEMENT_CHARACTER => Role::Nothing,
            Class::Mark if self.strip_accents && without_accents(whole).next().is_none() => {
                Role::Nothing
            }
            Class::Punctuation => Role::Alone,
            Class::Symbol if c.is_ascii() => Role::Alone,
            _ if is_chinese(c) => Role::Alone,
            _ => Role::Part,
        }
    }
}

/// Bytes of a character's decomposition in lower case: three characters at most.
const SPELLED_MAX: usize = 16;

/// A longer word is one unknown token: `max_input_chars_per_word` of BERT's tokenizers.
pub(super) const WORD_CHARS_MAX: usize = 100;

/// Chinese characters, by the blocks that llama.cpp and BERT's fast tokenizer know, which miss
/// the first of extension E.
fn is_chinese(c: char) -> bool {
    matches!(
        c,
        '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2a6df}'
            | '\u{2a700}'..='\u{2b81f}'
            | '\u{2b920}'..='\u{2ceaf}'
            | '\u{2f800}'..='\u{2fa1f}'
    )
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::String;
    use std::vec::Vec;

    use super::*;

    fn words(normalizer: Normalizer, text: &str) -> Vec<String> {
        let words = normalizer.words(text);
        let spelled = words.map(|(_, word)| normalizer.bytes(word).collect());
        spelled
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect()
    }

    #[test]
    fn words_by_hand() {
        let uncased = Normalizer {
            lowercase: true,
            strip_accents: true,
        };
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" \t\u{3000}\n", &[]),
            ("Hello, World!", &["▁hello", "▁,", "▁world", "▁!"]),
            ("Ärger naïve e\u{301}", &["▁arger", "▁naive", "▁e"]),
            ("我们a們", &["▁我", "▁们", "▁a", "▁們"]),
            ("a+b€c©", &["▁a", "▁+", "▁b€c©"]),
            ("a\0b\u{fffd}\u{200b}c \u{301}\u{1}", &["▁abc"]),
            (
                "각 İ ß हि",
                &["▁\u{1100}\u{1161}\u{11a8}", "▁i", "▁ß", "▁हि"],
            ),
            ("\u{2b820}\u{2b920}", &["▁\u{2b820}", "▁\u{2b920}"]),
        ];
        for (text, expected) in cases {
            assert_eq!(&words(uncased, text), expected, "{text:?}");
        }
        let cased = Normalizer {
            lowercase: false,
            strip_accents: false,
        };
        let text = "Ärger E\u{301}a 각!";
        assert_eq!(words(cased, text), ["▁Ärger", "▁E\u{301}a", "▁각", "▁!"]);
    }
}
