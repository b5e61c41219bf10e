//! LoRA adapter files: reading, writing, merging into models, combining.
//!
//! | format | read | written |
//! |---|---|---|
//! | a PEFT folder: `adapter_config.json`, `adapter_model.safetensors` | [`read()`] | [`write_peft`] |
//! | llama.cpp's GGUF | [`read()`] | [`write_gguf`] |
//! | a directory of INFQ v1 | [`read()`] | [`write_infq`] |
//!
//! All become an [`AdapterFile`], or are packed for a model directly ([`load`]): pairs of matrices by the GGUF names of
//! the tensors they adapt. PEFT uses Hugging Face's names and row orders; they are converted as `sluice convert`
//! converts the model's weights. That needs the model's sizes, from its `config.json` or from its GGUF file.
//!
//! A setting in a file is honoured or refused by name; an unknown one that does not change the computation causes a
//! warning.
#![forbid(unsafe_code)]

mod added;
mod base;
mod blend;
mod config;
mod error;
mod experts;
mod files;
mod gguf;
mod gguf_write;
mod infq;
mod infq_write;
mod keys;
mod matrices;
mod merge;
mod numbers;
mod peft;
mod peft_write;
mod taker;
mod turn;

pub use blend::{interpolate, stack};
pub use error::LoraError;
pub use gguf_write::{GgufOptions, write_gguf};
pub use infq_write::{InfqOptions, OUTLIER_THRESHOLD, write_infq};
pub use matrices::Matrices;
pub use merge::MergePlan;
pub use peft_write::{PeftOptions, write_peft};

use sluice::adapter::{Adapter, AdapterFile, Precision};
use sluice::file::{LoadMode, ModelFile};
use sluice::model::ModelSource;
use std::fs;
use std::path::{Path, PathBuf};
use taker::{Collected, Packed, Taker};

/// Reads an adapter: a PEFT folder, a GGUF file or an INFQ directory. `base` is the folder of the model that it is for,
/// `model` the model's GGUF file; a PEFT folder needs one of them, unless it names a folder itself.
///
/// # Errors
/// [`LoraError`], with the file and the tensor.
pub fn read(
    path: &Path,
    base: Option<&Path>,
    model: Option<&ModelSource>,
) -> Result<AdapterFile, LoraError> {
    read_for(path, base, model.map(ModelSource::file))
}

/// As [`read()`], but with the file of a model that the engine may not be able to run.
///
/// # Errors
/// [`LoraError`].
pub fn read_for(
    path: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
) -> Result<AdapterFile, LoraError> {
    let mut all = Collected::default();
    let warnings = take_each(path, base, model, &mut all)?;
    Ok(all.into_file(&place_and_name(path).0, warnings))
}

/// Reads an adapter as [`read()`] does and packs it for `model`, one pair of matrices at a time, which takes less
/// memory and time. Also returns warnings about settings that have no effect, a sentence each.
///
/// # Errors
/// [`LoraError`]; [`LoraError::Adapter`] if the adapter does not fit the model.
pub fn load(
    path: &Path,
    base: Option<&Path>,
    model: &ModelSource,
    precision: Precision,
) -> Result<(Adapter, Vec<String>), LoraError> {
    let mut packed = Packed::new(model.config(), &place_and_name(path).0, precision);
    let warnings = take_each(path, base, Some(model.file()), &mut packed)?;
    Ok((packed.finish()?, warnings))
}

/// Passes the pairs of an adapter to `taker`; returns warnings.
fn take_each(
    path: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
    taker: &mut dyn Taker,
) -> Result<Vec<String>, LoraError> {
    let (place, name) = place_and_name(path);
    match AdapterFormat::of(path)? {
        AdapterFormat::Peft => peft::read(path, base, model, taker),
        AdapterFormat::Infq => infq::read(&place, name.as_deref(), taker),
        AdapterFormat::Gguf => gguf::read(&ModelFile::open(path, LoadMode::Read)?, path, taker),
    }
}

/// The adapters at `path`, each in a form that [`read()`] accepts: a PEFT folder or a GGUF file is a single adapter, an
/// INFQ directory may hold several. No numbers are read.
///
/// # Errors
/// [`LoraError`]: `path` does not hold an adapter.
pub fn all_at(path: &Path) -> Result<Vec<PathBuf>, LoraError> {
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

/// Reads a PEFT folder as it is, with Hugging Face's tensor names and row order. Use it to inspect an adapter whose
/// model is not available; an engine cannot run it.
///
/// # Errors
/// [`LoraError`].
pub fn read_as_named(path: &Path) -> Result<AdapterFile, LoraError> {
    match AdapterFormat::of(path)? {
        AdapterFormat::Peft => peft::read_as_named(path),
        AdapterFormat::Gguf | AdapterFormat::Infq => read_for(path, None, None),
    }
}

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
    /// [`LoraError::Read`], [`LoraError::NotAnAdapter`].
    pub fn of(path: &Path) -> Result<Self, LoraError> {
        let (path, name) = &place_and_name(path);
        let about = fs::metadata(path).map_err(|error| LoraError::Read {
            path: path.clone(),
            error,
        })?;
        if !about.is_dir() {
            let name = path.file_name().and_then(|name| name.to_str());
            return match name {
                Some("adapter_model.safetensors" | "adapter_config.json" | "adapter_model.bin") => {
                    Err(not_an_adapter(
                        path,
                        "it is part of an adapter: give its folder",
                    ))
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
        Err(not_an_adapter(path, what))
    }
}

/// Splits `DIR#NAME`, which selects an adapter in a directory; if a file of that whole name exists, it is used instead.
fn place_and_name(path: &Path) -> (PathBuf, Option<String>) {
    let text = path.to_str().unwrap_or_default();
    match text.rsplit_once('#') {
        Some((place, name)) if !path.exists() && Path::new(place).is_dir() => {
            (place.into(), Some(name.into()))
        }
        _ => (path.into(), None),
    }
}

fn not_an_adapter(path: &Path, what: &str) -> LoraError {
    LoraError::NotAnAdapter {
        path: path.into(),
        what: what.into(),
    }
}
