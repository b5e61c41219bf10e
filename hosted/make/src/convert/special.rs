//! Special tokens, flags and chat templates.
//!
//! The rules follow llama.cpp's converter (`gguf-py/gguf/vocab.py`, `SpecialVocab`): roles come from
//! `tokenizer_config.json` by the text of added tokens, then from `config.json` by number; whether BOS, EOS and SEP are
//! added follows from the post-processor before the configuration's own flags. In addition, all tokens that end a text
//! count ([`super::generation`]), and a chat template file takes precedence over the template in
//! `tokenizer_config.json`, as in Hugging Face's own loader. A post-processor that adds other tokens than BOS and EOS
//! around a text is refused.

use super::ConvertError;
use super::rules::{Step, no_place, steps};
use super::vocabulary::{TokenizerFiles, Vocabulary, token_text};
use serde_json::{Map, Value};
use sluice::file::{GgufHeader, MetaValue};
use sluice_hf::{Config, Family, exists, read_json, read_text};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The special tokens of a GGUF file, in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Special {
    /// (role, id), each role once.
    ids: Vec<(&'static str, u32)>,
    /// (role, whether the token is added to every text).
    add: Vec<(&'static str, bool)>,
    /// Tokens that end a text, in addition to the ones with a role for it.
    more_ends: Vec<u32>,
    templates: Vec<(String, String)>,
}

/// Roles, as configurations name them and as GGUF keys name them.
const ROLES: [(&str, &str); 8] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("mask", "mask"),
    ("eot", "eot"),
    ("eom", "eom"),
];

impl Special {
    /// `ends` are the tokens that end a text.
    pub(super) fn read(
        folder: &Path,
        files: &TokenizerFiles,
        config: &Config,
        ends: &[Value],
        family: &Family,
        vocabulary: &Vocabulary,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConvertError> {
        let mut special = Self::default();
        let mut about = files.about.map().clone();
        if let Some(json) = &files.json {
            let read = special.read_post_processor(&json.post_processor, &mut about);
            read.map_err(|what| ConvertError::Tokenizer {
                path: folder.join("tokenizer.json"),
                what,
            })?;
        }
        for (role, _) in ROLES {
            let flag = about.get(&format!("add_{role}_token"));
            if let Some(flag) = flag.and_then(Value::as_bool) {
                special.default_add(role, flag);
            }
            let text = about.get(&format!("{role}_token")).and_then(token_text);
            let id = text.and_then(|text| match &files.json {
                Some(json) => {
                    let mut added = json.added_tokens.iter();
                    added
                        .find(|added| added.content == text)
                        .map(|added| added.id)
                }
                None => vocabulary.special_id(text),
            });
            special.set_id(role, id, vocabulary.n_vocab());
        }
        for (role, _) in ROLES {
            let key = format!("{role}_token_id");
            let Some(value) = config.find(&[&key]).filter(|value| !value.is_array()) else {
                continue;
            };
            match vocabulary.id_of(value) {
                Some(id) => special.set_id(role, Some(id.into()), vocabulary.n_vocab()),
                None => warnings.push(format!(
                    "{} is {value}, which is not a token id of the vocabulary: ignored",
                    config.named(&key)
                )),
            }
        }
        for &(role, text) in family.vocabulary().roles {
            let id = vocabulary.special_id(text);
            special.set_id(role, id, vocabulary.n_vocab());
        }
        let end_key = family.vocabulary().end_key;
        let end = end_key.and_then(|key| vocabulary.id_of(config.find(&[key])?));
        if let Some(end) = end {
            match special.ids.iter_mut().find(|(role, _)| *role == "eos") {
                Some(entry) => entry.1 = end,
                None => special.ids.push(("eos", end)),
            }
        }
        special.read_ends(ends, vocabulary, warnings);
        special.templates = read_templates(folder, files)?;
        Ok(special)
    }

    pub(super) fn write(&self, header: &mut GgufHeader) {
        for (role, id) in &self.ids {
            let named = ROLES.iter().find(|(name, _)| name == role);
            let (_, key) = named.expect("only roles of the table are set");
            header.set(&format!("tokenizer.ggml.{key}_token_id"), *id);
        }
        for (role, flag) in &self.add {
            // Only these three have GGUF keys.
            if ["bos", "eos", "sep"].contains(role) {
                header.set(&format!("tokenizer.ggml.add_{role}_token"), *flag);
            }
        }
        if !self.more_ends.is_empty() {
            let ids = MetaValue::u32s(&self.more_ends);
            header.set("tokenizer.ggml.eog_token_ids", ids);
        }
        let mut names = Vec::new();
        for (name, template) in &self.templates {
            if name != DEFAULT {
                header.set(
                    &format!("tokenizer.chat_template.{name}"),
                    template.as_str(),
                );
                names.push(name);
            }
        }
        if !names.is_empty() {
            header.set("tokenizer.chat_templates", MetaValue::strings(&names));
        }
        if let Some((_, template)) = self.templates.iter().find(|(name, _)| name == DEFAULT) {
            header.set("tokenizer.chat_template", template.as_str());
        }
    }

    /// Sets the ID of a role that does not have one yet.
    pub(super) fn set_id(&mut self, role: &'static str, id: Option<u64>, n_vocab: usize) {
        let id = id.and_then(|id| u32::try_from(id).ok());
        let Some(id) = id.filter(|&id| (id as usize) < n_vocab) else {
            return;
        };
        if !self.ids.iter().any(|(other, _)| *other == role) {
            self.ids.push((role, id));
        }
    }

    fn id(&self, role: &str) -> Option<u32> {
        let found = self.ids.iter().find(|(other, _)| *other == role);
        found.map(|(_, id)| *id)
    }

    /// Sets whether a token is added, overriding an earlier value.
    pub(super) fn set_add(&mut self, role: &'static str, flag: bool) {
        match self.add.iter_mut().find(|(other, _)| *other == role) {
            Some(entry) => entry.1 = flag,
            None => self.add.push((role, flag)),
        }
    }

    fn default_add(&mut self, role: &'static str, flag: bool) {
        if !self.add.iter().any(|(other, _)| *other == role) {
            self.add.push((role, flag));
        }
    }

    /// More than one token may end a text: the first three get roles, the others a list.
    fn read_ends(&mut self, ends: &[Value], vocabulary: &Vocabulary, warnings: &mut Vec<String>) {
        for end in ends {
            let Some(id) = vocabulary.id_of(end) else {
                warnings.push(format!(
                    "end token {end} is not a token id of the vocabulary: ignored"
                ));
                continue;
            };
            let roles = ["eos", "eot", "eom"];
            if roles.iter().any(|role| self.id(role) == Some(id)) {
                continue;
            }
            match roles.into_iter().find(|role| self.id(role).is_none()) {
                Some(role) => self.ids.push((role, id)),
                None => self.more_ends.push(id),
            }
        }
    }

    /// Reads which tokens the post-processor adds around a text. `about` gains roles that only the post-processor
    /// defines.
    fn read_post_processor(
        &mut self,
        processor: &Value,
        about: &mut Map<String, Value>,
    ) -> Result<(), String> {
        for (role, stand_in) in [("bos", "cls"), ("eos", "sep")] {
            let key = format!("{role}_token");
            let other = about.get(&format!("{stand_in}_token")).cloned();
            if let (None, Some(other)) = (text_of(about, &key), other) {
                about.insert(key, other);
            }
        }
        for step in steps(processor)? {
            match step.kind {
                "ByteLevel" => {
                    self.default_add("bos", false);
                    self.default_add("eos", false);
                }
                "RobertaProcessing" => {
                    for role in ["bos", "eos", "sep"] {
                        self.set_add(role, true);
                    }
                }
                "BertProcessing" => {
                    self.set_add("bos", true);
                    self.set_add("eos", true);
                }
                "TemplateProcessing" => self.read_template_processing(step, about)?,
                _ => return Err(no_place("post_processor", step)),
            }
        }
        Ok(())
    }

    fn read_template_processing(
        &mut self,
        step: Step<'_>,
        about: &mut Map<String, Value>,
    ) -> Result<(), String> {
        let list = |key| step.get(key).and_then(Value::as_array).cloned();
        let (single, pair) = (list("single").unwrap_or_default(), list("pair"));
        let (first, last) = around(&single).ok_or_else(|| {
            let what =
                "adds more than a token before and one after a text, which GGUF cannot express";
            format!("the post_processor {} {what}", step.told())
        })?;
        if let Some(first) = first {
            let (bos, cls) = (text_of(about, "bos_token"), text_of(about, "cls_token"));
            if bos.is_none() {
                about.insert("bos_token".into(), first.into());
            } else if ![bos.as_deref(), cls.as_deref()].contains(&Some(first)) {
                return Err(format!(
                    "the post_processor adds {first:?} before a text, but according to tokenizer_config.json \
                     bos_token is {:?}: GGUF has only one",
                    bos.unwrap_or_default()
                ));
            }
            self.set_add("bos", true);
        }
        if let Some(last) = last {
            let eos = text_of(about, "eos_token");
            if eos.as_deref() != Some(last) {
                // The token that actually ends a text; the other one then ends a turn.
                if let Some(eos) = eos {
                    about.insert("eot_token".into(), eos.into());
                }
                about.insert("eos_token".into(), last.into());
            }
            self.set_add("eos", true);
        }
        if let Some(pair) = pair {
            self.read_pair(&pair, first, last, about);
        }
        Ok(())
    }

    /// Reads whether two texts are separated by a token.
    fn read_pair(
        &mut self,
        pair: &[Value],
        first: Option<&str>,
        last: Option<&str>,
        about: &mut Map<String, Value>,
    ) {
        let mut inner = pair;
        if let ([head, rest @ ..], Some(_)) = (inner, first)
            && special_of(head) == first
        {
            inner = rest;
        }
        if let ([rest @ .., tail], Some(_)) = (inner, last)
            && special_of(tail) == last
        {
            inner = rest;
        }
        let sequence = |part: &Value| part.get("Sequence")?.get("id")?.as_str().map(str::to_owned);
        let [a, between @ .., b] = inner else { return };
        let is_pair = sequence(a).as_deref() == Some("A") && sequence(b).as_deref() == Some("B");
        if !is_pair || between.is_empty() {
            return;
        }
        let (sep, eos) = (text_of(about, "sep_token"), text_of(about, "eos_token"));
        let is_end = |part: &Value| {
            let text = special_of(part);
            text.is_some() && (text == sep.as_deref() || text == eos.as_deref())
        };
        let adds =
            (is_end(&between[0]) && last.is_none()) || (between.len() == 2 && is_end(&between[1]));
        self.set_add("sep", adds);
        if let (true, None, Some(eos)) = (adds, &sep, eos) {
            about.insert("sep_token".into(), eos.into());
        }
    }
}

/// The special tokens before and after the single sequence of a template; `None` if it has other parts.
fn around(single: &[Value]) -> Option<(Option<&str>, Option<&str>)> {
    let is_text = |part: &Value| part.get("Sequence").is_some();
    match single {
        [text] if is_text(text) => Some((None, None)),
        [first, text] if is_text(text) => Some((Some(special_of(first)?), None)),
        [text, last] if is_text(text) => Some((None, Some(special_of(last)?))),
        [first, text, last] if is_text(text) => {
            Some((Some(special_of(first)?), Some(special_of(last)?)))
        }
        _ => None,
    }
}

fn special_of(part: &Value) -> Option<&str> {
    part.get("SpecialToken")?.get("id")?.as_str()
}

fn text_of(about: &Map<String, Value>, key: &str) -> Option<String> {
    about.get(key).and_then(token_text).map(str::to_owned)
}

/// The name of the default template.
const DEFAULT: &str = "default";

/// All chat templates as (name, text).
fn read_templates(
    folder: &Path,
    files: &TokenizerFiles,
) -> Result<Vec<(String, String)>, ConvertError> {
    // Read in any case, so the key counts as used: a template file takes precedence.
    let own = files.about.find(&["chat_template"]).cloned();
    let path = folder.join("chat_template.jinja");
    if exists(&path) {
        let mut all = vec![(DEFAULT.to_owned(), read_text(&path)?)];
        for path in jinja_files(&folder.join("additional_chat_templates")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            all.push((key_name(&name), read_text(&path)?));
        }
        return Ok(all);
    }
    let path = folder.join("chat_template.json");
    let own = match own {
        None if exists(&path) => {
            let mut file = read_json::<Map<String, Value>>(&path)?;
            file.remove("chat_template")
        }
        own => own,
    };
    match own {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(template)) => Ok(vec![(DEFAULT.into(), template)]),
        Some(Value::Array(list)) => Ok(list.iter().filter_map(named_template).collect()),
        Some(_) => Err(ConvertError::Tokenizer {
            path: folder.join("tokenizer_config.json"),
            what: "chat_template is neither a string nor a list of named templates".into(),
        }),
    }
}

fn named_template(entry: &Value) -> Option<(String, String)> {
    let text = |key| entry.get(key).and_then(Value::as_str);
    let name = key_name(text("name")?);
    (!name.is_empty()).then_some((name, text("template")?.into()))
}

/// Turns a name into part of a GGUF key.
fn key_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Sorted by name; empty if the folder does not exist.
fn jinja_files(folder: &Path) -> BTreeSet<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension() == Some("jinja".as_ref()))
        .collect()
}
