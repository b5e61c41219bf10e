//! A model's name and sizes without its weights, for reading adapters.

use super::config::Config;
use super::gguf_config::config_of;
use crate::HfError;
use crate::family::{Family, Map, Shape, Wanted, all_tensors};
use crate::files::read_json;
use sluice_core::gguf::Gguf;
use std::collections::HashMap;
use std::path::Path;

/// A model's family and sizes.
#[derive(Clone, Debug)]
pub struct Base {
    family: &'static Family,
    shape: Shape,
}

/// No model has more layers, or more experts in all; it bounds what a hostile config.json can ask for.
const LAYERS_MAX: u64 = 1024;
const EXPERTS_MAX: u64 = 1 << 18;

impl Base {
    /// Reads `config.json` in a folder. `names` are the tensors that the adapter changes; they decide whether the model
    /// has MTP blocks after its layers.
    ///
    /// # Errors
    /// [`HfError`].
    pub fn of_folder(folder: &Path, names: &[String]) -> Result<Self, HfError> {
        let path = folder.join("config.json");
        let whole = Config::new(&path, read_json(&path)?);
        let family = Family::of(&whole, &path)?;
        let config = family.text_config(whole)?;
        let mut shape = Shape::read(family, &config)?;
        let names = names.iter().map(String::as_str);
        // The names tell whether MTP blocks are adapted; unadapted blocks do not need a warning.
        shape.count_nextn(family, &config, names, &mut Vec::new())?;
        let base = Self { family, shape };
        base.check_counts(&config)?;
        Ok(base)
    }

    /// The families that a GGUF file's tensors can belong to, the likeliest first; empty if the file does not have
    /// enough metadata.
    #[must_use]
    pub fn of_gguf(path: &Path, gguf: &Gguf<'_>) -> Vec<Self> {
        let Some(map) = config_of(gguf) else {
            return Vec::new();
        };
        let architecture = gguf.str("general.architecture").unwrap_or_default();
        let nextn = gguf.u32(&format!("{architecture}.nextn_predict_layers"));
        let families = Family::of_architecture(architecture);
        let bases = families.filter_map(|family| {
            let config = Config::new(path, map.clone());
            let mut shape = Shape::read(family, &config).ok()?;
            shape.n_nextn = *nextn.as_ref().unwrap_or(&0);
            let base = Self { family, shape };
            base.check_counts(&config).ok()?;
            base.fits(gguf).then_some(base)
        });
        bases.collect()
    }

    /// `general.architecture`.
    #[must_use]
    pub const fn architecture(&self) -> &'static str {
        self.family.architecture
    }

    /// Whether the embedding is also the output matrix.
    #[must_use]
    pub const fn is_tied(&self) -> bool {
        self.shape.is_tied
    }

    /// A tensor's name without the text model's prefix; `None` for tensors of other parts.
    #[must_use]
    pub fn plain_name(&self, name: &str) -> Option<String> {
        self.family.plain_name(name, self.shape.n_layer)
    }

    /// All tensors, with experts apart. The last one is the output matrix, even where it is tied to the embedding: an
    /// adapter may change either.
    #[must_use]
    pub fn wanted(&self) -> Vec<Wanted> {
        let mut all = all_tensors(self.family, &self.shape, &|_| None);
        let has_output = all.iter().any(|tensor| tensor.name == "output.weight");
        if !has_output && !self.family.is_encoder() && self.shape.answers.is_none() {
            let dims = vec![self.shape.n_vocab.into(), self.shape.n_embd.into()];
            all.push(Wanted {
                name: "output.weight".into(),
                parts: vec!["lm_head.weight".into()],
                source: dims.clone(),
                shape: dims,
                change: super::family::Change::None,
                map: Map::Same,
                is_optional: true,
                is_ignored: false,
            });
        }
        all.sort_by_key(|tensor| tensor.name == "output.weight");
        all
    }

    fn check_counts(&self, config: &Config) -> Result<(), HfError> {
        let n_layer = u64::from(self.shape.n_layer) + u64::from(self.shape.n_nextn);
        let n_expert = u64::from(self.shape.n_expert());
        let told = |n| format!("is {n}, which is too large");
        if n_layer > LAYERS_MAX {
            return Err(config.error(&["num_hidden_layers"], &told(n_layer)));
        }
        match n_layer * n_expert > EXPERTS_MAX {
            true => Err(config.error(&["num_local_experts", "num_experts"], &told(n_expert))),
            false => Ok(()),
        }
    }

    /// Whether a GGUF file has exactly the matrices of these layers.
    fn fits(&self, gguf: &Gguf<'_>) -> bool {
        let mut left: HashMap<&str, Vec<u64>> = gguf
            .tensors()
            .filter(|tensor| is_layers(tensor.name) && tensor.n_dims > 1)
            .map(|tensor| {
                let dims = tensor.dims[..tensor.n_dims].iter();
                (tensor.name, dims.rev().copied().collect())
            })
            .collect();
        let all = all_tensors(self.family, &self.shape, &|_| None);
        let matrices = all
            .iter()
            .filter(|tensor| is_layers(&tensor.name) && tensor.shape.len() > 1);
        for tensor in matrices {
            match left.remove(tensor.name.as_str()) {
                Some(found) if found == tensor.stacked() => {}
                None if tensor.is_optional => {}
                _ => return false,
            }
        }
        left.is_empty()
    }
}

/// Whether a tensor is a matrix of a layer.
fn is_layers(name: &str) -> bool {
    name.starts_with("blk.") && name.ends_with(".weight")
}
