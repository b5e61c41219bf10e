//! The files of a data set, with what is set for each.

use super::error::ConfigError;
use super::settings::Settings;
use super::{TYPES, type_name};
use serde_json::Value;
use std::path::PathBuf;

/// A file of rows, or a folder of such files.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFile {
    /// The path.
    pub path: PathBuf,
    /// How often its rows are visited in an epoch: 2 is twice, 0.5 every second time.
    pub weight: f64,
    /// The form of its rows; `auto` recognises it.
    pub dataset_type: String,
    /// The column of text rows, if one is named: then rows are texts, whatever other columns they have.
    pub text_field: Option<String>,
    /// Use only the first rows.
    pub max_samples: Option<u64>,
}

/// The files that a key names.
pub(super) fn of(settings: &Settings, key: &'static str) -> Result<Vec<DataFile>, ConfigError> {
    let items = match settings.value(key) {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items,
        Value::String(text) => {
            let paths = text.split(',').map(|path| Value::from(path.trim()));
            // A path may have a comma in its name.
            match PathBuf::from(&text).exists() {
                true => vec![Value::from(text)],
                false => paths.collect(),
            }
        }
        one => vec![one],
    };
    let files = items.iter().map(|item| file(settings, key, item));
    files.collect()
}

fn file(settings: &Settings, key: &'static str, item: &Value) -> Result<DataFile, ConfigError> {
    let mut file = DataFile {
        path: PathBuf::new(),
        weight: 1.0,
        dataset_type: settings.text("dataset_type"),
        text_field: settings
            .maybe_text("dataset_text_field")
            .filter(|_| settings.is_set("dataset_text_field")),
        max_samples: settings.maybe_count("max_samples"),
    };
    let wrong = |expected: &str| settings.wrong(key, expected);
    let map = match item {
        Value::String(path) if !path.is_empty() => {
            file.path = PathBuf::from(path);
            return Ok(file);
        }
        Value::Object(map) => map,
        _ => return Err(wrong("paths, or mappings with `path`")),
    };
    for (name, value) in map {
        if value.is_null() {
            continue;
        }
        match &**name {
            "path" | "data_files" | "file" => {
                let path = value.as_str().filter(|path| !path.is_empty());
                file.path = path.ok_or_else(|| wrong("a path as `path`"))?.into();
            }
            "weight" => {
                let weight = value
                    .as_f64()
                    .filter(|weight| *weight > 0.0 && *weight <= 1000.0);
                file.weight = weight.ok_or_else(|| wrong("a number above 0 as `weight`"))?;
            }
            "type" | "dataset_type" => {
                let kind = value.as_str().map(type_name).unwrap_or_default();
                if !TYPES.contains(&kind) {
                    return Err(wrong(&format!("one of {} as `type`", TYPES.join(", "))));
                }
                kind.clone_into(&mut file.dataset_type);
            }
            "field" | "text_field" | "dataset_text_field" => {
                let field = value.as_str().ok_or_else(|| wrong("a column as `field`"))?;
                file.text_field = Some(field.to_owned());
            }
            "max_samples" => {
                let count = value.as_u64().filter(|count| *count > 0);
                let count = count.ok_or_else(|| wrong("a whole number as `max_samples`"))?;
                file.max_samples = Some(count);
            }
            // axolotl names the split of a repository; a file has one.
            "split" if value == "train" => {}
            other => {
                let known = "path, weight, type, field and max_samples";
                return Err(wrong(&format!("{known}, not `{other}`")));
            }
        }
    }
    match file.path.as_os_str().is_empty() {
        true => Err(wrong("a mapping with `path`")),
        false => Ok(file),
    }
}
