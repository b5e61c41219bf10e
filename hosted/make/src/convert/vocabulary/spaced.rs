//! SentencePiece's BPE, written as `tokenizer.json`: U+2581 for spaces, character-based merges.
//!
//! llama.cpp's converter gives all tokens one score, which loses the order of the merges. Here a score
//! is the rank of the merge that makes the token, as in the `tokenizer.model` that such files are made
//! from, and text is cut as the original cuts it.

use super::super::rules::{Prefix, SPACE, Spaces, check_space_decoder};
use super::super::tokenizer_json::{TokenModel, TokenizerJson};
use super::bpe::{check_affixes, merges_of};
use super::table::{
    BYTE, NORMAL, SCORE_HOLE, SCORE_NONE, Table, UNKNOWN, UNUSED, USER_DEFINED, is_byte_token,
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
        table.place_all_added(json, specials, warnings);
        table.mark_roles(specials);
        table.mark_bytes();
        table.mark_unknown(&json.model);
        let is_before = spaces.prefix == Prefix::Always && !spaces.if_missing;
        if is_before && let Some(added) = json.added_tokens.iter().find(|added| added.normalized) {
            warnings.push(format!(
                "added tokens such as {:?} are normalized: true, so that Hugging Face finds them only after a space and at \
                 the beginning of a text; in GGUF they are found everywhere",
                added.content
            ));
        }
        let as_written = core::mem::take(&mut table.as_written);
        if rules.words == Words::Gemma4 {
            let mut vocabulary = Self::merged(table, json);
            vocabulary.set_as_written(&as_written);
            return Ok(vocabulary);
        }
        let scores = merge_scores(&table, &json.model);
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::SentencePiece { scores },
            keys: Vec::new(),
        };
        vocabulary.set_prefix(spaces.prefix);
        vocabulary.set_as_written(&as_written);
        if spaces.if_missing && spaces.prefix != Prefix::Never {
            vocabulary.set("tokenizer.ggml.add_space_prefix_if_missing", true);
        }
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
    fn mark_bytes(&mut self) {
        for (token, ty) in self.tokens.iter().zip(&mut self.types) {
            if *ty == NORMAL && is_byte_token(token) {
                *ty = BYTE;
            }
        }
    }

    fn mark_unknown(&mut self, model: &TokenModel) {
        let unknown = model.unknown().and_then(|id| usize::try_from(id).ok());
        if let Some(ty) = unknown.and_then(|id| self.types.get_mut(id)) {
            *ty = UNKNOWN;
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
            USER_DEFINED if ranks.contains_key(token) => {}
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
