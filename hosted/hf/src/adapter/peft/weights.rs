//! The tensors of an adapter's file, by their roles.

use super::super::config::{AdapterConfig, MERGE_ONLY};
use super::super::experts::Sizes;
use super::super::keys::{Half, Key, Part};
use super::super::torch::read_entries;
use super::super::turn::Pair;
use super::super::whole::read_numbers;
use crate::files::read_header;
use crate::safetensors::SafetensorsEntry;
use sluice::adapter::AdapterLoadError;
use sluice::file::ReadFile;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The weights of an adapter, with a parsed header.
pub(super) struct Weights {
    pub(super) path: PathBuf,
    pub(super) file: Arc<ReadFile>,
    pub(super) modules: Vec<Module>,
    /// Tensors of the model itself.
    pub(super) wholes: Vec<WholeEntry>,
    /// What only a merge can apply.
    pub(super) parts: Vec<PartEntry>,
}

/// An adapted module, by its Hugging Face name.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) is_embedding: bool,
    a: Option<SafetensorsEntry>,
    b: Option<SafetensorsEntry>,
}

/// A tensor of the model itself, by the model's name for it.
pub(super) struct WholeEntry {
    pub(super) tensor: String,
    pub(super) entry: SafetensorsEntry,
}

/// A part of a module besides its matrices.
pub(super) struct PartEntry {
    pub(super) module: String,
    pub(super) part: Part,
    pub(super) entry: SafetensorsEntry,
}

impl Module {
    /// The model's module, and the number of wrappers that PEFT has added for further parameters.
    pub(super) fn inner(&self) -> (&str, usize) {
        let (mut name, mut depth) = (&*self.name, 0);
        while let Some(inner) = name.strip_suffix(".base_layer") {
            (name, depth) = (inner, depth + 1);
        }
        (name, depth)
    }

    /// The name of the adapted tensor, if the module has one.
    pub(super) fn weight(&self) -> String {
        format!("{}.weight", self.inner().0)
    }
}

/// A and B.
pub(super) type Halves<'w> = (&'w SafetensorsEntry, &'w SafetensorsEntry);

impl Weights {
    pub(super) fn open(folder: &Path) -> Result<Self, AdapterLoadError> {
        let mut path = folder.join("adapter_model.safetensors");
        let pickle = folder.join("adapter_model.bin");
        let is_pickle = !path.exists() && pickle.exists();
        if is_pickle {
            path = pickle;
        }
        let file = ReadFile::open(&path)?;
        let entries = match is_pickle {
            true => read_entries(&file)?,
            false => read_header(&path, &file)?.tensors,
        };
        let mut weights = Self {
            path,
            file: Arc::new(file),
            modules: Vec::new(),
            wholes: Vec::new(),
            parts: Vec::new(),
        };
        let mut places = HashMap::new();
        for entry in entries {
            let key = Key::parse(&entry.name);
            match key.map_err(|what| AdapterLoadError::tensor(&weights.path, &entry.name, what))? {
                Key::Whole { tensor } => weights.wholes.push(WholeEntry { tensor, entry }),
                Key::Part { module, part } => weights.parts.push(PartEntry {
                    module,
                    part,
                    entry,
                }),
                Key::Half {
                    module,
                    half,
                    is_embedding,
                } => {
                    let place =
                        *places
                            .entry((module.clone(), is_embedding))
                            .or_insert_with(|| {
                                weights.modules.push(Module {
                                    name: module,
                                    is_embedding,
                                    a: None,
                                    b: None,
                                });
                                weights.modules.len() - 1
                            });
                    weights.put(place, half, entry)?;
                }
            }
        }
        Ok(weights)
    }

    fn put(
        &mut self,
        place: usize,
        half: Half,
        entry: SafetensorsEntry,
    ) -> Result<(), AdapterLoadError> {
        let module = &mut self.modules[place];
        let own = match half {
            Half::A => &mut module.a,
            Half::B => &mut module.b,
        };
        if let Some(other) = own {
            let what = format!(
                "and {} are for the same module: the file contains several adapters",
                other.name
            );
            return Err(AdapterLoadError::tensor(&self.path, entry.name, what));
        }
        *own = Some(entry);
        Ok(())
    }

    /// # Errors
    /// A part that only a merge can apply.
    pub(super) fn check_parts(&self) -> Result<(), AdapterLoadError> {
        let Some(PartEntry { part, entry, .. }) = self.parts.first() else {
            return Ok(());
        };
        let what = format!("{}, {MERGE_ONLY}", part.told());
        Err(AdapterLoadError::tensor(&self.path, &*entry.name, what))
    }

    /// Reads a module's matrices, and compares them with the rank in the configuration.
    pub(super) fn pair(
        &self,
        config: &AdapterConfig,
        module: &Module,
    ) -> Result<Pair, AdapterLoadError> {
        let halves = self.halves(module)?;
        // A weight adapted without its module, such as a router, has a parameter's name.
        let weight = Some(module.weight()).filter(|weight| config.adapts(weight));
        let name = weight.as_deref().unwrap_or(&module.name);
        let rank = config.rank(name);
        let Sizes { a, b } = self.sizes(halves)?;
        for (entry, found) in [(halves.0, a[0]), (halves.1, b[1])] {
            if found != u64::from(rank) {
                let what =
                    format!("has rank {found}, but adapter_config.json states {rank} for {name}");
                return Err(AdapterLoadError::tensor(&self.path, &*entry.name, what));
            }
        }
        self.read_pair(config, name, rank, halves)
    }

    /// Reads matrices whose sizes have been checked. `name` selects the rank and scale.
    pub(super) fn read_pair(
        &self,
        config: &AdapterConfig,
        name: &str,
        rank: u32,
        (a, b): Halves<'_>,
    ) -> Result<Pair, AdapterLoadError> {
        let scale = config.scale(name);
        if !scale.is_finite() {
            let what = "is scaled by a number that is not finite";
            return Err(AdapterLoadError::tensor(&self.path, name, what));
        }
        Ok(Pair {
            rank: rank as usize,
            a: self.numbers(a)?,
            b: self.numbers(b)?,
            scale,
        })
    }

    pub(super) fn halves<'w>(&self, module: &'w Module) -> Result<Halves<'w>, AdapterLoadError> {
        match (&module.a, &module.b) {
            (Some(a), Some(b)) => Ok((a, b)),
            (Some(_), None) => Err(self.half_alone(module, "A", "B")),
            _ => Err(self.half_alone(module, "B", "A")),
        }
    }

    pub(super) fn sizes(&self, (a, b): Halves<'_>) -> Result<Sizes, AdapterLoadError> {
        let of = |entry: &SafetensorsEntry| match *entry.shape {
            [rows, columns] => Ok([rows, columns]),
            _ => {
                let what = format!("is not a matrix: it has shape {:?}", entry.shape);
                Err(AdapterLoadError::tensor(&self.path, &*entry.name, what))
            }
        };
        Ok(Sizes {
            a: of(a)?,
            b: of(b)?,
        })
    }

    fn half_alone(&self, module: &Module, has: &str, lacks: &str) -> AdapterLoadError {
        let what = format!("has a matrix {has} but no {lacks}");
        AdapterLoadError::tensor(&self.path, &*module.name, what)
    }

    pub(super) fn numbers(&self, entry: &SafetensorsEntry) -> Result<Vec<f32>, AdapterLoadError> {
        let mut numbers = Vec::new();
        read_numbers(&self.file, entry, 0..entry.len_bytes, &mut numbers)?;
        Ok(numbers)
    }
}
