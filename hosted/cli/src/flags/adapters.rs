//! `--lora` and related flags: the adapters that a command applies.

use crate::flags::engine::EngineArgs;
use crate::outcome::UsageError;
use crate::ui::output::note;
use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use sluice::adapter::{AdapterBlend, LoadedAdapter, Precision};
use sluice::core::kernels::lora::LoraType;
use sluice::model::ModelSource;
use sluice::{Limits, Model, Session, Team};
use std::path::{Path, PathBuf};

/// Adapters that apply to the whole command.
#[derive(Debug, Args)]
pub(crate) struct AdapterArgs {
    /// Apply a LoRA adapter; several are added up: --lora a,b
    ///
    /// A PEFT folder or llama.cpp's GGUF file.
    #[arg(long, value_name = "PATH", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub(crate) lora: Vec<PathBuf>,
    /// Apply adapters with scales: --lora-scaled a:0.5,b:1.5
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',', action = clap::ArgAction::Append)]
    pub(crate) lora_scaled: Vec<String>,
    #[command(flatten)]
    pub(crate) load: AdapterLoadArgs,
}

/// How adapters are read and packed.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdapterLoadArgs {
    /// Set the type of adapters in memory
    ///
    /// auto is the smallest of bf16, f16 and f32 that represents a matrix exactly.
    #[arg(long, value_name = "TYPE", default_value = "auto",
        value_parser = PossibleValuesParser::new(["auto", "int8", "bf16", "f16", "f32"]))]
    lora_dtype: String,
    /// Set the folder of the Hugging Face model that PEFT adapters belong to
    ///
    /// Its config.json is enough. By default the sizes are read from the GGUF model.
    #[arg(long, value_name = "DIR")]
    lora_base: Option<PathBuf>,
}

impl AdapterLoadArgs {
    pub(crate) fn precision(&self) -> Precision {
        let mut types = LoraType::ALL.into_iter();
        types
            .find(|ty| ty.name() == self.lora_dtype)
            .map_or(Precision::Exact, Precision::Type)
    }

    pub(crate) fn base(&self) -> Option<&Path> {
        self.lora_base.as_deref()
    }

    /// Loads and packs the adapter at `path` for the model. Warns of parts of the file that have no
    /// effect.
    ///
    /// # Errors
    /// The adapter cannot be read, or does not match the model.
    pub(crate) fn load(&self, model: &ModelSource, path: &Path) -> anyhow::Result<LoadedAdapter> {
        let loaded = sluice_hf::adapter::load(path, self.base(), model, self.precision());
        let (adapter, warnings) = loaded?;
        for warning in &warnings {
            note(format_args!("warning: {warning}"));
        }
        Ok(adapter)
    }
}

impl AdapterArgs {
    /// The paths and their factors.
    ///
    /// # Errors
    /// A scale that is not a number.
    pub(crate) fn parts(&self) -> Result<Vec<(PathBuf, f32)>, UsageError> {
        let plain = self.lora.iter().map(|path| Ok((path.clone(), 1.0)));
        let scaled = self.lora_scaled.iter().map(|text| scaled(text));
        plain.chain(scaled).collect()
    }

    /// Checks that the adapters' files exist before a model is loaded.
    ///
    /// # Errors
    /// A file does not exist, or a scale is not a number.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (path, _) in self.parts()? {
            let cannot = || format!("cannot read adapter {}", path.display());
            std::fs::metadata(&path).with_context(cannot)?;
        }
        Ok(())
    }

    /// The blend of all adapters; `None` without adapters.
    ///
    /// # Errors
    /// As [`AdapterLoadArgs::load`] and [`Self::parts`].
    pub(crate) fn blend(&self, model: &ModelSource) -> anyhow::Result<Option<AdapterBlend>> {
        LoadedAdapters::new(&self.load, model).blend(&self.parts()?)
    }

    /// A session over `model` that applies the adapters to everything.
    ///
    /// # Errors
    /// As [`EngineArgs::session`] and [`Self::blend`].
    pub(crate) fn session(
        &self,
        engine: &EngineArgs,
        model: &Model,
        team: &Team,
        limits: Limits,
    ) -> anyhow::Result<Session> {
        let blend = self.blend(model)?;
        let limits = Limits {
            adapter_rank: blend.as_ref().map_or(0, AdapterBlend::rank),
            adapter_kinds: blend.iter().map(AdapterBlend::kinds).collect(),
            ..limits
        };
        let mut session = engine.session(model, team, limits)?;
        session.set_adapter(blend);
        Ok(session)
    }
}

/// Adapters of a model by path. Each is loaded once, however often it is named.
pub(crate) struct LoadedAdapters<'l> {
    args: &'l AdapterLoadArgs,
    model: &'l ModelSource,
    known: Vec<(PathBuf, LoadedAdapter)>,
}

impl<'l> LoadedAdapters<'l> {
    /// A cache without adapters.
    pub(crate) const fn new(args: &'l AdapterLoadArgs, model: &'l ModelSource) -> Self {
        Self {
            args,
            model,
            known: Vec::new(),
        }
    }

    /// The blend of the adapters in `parts` with their factors; `None` if there are none.
    ///
    /// # Errors
    /// As [`AdapterLoadArgs::load`].
    pub(crate) fn blend(
        &mut self,
        parts: &[(PathBuf, f32)],
    ) -> anyhow::Result<Option<AdapterBlend>> {
        let parts = parts
            .iter()
            .map(|(path, scale)| Ok((self.adapter(path)?, *scale)));
        let parts: Vec<_> = parts.collect::<anyhow::Result<_>>()?;
        Ok((!parts.is_empty()).then(|| AdapterBlend::new(parts)))
    }

    fn adapter(&mut self, path: &Path) -> anyhow::Result<LoadedAdapter> {
        // If the path does not exist, loading reports it.
        let real = path.canonicalize().unwrap_or_else(|_| path.into());
        if let Some((_, adapter)) = self.known.iter().find(|(known, _)| *known == real) {
            return Ok(adapter.clone());
        }
        let adapter = self.args.load(self.model, path)?;
        self.known.push((real, adapter.clone()));
        Ok(adapter)
    }
}

/// Parses `PATH:SCALE`.
pub(crate) fn scaled(text: &str) -> Result<(PathBuf, f32), UsageError> {
    let parts = text.rsplit_once(':');
    let scale = parts.and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    match scale.filter(|(path, scale)| !path.is_empty() && scale.is_finite()) {
        Some((path, scale)) => Ok((path.into(), scale)),
        None => Err(UsageError(format!(
            "--lora-scaled: {text:?} is not PATH:SCALE, such as adapter.gguf:0.5"
        ))),
    }
}
