//! Options: which adapters to serve, and how many at once.

use sluice::adapter::Precision;
use std::path::PathBuf;

/// An adapter named on the command line.
#[derive(Clone, Debug)]
pub struct NamedAdapter {
    /// The name that requests use.
    pub name: String,
    /// Its files or folders, which are summed.
    pub parts: Vec<AdapterPart>,
    /// The name of its model; `None` for the first.
    pub model: Option<String>,
    /// The factor for requests that name the model and give no scale of their own; `None` for 0.
    pub scale: Option<f32>,
}

/// A file or folder of an adapter, and the factor of its products.
#[derive(Clone, Debug)]
pub struct AdapterPart {
    /// The file or folder.
    pub path: PathBuf,
    /// The factor.
    pub scale: f32,
}

impl From<PathBuf> for AdapterPart {
    /// The file or folder, unscaled.
    fn from(path: PathBuf) -> Self {
        Self { path, scale: 1.0 }
    }
}

impl NamedAdapter {
    /// The adapter at `path`, called as its file or folder, applied with `scale` by default.
    #[must_use]
    pub fn of_path(path: PathBuf, scale: Option<f32>) -> Self {
        let name = if path.is_dir() {
            path.file_name()
        } else {
            path.file_stem()
        };
        let name = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self {
            name,
            parts: vec![path.into()],
            model: None,
            scale,
        }
    }
}

impl AdaptersOptions {
    /// These options with room for ranks up to `max_rank`, if adapters are on: because they are `enabled`, or there is
    /// a way to name one.
    #[must_use]
    pub fn with_room(self, enabled: bool, max_rank: usize) -> Self {
        let is_on = enabled || self.updates || self.folder.is_some() || !self.named.is_empty();
        Self {
            rank: if is_on {
                max_rank.next_multiple_of(16)
            } else {
                0
            },
            ..self
        }
    }
}

/// Which adapters to serve.
#[derive(Clone, Debug)]
pub struct AdaptersOptions {
    /// Adapters named on the command line.
    pub named: Vec<NamedAdapter>,
    /// A folder that is watched for adapters (`--lora-dir`).
    pub folder: Option<PathBuf>,
    /// Maximum number of adapters in memory (`--max-cpu-loras`), at least 1; 64 by default.
    pub max_in_memory: usize,
    /// Maximum sum of ranks of a request's adapters, each rounded up to 16 (`--max-lora-rank`); 0 disables adapters.
    pub rank: usize,
    /// The type adapters are stored in (`--lora-dtype`).
    pub precision: Precision,
    /// The folder with the base model of PEFT adapters (`--lora-base`).
    pub base: Option<PathBuf>,
    /// Whether requests may load and unload adapters.
    pub updates: bool,
}

impl Default for AdaptersOptions {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            folder: None,
            max_in_memory: 64,
            rank: 0,
            precision: Precision::Exact,
            base: None,
            updates: false,
        }
    }
}
