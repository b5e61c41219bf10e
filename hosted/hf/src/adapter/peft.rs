//! Reading an adapter's folder as PEFT saves it.
//!
//! Each adapted module of the Hugging Face model is one source of the converter's tensors; its pair is rearranged as
//! the converter rearranges the weights. One module may become several tensors. Experts that are parameters of one
//! module share a pair: [`super::experts`].

mod edits;
mod nest;
mod places;
mod weights;

use super::config::{AdapterConfig, MERGE_ONLY};
use super::edits::TensorEdit;
use super::experts::Placed;
use super::hints::BaseHints;
use super::turn::Pair;
use crate::family::{Map, Wanted};
use nest::Nest;
use places::Places;
use sluice::adapter::{
    AdapterFile, AdapterLoadError, AdapterOrigin, Factors, PairOrder, PairSink, check_copies,
    transposed,
};
use sluice::file::ModelFile;
use std::collections::HashSet;
use std::path::Path;
use weights::{Module, Weights};

/// What a folder holds besides pairs.
#[derive(Default)]
pub(super) struct Rest {
    pub(super) warnings: Vec<String>,
    /// For a merge.
    pub(super) edits: Vec<TensorEdit>,
    /// Whether embedding and output matrix stay one.
    pub(super) is_tying: bool,
}

/// Reads a folder. What only a merge can apply is refused unless it `is_merge`.
pub(super) fn read(
    folder: &Path,
    base: Option<&Path>,
    model: Option<&ModelFile>,
    is_merge: bool,
    sink: &mut dyn PairSink,
) -> Result<Rest, AdapterLoadError> {
    let config = AdapterConfig::read(&folder.join("adapter_config.json"), is_merge)?;
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
    let gguf = model.map(ModelFile::parse).transpose()?;
    let is_tied = match &gguf {
        Some(gguf) => gguf.tensor("output.weight").is_none(),
        None => places.base.is_tied(),
    };
    let mut rest = Rest {
        warnings: config.warnings.clone(),
        edits: Vec::new(),
        is_tying: config.is_tying && is_tied,
    };
    match &config.merge {
        None => {
            weights.check_parts()?;
            weights.check_wholes(&places, model, &mut rest.warnings)?;
        }
        Some(merge) => rest.edits = weights.edits(&config, merge, &places, is_tied)?,
    }
    let n = weights.hand_over(&config, &places, &mut rest, sink)?;
    if n == 0 && rest.edits.is_empty() {
        let what = "it has no matrices for the text model";
        return Err(AdapterLoadError::not_an_adapter(folder, what));
    }
    Ok(rest)
}

/// Reads a folder without rearranging anything.
pub(super) fn read_as_named(folder: &Path) -> Result<AdapterFile, AdapterLoadError> {
    let config = AdapterConfig::read(&folder.join("adapter_config.json"), false)?;
    let weights = Weights::open(folder)?;
    weights.check_parts()?;
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

impl Weights {
    /// Passes on the pairs in the order of the model's tensors; returns their number.
    fn hand_over(
        &self,
        config: &AdapterConfig,
        places: &Places<'_>,
        rest: &mut Rest,
        sink: &mut dyn PairSink,
    ) -> Result<usize, AdapterLoadError> {
        let (mut others, mut seen) = (Vec::new(), HashSet::new());
        let is_other = |tensor: &str| places.base.plain_name(tensor).is_none();
        let wholes = self.wholes.iter().map(|whole| whole.tensor.clone());
        others.extend(wholes.filter(|tensor| is_other(tensor)));
        let parts = self.parts.iter().map(|part| part.module.clone());
        others.extend(parts.filter(|module| is_other(&format!("{module}.weight"))));
        let mut ends = Ends::default();
        for nest in self.nests() {
            let Some(name) = places.base.plain_name(&nest.pairs[0].weight()) else {
                others.push(nest.name.to_owned());
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
                if rest.is_tying && ends.keep(&factors) {
                    continue;
                }
                sink.take(order, &factors)?;
            }
        }
        if rest.is_tying {
            ends.check(config.merge.is_some(), &self.path)?;
        }
        if let Some(first) = others.first() {
            rest.warnings.push(format!(
                "{}: {} trained modules belong to other parts than the text model ({first} and others) and are \
                 ignored",
                self.path.display(),
                others.len()
            ));
        }
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
}

/// The pairs of embedding and output matrix where both are one (`ensure_weight_tying`): PEFT saves the same numbers
/// for each.
#[derive(Default)]
struct Ends {
    embedding: Option<Factors>,
    output: Option<Factors>,
}

impl Ends {
    /// Whether the pair is the second one of the two.
    fn keep(&mut self, factors: &Factors) -> bool {
        match &*factors.tensor {
            "token_embd.weight" => self.embedding = Some(factors.clone()),
            "output.weight" => self.output = Some(factors.clone()),
            _ => {}
        }
        factors.tensor == "output.weight"
    }

    fn check(&self, is_merge: bool, path: &Path) -> Result<(), AdapterLoadError> {
        let error = |what: String| Err(AdapterLoadError::tensor(path, "lm_head", what));
        match (&self.embedding, &self.output) {
            (None, None) => Ok(()),
            _ if !is_merge => error(format!(
                "is one with the embedding, and both share what was trained (ensure_weight_tying), {MERGE_ONLY}"
            )),
            (Some(_), None) => Ok(()),
            (Some(own), Some(other))
                if other.a == transposed(&own.b, own.n_rows())
                    && other.b == transposed(&own.a, own.rank) =>
            {
                Ok(())
            }
            (_, Some(_)) => error(
                "is one with the embedding (ensure_weight_tying), but has other matrices".into(),
            ),
        }
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
