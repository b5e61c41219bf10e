//! SentencePiece's own file, with the additions of other files.

use super::super::ConvertError;
use super::super::rules::{Prefix, SPACE, Spaces};
use super::super::sentencepiece::{ModelKind, PieceKind, PieceModel, parse_model};
use super::table::{
    CONTROL, NORMAL, SCORE_HOLE, SCORE_NONE, Table, UNUSED, USER_DEFINED, looks_special,
};
use super::{Kind, Rules, TokenizerFiles, Vocabulary, malformed_added, token_text};
use serde_json::Value;
use sluice::file::MetaValue;
use sluice_hf::{HfError, Words, exists, mistaken_text, read_bytes, read_json};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads `tokenizer.model`, if it exists. A file of another kind is ignored if there is a `tokenizer.json`: Meta ships
/// tiktoken's vocabulary under this name.
pub(super) fn read_model(
    folder: &Path,
    has_json: bool,
    warnings: &mut Vec<String>,
) -> Result<Option<PieceModel>, ConvertError> {
    let path = folder.join("tokenizer.model");
    if !exists(&path) {
        return Ok(None);
    }
    let bytes = read_bytes(&path)?;
    if let Some(what) = mistaken_text(&bytes) {
        if has_json {
            let told = path.display();
            warnings.push(format!("{told}: {what}; using tokenizer.json instead"));
            return Ok(None);
        }
        return Err(HfError::Mistaken { path, what }.into());
    }
    match parse_model(&bytes) {
        Ok(model) => Ok(Some(model)),
        Err(error) => Err(ConvertError::Pieces { path, error }),
    }
}

impl Vocabulary {
    pub(super) fn from_model(
        files: &TokenizerFiles,
        model: PieceModel,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let path = files.folder.join("tokenizer.model");
        let error = |what| {
            let path = path.clone();
            ConvertError::Tokenizer { path, what }
        };
        check_model(&model, warnings, &path).map_err(error)?;
        let n_vocab = rules.n_vocab.map_or(model.pieces.len(), |n| n as usize);
        let mut table = Table::holes(n_vocab);
        let mut scores = vec![SCORE_HOLE; n_vocab];
        for (id, piece) in model.pieces.iter().enumerate() {
            let Some(at) = table.place(id as u64, &piece.text, warnings) else {
                continue;
            };
            table.tokens[at].clone_from(&piece.text);
            scores[at] = piece.score;
            table.types[at] = piece.kind as i32;
            if piece.kind == PieceKind::UserDefined {
                // Looked for in the text itself, where a mark is still a space; a space is never left of one.
                if piece.text.contains(' ') {
                    table.types[at] = UNUSED;
                }
                table.tokens[at] = piece.text.replace(SPACE, " ");
            }
        }
        let is_phi3 = rules.words == Words::Phi3;
        for added in added_tokens(files, is_phi3)? {
            let Some(at) = table.place(added.id, &added.text, warnings) else {
                continue;
            };
            let is_own = table.tokens[at] == added.text && table.types[at] != UNUSED;
            // A list without token kinds does not change the kind of the model's own pieces.
            if added.special.is_none() && is_own && table.types[at] != NORMAL {
                continue;
            }
            let is_control = match added.special {
                Some(special) => special || (!is_phi3 && looks_special(&added.text)),
                None => files.specials.contains(&added.text),
            };
            let keeps_text = is_control || is_phi3 || added.special.is_none();
            table.types[at] = if is_control { CONTROL } else { USER_DEFINED };
            table.tokens[at] = match keeps_text {
                true => added.text,
                false => added.text.replace(SPACE, " "),
            };
            scores[at] = SCORE_NONE;
        }
        let kind = match model.kind {
            ModelKind::Unigram => Kind::Unigram { scores },
            _ => Kind::SentencePiece { scores },
        };
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind,
            keys: Vec::new(),
        };
        vocabulary.set_normalizer(files, &model);
        Ok(vocabulary)
    }

    /// Sets the text normalisation. Hugging Face reads it from tokenizer.json, if that exists.
    fn set_normalizer(&mut self, files: &TokenizerFiles, model: &PieceModel) {
        let json = files.json.as_ref();
        let spaces =
            json.and_then(|json| Spaces::of(&json.normalizer, &json.pre_tokenizer).ok()?);
        let is_first = files.about.bool("legacy") == Some(false);
        let mut kinds = model.pieces.iter().map(|piece| piece.kind);
        let has_user_defined = kinds.any(|kind| kind == PieceKind::UserDefined);
        let own = match model.normalizer.add_dummy_prefix {
            false => Prefix::Never,
            // SentencePiece does not put a space after its own user-defined pieces.
            true if is_first || has_user_defined => Prefix::First,
            true => Prefix::Always,
        };
        let is_alone = spaces.is_none() && own == Prefix::First && !is_first;
        if is_alone {
            // It puts one before a text that begins with such a piece.
            self.set("tokenizer.ggml.add_space_prefix_alone", true);
        }
        let prefix = spaces.map_or(own, |spaces| spaces.prefix);
        self.set_prefix(prefix);
        if prefix != Prefix::Never && spaces.is_some_and(|spaces| spaces.if_missing) {
            self.set("tokenizer.ggml.add_space_prefix_if_missing", true);
        }
        let removes = model.normalizer.remove_extra_whitespaces && spaces.is_none();
        if removes || model.kind == ModelKind::Unigram {
            self.set("tokenizer.ggml.remove_extra_whitespaces", removes);
        }
        if model.whitespace_is_suffix {
            self.set("tokenizer.ggml.treat_whitespace_as_suffix", true);
        }
        if !model.normalizer.charsmap.is_empty() {
            let map = MetaValue::u8s(&model.normalizer.charsmap);
            self.set("tokenizer.ggml.precompiled_charsmap", map);
        }
    }
}

