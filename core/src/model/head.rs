//! The stages after pooling: dense layers of an embedding, and heads that score a document.
//!
//! A [`Head`] is a list of small stages over one vector. It is read from a file's header; the caller
//! keeps the weights, as f32.
//!
//! Source: llama.cpp, `src/llama-graph.cpp` (`build_pooling`, `build_dense_out`).
#![forbid(unsafe_code)]

use super::check::check_shape;
use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::pooling::Pooling;
use crate::gguf::{Gguf, optional};
use crate::kernels::contract::{Portable, double, gelu_erf, tanh};
use heapless::Vec;

/// Maximum stages of a head.
pub const STAGES_MAX: usize = 5;

/// A stage of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    /// `NAME.weight`, (n_out, n_in), and `NAME.bias` (n_out) if it is there.
    Dense {
        /// `NAME`.
        name: &'static str,
        /// Number of inputs.
        n_in: usize,
        /// Number of outputs.
        n_out: usize,
        /// Whether there is a bias.
        has_bias: bool,
    },
    /// The hyperbolic tangent of each element.
    Tanh,
    /// GELU of each element, by the error function.
    Gelu,
    /// A layer norm by `NAME.weight` (n), without bias.
    LayerNorm {
        /// `NAME`.
        name: &'static str,
        /// Added to the variance.
        eps: f32,
    },
    /// Softmax: positive numbers that add up to 1.
    Softmax,
}

/// The stages that a pooled vector passes through.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The stages, in order.
    pub stages: Vec<Stage, STAGES_MAX>,
    /// The pooling of hidden states into the input vector; `None` for the pooling that the caller asks for.
    pub pooling: Option<Pooling>,
}

/// The dense layers after the pooling of embeddings.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];
/// Parts of a head that scores.
const CLS: &str = "cls";
const CLS_NORM: &str = "cls.norm";
const CLS_OUTPUT: &str = "cls.output";

impl Head {
    /// The dense layers after the pooling of embeddings, if the file has them.
    ///
    /// # Errors
    /// A shape that does not fit the previous stage, or a last one that does not give n_embd numbers.
    pub fn of_embeddings(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
    ) -> Result<Option<Self>, ModelError> {
        if config.architecture.name() != "gemma-embedding" {
            return Ok(None);
        }
        let mut head = Self::empty(None);
        let mut n = config.n_embd;
        for name in DENSE.into_iter().filter(|name| has(gguf, name)) {
            n = head.dense(gguf, name, n)?;
        }
        if n != config.n_embd {
            let found = [n as u64, config.n_embd as u64];
            let expected = [config.n_embd as u64; 2];
            let name = weight(DENSE[1]);
            return Err(ModelError::TensorShape {
                name,
                expected,
                found,
            });
        }
        Ok(Some(head).filter(|head| !head.stages.is_empty()))
    }

