//! Chat templates of a folder. A template file takes precedence over the template in `tokenizer_config.json`, as in Hugging
//! Face's own loader.

use super::ConvertError;
use super::vocabulary::TokenizerFiles;
use serde_json::{Map, Value};
use sluice_hf::{exists, read_json, read_text};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The name of the default template.
pub(super) const DEFAULT: &str = "default";

/// All chat templates as (name, text).
pub(super) fn read_templates(
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
