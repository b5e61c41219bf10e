//! Tokens by ID, with holes for unused IDs.

use super::super::rules::SPACE;
use super::super::sentencepiece::PieceKind;
use super::super::tokenizer_json::{TokenModel, TokenizerJson};
use super::Rules;
use std::collections::BTreeSet;

pub(super) const NORMAL: i32 = PieceKind::Normal as i32;
pub(super) const UNKNOWN: i32 = PieceKind::Unknown as i32;
pub(super) const CONTROL: i32 = PieceKind::Control as i32;
pub(super) const USER_DEFINED: i32 = PieceKind::UserDefined as i32;
pub(super) const UNUSED: i32 = PieceKind::Unused as i32;
pub(super) const BYTE: i32 = PieceKind::Byte as i32;

/// The score of tokens that do not result from a merge.
pub(super) const SCORE_NONE: f32 = -1000.0;
/// The score of holes.
pub(super) const SCORE_HOLE: f32 = -10000.0;

pub(super) struct Table {
    pub(super) tokens: Vec<String>,
    pub(super) types: Vec<i32>,
    /// Pieces that texts may also name, as they are written.
    pub(super) as_written: Vec<u32>,
}

impl Table {
    pub(super) fn holes(n_vocab: usize) -> Self {
        Self {
            tokens: (0..n_vocab).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![UNUSED; n_vocab],
            as_written: Vec::new(),
        }
    }

    /// A table of the size that `config.json` gives, or else of the tokenizer's; the model's tokens
    /// are placed by ID.
    pub(super) fn new(
        json: &TokenizerJson,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        let ids = json.model.vocab.tokens.iter().map(|(_, id)| *id);
        let n_tokens = ids.max().map_or(0, |id| id.saturating_add(1));
        let added = json
            .added_tokens
            .iter()
            .map(|added| added.id.saturating_add(1));
        let n_vocab = match rules.n_vocab {
            Some(n_vocab) => u64::from(n_vocab),
            None => added.max().unwrap_or(0).max(n_tokens),
        };
        let places = usize::try_from(n_vocab).ok().filter(|&n| n < 1 << 24);
        let places = places.ok_or_else(|| format!("{n_vocab} tokens are too many"))?;
        let mut table = Self::holes(places);
        table.place_model_tokens(&json.model, warnings)?;
        Ok(table)
    }

    fn place_model_tokens(
        &mut self,
        model: &TokenModel,
        warnings: &mut Vec<String>,
    ) -> Result<(), String> {
        for (token, id) in &model.vocab.tokens {
            let Some(at) = self.place(*id, token, warnings) else {
                continue;
            };
            if self.types[at] != UNUSED {
                let other = &self.tokens[at];
                return Err(format!("{token:?} and {other:?} have the same id, {id}"));
            }
            self.tokens[at].clone_from(token);
            self.types[at] = NORMAL;
        }
        Ok(())
    }

    /// Places an added token. If it is one of the model's pieces and these `stay`, words may consist of it too.
    pub(super) fn place_added(
        &mut self,
        id: u64,
        token: &str,
        is_special: bool,
        stays: bool,
        warnings: &mut Vec<String>,
    ) {
        let Some(at) = self.place(id, token, warnings) else {
            return;
        };
        let is_own = self.types[at] != UNUSED && self.tokens[at] == *token;
        let is_control = is_special || looks_special(token);
        if is_own && stays && !is_control {
            self.as_written.extend(u32::try_from(at));
            return;
        }
        self.types[at] = if is_control { CONTROL } else { USER_DEFINED };
        self.tokens[at] = token.to_owned();
    }

    /// Places all added tokens; the ones with a role are special.
    pub(super) fn place_all_added(
        &mut self,
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        warnings: &mut Vec<String>,
    ) {
        for added in &json.added_tokens {
            let is_special = added.special || specials.contains(&added.content);
            // Only as a piece does one with a mark stand for spaces.
            let stays = added.content.contains(SPACE);
            self.place_added(added.id, &added.content, is_special, stays, warnings);
        }
    }

    /// A role makes a token special, even if it is one of the model's own.
    pub(super) fn mark_roles(&mut self, specials: &BTreeSet<String>) {
        for (token, ty) in self.tokens.iter().zip(&mut self.types) {
            if *ty == NORMAL && specials.contains(token) {
                *ty = CONTROL;
            }
        }
    }

    /// The index of a token. An ID beyond the embedding does not get one: the model cannot have
    /// learned it.
    pub(super) fn place(&self, id: u64, token: &str, warnings: &mut Vec<String>) -> Option<usize> {
        let at = usize::try_from(id).ok();
        let at = at.filter(|&at| at < self.tokens.len());
        if at.is_none() {
            warnings.push(format!(
                "token {id}, {token:?}, is beyond config.json's vocab_size {}: omitted",
                self.tokens.len()
            ));
        }
        at
    }
}

/// Whether a token is a control token although its file does not mark it: llama.cpp's converter
/// lists some families that mark theirs as plain.
pub(super) fn looks_special(token: &str) -> bool {
    let between = |start, end| token.starts_with(start) && token.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&token)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// Whether a token looks like `<0x0A>`.
pub(super) fn is_byte_token(token: &str) -> bool {
    let hex = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}
