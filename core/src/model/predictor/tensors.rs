//! The tensors of predictors in files.

use super::n_ff;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::GgmlType;
use crate::kernels::panel::PanelLayout;
use crate::model::arch::PowerInfer;
use crate::model::config::ModelConfig;
use crate::model::error::{ModelError, Name};

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
        self.tensor(0, self.up, "weight")
    }

    fn tensor(&self, block: usize, part: &str, kind: &str) -> Name {
        Name::format(format_args!("blk.{block}.{part}.{kind}"))
    }

    /// The tensors of a layer, which must fit it; `None` if it has none.
    pub(super) fn layer<'a>(
        &self,
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        layer: usize,
    ) -> Result<Option<Tensors<'a>>, ModelError> {
        let block = config.block(layer);
        let find = |part, kind| {
            let name = self.tensor(block, part, kind);
            gguf.tensor(name.as_str())
        };
        let (up, down) = (find(self.up, "weight"), find(self.down, "weight"));
        let Some(up) = up else {
            return match down {
                None => Ok(None),
                Some(_) => Err(ModelError::MissingTensor {
                    name: self.tensor(block, self.up, "weight"),
                }),
            };
        };
        let name = Name::from(up.name);
        let Some(n_ff) = n_ff(config, layer) else {
            let what = "a predictor of a layer without a dense network";
            return Err(ModelError::NotImplemented { what, name });
        };
        let rank = match &down {
            // Far below 2^64: the file holds it.
            Some(down) => usize::try_from(down.n_rows()).unwrap_or(usize::MAX),
            None => config.n_embd,
        };
        let bias = find(self.up, "bias");
        if let Some(bias) = &bias {
            check_shape(bias, 1, n_ff)?;
            if bias.ty != GgmlType::F32 {
                return Err(ModelError::TensorType {
                    name: bias.name.into(),
                    expected: GgmlType::F32,
                    found: bias.ty,
                });
            }
        }
        Ok(Some(Tensors {
            up: matrix(up, n_ff, rank)?,
            down: match down {
                Some(down) => Some(matrix(down, rank, config.n_embd)?),
                None => None,
            },
            bias,
        }))
    }
}

fn check_shape(tensor: &TensorInfo<'_>, n_rows: usize, n_cols: usize) -> Result<(), ModelError> {
    let (expected, found) = (
        [n_rows as u64, n_cols as u64],
        [tensor.n_rows(), tensor.dims[0]],
    );
    match expected == found && n_rows > 0 {
        true => Ok(()),
        false => Err(ModelError::TensorShape {
            name: tensor.name.into(),
            expected,
            found,
        }),
    }
}

fn matrix<'a>(
    tensor: TensorInfo<'a>,
    n_rows: usize,
    n_cols: usize,
) -> Result<Matrix<'a>, ModelError> {
    check_shape(&tensor, n_rows, n_cols)?;
    match PanelLayout::new(tensor.ty, n_rows, n_cols) {
        Ok(layout) => Ok((tensor, layout)),
        Err(error) => Err(ModelError::Panel {
            name: tensor.name.into(),
            error,
        }),
    }
}
