//! Pre-tokenizers: how a byte-level vocabulary splits text into words before merging.
//!
//! Tokenizer files state these as regular expressions. The three families here are scanners
//! written by hand for them, one word at a time, in time linear in the text: an expression
//! engine would be the largest part of the crate, and backtracks.
//!
//! | family | expression |
//! |---|---|
//! | [`PreTokenizer::Gpt2`] | `'s\|'t\|'re\|'ve\|'m\|'ll\|'d\| ?\p{L}+\| ?\p{N}+\| ?[^\s\p{L}\p{N}]+\|\s+(?!\S)\|\s+` |
//! | [`PreTokenizer::Llama3`] | `(?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d)\|[^\r\n\p{L}\p{N}]?\p{L}+\|\p{N}{1,3}\| ?[^\s\p{L}\p{N}]+[\r\n]*\|\s*[\r\n]+\|\s+(?!\S)\|\s+` |
//! | [`PreTokenizer::Qwen2`] | the same with `\p{N}` in place of `\p{N}{1,3}` |
//!
//! Source of names and expressions: llama.cpp, `src/llama-vocab.cpp` and `src/unicode.cpp`, as
//! vendored by llama-cpp-python 0.3.36. As there, `(?i:...)` folds ASCII letters only.

use super::unicode::{Class, class};

/// A family of pre-tokenizers that split alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreTokenizer {
    /// GPT-2's, of most early byte-level vocabularies.
    Gpt2,
    /// Llama 3's: digits in groups of three, punctuation takes line ends along.
    Llama3,
    /// Qwen2's: as Llama 3's, but every digit alone.
    Qwen2,
}

/// What a name in `tokenizer.ggml.pre` implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizerTraits {
    pub(super) family: PreTokenizer,
    /// A word that is in the vocabulary is one token, whatever the merges would make of it.
    pub(super) ignore_merges: bool,
    /// BOS is prepended unless `tokenizer.ggml.add_bos_token` says otherwise.
    pub(super) add_bos: bool,
    /// There is a beginning-of-sequence token without metadata naming it.
    pub(super) has_default_bos: bool,
}

impl PreTokenizerTraits {
    /// What `name` stands for in llama.cpp, if it is one of the families here.
    ///
    /// Names whose vocabularies llama.cpp treats specially beyond this (mask tokens of the
    /// encoder models among them) are left out on purpose.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let plain = |family| Self {
            family,
            ignore_merges: false,
            add_bos: false,
            has_default_bos: true,
        };
        Some(match name {
            b"gpt-2" | b"phi-2" | b"jina-es" | b"jina-de" | b"gigachat" | b"a.x-4.0"
            | b"mellum" | b"exaone4" | b"mpt" | b"olmo" | b"jais" | b"trillion"
            | b"granite-docling" => plain(PreTokenizer::Gpt2),
            b"llama3" | b"llama-v3" | b"llama-bpe" | b"falcon3" | b"falcon-h1" | b"pixtral"
            | b"midm-2.0" | b"lfm2" | b"jina-v5-nano" => Self {
                ignore_merges: true,
                add_bos: true,
                ..plain(PreTokenizer::Llama3)
            },
            b"dbrx" | b"smaug-bpe" => plain(PreTokenizer::Llama3),
            b"chatglm-bpe" => Self {
                has_default_bos: false,
                ..plain(PreTokenizer::Llama3)
            },
            b"glm4" | b"glm5" => Self {
                ignore_merges: true,
                has_default_bos: false,
                ..plain(PreTokenizer::Llama3)
            },
            b"qwen2" | b"deepseek-r1-qwen" | b"kormo" | b"f2llmv2" | b"megrez" | b"stablelm2"
            | b"hunyuan" | b"solar-open" | b"grok-2" => plain(PreTokenizer::Qwen2),
            _ => return None,
        })
    }
}

impl PreTokenizer {
    /// Length in bytes of the first word of `text`: at least one character, unless `text` is
    /// empty. What follows is split without regard to it, as the expressions look ahead only.
    pub(super) fn word_len(self, text: &str) -> usize {
        match self {
            Self::Gpt2 => gpt2(text),
            Self::Llama3 => llama3(text, 3),
            Self::Qwen2 => llama3(text, 1),
        }
    }
}

