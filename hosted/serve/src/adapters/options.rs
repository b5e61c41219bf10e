//! Which adapters there are, and how many at once.

use sluice::adapter::Precision;
use std::path::PathBuf;

/// An adapter that is named on the command line.
#[derive(Clone, Debug)]
pub struct NamedAdapter {
    /// What requests call it.
    pub name: String,
    /// Its file or folder; several are added up, each times its factor.
    pub parts: Vec<(PathBuf, f32)>,
    /// The name of its model; `None` for the first.
    pub model: Option<String>,
    /// What requests to the model itself are computed with it times, unless they say otherwise; `None` for 0.
    pub scale: Option<f32>,
}

/// Which adapters there are.
#[derive(Clone, Debug)]
pub struct AdaptersOptions {
    /// Those of the command line.
    pub named: Vec<NamedAdapter>,
    /// A folder whose adapters come and go (`--lora-dir`).
    pub folder: Option<PathBuf>,
    /// Maximum adapters in memory (`--max-cpu-loras`), at least 1; 64 by default.
    pub max_in_memory: usize,
    /// Room for ranks, over all adapters of a request, each rounded up to 16 (`--max-lora-rank`); 0 for no adapters.
    pub rank: usize,
    /// How they lie in memory (`--lora-dtype`).
    pub precision: Precision,
    /// The folder of the model that PEFT's adapters are for (`--lora-base`).
    pub base: Option<PathBuf>,
    /// Whether requests may load and unload them.
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
