//! The JSON files of a data directory; only the required keys are read.

use super::error::ImportError;
use crate::uth::BlobType;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// An entry of `dense_manifest.json`.
pub(super) struct Listed {
    pub names: Vec<String>,
    pub path: PathBuf,
    pub dtype: BlobType,
    pub len_bytes: u64,
    pub checksum: Option<String>,
    pub tied: bool,
}

impl Listed {
    pub(super) fn manifest(path: &Path) -> Result<Vec<Self>, ImportError> {
        let manifest = Json::read(path.into())?;
        if manifest.value["format_version"] != 1 {
            return Err(manifest.error("format_version", "1"));
        }
        let tensors = manifest.value["tensors"].as_array();
        let tensors = tensors.ok_or_else(|| manifest.error("tensors", "a list"))?;
        tensors
            .iter()
            .map(|value| Self::read(&manifest, value))
            .collect()
    }

    fn read(manifest: &Json, value: &Value) -> Result<Self, ImportError> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let file = text("file").ok_or_else(|| manifest.error("tensors[].file", "a string"))?;
        if file.is_empty() || file.contains(['/', '\\']) || file == ".." || file == "." {
            return Err(ImportError::FileName { name: file });
        }
        let aliases = value["aliases"].as_array().into_iter().flatten();
        let mut names: Vec<_> = aliases
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect();
        names.extend(text("canonical_name"));
        let path = manifest.path.with_file_name(&file);
        names.push(file);
        let dtype = text("dtype").and_then(|name| BlobType::from_name(&name));
        let len_bytes = value["byte_len"].as_u64();
        Ok(Self {
            names,
            path,
            dtype: dtype.ok_or_else(|| manifest.error("tensors[].dtype", "a known type"))?,
            len_bytes: len_bytes.ok_or_else(|| manifest.error("tensors[].byte_len", "a size"))?,
            checksum: text("checksum"),
            tied: value["tied_to"].is_string(),
        })
    }
}

/// A JSON file, with its path for messages.
pub(super) struct Json {
    path: PathBuf,
    pub value: Value,
}

impl Json {
    pub(super) fn read(path: PathBuf) -> Result<Self, ImportError> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => return Err(ImportError::Read { path, error }),
        };
        match serde_json::from_str(&text) {
            Ok(value) => Ok(Self { path, value }),
            Err(error) => Err(ImportError::Json { path, error }),
        }
    }

    pub(super) fn error(&self, key: &str, expected: &'static str) -> ImportError {
        ImportError::Key {
            path: self.path.clone(),
            key: key.into(),
            expected,
        }
    }

    pub(super) fn str(&self, key: &str) -> Result<&str, ImportError> {
        self.value[key]
            .as_str()
            .ok_or_else(|| self.error(key, "a string"))
    }

    pub(super) fn u32(&self, key: &str) -> Result<u32, ImportError> {
        let number = self.value[key].as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| self.error(key, "a 32-bit number"))
    }
}

pub(super) type PackedExperts = Option<(PathBuf, HashMap<u64, (u64, u64)>)>;

/// The packed experts: `<blob>` and its manifest `<blob>.manifest.json` in the same folder.
pub(super) fn packed(path: &Path) -> Result<PackedExperts, ImportError> {
    let read_error = |error| ImportError::Read {
        path: path.into(),
        error,
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(path).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path
            .to_str()
            .is_some_and(|name| name.ends_with(".manifest.json"))
        {
            found.push(path);
        }
    }
    found.sort();
    let Some(manifest) = found.first() else {
        return Ok(None);
    };
    let json = Json::read(manifest.clone())?;
    let entries = json.value["entries"].as_object();
    let entries = entries.ok_or_else(|| json.error("entries", "an object"))?;
    let entry = |(id, entry): (&String, &Value)| {
        let place = (entry["offset"].as_u64(), entry["len"].as_u64());
        match (id.parse::<u64>(), place) {
            (Ok(id), (Some(offset), Some(len))) => Ok((id, (offset, len))),
            _ => Err(json.error(&format!("entries.{id}"), "an id with offset and len")),
        }
    };
    let entries = entries.iter().map(entry).collect::<Result<_, _>>()?;
    // The name has been matched by this suffix.
    Ok(Some((
        manifest.with_extension("").with_extension(""),
        entries,
    )))
}