fn gpt2(text: &str) -> usize {
    if let Some(len) = contraction(text, |byte| byte) {
        return len;
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    match body.chars().next().map(class) {
        None | Some(Class::Space) => spaces(text),
        Some(kind) => text.len() - body.len() + prefix_len(body, |c| class(c) == kind),
    }
}

fn llama3(text: &str, digits_max: usize) -> usize {
    if let Some(len) = contraction(text, |byte| byte.to_ascii_lowercase()) {
        return len;
    }
    let Some(first) = text.chars().next() else {
        return 0;
    };
    let rest = &text[first.len_utf8()..];
    let is_letter = |c| class(c) == Class::Letter;
    let kind = class(first);
    if kind == Class::Number {
        let digits = text.chars().take(digits_max);
        return digits
            .take_while(|&c| class(c) == Class::Number)
            .map(char::len_utf8)
            .sum();
    }
    if kind == Class::Letter || (!is_line_end(first) && rest.starts_with(is_letter)) {
        return first.len_utf8() + prefix_len(rest, is_letter);
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    let is_other = |c| class(c) == Class::Other;
    if body.starts_with(is_other) {
        let len = text.len() - body.len() + prefix_len(body, is_other);
        return len + prefix_len(&text[len..], is_line_end);
    }
    let run = &text[..prefix_len(text, |c| class(c) == Class::Space)];
    match run.rfind(is_line_end) {
        Some(line_end) => line_end + 1,
        None => spaces(text),
    }
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

/// `\s+(?!\S)|\s+`: white space up to the end of the text, or all but the last character of it
/// (which the next word may want as its leading space).
fn spaces(text: &str) -> usize {
    let len = prefix_len(text, |c| class(c) == Class::Space);
    if len == text.len() {
        return len;
    }
    match text[..len].char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => len,
    }
}

fn is_line_end(c: char) -> bool {
    c == '\r' || c == '\n'
}

/// Length in bytes of the longest prefix of characters that all satisfy `belongs`.
fn prefix_len(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn split(pre: PreTokenizer, mut text: &str) -> Vec<&str> {
        let mut words = Vec::new();
        while !text.is_empty() {
            let (word, rest) = text.split_at(pre.word_len(text));
            assert!(!word.is_empty());
            words.push(word);
            text = rest;
        }
        words
    }

    /// Expected splits are those of Python's `regex` module for the expressions above.
    #[test]
    fn gpt2_splits() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            (" ", &[" "]),
            ("   ", &["   "]),
            ("Hello  world", &["Hello", " ", " world"]),
            ("it's THEY'RE", &["it", "'s", " THEY", "'", "RE"]),
            ("a1 23b", &["a", "1", " 23", "b"]),
            ("x\n\n  y", &["x", "\n\n ", " y"]),
            ("\t\u{3000}z", &["\t", "\u{3000}", "z"]),
            (" ?!\n", &[" ?!", "\n"]),
            ("'", &["'"]),
            ("'ll'v", &["'ll", "'", "v"]),
            ("é½我", &["é", "½", "我"]),
        ];
        for (text, words) in cases {
            assert_eq!(&split(PreTokenizer::Gpt2, text), words, "{text:?}");
        }
    }

    #[test]
    fn llama3_and_qwen2_splits() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("they'RE I'M", &["they", "'RE", " I", "'M"]),
            ("12345", &["123", "45"]),
            ("(abc) d", &["(abc", ")", " d"]),
            ("a\n\n  \n b", &["a", "\n\n  \n", " b"]),
            ("!!\r\n\nx", &["!!\r\n\n", "x"]),
            ("  x", &[" ", " x"]),
            ("\tx \t ", &["\tx", " \t "]),
            (" \n\t ", &[" \n", "\t "]),
            ("\nabc", &["\n", "abc"]),
            (" 7", &[" ", "7"]),
            ("'sx", &["'s", "x"]),
            ("'x", &["'x"]),
        ];
        for (text, words) in cases {
            assert_eq!(&split(PreTokenizer::Llama3, text), words, "{text:?}");
        }
        assert_eq!(
            split(PreTokenizer::Qwen2, "x 123"),
            ["x", " ", "1", "2", "3"]
        );
    }
}
