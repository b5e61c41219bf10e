//! Vocabularies: tokens, their types and scores, the merges, and how text is prepared for them.
//!
//! Four kinds, as llama.cpp's converter writes them: `gpt2` (byte-level BPE), `llama` (SentencePiece's BPE), `bert`
//! (WordPiece) and `t5` (Unigram). Every setting of a tokenizer's files that affects text is written under a key, or
//! refused by name.

mod bpe;
mod pieces;
mod spaced;
mod table;
mod tiktoken;
mod unigram;
mod wordpiece;

use super::ConvertError;
use super::rules::Spaces;
use super::tokenizer_json::{TokenizerJson, TokenizerKind, parse_tokenizer};
use serde_json::Value;
use sluice::file::{GgufHeader, MetaValue};
use sluice_core::kernels::words;
use sluice_hf::{
    Config, HfError, Words, exists, read_object_if_there, read_text_bytes, short, warn_of_rest,
    whole,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The contents of the tokenizer's files, read once.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    /// `tokenizer.json`, or its equivalent made from another file.
    pub(super) json: Option<TokenizerJson>,
    /// The file it was read from.
    path: PathBuf,
    /// The name of the pre-tokenizer's rules, if no file describes them.
    pre: Option<&'static str>,
    /// `tokenizer_config.json`; empty where it is absent.
    pub(super) about: Config,
    /// Tokens that have a role, or are called special, in `tokenizer_config.json` or
    /// `special_tokens_map.json`.
    specials: BTreeSet<String>,
    folder: PathBuf,
}

/// Tokens with their types, and data that only one kind of vocabulary has.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    kind: Kind,
    /// Keys about the text, in addition to the keys of the kind.
    keys: Vec<(&'static str, MetaValue)>,
}

#[derive(Debug)]
enum Kind {
    Bpe {
        pre: String,
        merges: Vec<String>,
    },
    SentencePiece {
        scores: Vec<f32>,
    },
    /// Gemma 4's: spaces as in SentencePiece, merges as in byte-level BPE.
    Merged {
        scores: Vec<f32>,
        merges: Vec<String>,
    },
    Unigram {
        scores: Vec<f32>,
    },
    WordPiece,
}

/// A family's requirements for its vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    /// The vocabulary size in `config.json`.
    pub(super) n_vocab: Option<u32>,
    pub(super) words: Words,
    /// The name to write, if the user gives one.
    pub(super) pre: Option<&'a str>,
}

impl TokenizerFiles {
    pub(super) fn read(folder: &Path) -> Result<Self, ConvertError> {
        let about = folder.join("tokenizer_config.json");
        let map = read_object_if_there(&about)?;
        let roles = read_object_if_there(&folder.join("special_tokens_map.json"))?;
        let specials = texts_with_a_role(map.iter().chain(&roles));
        let about = Config::new(&about, map);
        let (mut path, mut json, mut pre) = (folder.join("tokenizer.json"), None, None);
        let ranks = tiktoken::NAMES.map(|name| folder.join(name));
        if exists(&path) {
            let parsed = parse_tokenizer(&read_text_bytes(&path)?);
            json = Some(parsed.map_err(|error| {
                let path = path.clone();
                HfError::Json { path, error }
            })?);
        } else if let Some(ranks) = ranks.into_iter().find(|path| exists(path)) {
            json = Some(tiktoken::read(&ranks, &about)?);
            pre = tiktoken::pre(&about);
            path = ranks;
        }
        Ok(Self {
            json,
            path,
            pre,
            about,
            specials,
            folder: folder.into(),
        })
    }

    /// The folder of the files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Refuses or warns about tokenizer settings that have not been read.
    pub(super) fn check_rest(&self, warnings: &mut Vec<String>) -> Result<(), ConvertError> {
        if let Some(json) = &self.json {
            let error = |what: String| self.json_error(what);
            let unknown = json.rest.iter().chain(&json.model.rest);
            let mut unknown = unknown.filter(|(key, value)| {
                !["version", "truncation", "padding"].contains(&key.as_str()) && !value.is_null()
            });
            if let Some((key, value)) = unknown.next() {
                let what = format!("{key:?} is {}, which is not supported", short(value));
                return Err(error(what));
            }
            if json.model.dropout.is_some_and(|chance| chance != 0.0) {
                return Err(error("dropout makes the tokens random".into()));
            }
        }
        // This flag changes what is read as a special token.
        if self.about.bool("split_special_tokens") == Some(true) {
            let told = self.about.named("split_special_tokens");
            warnings.push(format!("{told} is true: use --no-parse-special instead"));
        }
        if let Some(Value::Object(map)) = self.about.find(&["sp_model_kwargs"])
            && !map.is_empty()
        {
            let told = self.about.named("sp_model_kwargs");
            warnings.push(format!("{told} is not empty: ignored"));
        }
        warn_of_rest(&self.about, &ABOUT_FILES, warnings);
        Ok(())
    }