fn no_place(what: &str) -> String {
    format!("{what}: this changes the tokens, which GGUF cannot express")
}

/// Refuses settings that no vocabulary of a GGUF file supports.
fn check_model(model: &PieceModel, warnings: &mut Vec<String>, path: &Path) -> Result<(), String> {
    let kind = match model.kind {
        ModelKind::Bpe | ModelKind::Unigram => None,
        ModelKind::Word => Some("word (kind 3)"),
        ModelKind::Char => Some("char (kind 4)"),
    };
    if let Some(kind) = kind {
        return Err(format!(
            "it is a {kind} model; only BPE and Unigram can be converted"
        ));
    }
    let name = &model.normalizer.name;
    let refused = [
        (
            model.kind == ModelKind::Bpe && model.whitespace_is_suffix,
            "treat_whitespace_as_suffix is true".to_owned(),
        ),
        (
            !model.normalizer.escape_whitespaces,
            "escape_whitespaces is false".to_owned(),
        ),
        (model.has_denormalizer, "it has a denormalizer".to_owned()),
        (
            model.kind == ModelKind::Bpe && !model.normalizer.charsmap.is_empty(),
            format!("its normalizer {name:?} replaces characters (precompiled_charsmap)"),
        ),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(is_so, _)| *is_so) {
        return Err(no_place(&what));
    }
    for (message, field) in &model.unknown_fields {
        let told = path.display();
        warnings.push(format!(
            "{told}: unknown field {field} of {message} is ignored"
        ));
    }
    Ok(())
}

/// A token that another file adds.
pub(super) struct Added {
    pub(super) id: u64,
    pub(super) text: String,
    /// `None` if the file does not mention it.
    pub(super) special: Option<bool>,
}

/// The tokens in `added_tokens.json`, without flags.
pub(super) fn listed_tokens(files: &TokenizerFiles) -> Result<BTreeMap<String, u64>, ConvertError> {
    let path = files.folder.join("added_tokens.json");
    match exists(&path) {
        true => Ok(read_json(&path)?),
        false => Ok(BTreeMap::new()),
    }
}

/// Tokens that other files add to a `tokenizer.model`, in order of increasing precedence: `added_tokens.json` (which
/// does not mark special tokens), `tokenizer_config.json`, and for Phi-3 `tokenizer.json`.
pub(super) fn added_tokens(
    files: &TokenizerFiles,
    is_phi3: bool,
) -> Result<Vec<Added>, ConvertError> {
    let listed = listed_tokens(files)?.into_iter();
    let mut all: Vec<_> = listed
        .map(|(text, id)| Added {
            id,
            text,
            special: None,
        })
        .collect();
    let decoder = files.about.find(&["added_tokens_decoder"]);
    for (id, token) in decoder.and_then(Value::as_object).into_iter().flatten() {
        let (Ok(number), Some(text)) = (id.parse(), token_text(token)) else {
            return Err(malformed_added(files, id));
        };
        let special = token.get("special").and_then(Value::as_bool);
        all.push(Added {
            id: number,
            text: text.into(),
            special: Some(special == Some(true)),
        });
    }
    if let (true, Some(json)) = (is_phi3, &files.json) {
        let added = json.added_tokens.iter();
        all.extend(added.map(|added| Added {
            id: added.id,
            text: added.content.clone(),
            special: Some(added.special),
        }));
    }
    Ok(all)
}
