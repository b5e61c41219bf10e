//! Vocabularies: tokens, their types and scores, and the merges.
//!
//! Two kinds, as llama.cpp's converter writes them: `gpt2` (byte-level BPE, from `tokenizer.json`)
//! and `llama` (SentencePiece, from `tokenizer.model`, or from a `tokenizer.json` that says the
//! same). Of the latter llama.cpp writes one score for all, which loses the order of merges; here
//! a score is the rank of the merge that makes the token, as in the `tokenizer.model` that such
//! files are made from, and text is cut as the original cuts it.
#![forbid(unsafe_code)]

use super::ConvertError;
use super::folder::{exists, read_bytes, read_json, read_object_if_there};
use super::pre::pre_tokenizer_name;
use super::sentencepiece::{PieceKind, parse_pieces};
use super::tokenizer_json::{BpeModel, TokenizerJson, parse_tokenizer};
use serde_json::{Map, Value};
use sluice::file::{GgufHeader, MetaValue};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// What the tokenizer's files say, read once.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    pub(super) json: Option<TokenizerJson>,
    /// `tokenizer_config.json`; empty where it is absent.
    pub(super) about: Map<String, Value>,
}

/// Tokens with their types, and what only one kind of vocabulary has.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Bpe { pre: String, merges: Vec<String> },
    SentencePiece { scores: Vec<f32> },
}

/// What a family asks of its vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// From `config.json`.
    pub(super) n_vocab: Option<u32>,
    /// Phi-3's converter reads added tokens its own way.
    pub(super) is_phi3: bool,
    /// The name to write where the user gives one.
    pub(super) pre: Option<&'a str>,
}

const NORMAL: i32 = PieceKind::Normal as i32;
const CONTROL: i32 = PieceKind::Control as i32;
const USER_DEFINED: i32 = PieceKind::UserDefined as i32;
const UNUSED: i32 = PieceKind::Unused as i32;

/// The score of tokens that no merge makes.
const SCORE_NONE: f32 = -1000.0;
/// The score of places without a token.
const SCORE_HOLE: f32 = -10000.0;

impl TokenizerFiles {
    pub(super) fn read(folder: &Path) -> Result<Self, ConvertError> {
        let path = folder.join("tokenizer.json");
        let json = if exists(&path) {
            let parsed = parse_tokenizer(&read_bytes(&path)?);
            Some(parsed.map_err(|error| ConvertError::Json { path, error })?)
        } else {
            None
        };
        let about = read_object_if_there(&folder.join("tokenizer_config.json"))?;
        Ok(Self { json, about })
    }

    /// The tokens that `tokenizer_config.json` or `special_tokens_map.json` give a role.
    fn special_texts(&self, folder: &Path) -> Result<BTreeSet<String>, ConvertError> {
        let map = read_object_if_there(&folder.join("special_tokens_map.json"))?;
        let roles = self
            .about
            .iter()
            .chain(&map)
            .filter(|(key, _)| key.ends_with("_token") || key.ends_with("_special_tokens"));
        let values = roles.flat_map(|(_, value)| match value {
            Value::Array(list) => list.as_slice(),
            other => core::slice::from_ref(other),
        });
        Ok(values.filter_map(token_text).map(str::to_owned).collect())
    }
}

/// A token as configurations write it: text, or an object with the text as `content`.
pub(super) fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

impl Vocabulary {
    pub(super) fn read(
        folder: &Path,
        files: &TokenizerFiles,
        rules: Rules<'_>,
    ) -> Result<Self, ConvertError> {
        let path = folder.join("tokenizer.model");
        let class = files.about.get("tokenizer_class").and_then(Value::as_str);
        // Phi-4 has a class of its own kind and sometimes files of Phi-3's.
        let is_bpe_class = class == Some("GPT2Tokenizer");
        if exists(&path) && !is_bpe_class {
            return Self::from_pieces(folder, files, rules);
        }
        let path = folder.join("tokenizer.json");
        let error = |what: String| ConvertError::Tokenizer {
            path: path.clone(),
            what,
        };
        let Some(json) = &files.json else {
            let what = "neither this file nor tokenizer.model is there".into();
            return Err(error(what));
        };
        match json.model.kind.as_deref() {
            Some("BPE") | None => {}
            Some(other) => return Err(error(format!("the model is {other}, not BPE"))),
        }
        let decoder = json.decoder.get("type").and_then(Value::as_str);
        if json.model.byte_fallback == Some(true) && decoder == Some("Sequence") {
            let specials = files.special_texts(folder)?;
            return Self::from_spm_json(json, &specials, rules).map_err(error);
        }
        let pre = match rules.pre {
            Some(pre) => pre.to_owned(),
            None => pre_tokenizer_name(
                &json.normalizer,
                &json.pre_tokenizer,
                json.model.ignore_merges == Some(true),
            )
            .map_err(|rules| ConvertError::UnknownPre {
                path: path.clone(),
                rules,
            })?
            .to_owned(),
        };
        let specials = files.special_texts(folder)?;
        Self::from_bpe(json, &specials, rules, pre).map_err(error)
    }

