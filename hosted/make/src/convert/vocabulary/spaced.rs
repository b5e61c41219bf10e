//! SentencePiece's BPE, written as `tokenizer.json`: U+2581 for spaces, character-based merges.
//!
//! llama.cpp's converter gives all tokens one score, which loses the order of the merges. Here a score
//! is the rank of the merge that makes the token, as in the `tokenizer.model` that such files are made
//! from, and text is cut as the original cuts it.

use super::super::rules::{Prefix, SPACE, Spaces, check_space_decoder};
use super::super::tokenizer_json::{TokenModel, TokenizerJson};
use super::bpe::{check_affixes, merges_of};
use super::table::{
    BYTE, CONTROL, NORMAL, SCORE_HOLE, SCORE_NONE, Table, UNKNOWN, UNUSED, USER_DEFINED,
    is_byte_token,
};
use super::{Kind, Rules, Vocabulary};
use sluice_hf::Words;
use std::collections::{BTreeSet, HashMap};

impl Vocabulary {
    pub(super) fn from_spaced(
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        spaces: Spaces,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        check_space_decoder(&json.decoder)?;
        check_affixes(&json.model)?;
        if json.model.ignore_merges == Some(true) {
            return Err(
                "ignore_merges is true, but vocabularies with U+2581 have no such flag".into(),
            );
        }
        let mut table = Table::new(json, rules, warnings)?;
        if spaces.splits
            && let Some(token) = table.tokens.iter().find(|token| has_space_inside(token))
        {
            return Err(format!(
                "words are split at spaces first (Metaspace with split), but the token {token:?} contains one: in \
                 GGUF it would be used"
            ));
        }
        let has_bytes = check_bytes(&table, &json.model)?;
        table.mark_bytes_and_roles(json, specials);
        let n_model = json.model.vocab.tokens.len() as u64;
        for added in json.added_tokens.iter().filter(|added| added.id >= n_model) {
            let is_special = added.special || specials.contains(&added.content);
            table.place_added(added.id, &added.content, is_special, warnings);
        }
        if rules.words == Words::Gemma4 {
            return Ok(Self::merged(table, json));
        }
        let scores = merge_scores(&table, &json.model);
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::SentencePiece { scores },
            keys: Vec::new(),
        };
        vocabulary.set_prefix(spaces.prefix);
        if json.model.fuse_unk == Some(false) && !has_bytes {
            vocabulary.set("tokenizer.ggml.fuse_unk", false);
        }
        Ok(vocabulary)
    }

    /// Gemma 4's: with merges, and tokens that are always shown.
    fn merged(mut table: Table, json: &TokenizerJson) -> Self {
        for (token, ty) in table.tokens.iter().zip(&mut table.types) {
            if GEMMA4_SHOWN.contains(&token.as_str()) {
                *ty = USER_DEFINED;
            }
        }
        Self {
            kind: Kind::Merged {
                scores: vec![SCORE_NONE; table.tokens.len()],
                merges: merges_of(&json.model),
            },
            tokens: table.tokens,
            types: table.types,
            keys: Vec::new(),
        }
    }

    /// Sets where a space is prepended; readers assume everywhere by default.
    pub(super) fn set_prefix(&mut self, prefix: Prefix) {
        match prefix {
            Prefix::Never => self.set("tokenizer.ggml.add_space_prefix", false),
            Prefix::First => self.set("tokenizer.ggml.add_space_prefix_first", true),
            Prefix::Always => {}
        }
    }
}

/// Tokens around channels and tool calls, which parsers of answers look for.
const GEMMA4_SHOWN: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

impl Table {
    fn mark_bytes_and_roles(&mut self, json: &TokenizerJson, specials: &BTreeSet<String>) {
        let added: BTreeSet<_> = json
            .added_tokens
            .iter()
            .filter(|added| added.special)
            .map(|added| added.content.as_str())
            .collect();
        let unknown = json.model.unk_token.as_deref();
        for (token, ty) in self.tokens.iter().zip(&mut self.types) {
            if *ty == NORMAL {
                *ty = match token.as_str() {
                    token if is_byte_token(token) => BYTE,
                    token if Some(token) == unknown => UNKNOWN,
                    token if added.contains(token) || specials.contains(token) => CONTROL,
                    _ => NORMAL,
                };
            }
        }
    }
}

/// Checks whether all bytes have tokens.
///
/// # Errors
/// There are byte tokens that the model does not use, but a reader of the GGUF file would.
fn check_bytes(table: &Table, model: &TokenModel) -> Result<bool, String> {
    let n_bytes = table
        .tokens
        .iter()
        .filter(|token| is_byte_token(token))
        .count();
    if n_bytes > 0 && model.byte_fallback != Some(true) {
        return Err(format!(
            "there are {n_bytes} byte tokens such as <0x0A>, but byte_fallback is not true: in GGUF they would be \
             used"
        ));
    }
    Ok(n_bytes == 256)
}

/// Whether a space follows another character.
fn has_space_inside(token: &str) -> bool {
    token.chars().skip(1).any(|c| SPACE.starts_with(c))
}

/// Scores under which merging the best pair first is the order of the merges: 0 for the first
/// merged token, then down by one. Tokens without a merge come after all of them.
fn merge_scores(table: &Table, model: &TokenModel) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for merge in &model.merges {
        let next = ranks.len();
        ranks
            .entry(format!("{}{}", merge.left, merge.right))
            .or_insert(next);
    }
    let mut next = ranks.len();
    let scores = table.tokens.iter().zip(&table.types).map(|(token, &ty)| {
        match ty {
            UNUSED => return SCORE_HOLE,
            BYTE => return 0.0,
            NORMAL => {}
            _ => return SCORE_NONE,
        }
        let rank = ranks.get(token).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        #[expect(clippy::cast_precision_loss, reason = "ranks are below 2^24")]
        let rank = rank as f32;
        0.0 - rank
    });
    scores.collect()
}