    /// The head that scores a document, if the file has one: the score is the first output.
    ///
    /// # Errors
    /// A shape that does not fit the previous stage; a setting of another type.
    pub fn of_ranking(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Option<Self>, ModelError> {
        if !has(gguf, CLS) && !has(gguf, CLS_OUTPUT) {
            return Ok(None);
        }
        let is_modern = config.architecture.name() == "modern-bert";
        let mut head = Self::empty(Some(pooling(gguf, config)?));
        let mut n = config.n_embd;
        if has(gguf, CLS) {
            n = head.dense(gguf, CLS, n)?;
            head.push(if is_modern { Stage::Gelu } else { Stage::Tanh });
            if has(gguf, CLS_NORM) {
                check(gguf, weight(CLS_NORM), [1, n])?;
                head.push(Stage::LayerNorm {
                    name: CLS_NORM,
                    eps: config.norm_eps,
                });
            }
        }
        if has(gguf, CLS_OUTPUT) {
            head.dense(gguf, CLS_OUTPUT, n)?;
        }
        if ["qwen3", "qwen3vl"].contains(&config.architecture.name()) {
            head.push(Stage::Softmax);
        }
        Ok(Some(head))
    }

    /// Whether a head of that model has this tensor.
    pub fn has_part(gguf: &Gguf<'_>, config: &ModelConfig, tensor: &str) -> bool {
        let heads = [
            Self::of_embeddings(gguf, config),
            Self::of_ranking(gguf, config),
        ];
        let stages = |head: &Self| {
            head.stages.iter().any(|stage| match stage {
                Stage::Dense { name, has_bias, .. } => {
                    weight(name).as_str() == tensor || *has_bias && bias(name).as_str() == tensor
                }
                Stage::LayerNorm { name, .. } => weight(name).as_str() == tensor,
                Stage::Tanh | Stage::Gelu | Stage::Softmax => false,
            })
        };
        heads.iter().flatten().flatten().any(stages)
    }

    const fn empty(pooling: Option<Pooling>) -> Self {
        Self {
            stages: Vec::new(),
            pooling,
        }
    }

    /// Appends a dense layer over `n_in` numbers; returns its number of outputs.
    fn dense(
        &mut self,
        gguf: &Gguf<'_>,
        name: &'static str,
        n_in: usize,
    ) -> Result<usize, ModelError> {
        let matrix = weight(name);
        let rows = gguf
            .tensor(matrix.as_str())
            .map_or(0, |tensor| tensor.n_rows());
        let n_out = usize::try_from(rows).unwrap_or(usize::MAX);
        if n_out == 0 || n_out > N_OUT_MAX {
            return Err(ModelError::TensorShape {
                name: matrix,
                expected: [N_OUT_MAX as u64, n_in as u64],
                found: [rows, n_in as u64],
            });
        }
        check(gguf, matrix, [n_out, n_in])?;
        let has_bias = gguf.tensor(bias(name).as_str()).is_some();
        if has_bias {
            check(gguf, bias(name), [1, n_out])?;
        }
        self.push(Stage::Dense {
            name,
            n_in,
            n_out,
            has_bias,
        });
        Ok(n_out)
    }

    fn push(&mut self, stage: Stage) {
        self.stages
            .push(stage)
            .unwrap_or_else(|_| unreachable!("no head has more stages"));
    }
}

/// Maximum outputs of a dense layer.
const N_OUT_MAX: usize = 1 << 20;

/// Name of a part's weights.
pub fn weight(name: &str) -> Name {
    Name::format(format_args!("{name}.weight"))
}

/// Name of a part's bias.
pub fn bias(name: &str) -> Name {
    Name::format(format_args!("{name}.bias"))
}

fn has(gguf: &Gguf<'_>, name: &str) -> bool {
    gguf.tensor(weight(name).as_str()).is_some()
}

fn check(gguf: &Gguf<'_>, name: Name, shape: [usize; 2]) -> Result<(), ModelError> {
    let tensor = gguf.tensor(name.as_str());
    let tensor = tensor.ok_or(ModelError::MissingTensor { name })?;
    check_shape(&tensor, name, shape)
}

/// The pooling of a head that scores: the first token of an encoder, the last of a decoder; for modern-bert
/// the mean, unless the file sets another.
fn pooling(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Pooling, ModelError> {
    if config.is_causal {
        return Ok(Pooling::Last);
    }
    if config.architecture.name() != "modern-bert" {
        return Ok(Pooling::Cls);
    }
    let name = config.architecture.name();
    let key = Name::format(format_args!("{name}.classifier.pooling_type"));
    match optional(gguf.u32(key.as_str()))? {
        // llama.cpp supports the mean, and takes the first token for all other settings.
        None | Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::Cls),
        Some(number) => Err(ModelError::Setting {
            key,
            value: number.into(),
            expected: "1 or 2",
        }),
    }
}

/// A dense layer: `weights: (out.len(), x.len())`, and an optional bias. Sums are in f64, in order.
///
/// # Panics
/// If the lengths do not fit.
pub fn dense(weights: &[f32], bias: &[f32], x: &[f32], out: &mut [f32]) {
    assert_eq!(weights.len(), out.len() * x.len());
    assert!(bias.is_empty() || bias.len() == out.len());
    let rows = weights.chunks_exact(x.len().max(1));
    for (i, (out, row)) in out.iter_mut().zip(rows).enumerate() {
        let products = row
            .iter()
            .zip(x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x));
        let sum = products.sum::<f64>() + bias.get(i).map_or(0.0, |bias| f64::from(*bias));
        *out = narrow(sum);
    }
}

/// The stages without matrices; `weights` belongs to a norm.
///
/// # Panics
/// For a dense layer, and for a norm whose weights have another length.
pub fn apply(stage: &Stage, weights: &[f32], x: &mut [f32]) {
    match stage {
        Stage::Dense { .. } => unreachable!("a dense layer has a result of another length"),
        Stage::Tanh => x.iter_mut().for_each(|x| *x = tanh::<Portable>(*x)),
        Stage::Gelu => x.iter_mut().for_each(|x| *x = gelu_erf::<Portable>(*x)),
        Stage::LayerNorm { eps, .. } => layer_norm(weights, *eps, x),
        Stage::Softmax => softmax(x),
    }
}

fn layer_norm(weights: &[f32], eps: f32, x: &mut [f32]) {
    assert_eq!(weights.len(), x.len());
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let squares = x.iter().map(|x| f64::from(*x) - mean).map(|x| x * x);
    let variance = squares.sum::<f64>() / n + f64::from(eps);
    let scale = 1.0 / f64::from(crate::kernels::contract::sqrt(narrow(variance)));
    for (x, weight) in x.iter_mut().zip(weights) {
        *x = narrow((f64::from(*x) - mean) * scale * f64::from(*weight));
    }
}

fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp = |x: f32| double::exp((f64::from(x) - f64::from(max)).max(-700.0));
    let sum: f64 = x.iter().map(|x| exp(*x)).sum();
    for x in x {
        *x = narrow(exp(*x) / sum);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_known_numbers() {
        let mut out = [0.0; 2];
        dense(&[1.0, 2.0, 3.0, 4.0], &[0.5, -1.0], &[1.0, -1.0], &mut out);
        assert_eq!(out.map(f32::to_bits), [-0.5f32, -2.0].map(f32::to_bits));
        dense(&[1.0, 2.0, 3.0, 4.0], &[], &[1.0, -1.0], &mut out);
        assert_eq!(out.map(f32::to_bits), [-1f32, -1.0].map(f32::to_bits));
        let mut x = [2.0, 0.0];
        apply(&Stage::Softmax, &[], &mut x);
        assert!((x[0] - 0.880_797).abs() < 1e-6 && (x[0] + x[1] - 1.0).abs() < 1e-6);
        let mut x = [3.0, 1.0];
        let norm = Stage::LayerNorm {
            name: CLS_NORM,
            eps: 1e-12,
        };
        apply(&norm, &[1.0, 2.0], &mut x);
        assert!((x[0] - 1.0).abs() < 1e-6 && (x[1] + 2.0).abs() < 1e-6);
        let mut x = [0.5];
        apply(&Stage::Tanh, &[], &mut x);
        assert!((x[0] - 0.462_117).abs() < 1e-5);
    }
}
