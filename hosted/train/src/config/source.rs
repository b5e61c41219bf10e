//! Where values come from: files and flags, with groups of keys flattened.

use super::error::{ConfigError, ConfigPlace};
use super::yaml;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A value, by a name that is not looked up yet.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) value: Value,
    pub(super) place: ConfigPlace,
}

/// The values of a YAML or JSON file.
pub(super) fn of_file(path: &Path) -> Result<Vec<Given>, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: path.to_path_buf(),
        error,
    })?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let entries = match is_json {
        true => of_json(&text, path)?,
        false => yaml::entries(&text, path)?
            .into_iter()
            .map(|entry| (entry.key, entry.value, Some(entry.line)))
            .collect(),
    };
    let mut given = Vec::new();
    for (name, value, line) in entries {
        let path = path.to_path_buf();
        flatten(&name, value, &ConfigPlace::File { path, line }, &mut given);
    }
    Ok(given)
}

fn of_json(text: &str, path: &Path) -> Result<Vec<(String, Value, Option<usize>)>, ConfigError> {
    let wrong = |line, reason: String| ConfigError::Syntax {
        place: ConfigPlace::File {
            path: path.to_path_buf(),
            line,
        },
        reason,
    };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| wrong(Some(error.line()), format!("not JSON: {error}")))?;
    match value {
        Value::Object(map) => Ok(map
            .into_iter()
            .map(|(key, value)| (key, value, None))
            .collect()),
        _ => Err(wrong(
            None,
            "expected an object: {\"key\": value}".to_owned(),
        )),
    }
}

/// Adds a value, or the values of a group. `dataset` with a path is a value.
fn flatten(name: &str, value: Value, place: &ConfigPlace, given: &mut Vec<Given>) {
    let key = name.replace('-', "_");
    match value {
        Value::Object(map) if GROUPS.contains(&&*key) => {
            for (inner, value) in map {
                flatten(&inner, value, place, given);
            }
        }
        // The predecessor's form, whose other fields are keys of their own.
        Value::Object(mut map) if key == "dataset" => {
            if let Some(shuffle) = map.shift_remove("shuffle") {
                let place = place.clone();
                let name = "shuffle_dataset".to_owned();
                given.push(Given {
                    name,
                    value: shuffle,
                    place,
                });
            }
            given.push(Given {
                name: key,
                value: Value::Object(map),
                place: place.clone(),
            });
        }
        value => given.push(Given {
            name: name.to_owned(),
            value,
            place: place.clone(),
        }),
    }
}

/// The values of flags: `--key value`, `--key=value`, or `--key` alone for true.
pub(super) fn of_flags(arguments: &[String]) -> Result<Vec<Given>, ConfigError> {
    let mut given = Vec::new();
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            return Err(ConfigError::Argument {
                argument: argument.clone(),
                reason: "expected --key value".to_owned(),
            });
        };
        let (name, text) = match flag.split_once('=') {
            Some((name, text)) => (name, Some(text.to_owned())),
            None => {
                let is_value = |next: &&String| !next.starts_with("--");
                (flag, arguments.next_if(is_value).cloned())
            }
        };
        // `--lora.r` is r in the group lora.
        let name = name.replace('-', "_");
        let name = match name.split_once('.') {
            Some(("dataset", "path")) => "dataset".to_owned(),
            Some((group, key)) if GROUPS.contains(&group) || group == "dataset" => key.to_owned(),
            _ => name,
        };
        let value = match text {
            None => Value::Bool(true),
            Some(text) => Value::String(text),
        };
        // Errors name it as a flag.
        let name = format!("--{}", name.replace('_', "-"));
        let place = ConfigPlace::Flag;
        given.push(Given { name, value, place });
    }
    Ok(given)
}

/// Mappings whose keys stand for themselves.
const GROUPS: [&str; 5] = [
    "lora",
    "lora_config",
    "peft_config",
    "optimizer",
    "training",
];
