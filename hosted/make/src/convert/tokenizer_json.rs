//! `tokenizer.json`, Hugging Face's description of a tokenizer.

use core::fmt;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A `tokenizer.json`. Unknown keys are collected in `rest`, here and in the model.
#[derive(Clone, Debug, Deserialize)]
pub struct TokenizerJson {
    /// Tokens in addition to the model's, in file order.
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    /// The normalisation that is applied first.
    #[serde(default)]
    pub normalizer: Value,
    /// How text is split into words.
    #[serde(default)]
    pub pre_tokenizer: Value,
    /// The tokens that are added around a text.
    #[serde(default)]
    pub post_processor: Value,
    /// How tokens are turned into text.
    #[serde(default)]
    pub decoder: Value,
    /// The vocabulary and its merges.
    pub model: TokenModel,
    /// `version`, `truncation`, `padding`, and unknown keys.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A token that is matched in text before the model sees it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedToken {
    /// The token's ID.
    pub id: u64,
    /// The token's text.
    pub content: String,
    /// Whether it is matched only between characters other than letters and digits.
    #[serde(default)]
    pub single_word: bool,
    /// Whether white space before it belongs to it.
    #[serde(default)]
    pub lstrip: bool,
    /// Whether white space after it belongs to it.
    #[serde(default)]
    pub rstrip: bool,
    /// Whether it is matched in normalised text.
    #[serde(default)]
    pub normalized: bool,
    /// Whether it is invisible in text: a control token.
    #[serde(default)]
    pub special: bool,
}

/// The model of a `tokenizer.json`: byte-pair encoding, `WordPiece` or `Unigram`.
#[derive(Clone, Debug, Deserialize)]
pub struct TokenModel {
    /// `BPE`, `WordPiece`, …; old files leave it out.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Tokens with their IDs.
    #[serde(default)]
    pub vocab: Vocab,
    /// Merge pairs, the best first.
    #[serde(default)]
    pub merges: Vec<Merge>,
    /// The probability of skipping a merge, used in training.
    #[serde(default)]
    pub dropout: Option<f64>,
    /// The token for text outside the vocabulary.
    #[serde(default)]
    pub unk_token: Option<String>,
    /// The ID of the unknown token, for `Unigram`.
    #[serde(default)]
    pub unk_id: Option<u64>,
    /// Prefix of pieces that continue a word, such as `##`.
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    /// Suffix of the last piece of a word.
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
    /// Whether consecutive unknown characters become a single unknown token.
    #[serde(default)]
    pub fuse_unk: Option<bool>,
    /// Whether unknown characters become byte tokens, as in SentencePiece.
    #[serde(default)]
    pub byte_fallback: Option<bool>,
    /// Whether a word that is itself a token is taken whole.
    #[serde(default)]
    pub ignore_merges: Option<bool>,
    /// Maximum length of a word that `WordPiece` cuts, in characters.
    #[serde(default)]
    pub max_input_chars_per_word: Option<u64>,
    /// Unknown keys.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// How a model cuts words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// Byte-pair encoding.
    Bpe,
    /// The longest pieces.
    WordPiece,
    /// The pieces with the highest sum of scores.
    Unigram,
    /// Another, by its name.
    Other(String),
}

impl TokenizerJson {
    /// The added token with this text.
    pub fn added(&self, text: &str) -> Option<&AddedToken> {
        self.added_tokens.iter().find(|added| added.content == text)
    }
}

impl TokenModel {
    /// The kind that the file names, or else, as in Hugging Face's `tokenizers`, the first that has such fields.
    pub fn kind(&self) -> TokenizerKind {
        match self.kind.as_deref() {
            Some("BPE") => TokenizerKind::Bpe,
            Some("WordPiece") => TokenizerKind::WordPiece,
            Some("Unigram") => TokenizerKind::Unigram,
            Some(other) => TokenizerKind::Other(other.to_owned()),
            None if !self.merges.is_empty() => TokenizerKind::Bpe,
            None if self.max_input_chars_per_word.is_some() => TokenizerKind::WordPiece,
            None if !self.vocab.scores.is_empty() => TokenizerKind::Unigram,
            None if self.unk_token.is_some() && self.fuse_unk.is_none() => {
                TokenizerKind::Other("WordLevel".to_owned())
            }
            None => TokenizerKind::Bpe,
        }
    }

