//! The flags of adapters, as llama-server and vLLM spell them.

use crate::flags::adapters::{AdapterLoadArgs, scaled};
use crate::outcome::UsageError;
use clap::builder::FalseyValueParser;
use clap::{Args, value_parser};
use core::str::FromStr;
use serde::Deserialize;
use sluice::adapter::AdapterFormat;
use sluice_serve::{AdaptersOptions, NamedAdapter};
use std::path::{Path, PathBuf};

/// Which adapters are available.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapters (LoRA)")]
pub(crate) struct ServeAdapterArgs {
    /// Apply an adapter of the first model by default; several are added up: a,b
    #[arg(long, value_name = "PATH", value_delimiter = ',', action = clap::ArgAction::Append)]
    lora: Vec<PathBuf>,
    /// Apply adapters with scales: --lora-scaled a:0.5,b:1.5
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',', action = clap::ArgAction::Append)]
    lora_scaled: Vec<String>,
    /// Load the adapters of --lora, applied only by POST /lora-adapters
    #[arg(long)]
    lora_init_without_apply: bool,
    /// Offer adapters under names of their own: NAME=PATH or JSON
    ///
    /// As JSON: {"name": …, "path": …, "base_model_name": …}.
    #[arg(long, value_name = "NAME=PATH|JSON", num_args = 1.., action = clap::ArgAction::Append)]
    lora_modules: Vec<Module>,
    /// Offer all adapters of a folder while they are there
    ///
    /// PEFT folders and GGUF files.
    #[arg(long, value_name = "DIR")]
    lora_dir: Option<PathBuf>,
    /// Reserve memory for adapters even if none is given
    #[arg(long, value_parser = FalseyValueParser::new())]
    enable_lora: bool,
    /// Set the maximum number of different adapters per step; 0 is unlimited
    ///
    /// A sum of several counts as one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) max_loras: usize,
    /// Set the maximum number of adapters in memory
    ///
    /// The least recently used adapter is evicted first.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = value_parser!(u32).range(1..=1 << 20))]
    max_cpu_loras: u32,
    /// Set the maximum rank of a request's adapters together
    ///
    /// Each rank is rounded up to a multiple of 16.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = value_parser!(u32).range(1..=4096))]
    max_lora_rank: u32,
    /// Let requests load and unload adapters
    ///
    /// POST /v1/load_lora_adapter and /v1/unload_lora_adapter.
    #[arg(long, env = "VLLM_ALLOW_RUNTIME_LORA_UPDATING", hide_env_values = true,
        value_parser = FalseyValueParser::new())]
    allow_lora_updates: bool,
    #[command(flatten)]
    load: AdapterLoadArgs,
}

/// An adapter of `--lora-modules`.
#[derive(Clone, Debug)]
struct Module(NamedAdapter);

/// An adapter in JSON notation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModuleJson {
    name: String,
    path: PathBuf,
    base_model_name: Option<String>,
}

impl FromStr for Module {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let module = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| error.to_string())?,
            false => {
                let (name, path) = text
                    .split_once('=')
                    .filter(|(name, path)| !name.is_empty() && !path.is_empty())
                    .ok_or("NAME=PATH, or a JSON object, is needed")?;
                ModuleJson {
                    name: name.to_owned(),
                    path: path.into(),
                    base_model_name: None,
                }
            }
        };
        Ok(Self(NamedAdapter {
            name: module.name,
            parts: vec![module.path.into()],
            model: module.base_model_name,
            scale: None,
        }))
    }
}

impl ServeAdapterArgs {
    /// Maximum rank of a request's adapters together.
    pub(super) const fn rank_max(&self) -> usize {
        self.max_lora_rank as usize
    }

    /// Converts the flags to the server's options.
    ///
    /// # Errors
    /// A scale is not a number, or a path contains no adapter.
    pub(crate) fn options(&self) -> Result<AdaptersOptions, UsageError> {
        let mut named = Vec::new();
        let plain = self.lora.iter().map(|path| Ok((path.clone(), 1.0)));
        let parts = plain.chain(self.lora_scaled.iter().map(|text| scaled(text)));
        for part in parts {
            let (path, scale) = part?;
            let applies = !self.lora_init_without_apply;
            named.push(NamedAdapter::of_path(path, applies.then_some(scale)));
        }
        named.extend(self.lora_modules.iter().map(|Module(named)| named.clone()));
        for part in named.iter().flat_map(|named: &NamedAdapter| &named.parts) {
            AdapterFormat::of(&part.path).map_err(|error| UsageError(error.to_string()))?;
        }
        if let Some(folder) = self.lora_dir.as_ref().filter(|folder| !folder.is_dir()) {
            let message = format!("--lora-dir {} is not a folder", folder.display());
            return Err(UsageError(message));
        }
        let options = AdaptersOptions {
            named,
            folder: self.lora_dir.clone(),
            max_in_memory: self.max_cpu_loras as usize,
            rank: 0,
            precision: self.load.precision(),
            base: self.load.base().map(Path::to_path_buf),
            updates: self.allow_lora_updates,
        };
        Ok(options.with_room(self.enable_lora, self.max_lora_rank as usize))
    }
}
