//! Unigram, written as `tokenizer.json`: SentencePiece's other model (T5, XLM-RoBERTa, bge-m3).

use super::super::rules::{Prefix, SPACE, check_space_decoder, no_place, prefix_of, steps};
use super::super::tokenizer_json::TokenizerJson;
use super::table::{BYTE, SCORE_HOLE, Table, UNKNOWN, is_byte_token};
use super::{Kind, Rules, Vocabulary};
use serde_json::Value;
use sluice::file::MetaValue;
use std::collections::BTreeSet;

impl Vocabulary {
    pub(super) fn from_unigram(
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        check_space_decoder(&json.decoder)?;
        let text = UnigramText::of(json)?;
        let mut table = Table::new(json, rules, warnings)?;
        table.place_all_added(json, specials, warnings);
        table.mark_roles(specials);
        let mut scores = vec![SCORE_HOLE; table.tokens.len()];
        for (id, score) in json
            .model
            .vocab
            .scores
            .iter()
            .enumerate()
            .take(scores.len())
        {
            #[expect(clippy::cast_possible_truncation, reason = "GGUF's floats are f32")]
            let score = *score as f32;
            scores[id] = score;
            if json.model.byte_fallback == Some(true) && is_byte_token(&table.tokens[id]) {
                table.types[id] = BYTE;
            }
        }
        let is_normalised = !text.charsmap.is_empty() || text.removes_extra_whitespaces;
        if is_normalised
            && let Some(added) = json.added_tokens.iter().find(|added| added.normalized)
        {
            warnings.push(format!(
                "added tokens such as {:?} are normalized: true, so that Hugging Face finds them in normalised text; in \
                 GGUF they are found as they are written",
                added.content
            ));
        }
        let unknown = json.model.unk_id.and_then(|id| usize::try_from(id).ok());
        if let Some(ty) = unknown.and_then(|id| table.types.get_mut(id)) {
            *ty = UNKNOWN;
        }
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::Unigram { scores },
            keys: Vec::new(),
        };
        vocabulary.set_as_written(&table.as_written);
        let key = "tokenizer.ggml.add_space_prefix";
        vocabulary.set(key, text.prefix != Prefix::Never);
        if text.prefix == Prefix::First {
            vocabulary.set_prefix(Prefix::First);
        }
        if text.prefix != Prefix::Never {
            vocabulary.set("tokenizer.ggml.add_space_prefix_if_missing", true);
        }
        let key = "tokenizer.ggml.remove_extra_whitespaces";
        vocabulary.set(key, text.removes_extra_whitespaces);
        if text.splits_whitespace {
            vocabulary.set("tokenizer.ggml.split_whitespace", true);
        }
        if !text.charsmap.is_empty() {
            let map = MetaValue::u8s(&text.charsmap);
            vocabulary.set("tokenizer.ggml.precompiled_charsmap", map);
        }
        Ok(vocabulary)
    }
}

/// The processing of a text before it is cut.
struct UnigramText {
    charsmap: Vec<u8>,
    removes_extra_whitespaces: bool,
    splits_whitespace: bool,
    prefix: Prefix,
}

impl UnigramText {
    fn of(json: &TokenizerJson) -> Result<Self, String> {
        let mut own = Self {
            charsmap: Vec::new(),
            removes_extra_whitespaces: false,
            splits_whitespace: false,
            prefix: Prefix::Never,
        };
        for step in steps(&json.normalizer)? {
            match step.kind {
                "Precompiled" => {
                    let map = step.get("precompiled_charsmap").and_then(Value::as_str);
                    let map = map.and_then(base64).filter(|_| own.charsmap.is_empty());
                    own.charsmap = map.ok_or_else(|| no_place("normalizer", step))?;
                }
                "Replace"
                    if step.pattern() == Some((true, " {2,}"))
                        && [Some(" "), Some(SPACE)].contains(&step.str("content")) =>
                {
                    own.removes_extra_whitespaces = true;
                }
                // Strips spaces at the end; leading spaces merge with the prepended one.
                "Strip" if step.bool("strip_right") == Some(true) => {
                    own.removes_extra_whitespaces = true;
                }
                _ => return Err(no_place("normalizer", step)),
            }
        }
        for step in steps(&json.pre_tokenizer)? {
            match step.kind {
                "WhitespaceSplit" => {
                    own.removes_extra_whitespaces = true;
                    own.splits_whitespace = true;
                }
                "Metaspace" if step.str("replacement") == Some(SPACE) => {
                    own.prefix = prefix_of(step)?;
                }
                _ => return Err(no_place("pre_tokenizer", step)),
            }
        }
        if own.prefix == Prefix::First && own.removes_extra_whitespaces {
            let what = "prepend_scheme is \"first\" where spaces are removed, which GGUF cannot express for Unigram";
            return Err(what.into());
        }
        if own.prefix == Prefix::Never && own.splits_whitespace {
            let what = "WhitespaceSplit without a Metaspace that prepends a space to every word, which GGUF cannot express";
            return Err(what.into());
        }
        Ok(own)
    }
}

/// Decodes base64 in the standard alphabet.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut n_bits) = (0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            let [.., byte] = (bits >> n_bits).to_be_bytes();
            out.push(byte);
            bits &= (1 << n_bits) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_becomes_bytes() {
        for (text, bytes) in [("", ""), ("TQ==", "M"), ("TWE=", "Ma"), ("TWFu", "Man")] {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(base64("/+8A"), Some(vec![0xff, 0xef, 0]));
        assert_eq!(base64("a b"), None);
    }
}
