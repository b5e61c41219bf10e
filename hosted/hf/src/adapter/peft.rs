//! Reading an adapter's folder as PEFT saves it.
//!
//! Each adapted module of the Hugging Face model is one source of the converter's tensors; its pair is rearranged as
//! the converter rearranges the weights. One module may become several tensors. Experts that are parameters of one
//! module share a pair: [`super::experts`].

mod nest;
mod places;

use super::config::AdapterConfig;
use super::experts::{Placed, Sizes};
use super::hints::BaseHints;
use super::keys::{Half, Key};
use super::turn::{Pair, fits};
use crate::decode::decode;
use crate::family::{Map, Wanted};
use crate::files::read_header;
use crate::safetensors::{Dtype, SafetensorsEntry};
use nest::Nest;
use places::Places;
use sluice::adapter::{
    AdapterFile, AdapterLoadError, AdapterOrigin, Factors, PairOrder, PairSink, check_copies,
    check_finite,
};
use sluice::file::{ModelFile, ReadFile};
use sluice_core::gguf::source::TensorSource as _;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Reads a folder; returns warnings.
pub(super) fn read(
    folder: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
    sink: &mut dyn PairSink,
) -> Result<Vec<String>, AdapterLoadError> {
    let config = AdapterConfig::read(&folder.join("adapter_config.json"))?;
    let weights = Weights::open(folder)?;
    let names: Vec<_> = weights.modules.iter().map(Module::weight).collect();
    let hints = BaseHints {
        folder,
        base,
        named: config.base_model.as_deref(),
        model,
    };
    let bases = hints.bases(&names)?;
    let places = Places::best(&bases, &weights.modules);
    sink.begin(AdapterOrigin {
        architecture: places.base.architecture().into(),
        base_model: config.base_model.clone(),
    })?;
    let mut warnings = config.warnings.clone();
    let n = weights.hand_over(&config, &places, &mut warnings, sink)?;
    if n == 0 {
        let what = "it has no matrices for the text model";
        return Err(AdapterLoadError::not_an_adapter(folder, what));
    }
    Ok(warnings)
}

/// Reads a folder without rearranging anything.
pub(super) fn read_as_named(folder: &Path) -> Result<AdapterFile, AdapterLoadError> {
    let config = AdapterConfig::read(&folder.join("adapter_config.json"))?;
    let weights = Weights::open(folder)?;
    let mut factors = Vec::new();
    for nest in weights.nests() {
        factors.extend(weights.as_named(&config, &nest)?);
    }
    Ok(AdapterFile {
        path: folder.display().to_string(),
        architecture: String::new(),
        factors,
        base_model: config.base_model,
        warnings: config.warnings,
    })
}

/// The weights of an adapter, with a parsed header.
struct Weights {
    path: PathBuf,
    file: ReadFile,
    modules: Vec<Module>,
    /// Names of modules whose own weights are included.
    bases: Vec<(String, SafetensorsEntry)>,
}

/// An adapted module, by its Hugging Face name.
struct Module {
    name: String,
    is_embedding: bool,
    a: Option<SafetensorsEntry>,
    b: Option<SafetensorsEntry>,
}

impl Module {
    /// The model's module, and the number of wrappers that PEFT has added for further parameters.
    fn inner(&self) -> (&str, usize) {
        let (mut name, mut depth) = (&*self.name, 0);
        while let Some(inner) = name.strip_suffix(".base_layer") {
            (name, depth) = (inner, depth + 1);
        }
        (name, depth)
    }

    /// The name of the adapted tensor, if the module has one.
    fn weight(&self) -> String {
        format!("{}.weight", self.inner().0)
    }
}

/// A and B.
type Halves<'w> = (&'w SafetensorsEntry, &'w SafetensorsEntry);

