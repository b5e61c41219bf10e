//! The tensors of predictors in files.

use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::GgmlType;
use crate::kernels::panel::PanelLayout;
use crate::model::arch::PowerInfer;
use crate::model::config::ModelConfig;
use crate::model::error::{ModelError, Name};
use crate::model::kind::Channel;

/// What a predictor has to fit: a layer's dense network, or its experts.
#[derive(Clone, Copy)]
pub(super) struct Network {
    /// Elements of the rows that it reads.
    pub(super) n_in: usize,
    pub(super) n_ff: usize,
    /// Number of experts.
    pub(super) n_expert: Option<usize>,
}

impl Network {
    pub(super) fn of(config: &ModelConfig, layer: usize) -> Option<Self> {
        match &config.kind(layer).channel {
            Channel::Ffn(shape) => Some(Self {
                n_in: config.n_embd,
                n_ff: shape.n_ff,
                n_expert: None,
            }),
            Channel::Experts(shape) => Some(Self {
                n_in: shape.width(config.n_embd),
                n_ff: shape.n_ff,
                n_expert: Some(shape.n_expert),
            }),
            Channel::None => None,
        }
    }
}

/// The names of a file's tensors.
pub(super) struct Names {
    down: &'static str,
    up: &'static str,
    /// Whether the predictor reads the stream, as PowerInfer's do.
    pub(super) is_of_stream: bool,
}

/// A matrix and its layout.
pub(super) type Matrix<'a> = (TensorInfo<'a>, PanelLayout);

/// The tensors of a layer.
pub(super) struct Tensors<'a> {
    pub(super) down: Option<Matrix<'a>>,
    pub(super) up: Matrix<'a>,
    pub(super) bias: Option<TensorInfo<'a>>,
    /// Of each expert.
    pub(super) thresholds: Option<TensorInfo<'a>>,
    /// Number of experts; 1 for a dense network.
    pub(super) n_networks: usize,
}

impl<'a> Tensors<'a> {
    pub(super) fn matrices(&self) -> impl Iterator<Item = &Matrix<'a>> {
        self.down.iter().chain([&self.up])
    }
}

impl Names {
    pub(super) fn of(gguf: &Gguf<'_>) -> Self {
        match PowerInfer::of(gguf) {
            Some(file) if file.n_predictors > 0 => Self {
                down: "fc1",
                up: "fc2",
                is_of_stream: true,
            },
            _ => Self {
                down: "ffn_pred_down",
                up: "ffn_pred_up",
                is_of_stream: false,
            },
        }
    }

    /// The tensor that every predictor of the first layer has.
    pub(super) fn first(&self) -> Name {
        name(0, self.up, "", "weight")
    }

    /// The tensors of a layer, which must fit it; `None` if it has none.
    pub(super) fn layer<'a>(
        &self,
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        layer: usize,
    ) -> Result<Option<Tensors<'a>>, ModelError> {
        let block = config.block(layer);
        let network = Network::of(config, layer);
        let n_expert = network.and_then(|network| network.n_expert);
        let find = |part, of, kind| gguf.tensor(name(block, part, of, kind).as_str());
        let [own, other] = match n_expert {
            None => ["", EXPERTS],
            Some(_) => [EXPERTS, ""],
        };
        let any = |of| find(self.up, of, "weight").or_else(|| find(self.down, of, "weight"));
        let foreign = any(other).or_else(|| any(own).filter(|_| network.is_none()));
        if let Some(tensor) = foreign {
            return Err(ModelError::NotImplemented {
                what: "a predictor of a network that the layer does not have",
                name: tensor.name.into(),
            });
        }
        let (up, down) = (find(self.up, own, "weight"), find(self.down, own, "weight"));
        let (Some(up), Some(network)) = (up, network) else {
            return down.map_or(Ok(None), |_| {
                let name = name(block, self.up, own, "weight");
                Err(ModelError::MissingTensor { name })
            });
        };
        let rank = match &down {
            // Far below 2^64: the file holds it.
            Some(down) => usize::try_from(down.dims[1]).unwrap_or(usize::MAX),
            None => network.n_in,
        };
        let bias = find(self.up, own, "bias");
        if let Some(bias) = &bias {
            check_floats(bias, [1, n_expert.unwrap_or(1), network.n_ff])?;
        }
        let mut thresholds = None;
        if let Some(n) = n_expert {
            let tensor = find(self.up, own, "threshold");
            let tensor = tensor.ok_or_else(|| ModelError::MissingTensor {
                name: name(block, self.up, own, "threshold"),
            })?;
            check_floats(&tensor, [1, 1, n])?;
            thresholds = Some(tensor);
        }
        let n = n_expert.unwrap_or(1);
        Ok(Some(Tensors {
            up: matrix(up, [n, network.n_ff, rank])?,
            down: match down {
                Some(down) => Some(matrix(down, [n, rank, network.n_in])?),
                None => None,
            },
            bias,
            thresholds,
            n_networks: n,
        }))
    }
}

fn name(block: usize, part: &str, of: &str, kind: &str) -> Name {
    Name::format(format_args!("blk.{block}.{part}{of}.{kind}"))
}

/// Checks a tensor of numbers, of as many (experts, rows, columns).
fn check_floats(tensor: &TensorInfo<'_>, shape: [usize; 3]) -> Result<(), ModelError> {
    check_shape(tensor, shape)?;
    match tensor.ty {
        GgmlType::F32 => Ok(()),
        found => Err(ModelError::TensorType {
            name: tensor.name.into(),
            expected: GgmlType::F32,
            found,
        }),
    }
}

fn check_shape(tensor: &TensorInfo<'_>, shape: [usize; 3]) -> Result<(), ModelError> {
    let expected = shape.map(|n| n as u64);
    let [n_cols, n_rows, n, more] = tensor.dims;
    let found = [n.saturating_mul(more), n_rows, n_cols];
    let name = tensor.name.into();
    match (expected, found) {
        _ if expected == found && !expected.contains(&0) => Ok(()),
        ([1, er, ec], [1, r, c]) => Err(ModelError::TensorShape {
            name,
            expected: [er, ec],
            found: [r, c],
        }),
        _ => Err(ModelError::ExpertShape {
            name,
            expected,
            found,
        }),
    }
}

fn matrix(tensor: TensorInfo<'_>, shape: [usize; 3]) -> Result<Matrix<'_>, ModelError> {
    check_shape(&tensor, shape)?;
    let [_, n_rows, n_cols] = shape;
    match PanelLayout::new(tensor.ty, n_rows, n_cols) {
        Ok(layout) => Ok((tensor, layout)),
        Err(error) => Err(ModelError::Panel {
            name: tensor.name.into(),
            error,
        }),
    }
}

/// The end of the names of experts' tensors.
const EXPERTS: &str = "_exps";
