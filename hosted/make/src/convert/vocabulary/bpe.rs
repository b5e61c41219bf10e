//! Byte-level BPE, as published with most families.

use super::super::ConvertError;
use super::super::candidates::suggested;
use super::super::pre::{ignores_merges, implies_nfc, pre_tokenizer_name};
use super::super::rules::{check_byte_decoder, composes, steps};
use super::super::tokenizer_json::{TokenModel, TokenizerJson};
use super::table::Table;
use super::{Kind, Rules, TokenizerFiles, Vocabulary};
use std::collections::HashMap;

impl Vocabulary {
    pub(super) fn from_byte_level(
        files: &TokenizerFiles,
        json: &TokenizerJson,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let error = |what: String| files.json_error(what);
        let composes = composes(&json.normalizer).map_err(error)?;
        check_byte_decoder(&json.decoder).map_err(error)?;
        check_model(&json.model).map_err(error)?;
        let ignores = json.model.ignore_merges == Some(true);
        let pre = match rules.pre.or(files.pre) {
            Some(pre) => pre.to_owned(),
            None => {
                let name = pre_tokenizer_name(&json.normalizer, &json.pre_tokenizer, ignores);
                let unknown = |rules| ConvertError::UnknownPre {
                    path: files.path.clone(),
                    rules,
                    names: steps(&json.pre_tokenizer)
                        .map_or_else(|what| what, |all| suggested(&all)),
                };
                name.map_err(unknown)?.to_owned()
            }
        };
        let mut table = Table::new(json, rules, warnings).map_err(error)?;
        table.place_all_added(json, &files.specials, warnings);
        table.mark_roles(&files.specials);
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::Bpe {
                pre: pre.clone(),
                merges: merges_of(&json.model),
            },
            keys: Vec::new(),
        };
        if composes || implies_nfc(&pre) {
            vocabulary.set("tokenizer.ggml.normalizer.nfc", composes);
        }
        if ignores != ignores_merges(&pre) && has_unreachable(&json.model) {
            vocabulary.set("tokenizer.ggml.ignore_merges", ignores);
        }
        Ok(vocabulary)
    }
}

/// Refuses model flags that byte-level BPE in a GGUF file does not support.
fn check_model(model: &TokenModel) -> Result<(), String> {
    check_affixes(model)?;
    if model.byte_fallback == Some(true) {
        let what = "byte_fallback is true, but spaces do not become U+2581: GGUF has no such kind of vocabulary";
        return Err(what.into());
    }
    Ok(())
}

/// Refuses prefixes and suffixes of a word's pieces.
pub(super) fn check_affixes(model: &TokenModel) -> Result<(), String> {
    let affixes = [
        (
            "continuing_subword_prefix",
            &model.continuing_subword_prefix,
        ),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (key, affix) in affixes {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return Err(format!(
                "{key} is {affix:?}, which GGUF cannot express for BPE"
            ));
        }
    }
    Ok(())
}

/// Merges in GGUF's form, the two sides separated by a space.
pub(super) fn merges_of(model: &TokenModel) -> Vec<String> {
    let merges = model.merges.iter();
    let merges = merges.map(|m| format!("{} {}", spaceless(&m.left), spaceless(&m.right)));
    merges.collect()
}

/// Whether merging some token's characters does not result in that token: `ignore_merges` only
/// matters then.
fn has_unreachable(model: &TokenModel) -> bool {
    let pairs = model.merges.iter().enumerate();
    let ranks: HashMap<_, _> = pairs
        .map(|(rank, merge)| ((merge.left.as_str(), merge.right.as_str()), rank))
        .collect();
    let tokens = model.vocab.tokens.iter();
    tokens
        .into_iter()
        .any(|(token, _)| !is_reachable(token, &ranks))
}

fn is_reachable(token: &str, ranks: &HashMap<(&str, &str), usize>) -> bool {
    let ends = token.char_indices().map(|(at, c)| at + c.len_utf8());
    let mut cuts: Vec<usize> = core::iter::once(0).chain(ends).collect();
    // Longer tokens are not words; a token that is never a whole word is not taken whole either.
    if cuts.len() > 200 {
        return true;
    }
    while cuts.len() > 2 {
        let pairs = cuts.windows(3).enumerate();
        let best = pairs
            .filter_map(|(at, cut)| {
                let pair = (&token[cut[0]..cut[1]], &token[cut[1]..cut[2]]);
                Some((*ranks.get(&pair)?, at))
            })
            .min();
        let Some((_, at)) = best else {
            return false;
        };
        cuts.remove(at + 1);
    }
    true
}

/// Half of a merge with its spaces written as `Ġ`, because a space separates the halves in a GGUF
/// file.
fn spaceless(half: &str) -> String {
    half.replace(' ', "\u{120}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tokenizer_json::parse_tokenizer;

    #[test]
    fn tokens_that_merges_do_not_reach_are_found() {
        let model = |merges: &str| {
            let json = format!(
                r#"{{"model":{{"vocab":{{"a":0,"b":1,"c":2,"ab":3,"abc":4}},"merges":{merges}}}}}"#
            );
            parse_tokenizer(json.as_bytes()).expect("a tokenizer").model
        };
        assert!(!has_unreachable(&model(r#"["a b","ab c"]"#)));
        assert!(has_unreachable(&model(r#"["a b"]"#)));
        assert!(has_unreachable(&model(r#"["b c","a b","ab c"]"#)));
    }
}