    fn json_error(&self, what: String) -> ConvertError {
        let path = self.path.clone();
        ConvertError::Tokenizer { path, what }
    }
}

/// Keys of tokenizer_config.json that are about files, padding and Python, or that are read elsewhere as a role.
const ABOUT_FILES: [&str; 54] = words(
    "add_bos_token add_eos_token add_prefix_space add_sep_token added_tokens_decoder \
     additional_special_tokens auto_map backend bos_token clean_up_tokenization_spaces cls_token \
     do_basic_tokenize do_lower_case eom_token eos_token eot_token errors extra_special_tokens \
     fast_tokenizer from_slow is_local legacy local_files_only mask_token max_length merges_file \
     model_input_names model_max_length model_specific_special_tokens name_or_path never_split \
     pad_to_multiple_of pad_token pad_token_type_id padding_side processor_class \
     return_token_type_ids sep_token split_special_tokens spaces_between_special_tokens \
     special_tokens_map_file stride strip_accents tokenize_chinese_chars tokenizer_class \
     tokenizer_file trim_offsets truncation_side truncation_strategy unk_token \
     use_default_system_prompt use_fast verbose vocab_file",
);

/// The texts of entries such as `bos_token` and `additional_special_tokens`.
fn texts_with_a_role<'a>(
    entries: impl Iterator<Item = (&'a String, &'a Value)>,
) -> BTreeSet<String> {
    let roles =
        entries.filter(|(key, _)| key.ends_with("_token") || key.ends_with("_special_tokens"));
    let values = roles.flat_map(|(_, value)| match value {
        Value::Array(list) => list.as_slice(),
        other => core::slice::from_ref(other),
    });
    values.filter_map(token_text).map(str::to_owned).collect()
}

/// A token in a configuration: a string, or an object with the string as `content`.
pub(super) fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

impl Vocabulary {
    pub(super) fn read(
        files: &TokenizerFiles,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let class = files.about.str("tokenizer_class");
        // Phi-4 has its own tokenizer class, and in some cases Phi-3's files.
        let is_bpe_class = class == Some("GPT2Tokenizer");
        let model = if is_bpe_class {
            None
        } else {
            pieces::read_model(&files.folder, files.json.is_some(), warnings)?
        };
        let mut vocabulary = match (model, &files.json) {
            (Some(model), _) => Self::from_model(files, model, rules, warnings)?,
            (None, Some(json)) => Self::from_json(files, json, rules, warnings)?,
            (None, None) => match wordpiece::read_vocab_txt(files, rules, warnings)? {
                Some(vocabulary) => vocabulary,
                None => return Err(files.json_error(no_tokenizer(&files.folder))),
            },
        };
        vocabulary.read_flags(files)?;
        Ok(vocabulary)
    }

    fn from_json(
        files: &TokenizerFiles,
        json: &TokenizerJson,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let error = |what: String| files.json_error(what);
        let specials = &files.specials;
        match json.model.kind() {
            TokenizerKind::WordPiece => {
                Self::from_wordpiece(json, specials, rules, warnings).map_err(error)
            }
            TokenizerKind::Unigram => {
                Self::from_unigram(json, specials, rules, warnings).map_err(error)
            }
            TokenizerKind::Bpe => {
                let spaces = Spaces::of(&json.normalizer, &json.pre_tokenizer);
                match spaces {
                    Ok(Some(spaces)) => Self::from_spaced(json, specials, spaces, rules, warnings),
                    Ok(None) => return Self::from_byte_level(files, json, rules, warnings),
                    Err(what) => Err(what),
                }
                .map_err(error)
            }
            TokenizerKind::Other(other) => Err(error(format!(
                "the model is {other}; only BPE, WordPiece and Unigram can be converted"
            ))),
        }
    }