    /// Byte-level BPE, as published with most families.
    fn from_bpe(
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        rules: Rules<'_>,
        pre: String,
    ) -> Result<Self, String> {
        let mut table = Table::new(json, rules)?;
        table.place_model_tokens(&json.model)?;
        for added in &json.added_tokens {
            let is_special = added.special || specials.contains(&added.content);
            table.place_added(added.id, &added.content, is_special)?;
        }
        // A role makes a token special, also where it is one of the model's.
        for (token, ty) in table.tokens.iter().zip(&mut table.types) {
            if *ty == NORMAL && specials.contains(token) {
                *ty = CONTROL;
            }
        }
        let merges = json.model.merges.iter();
        let merges = merges.map(|m| format!("{} {}", spaceless(&m.left), spaceless(&m.right)));
        Ok(Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::Bpe {
                pre,
                merges: merges.collect(),
            },
        })
    }

    /// SentencePiece's BPE, written as `tokenizer.json`.
    fn from_spm_json(
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        rules: Rules<'_>,
    ) -> Result<Self, String> {
        let mut table = Table::new(json, rules)?;
        table.place_model_tokens(&json.model)?;
        let n_model = json.model.vocab.0.len() as u64;
        for (token, ty) in table.tokens.iter().zip(&mut table.types) {
            let is_added = |text: &String| {
                let mut added = json.added_tokens.iter();
                added.any(|added| added.special && added.content == *text)
            };
            if *ty == NORMAL {
                *ty = match token {
                    token if is_byte_token(token) => PieceKind::Byte as i32,
                    token if specials.contains(token) || is_added(token) => CONTROL,
                    _ => NORMAL,
                };
            }
        }
        for added in json.added_tokens.iter().filter(|added| added.id >= n_model) {
            let is_special = added.special || specials.contains(&added.content);
            table.place_added(added.id, &added.content, is_special)?;
        }
        let scores = merge_scores(&table, &json.model);
        Ok(Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::SentencePiece { scores },
        })
    }

    /// SentencePiece's own file, with what other files add to it.
    fn from_pieces(
        folder: &Path,
        files: &TokenizerFiles,
        rules: Rules<'_>,
    ) -> Result<Self, ConvertError> {
        let path = folder.join("tokenizer.model");
        let error = |error| ConvertError::Pieces {
            path: path.clone(),
            error,
        };
        let pieces = parse_pieces(&read_bytes(&path)?).map_err(error)?;
        let n_vocab = rules.n_vocab.map_or(pieces.len(), |n| n as usize);
        let mut table = Table::holes(n_vocab);
        let mut scores = vec![SCORE_HOLE; n_vocab];
        for (id, piece) in pieces.into_iter().take(n_vocab).enumerate() {
            table.tokens[id] = piece.text;
            scores[id] = piece.score;
            // llama.cpp's converter takes user-defined pieces for normal ones.
            table.types[id] = match piece.kind {
                PieceKind::UserDefined => NORMAL,
                kind => kind as i32,
            };
        }
        for (id, token, special) in added_tokens(folder, files, rules.is_phi3)? {
            let Some(id) = usize::try_from(id).ok().filter(|&id| id < n_vocab) else {
                continue;
            };
            let is_control = special == Some(true)
                || (special.is_some() && !rules.is_phi3 && looks_special(&token));
            let keeps_text = is_control || rules.is_phi3 || special.is_none();
            table.types[id] = if is_control { CONTROL } else { USER_DEFINED };
            table.tokens[id] = match keeps_text {
                true => token,
                false => token.replace('\u{2581}', " "),
            };
            scores[id] = SCORE_NONE;
        }
        Ok(Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::SentencePiece { scores },
        })
    }

    pub(super) fn n_vocab(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn is_sentencepiece(&self) -> bool {
        matches!(self.kind, Kind::SentencePiece { .. })
    }

    pub(super) fn write(&self, header: &mut GgufHeader) {
        let (model, pre) = match &self.kind {
            Kind::Bpe { pre, .. } => ("gpt2", pre.as_str()),
            Kind::SentencePiece { .. } => ("llama", "default"),
        };
        header.set("tokenizer.ggml.model", model);
        header.set("tokenizer.ggml.pre", pre);
        header.set("tokenizer.ggml.tokens", MetaValue::strings(&self.tokens));
        if let Kind::SentencePiece { scores } = &self.kind {
            header.set("tokenizer.ggml.scores", MetaValue::f32s(scores));
        }
        header.set("tokenizer.ggml.token_type", MetaValue::i32s(&self.types));
        if let Kind::Bpe { merges, .. } = &self.kind {
            header.set("tokenizer.ggml.merges", MetaValue::strings(merges));
        }
    }
}

