//! Special tokens, flags and chat templates.
//!
//! The rules follow llama.cpp's converter (`gguf-py/gguf/vocab.py`, `SpecialVocab`): roles come from
//! `tokenizer_config.json` by the text of added tokens, then from `config.json` by number; whether BOS, EOS and SEP are
//! added follows from the post-processor before the configuration's own flags. In addition, all tokens that end a text
//! count ([`super::generation`]). The ids of the post-processor and of the model's unknown token come before all names: they
//! decide which tokens a text has. A post-processor that adds other tokens than BOS and EOS around a text is refused.

use super::ConvertError;
use super::rules::{Step, no_place, steps};
use super::templates::{DEFAULT, read_templates};
use super::tokenizer_json::{TokenizerJson, TokenizerKind};
use super::vocabulary::{TokenizerFiles, Vocabulary, token_text};
use serde_json::{Map, Value};
use sluice::file::{GgufHeader, MetaValue};
use sluice_hf::{Config, Family};
use std::path::Path;

/// The special tokens of a GGUF file, in the order in which they are written.
#[derive(Debug, Default)]
pub(super) struct Special {
    /// (role, id), each role once.
    ids: Vec<(&'static str, u32)>,
    /// (role, id) as the post-processor has them, which counts before what configurations name.
    given: Vec<(&'static str, u64)>,
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
            let read = special.read_post_processor(json, &mut about);
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
            let given = special.given.iter().find(|(of, _)| *of == role);
            let unknown = files.json.as_ref().filter(|_| role == "unk");
            let id = given
                .map(|(_, id)| *id)
                .or_else(|| unknown?.model.unknown())
                .or_else(|| match &files.json {
                    Some(json) => json.added(text?).map(|added| added.id),
                    None => vocabulary.special_id(text?),
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
        if files.json.is_none() && vocabulary.is_word_piece() {
            for (role, text) in WORD_PIECE_ROLES {
                special.set_id(role, vocabulary.special_id(text), vocabulary.n_vocab());
            }
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
        json: &TokenizerJson,
        about: &mut Map<String, Value>,
    ) -> Result<(), String> {
        for (role, stand_in) in [("bos", "cls"), ("eos", "sep")] {
            let key = format!("{role}_token");
            let other = about.get(&format!("{stand_in}_token")).cloned();
            if let (None, Some(other)) = (text_of(about, &key), other) {
                about.insert(key, other);
            }
        }
        for step in steps(&json.post_processor)? {
            match step.kind {
                "ByteLevel" => {
                    self.default_add("bos", false);
                    self.default_add("eos", false);
                }
                "RobertaProcessing" | "BertProcessing" => {
                    let [first, last] = ["cls", "sep"].map(|key| Outer::of_pair(step, key));
                    self.add_around(first, last, about)?;
                    if step.kind == "RobertaProcessing" {
                        self.set_add("sep", true);
                    }
                }
                "TemplateProcessing" => self.read_template_processing(step, about)?,
                _ => return Err(no_place("post_processor", step)),
            }
        }
        if json.model.kind() == TokenizerKind::WordPiece {
            // GGUF's readers end a text of this kind with the separator.
            let last = self.given.iter().find(|(role, _)| *role == "eos");
            self.given.extend(last.map(|(_, id)| ("sep", *id)));
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
        let Some((first, last)) = around(&single, step) else {
            let class = about.get("tokenizer_class").and_then(Value::as_str);
            let is_replaced = REPLACING
                .iter()
                .any(|name| class.unwrap_or_default().starts_with(name));
            if is_replaced && about.get("add_bos_token").is_some_and(Value::is_boolean) {
                return Ok(());
            }
            let what =
                "adds more than a token before and one after a text, which GGUF cannot express";
            return Err(format!("the post_processor {} {what}", step.told()));
        };
        self.add_around(first, last, about)?;
        if let Some(pair) = pair {
            let [first, last] = [first, last].map(|outer| outer.map(|outer| outer.text));
            self.read_pair(&pair, first, last, about);
        }
        Ok(())
    }

    /// Sets the tokens before and after a text.
    fn add_around(
        &mut self,
        first: Option<Outer<'_>>,
        last: Option<Outer<'_>>,
        about: &mut Map<String, Value>,
    ) -> Result<(), String> {
        if let Some(Outer { text: first, id }) = first {
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
            self.given.extend(id.map(|id| ("bos", id)));
            self.set_add("bos", true);
        }
        if let Some(Outer { text: last, id }) = last {
            let eos = text_of(about, "eos_token");
            if eos.as_deref() != Some(last) {
                // The token that actually ends a text; the other one then ends a turn.
                if let Some(eos) = eos {
                    about.insert("eot_token".into(), eos.into());
                }
                about.insert("eos_token".into(), last.into());
            }
            self.given.extend(id.map(|id| ("eos", id)));
            self.set_add("eos", true);
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

/// A token that a post-processor puts around a text.
#[derive(Clone, Copy)]
struct Outer<'a> {
    text: &'a str,
    id: Option<u64>,
}

impl<'a> Outer<'a> {
    /// The setting `key` of a step, which is a text and its ID.
    fn of_pair(step: Step<'a>, key: &str) -> Option<Self> {
        let pair = step.get(key)?.as_array()?;
        let (text, id) = (pair.first()?.as_str()?, pair.get(1));
        let id = id.and_then(Value::as_u64);
        Some(Self { text, id })
    }

    /// The part of a template that is a special token; `None` for other parts, and for one that stands for several tokens.
    fn of_template(step: Step<'a>, part: &'a Value) -> Option<Self> {
        let text = special_of(part)?;
        let known = step.get("special_tokens").and_then(|all| all.get(text));
        let ids = known.and_then(|token| token.get("ids")?.as_array());
        match ids.map(Vec::as_slice) {
            None => Some(Self { text, id: None }),
            Some([id]) => Some(Self {
                text,
                id: id.as_u64(),
            }),
            Some(_) => None,
        }
    }
}

/// The special tokens before and after the single sequence of a template; `None` if it has other parts.
fn around<'a>(
    single: &'a [Value],
    step: Step<'a>,
) -> Option<(Option<Outer<'a>>, Option<Outer<'a>>)> {
    let is_text = |part: &Value| part.get("Sequence").is_some();
    let outer = |part| Outer::of_template(step, part);
    match single {
        [text] if is_text(text) => Some((None, None)),
        [first, text] if is_text(text) => Some((Some(outer(first)?), None)),
        [text, last] if is_text(text) => Some((None, Some(outer(last)?))),
        [first, text, last] if is_text(text) => Some((Some(outer(first)?), Some(outer(last)?))),
        _ => None,
    }
}

fn special_of(part: &Value) -> Option<&str> {
    part.get("SpecialToken")?.get("id")?.as_str()
}

fn text_of(about: &Map<String, Value>, key: &str) -> Option<String> {
    about.get(key).and_then(token_text).map(str::to_owned)
}

/// BERT's roles, for a `vocab.txt` without a configuration.
const WORD_PIECE_ROLES: [(&str, &str); 5] = [
    ("bos", "[CLS]"),
    ("unk", "[UNK]"),
    ("sep", "[SEP]"),
    ("pad", "[PAD]"),
    ("mask", "[MASK]"),
];

/// Beginnings of classes of tokenizers that put BOS and EOS around a text by their own flags, whatever the post-processor does.
const REPLACING: [&str; 3] = ["Cohere", "Gemma", "Llama"];