impl Weights {
    fn open(folder: &Path) -> Result<Self, AdapterLoadError> {
        let path = folder.join("adapter_model.safetensors");
        let pickle = folder.join("adapter_model.bin");
        if !path.exists() && pickle.exists() {
            let what = "is a pickle, which is not supported: save the adapter as safetensors";
            return Err(AdapterLoadError::tensor(folder, "adapter_model.bin", what));
        }
        let file = ReadFile::open(&path)?;
        let header = read_header(&path, &file)?;
        let mut weights = Self {
            path,
            file,
            modules: Vec::new(),
            bases: Vec::new(),
        };
        let mut places = HashMap::new();
        for entry in header.tensors {
            let key = Key::parse(&entry.name);
            match key.map_err(|what| AdapterLoadError::tensor(&weights.path, &entry.name, what))? {
                Key::Base { module } => weights.bases.push((module, entry)),
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

    /// Passes on the pairs in the order of the model's tensors; returns their number.
    fn hand_over(
        &self,
        config: &AdapterConfig,
        places: &Places<'_>,
        warnings: &mut Vec<String>,
        sink: &mut dyn PairSink,
    ) -> Result<usize, AdapterLoadError> {
        let (mut others, mut seen) = (Vec::new(), HashSet::new());
        for nest in self.nests() {
            let Some(name) = places.base.plain_name(&nest.pairs[0].weight()) else {
                others.push(nest.name);
                continue;
            };
            let found = match places.stacks(&name) {
                Some(stacks) => self.of_experts(config, places, &nest, stacks)?,
                None => self.of_module(config, places, &nest, &name)?,
            };
            for (order, factors) in found {
                // Two modules cannot be one tensor.
                if !seen.insert((factors.tensor.clone(), factors.part)) {
                    let what = "is adapted twice";
                    return Err(AdapterLoadError::tensor(&self.path, factors.tensor, what));
                }
                sink.take(order, &factors)?;
            }
        }
        if let Some(first) = others.first() {
            warnings.push(format!(
                "{}: {} adapted modules belong to other parts than the text model ({first} and others) and are \
                 ignored",
                self.path.display(),
                others.len()
            ));
        }
        self.check_bases(places, warnings)?;
        Ok(seen.len())
    }

    /// The pairs for the tensors made from a module's weight, with their positions.
    fn of_module(
        &self,
        config: &AdapterConfig,
        places: &Places<'_>,
        nest: &Nest<'_>,
        name: &str,
    ) -> Result<Vec<Placed>, AdapterLoadError> {
        let module = self.only(nest)?;
        let pair = self.pair(config, module)?;
        let mut found = Vec::new();
        for &order in self.targets(places, module, name)? {
            let wanted = &places.wanted[order.tensor];
            self.check(module, &pair, wanted)?;
            if let [n, _, _] = *wanted.shape {
                check_copies(&self.path, &module.name, n, pair.a.len())?;
            }
            let factors = match module.is_embedding {
                true => vec![pair.clone().into_factors(&wanted.name)],
                false => pair.turned(wanted, order.part),
            };
            found.extend(factors.into_iter().map(|own| (order, own)));
        }
        Ok(found)
    }

    /// The tensors made from a module.
    fn targets<'p>(
        &self,
        places: &'p Places<'_>,
        module: &Module,
        name: &str,
    ) -> Result<&'p [PairOrder], AdapterLoadError> {
        let error = |what| Err(AdapterLoadError::tensor(&self.path, &*module.name, what));
        let architecture = places.base.architecture();
        let Some(found) = places.of(name) else {
            return error(format!(
                "is not a matrix of a model of architecture {architecture}"
            ));
        };
        for order in found {
            let wanted = &places.wanted[order.tensor];
            if wanted.source.len() != 2 {
                return error(format!("is not a matrix: it has shape {:?}", wanted.source));
            }
            if wanted.map != Map::Same {
                return error(
                    "is transformed before it is stored in GGUF, so it cannot be adapted".into(),
                );
            }
            let is_embedding = wanted.name == "token_embd.weight";
            if is_embedding != module.is_embedding {
                return error(match is_embedding {
                    true => "is the embedding, but adapted like a linear layer".into(),
                    false => "is adapted as an embedding, which is supported only for the token embedding".into(),
                });
            }
        }
        Ok(found)
    }

    /// Checks that the matrices fit the shape of the tensor they adapt.
    fn check(&self, module: &Module, pair: &Pair, wanted: &Wanted) -> Result<(), AdapterLoadError> {
        let of_rank = |numbers: &[f32]| (numbers.len() / pair.rank) as u64;
        let found = match module.is_embedding {
            true => [of_rank(&pair.a), of_rank(&pair.b)],
            false => [of_rank(&pair.b), of_rank(&pair.a)],
        };
        if found[..] == wanted.source[..] {
            return Ok(());
        }
        Err(AdapterLoadError::Shape {
            path: self.path.display().to_string(),
            tensor: module.name.clone(),
            found,
            expected: [wanted.source[0], wanted.source[1]],
        })
    }

    /// Reads a module's matrices, and compares them with the rank in the configuration.
    fn pair(&self, config: &AdapterConfig, module: &Module) -> Result<Pair, AdapterLoadError> {
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
    fn read_pair(
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

    fn halves<'w>(&self, module: &'w Module) -> Result<Halves<'w>, AdapterLoadError> {
        match (&module.a, &module.b) {
            (Some(a), Some(b)) => Ok((a, b)),
            (Some(_), None) => Err(self.half_alone(module, "A", "B")),
            _ => Err(self.half_alone(module, "B", "A")),
        }
    }

    fn sizes(&self, (a, b): Halves<'_>) -> Result<Sizes, AdapterLoadError> {
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

    fn numbers(&self, entry: &SafetensorsEntry) -> Result<Vec<f32>, AdapterLoadError> {
        let (Dtype::F32 | Dtype::F16 | Dtype::BF16) = entry.dtype else {
            let what = format!(
                "is stored as {}; adapters have F32, F16 or BF16",
                entry.dtype
            );
            return Err(AdapterLoadError::tensor(&self.path, &*entry.name, what));
        };
        let mut bytes = vec![0; fits(entry.len_bytes)];
        let read = self.file.read(entry.offset, &mut bytes);
        read.map_err(|error| AdapterLoadError::data(&self.path, &*entry.name, error))?;
        let mut numbers = Vec::new();
        decode(entry.dtype, &bytes, &mut numbers);
        check_finite(&self.path, &entry.name, &numbers)?;
        Ok(numbers)
    }

    /// PEFT also saves the weights of adapted embeddings. Weights of another size belong to another model.
    fn check_bases(
        &self,
        places: &Places<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<(), AdapterLoadError> {
        for (module, entry) in &self.bases {
            let error = |what| Err(AdapterLoadError::tensor(&self.path, &*entry.name, what));
            if !self.modules.iter().any(|other| other.name == *module) {
                return error("is a whole tensor whose module is not adapted".to_owned());
            }
            let name = places.base.plain_name(&format!("{module}.weight"));
            let found = name.and_then(|name| places.of(&name)?.first().copied());
            let source = found.map(|order| places.wanted[order.tensor].source.clone());
            if source.as_ref().is_some_and(|source| *source != entry.shape) {
                return error(format!(
                    "has shape {:?}, but the model's is {:?}: resizing the vocabulary is not supported",
                    entry.shape,
                    source.unwrap_or_default()
                ));
            }
            warnings.push(format!(
                "{}: {} is assumed to be the model's own: only the matrices next to it are read",
                self.path.display(),
                entry.name
            ));
        }
        Ok(())
    }
}

impl Pair {
    /// Unchanged, for the token embedding.
    fn into_factors(self, tensor: &str) -> Factors {
        Factors {
            tensor: tensor.into(),
            part: None,
            rank: self.rank,
            a: self.a,
            b: self.b,
            scale: self.scale,
        }
    }
}

#[cfg(test)]
mod tests;