/// Tokens by number, with holes where there are none.
struct Table {
    tokens: Vec<String>,
    types: Vec<i32>,
}

impl Table {
    fn holes(n_vocab: usize) -> Self {
        Self {
            tokens: (0..n_vocab).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![UNUSED; n_vocab],
        }
    }

    /// As many places as `config.json` says, or as the tokenizer has tokens.
    fn new(json: &TokenizerJson, rules: Rules<'_>) -> Result<Self, String> {
        let ids = json.model.vocab.0.iter().map(|(_, id)| *id);
        let ids = ids.chain(json.added_tokens.iter().map(|added| added.id));
        let n_tokens = ids.max().map_or(0, |id| id.saturating_add(1));
        let n_vocab = rules.n_vocab.map_or(n_tokens, u64::from);
        if n_tokens > n_vocab {
            return Err(format!(
                "token {} is beyond config.json's vocab_size {n_vocab}",
                n_tokens - 1
            ));
        }
        Ok(Self::holes(
            usize::try_from(n_vocab).expect("config.json's counts are bounded"),
        ))
    }

    fn place_model_tokens(&mut self, model: &BpeModel) -> Result<(), String> {
        for (token, id) in &model.vocab.0 {
            let at = self.at(*id)?;
            if self.types[at] != UNUSED {
                return Err(format!(
                    "{token:?} and {:?} have one id, {id}",
                    self.tokens[at]
                ));
            }
            self.tokens[at].clone_from(token);
            self.types[at] = NORMAL;
        }
        Ok(())
    }

    fn place_added(&mut self, id: u64, token: &str, special: bool) -> Result<(), String> {
        let at = self.at(id)?;
        if special || looks_special(token) {
            self.types[at] = CONTROL;
            self.tokens[at] = token.into();
        } else {
            self.types[at] = USER_DEFINED;
            self.tokens[at] = token.replace('\u{2581}', " ");
        }
        Ok(())
    }

    fn at(&self, id: u64) -> Result<usize, String> {
        let at = usize::try_from(id)
            .ok()
            .filter(|&at| at < self.tokens.len());
        at.ok_or_else(|| format!("token id {id} is beyond the vocabulary"))
    }
}

/// Tokens that other files add to a `tokenizer.model`, in the order in which they count:
/// `added_tokens.json` (which says nothing about being special), `tokenizer_config.json`, and for
/// Phi-3 `tokenizer.json`.
fn added_tokens(
    folder: &Path,
    files: &TokenizerFiles,
    is_phi3: bool,
) -> Result<Vec<(u64, String, Option<bool>)>, ConvertError> {
    let mut all = Vec::new();
    let path = folder.join("added_tokens.json");
    if exists(&path) {
        let added = read_json::<BTreeMap<String, u64>>(&path)?;
        all.extend(added.into_iter().map(|(token, id)| (id, token, None)));
    }
    let decoder = files.about.get("added_tokens_decoder");
    for (id, token) in decoder.and_then(Value::as_object).into_iter().flatten() {
        let (Ok(id), Some(text)) = (id.parse(), token_text(token)) else {
            return Err(ConvertError::Tokenizer {
                path: folder.join("tokenizer_config.json"),
                what: format!("added_tokens_decoder has the malformed entry {id:?}"),
            });
        };
        let special = token.get("special").and_then(Value::as_bool);
        all.push((id, text.into(), Some(special == Some(true))));
    }
    if let (true, Some(json)) = (is_phi3, &files.json) {
        let added = json.added_tokens.iter();
        all.extend(added.map(|added| (added.id, added.content.clone(), Some(added.special))));
    }
    Ok(all)
}

/// Scores under which merging the best pair first is the order of the merges: 0 for the first
/// merged token, then down by one. Tokens without a merge come after all of them.
fn merge_scores(table: &Table, model: &BpeModel) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for merge in &model.merges {
        let next = ranks.len();
        ranks
            .entry(format!("{}{}", merge.left, merge.right))
            .or_insert(next);
    }
    let mut next = ranks.len();
    let scores = table.tokens.iter().zip(&table.types).map(|(token, &ty)| {
        if ty == UNUSED {
            return SCORE_HOLE;
        }
        if ty != NORMAL {
            return if ty == PieceKind::Byte as i32 {
                0.0
            } else {
                SCORE_NONE
            };
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

/// Whether a token is a control token though its file does not say so: llama.cpp's converter
/// knows some families that mark theirs as plain.
fn looks_special(token: &str) -> bool {
    let between = |start, end| token.starts_with(start) && token.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&token)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// `<0x0A>`.
fn is_byte_token(token: &str) -> bool {
    let hex = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Half of a merge without spaces, which separate the halves in a GGUF file: they become `Ġ`.
fn spaceless(half: &str) -> String {
    half.replace(' ', "\u{120}")
}
