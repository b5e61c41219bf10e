//! The formats of adapters' files, and reading those that need no more than the file.
#![forbid(unsafe_code)]

use super::error::AdapterLoadError;
use super::sink::PairSink;
use super::{gguf, infq};
use crate::file::{LoadMode, ModelFile};
use std::fs;
use std::path::{Path, PathBuf};

/// The format of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterFormat {
    /// A folder with `adapter_config.json`.
    Peft,
    /// A GGUF file.
    Gguf,
    /// A directory with `manifest.json`; `PATH#NAME` selects one of several adapters in it.
    Infq,
}

impl AdapterFormat {
    /// The format's name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peft => "peft",
            Self::Gguf => "gguf",
            Self::Infq => "infq",
        }
    }

    /// The format of the adapter at `path`.
    ///
    /// # Errors
    /// [`AdapterLoadError::Read`], [`AdapterLoadError::NotAnAdapter`].
    pub fn of(path: &Path) -> Result<Self, AdapterLoadError> {
        let Place { path, name } = &Place::of(path);
        let about = fs::metadata(path).map_err(|error| AdapterLoadError::Read {
            path: path.display().to_string(),
            error,
        })?;
        if !about.is_dir() {
            let name = path.file_name().and_then(|name| name.to_str());
            return match name {
                Some("adapter_model.safetensors" | "adapter_config.json" | "adapter_model.bin") => {
                    let what = "it is part of an adapter: give its folder";
                    Err(AdapterLoadError::not_an_adapter(path, what))
                }
                _ => Ok(Self::Gguf),
            };
        }
        if path.join("adapter_config.json").is_file() && name.is_none() {
            return Ok(Self::Peft);
        }
        if infq::is_one(path) {
            return Ok(Self::Infq);
        }
        let has = |name: &str| path.join(name).is_file();
        let what = match () {
            () if has("adapter_model.safetensors") || has("adapter_model.bin") => {
                "the folder has an adapter's weights but no adapter_config.json, which contains their scale"
            }
            () if has("config.json") => {
                "it is a model's folder (config.json, no adapter_config.json)"
            }
            () => "the folder has no adapter_config.json",
        };
        Err(AdapterLoadError::not_an_adapter(path, what))
    }
}

/// Passes the pairs of a GGUF file or an INFQ directory to `sink`; returns warnings about settings that have no effect,
/// a sentence each.
///
/// # Errors
/// [`AdapterLoadError`]. PEFT folders are refused: `sluice-hf` reads them.
pub fn read_pairs(path: &Path, sink: &mut dyn PairSink) -> Result<Vec<String>, AdapterLoadError> {
    match AdapterFormat::of(path)? {
        AdapterFormat::Gguf => gguf::read(&ModelFile::open(path, LoadMode::Read)?, path, sink),
        AdapterFormat::Infq => {
            let place = Place::of(path);
            infq::read(&place.path, place.name.as_deref(), sink)
        }
        AdapterFormat::Peft => {
            let what = "it is a folder of PEFT's, which sluice-hf reads";
            Err(AdapterLoadError::not_an_adapter(path, what))
        }
    }
}

/// The adapters at `path`, each in a form that can be loaded: a PEFT folder or a GGUF file is a single adapter, an INFQ
/// directory may hold several. No numbers are read.
///
/// # Errors
/// [`AdapterLoadError`]: `path` does not hold an adapter.
pub fn adapters_at(path: &Path) -> Result<Vec<PathBuf>, AdapterLoadError> {
    match AdapterFormat::of(path)? {
        AdapterFormat::Peft => {}
        AdapterFormat::Gguf => gguf::check(&ModelFile::open(path, LoadMode::Read)?, path)?,
        AdapterFormat::Infq => {
            let names = infq::names(path)?;
            if names.len() > 1 {
                let of = |name| PathBuf::from(format!("{}#{name}", path.display()));
                return Ok(names.into_iter().map(of).collect());
            }
        }
    }
    Ok(vec![path.to_owned()])
}

/// A path, and the adapter in that directory that `DIR#NAME` selects.
struct Place {
    path: PathBuf,
    name: Option<String>,
}

impl Place {
    /// If a file of the whole name exists, it is meant.
    fn of(path: &Path) -> Self {
        let text = path.to_str().unwrap_or_default();
        match text.rsplit_once('#') {
            Some((place, name)) if !path.exists() && Path::new(place).is_dir() => Self {
                path: place.into(),
                name: Some(name.into()),
            },
            _ => Self {
                path: path.into(),
                name: None,
            },
        }
    }
}
