//! Special tokens, flags and chat templates.
//!
//! The rules are those of llama.cpp's converter (`gguf-py/gguf/vocab.py`, `SpecialVocab`): roles
//! come from `tokenizer_config.json` by the text of added tokens, then from `config.json` by
//! number; whether BOS, EOS and SEP are added follows from the post-processor before the
//! configuration's own flags. Two things are read besides: `generation_config.json`, whose second
//! end-of-sequence token becomes the end-of-turn token, and a chat template file, which wins over
//! the one in `tokenizer_config.json`, as in Hugging Face's own loader.
#![forbid(unsafe_code)]

use super::ConvertError;
use super::config::Config;
use super::folder::{exists, read_json, read_text};
use super::vocabulary::{TokenizerFiles, token_text};
use serde_json::{Map, Value};
use sluice::file::{GgufHeader, MetaValue};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a GGUF file says about special tokens, in the order in which it is said.
#[derive(Debug, Default)]
pub(super) struct Special {
    /// (role, id), each role once.
    ids: Vec<(&'static str, u32)>,
    /// (role, whether the token is added to every text).
    add: Vec<(&'static str, bool)>,
    templates: Vec<(String, String)>,
}

/// Roles, as configurations and as GGUF keys name them.
const ROLES: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("mask", "mask"),
    ("eot", "eot"),
];

impl Special {
    pub(super) fn read(
        folder: &Path,
        files: &TokenizerFiles,
        config: &Config,
        generation: &Map<String, Value>,
        n_vocab: usize,
    ) -> Result<Self, ConvertError> {
        let mut special = Self::default();
        let mut about = files.about.clone();
        if let Some(json) = &files.json {
            special.read_post_processor(&json.post_processor, &mut about);
        }
        for (role, _) in ROLES {
            let flag = about.get(&format!("add_{role}_token"));
            if let Some(flag) = flag.and_then(Value::as_bool) {
                special.default_add(role, flag);
            }
            let text = about.get(&format!("{role}_token")).and_then(token_text);
            let added = files.json.iter().flat_map(|json| &json.added_tokens);
            let mut matching = added.filter(|added| Some(added.content.as_str()) == text);
            let id = matching.next().map(|added| added.id);
            special.set_id(role, id, n_vocab);
        }
        for (role, _) in ROLES {
            let id = config.find(&[&format!("{role}_token_id")]);
            special.set_id(role, id.and_then(Value::as_u64), n_vocab);
        }
        special.read_generation(generation, n_vocab);
        special.templates = read_templates(folder, &files.about)?;
        Ok(special)
    }

    pub(super) fn write(&self, header: &mut GgufHeader) {
        for (role, id) in &self.ids {
            let named = ROLES.iter().find(|(name, _)| name == role);
            let (_, key) = named.expect("only roles of the table are set");
            header.set(&format!("tokenizer.ggml.{key}_token_id"), *id);
        }
        for (role, flag) in &self.add {
            // GGUF has keys for these three.
            if ["bos", "eos", "sep"].contains(role) {
                header.set(&format!("tokenizer.ggml.add_{role}_token"), *flag);
            }
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

    /// Sets an id where there is none yet.
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

    /// Says whether a token is added, whatever was said before.
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

    /// More than one token may end a text; GGUF has places for two.
    fn read_generation(&mut self, generation: &Map<String, Value>, n_vocab: usize) {
        let eos = generation.get("eos_token_id");
        let ids = match eos {
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => core::slice::from_ref(one),
            None => return,
        };
        let ids: Vec<_> = ids.iter().filter_map(Value::as_u64).collect();
        self.set_id("eos", ids.first().copied(), n_vocab);
        let eos = self.id("eos").map(u64::from);
        let other = ids.into_iter().find(|id| Some(*id) != eos);
        self.set_id("eot", other, n_vocab);
    }

    /// Which tokens the post-processor puts around a text. `about` gains roles that only the
    /// post-processor knows.
    fn read_post_processor(&mut self, processor: &Value, about: &mut Map<String, Value>) {
        for (role, stand_in) in [("bos", "cls"), ("eos", "sep")] {
            let key = format!("{role}_token");
            let other = about.get(&format!("{stand_in}_token")).cloned();
            if let (None, Some(other)) = (text_of(about, &key), other) {
                about.insert(key, other);
            }
        }
        let parts = processor.get("processors").and_then(Value::as_array);
        let parts = parts.map_or(core::slice::from_ref(processor), Vec::as_slice);
        for part in parts {
            match part.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => {
                    self.default_add("bos", false);
                    self.default_add("eos", false);
                }
                Some("RobertaProcessing") => {
                    for role in ["bos", "eos", "sep"] {
                        self.set_add(role, true);
                    }
                }
                Some("TemplateProcessing") => self.read_template_processing(part, about),
                _ => {}
            }
        }
    }

    fn read_template_processing(&mut self, part: &Value, about: &mut Map<String, Value>) {
        let list = |key| part.get(key).and_then(Value::as_array).cloned();
        let (single, pair) = (list("single").unwrap_or_default(), list("pair"));
        let (mut first, mut last) = (None, None);
        if single.len() > 1 {
            first = special_of(&single[0]);
            last = special_of(&single[single.len() - 1]);
        }
        if let Some(first) = first {
            let bos = text_of(about, "bos_token");
            if bos.is_none() {
                about.insert("bos_token".into(), first.into());
            }
            let is_known = bos.is_none_or(|bos| bos == first);
            let is_class = text_of(about, "cls_token").is_none_or(|cls| cls == first);
            self.set_add("bos", is_known || is_class);
        }
        if let Some(last) = last {
            let eos = text_of(about, "eos_token");
            if eos.as_deref() != Some(last) {
                // The token that really ends a text; the other one then ends a turn.
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
    }

    /// Whether two texts have a separator between them.
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

fn special_of(part: &Value) -> Option<&str> {
    part.get("SpecialToken")?.get("id")?.as_str()
}

fn text_of(about: &Map<String, Value>, key: &str) -> Option<String> {
    about.get(key).and_then(token_text).map(str::to_owned)
}

/// The name of the template that is used where none is asked for.
const DEFAULT: &str = "default";

/// All chat templates as (name, text).
fn read_templates(
    folder: &Path,
    about: &Map<String, Value>,
) -> Result<Vec<(String, String)>, ConvertError> {
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
    let own = about.get("chat_template").cloned();
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
            what: "chat_template is neither text nor a list of named templates".into(),
        }),
    }
}

fn named_template(entry: &Value) -> Option<(String, String)> {
    let text = |key| entry.get(key).and_then(Value::as_str);
    let name = key_name(text("name")?);
    (!name.is_empty()).then_some((name, text("template")?.into()))
}

/// A name as a part of a GGUF key.
fn key_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().map(plain).collect()
}

/// In the order of names; none where there is no such folder.
fn jinja_files(folder: &Path) -> BTreeSet<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension() == Some("jinja".as_ref()))
        .collect()
}
