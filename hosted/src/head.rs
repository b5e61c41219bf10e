//! Heads in memory: dense layers after the pooling of embeddings, and layers that score documents.
#![forbid(unsafe_code)]

use crate::file::ModelFile;
use crate::load::LoadError;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::TensorSource;
use sluice_core::head::{Head, Stage, apply, bias, dense, weight};
use sluice_core::kernels::WeightType;
use sluice_core::kernels::panel::dequantize_gguf_row;
use sluice_core::model::{ModelConfig, ModelError, Name};
use sluice_core::pooling::Pooling;

/// The heads of a model.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// Applied after the pooling of embeddings.
    pub(crate) embedding: Option<LoadedHead>,
    /// Scores documents.
    pub(crate) ranking: Option<LoadedHead>,
}

impl Heads {
    pub(crate) fn load(
        file: &ModelFile,
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let unusable = |error| LoadError::unusable(file.name(), error);
        let load = |head: Result<Option<Head>, ModelError>| {
            let head = head.map_err(unusable)?;
            let loaded = head.map(|head| LoadedHead::load(head, gguf, source));
            loaded.transpose().map_err(unusable)
        };
        Ok(Self {
            embedding: load(Head::of_embeddings(gguf, config))?,
            ranking: load(Head::of_ranking(gguf, config))?,
        })
    }
}

/// A head with its weights in f32.
#[derive(Debug)]
pub(crate) struct LoadedHead {
    head: Head,
    /// Weights and biases of each stage.
    weights: Vec<[Vec<f32>; 2]>,
}

impl LoadedHead {
    fn load(head: Head, gguf: &Gguf<'_>, source: &dyn TensorSource) -> Result<Self, ModelError> {
        let floats = |name: Name| floats(gguf, name, source);
        let mut weights = Vec::with_capacity(head.stages.len());
        for stage in &head.stages {
            weights.push(match stage {
                Stage::Dense { name, has_bias, .. } => {
                    let bias = has_bias.then(|| floats(bias(name))).transpose()?;
                    [floats(weight(name))?, bias.unwrap_or_default()]
                }
                Stage::LayerNorm { name, .. } => [floats(weight(name))?, Vec::new()],
                Stage::Tanh | Stage::Gelu | Stage::Softmax => [Vec::new(), Vec::new()],
            });
        }
        Ok(Self { head, weights })
    }

    /// How hidden states are pooled into the vector that it reads.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        self.head.pooling
    }

    /// The output for `x`.
    pub(crate) fn run(&self, x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        for (stage, [weights, bias]) in self.head.stages.iter().zip(&self.weights) {
            if let Stage::Dense { n_out, .. } = stage {
                let mut out = vec![0.0; *n_out];
                dense(weights, bias, &x, &mut out);
                x = out;
            } else {
                apply(stage, weights, &mut x);
            }
        }
        x
    }
}

/// The elements of a tensor whose shape was checked.
fn floats(gguf: &Gguf<'_>, name: Name, source: &dyn TensorSource) -> Result<Vec<f32>, ModelError> {
    let tensor = gguf.tensor(name.as_str());
    let tensor = tensor.ok_or(ModelError::MissingTensor { name })?;
    let ty = WeightType::from_ggml(tensor.ty).ok_or(ModelError::NotImplemented {
        what: "a head of this type of weights",
        name,
    })?;
    // Heads are small: at most 2^20 rows, of a width that was checked.
    let len = |n: u64| usize::try_from(n).unwrap_or(0);
    let mut bytes = vec![0; len(tensor.len_bytes)];
    let read = source.read(tensor.offset, &mut bytes);
    read.map_err(|error| ModelError::Source { name, error })?;
    let mut values = vec![0.0; len(tensor.n_elements())];
    dequantize_gguf_row(ty, &bytes, &mut values);
    if values.iter().any(|x| !x.is_finite()) {
        return Err(ModelError::WeightNotFinite { name });
    }
    Ok(values)
}