    pub(super) fn n_vocab(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn is_sentencepiece(&self) -> bool {
        matches!(self.kind, Kind::SentencePiece { .. })
    }

    pub(super) fn is_word_piece(&self) -> bool {
        matches!(self.kind, Kind::WordPiece)
    }

    /// The ID of the control token with this text.
    pub(super) fn special_id(&self, text: &str) -> Option<u64> {
        let mut tokens = self.tokens.iter().zip(&self.types);
        let is_it = |(token, ty): (&String, &i32)| {
            token == text && [table::CONTROL, table::UNKNOWN].contains(ty)
        };
        tokens.position(is_it).map(|id| id as u64)
    }

    /// The token with the ID that a configuration gives.
    pub(super) fn id_of(&self, value: &Value) -> Option<u32> {
        let id = whole(value).and_then(|id| u32::try_from(id).ok());
        id.filter(|&id| (id as usize) < self.tokens.len())
    }

    /// Writes the pieces that texts may also name as they are written.
    fn set_as_written(&mut self, ids: &[u32]) {
        if !ids.is_empty() {
            let key = "tokenizer.ggml.added_tokens.as_written";
            self.set(key, MetaValue::u32s(ids));
        }
    }

    /// Adds a key, or replaces its value.
    fn set(&mut self, key: &'static str, value: impl Into<MetaValue>) {
        self.keys.retain(|(other, _)| *other != key);
        self.keys.push((key, value.into()));
    }

    pub(super) fn write(&self, header: &mut GgufHeader) {
        let (model, pre, scores) = match &self.kind {
            Kind::Bpe { pre, .. } => ("gpt2", pre.as_str(), None),
            Kind::SentencePiece { scores } => ("llama", "default", Some(scores)),
            Kind::Merged { scores, .. } => ("gemma4", "", Some(scores)),
            Kind::Unigram { scores } => ("t5", "default", Some(scores)),
            Kind::WordPiece => ("bert", "default", None),
        };
        header.set("tokenizer.ggml.model", model);
        if !pre.is_empty() {
            header.set("tokenizer.ggml.pre", pre);
        }
        header.set("tokenizer.ggml.tokens", MetaValue::strings(&self.tokens));
        if let Some(scores) = scores {
            header.set("tokenizer.ggml.scores", MetaValue::f32s(scores));
        }
        header.set("tokenizer.ggml.token_type", MetaValue::i32s(&self.types));
        if let Kind::Bpe { merges, .. } | Kind::Merged { merges, .. } = &self.kind {
            header.set("tokenizer.ggml.merges", MetaValue::strings(merges));
        }
        for (key, value) in &self.keys {
            header.set(key, value.clone());
        }
    }

    /// Writes the IDs of added tokens that absorb white space, match only whole words, or are found in normalised text.
    fn read_flags(&mut self, files: &TokenizerFiles) -> Result<(), ConvertError> {
        let n_vocab = self.tokens.len() as u64;
        let mut flags = BTreeMap::new();
        if files.json.is_none() {
            // Tokens without flags are normalised, as transformers adds them.
            let ids = pieces::listed_tokens(files)?.into_values();
            flags.extend(ids.map(|id| (id, [false, false, false, true])));
        }
        for added in files.json.iter().flat_map(|json| &json.added_tokens) {
            let own = [
                added.rstrip,
                added.lstrip,
                added.single_word,
                added.normalized,
            ];
            flags.insert(added.id, own);
        }
        let decoder = files.about.find(&["added_tokens_decoder"]);
        for (id, token) in decoder.and_then(Value::as_object).into_iter().flatten() {
            let id = id.parse().map_err(|_| malformed_added(files, id))?;
            let flag = |key| token.get(key).and_then(Value::as_bool) == Some(true);
            flags.insert(
                id,
                ["rstrip", "lstrip", "single_word", "normalized"].map(flag),
            );
        }
        let keys = [
            "tokenizer.ggml.added_tokens.rstrip",
            "tokenizer.ggml.added_tokens.lstrip",
            "tokenizer.ggml.added_tokens.single_word",
            "tokenizer.ggml.added_tokens.normalized",
        ];
        // Other kinds do not change the characters of names.
        let n_keys = if matches!(self.kind, Kind::WordPiece) {
            4
        } else {
            3
        };
        for (place, key) in keys.into_iter().take(n_keys).enumerate() {
            let having = flags
                .iter()
                .filter(|(id, flags)| flags[place] && **id < n_vocab);
            let ids: Vec<u32> = having
                .filter_map(|(id, _)| u32::try_from(*id).ok())
                .collect();
            if !ids.is_empty() {
                self.set(key, MetaValue::u32s(&ids));
            }
        }
        Ok(())
    }
}

fn malformed_added(files: &TokenizerFiles, id: &str) -> ConvertError {
    ConvertError::Tokenizer {
        path: files.folder.join("tokenizer_config.json"),
        what: format!("added_tokens_decoder has the malformed entry {id:?}"),
    }
}

/// Explains why the vocabulary is missing, and how to make one from the files present.
fn no_tokenizer(folder: &Path) -> String {
    let has = |name| exists(&folder.join(name));
    let hint = if has("vocab.json") && has("merges.txt") {
        "; vocab.json and merges.txt exist: create tokenizer.json with transformers' \
         AutoTokenizer.from_pretrained(DIR, use_fast=True).save_pretrained(DIR)"
    } else if has("tekken.json") {
        "; tekken.json exists: use tokenizer.json from a folder in Hugging Face's layout, or create it with \
         transformers' convert_tekken_tokenizer.py"
    } else {
        ""
    };
    format!("neither this file nor tokenizer.model exists{hint}")
}