    /// The ID of the token for text outside the vocabulary.
    pub fn unknown(&self) -> Option<u64> {
        let named = self.unk_token.as_deref();
        let find = |text| self.vocab.tokens.iter().find(|(token, _)| token == text);
        let named = named.and_then(find).map(|(_, id)| *id);
        self.unk_id
            .filter(|_| self.kind() == TokenizerKind::Unigram)
            .or(named)
    }
}

/// Tokens with their IDs, in file order. In a list of pieces, as `Unigram` has, a token's index is
/// its ID, and each token has a score.
#[derive(Clone, Debug, Default)]
pub struct Vocab {
    /// Pairs of (text, ID).
    pub tokens: Vec<(String, u64)>,
    /// One score per token; empty unless the file has a list.
    pub scores: Vec<f64>,
}

/// A merge pair; written as `"a b"` or as `["a", "b"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The left part.
    pub left: String,
    /// The right part.
    pub right: String,
}

/// Parses a `tokenizer.json`.
///
/// # Errors
/// The bytes are not valid JSON of this format, or nested more than 128 deep.
pub fn parse_tokenizer(bytes: &[u8]) -> Result<TokenizerJson, serde_json::Error> {
    serde_json::from_slice(bytes)
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tokens to numbers, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut tokens = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    tokens.push(entry);
                }
                let scores = Vec::new();
                Ok(Vocab { tokens, scores })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab::default();
                while let Some((text, score)) = seq.next_element()? {
                    vocab.tokens.push((text, vocab.scores.len() as u64));
                    vocab.scores.push(score);
                }
                Ok(vocab)
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"left right\" or [\"left\", \"right\"]")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge {
                        left: left.into(),
                        right: right.into(),
                    }),
                    _ => Err(E::custom(format!("merge {text:?} is not a pair"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let pair = (seq.next_element()?, seq.next_element()?);
                let (Some(left), Some(right)) = pair else {
                    return Err(A::Error::custom("a merge is a pair"));
                };
                if seq.next_element::<IgnoredAny>()?.is_some() {
                    return Err(A::Error::custom("a merge is a pair"));
                }
                Ok(Merge { left, right })
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_merges_are_read() {
        let json = br#"{"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b",["ab","a"]]}}"#;
        let tokenizer = parse_tokenizer(json).unwrap();
        let merges = tokenizer.model.merges.iter();
        let merges: Vec<_> = merges.map(|m| (&*m.left, &*m.right)).collect();
        assert_eq!(merges, [("a", "b"), ("ab", "a")]);
        assert_eq!(tokenizer.model.vocab.tokens[2], ("ab".into(), 2));
        assert!(tokenizer.added_tokens.is_empty());
    }

    #[test]
    fn unigram_models_have_scores() {
        let json = br#"{"model":{"type":"Unigram","vocab":[["a",-1.0]],"unk_id":0}}"#;
        let tokenizer = parse_tokenizer(json).unwrap();
        assert_eq!(tokenizer.model.kind.as_deref(), Some("Unigram"));
        assert_eq!(tokenizer.model.vocab.tokens, [("a".into(), 0)]);
        assert_eq!(tokenizer.model.vocab.scores, [-1.0]);
        assert_eq!(tokenizer.model.unk_id, Some(0));
    }

    #[test]
    fn what_is_not_known_is_kept() {
        let json = br#"{"version":"1.0","model":{"type":"BPE","x":1},"y":{"z":2}}"#;
        let tokenizer = parse_tokenizer(json).unwrap();
        let keys = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&tokenizer.rest), ["version", "y"]);
        assert_eq!(keys(&tokenizer.model.rest), ["x"]);
    }

    #[test]
    fn malformed_files_are_errors() {
        let deep = format!(r#"{{"model":{{}},"normalizer":{}"#, "[".repeat(100_000));
        for json in [
            "",
            "{}",
            r#"{"model":{"merges":["ab"]}}"#,
            r#"{"model":{"merges":["a b c"]}}"#,
            r#"{"model":{"merges":[["a"]]}}"#,
            r#"{"model":{"merges":[["a","b","c"]]}}"#,
            r#"{"model":{"vocab":{"a":-1}}}"#,
            r#"{"model":{"vocab":["a"]}}"#,
            r#"{"model":{},"added_tokens":[{"id":0}]}"#,
            r#"{"model":{},"added_tokens":[{"id":0,"content":"a","x":1}]}"#,
            &deep,
        ] {
            assert!(parse_tokenizer(json.as_bytes()).is_err(), "{:.60}", json);
        }
    }
}
