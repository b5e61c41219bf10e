//! Writing predictors: MODEL.sparse.gguf.

use super::rows::{Rows, narrow};
use super::{PredictorError, PredictorOptions, TrainedLayer, TrainedPredictor};
use crate::convert::encode;
use sluice::file::{GgufHeader, MetaValue, OutputFile};
use sluice::sparse::{PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::panel::{WeightType, dequantize_gguf_row};
use sluice_core::kernels::quantize::Quantizer;
use sluice_core::model::{PREDICTOR_DENSE, PREDICTOR_THRESHOLDS};
use std::borrow::Cow;

/// A matrix as a file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    /// Its type.
    pub(super) ty: GgmlType,
    /// Number of rows.
    pub(super) n_rows: usize,
    /// Elements of a row.
    pub(super) n_cols: usize,
    /// Row after row.
    pub(super) bytes: Vec<u8>,
}

impl Encoded {
    /// A matrix in Q8_0, or in F16 where rows are not whole blocks.
    ///
    /// # Errors
    /// Numbers that are not finite, or too large.
    pub(super) fn new(rows: &Rows) -> Result<Self, PredictorError> {
        let ty = match rows.n_cols.is_multiple_of(32) {
            true => GgmlType::Q8_0,
            false => GgmlType::F16,
        };
        let mut bytes = Vec::new();
        encode(
            Quantizer::detect(),
            ty,
            &rows.values,
            rows.n_cols,
            &mut bytes,
        )
        .map_err(|_| PredictorError::NotFinite)?;
        Ok(Self {
            ty,
            n_rows: rows.n_rows(),
            n_cols: rows.n_cols,
            bytes,
        })
    }

    /// Its values.
    pub(super) fn rows(&self) -> Rows {
        let mut rows = Rows::zeros(self.n_rows, self.n_cols);
        if let Some(ty) = WeightType::from_ggml(self.ty) {
            let row_bytes = self.bytes.len() / self.n_rows.max(1);
            let outs = rows.values.chunks_exact_mut(self.n_cols);
            for (row, out) in self.bytes.chunks_exact(row_bytes).zip(outs) {
                dequantize_gguf_row(ty, row, out);
            }
        }
        rows
    }
}

impl TrainedPredictor {
    /// Writes the file of the model with that fingerprint: the same bytes for the same predictor.
    ///
    /// # Errors
    /// [`PredictorError::Output`]; no network has a predictor.
    pub fn write(
        &self,
        options: &PredictorOptions,
        fingerprint: &str,
        output: OutputFile,
    ) -> Result<(), PredictorError> {
        if self
            .networks
            .iter()
            .all(|network| network.trained.is_none())
        {
            return Err(PredictorError::NoLayer);
        }
        let mut header = GgufHeader::new();
        header.set("general.architecture", PREDICTOR_ARCHITECTURE);
        header.set("general.type", "predictor");
        header.set(PREDICTOR_MODEL, fingerprint);
        header.set("predictor.kind", options.kind.name());
        header.set(
            "predictor.rank",
            u32::try_from(self.rank).unwrap_or(u32::MAX),
        );
        header.set("predictor.recall_target", narrow(options.recall));
        header.set(
            PREDICTOR_THRESHOLDS,
            self.means(|layer| layer.threshold.into()),
        );
        header.set(
            "predictor.recall",
            self.means(|layer| layer.measured.recall),
        );
        header.set(
            "predictor.energy_recall",
            self.means(|layer| layer.measured.energy_recall),
        );
        let selected = self.means(|layer| layer.measured.selected);
        header.set("predictor.selected", selected);
        let errors = self.means(|layer| layer.measured.output_error);
        header.set("predictor.output_error", errors);
        let stacks = (0..self.n_layer).filter_map(|layer| self.stack(layer));
        let stacks: Vec<LayerStack<'_>> = stacks.collect();
        for stack in &stacks {
            stack.describe(&mut header);
        }
        let writer = header.start(output)?;
        let tensors = stacks.iter().flat_map(LayerStack::tensors);
        for (index, bytes) in tensors.enumerate() {
            let mut at = 0;
            for part in bytes {
                writer.write(index, at, &part)?;
                at += part.len() as u64;
            }
        }
        Ok(writer.finish()?)
    }

    /// A value of each layer: of its network, or the mean of its experts'; 1 without a predictor.
    fn means(&self, value: fn(&TrainedLayer) -> f64) -> MetaValue {
        let of_layer = |layer| {
            let trained = self.of_layer(layer).filter_map(|it| it.trained.as_ref());
            let values: Vec<f64> = trained.map(value).collect();
            match values.len() {
                0 => 1.0,
                n => narrow(values.iter().sum::<f64>() / n as f64),
            }
        };
        let values: Vec<f32> = (0..self.n_layer).map(of_layer).collect();
        MetaValue::f32s(&values)
    }

    /// The predictors of a layer, if it has one.
    fn stack(&self, layer: usize) -> Option<LayerStack<'_>> {
        let networks: Vec<_> = self.of_layer(layer).collect();
        let mut trained = networks.iter().filter_map(|it| it.trained.as_ref());
        let first = trained.next()?;
        Some(LayerStack {
            layer,
            first,
            of_experts: networks[0].expert.is_some(),
            networks: networks.iter().map(|it| it.trained.as_ref()).collect(),
        })
    }
}

/// The predictor of a layer's dense network, or the predictors of its experts one after the other.
struct LayerStack<'t> {
    layer: usize,
    of_experts: bool,
    /// The first of those that are there: all are alike.
    first: &'t TrainedLayer,
    networks: Vec<Option<&'t TrainedLayer>>,
}

impl LayerStack<'_> {
    /// Adds its tensors to a header, in the order of [`Self::tensors`].
    fn describe(&self, header: &mut GgufHeader) {
        let i = self.layer;
        let (of, experts) = match self.of_experts {
            false => ("", &[][..]),
            true => ("_exps", &[self.networks.len() as u64][..]),
        };
        let mut add = |name: &str, dims: &[u64], ty| {
            let dims = [dims, experts].concat();
            header.add_tensor(&format!("blk.{i}.ffn_pred_{name}"), &dims, ty);
        };
        let matrices = [
            ("down", self.first.down.as_ref()),
            ("up", Some(&self.first.up)),
        ];
        for (name, matrix) in matrices {
            if let Some(matrix) = matrix {
                let dims = [matrix.n_cols as u64, matrix.n_rows as u64];
                add(&format!("{name}{of}.weight"), &dims, matrix.ty);
            }
        }
        let n_ff = self.first.bias.len() as u64;
        add(&format!("up{of}.bias"), &[n_ff], GgmlType::F32);
        if self.of_experts {
            add(&format!("up{of}.threshold"), &[], GgmlType::F32);
        }
    }

    /// The bytes of its tensors, network by network; zeros for one without a predictor.
    fn tensors(&self) -> Vec<Vec<Cow<'_, [u8]>>> {
        let matrices = |of: fn(&TrainedLayer) -> Option<&Encoded>| {
            let len = of(self.first).map_or(0, |matrix| matrix.bytes.len());
            let each = self.networks.iter().map(move |network| {
                let bytes = network
                    .and_then(of)
                    .map(|matrix| Cow::Borrowed(&*matrix.bytes));
                bytes.unwrap_or_else(|| vec![0; len].into())
            });
            each.collect::<Vec<_>>()
        };
        let n_ff = self.first.bias.len();
        let bias = |network: &Option<&TrainedLayer>| {
            let zeros = vec![0.0; n_ff];
            let values = network.map_or(&zeros, |network| &network.bias);
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            Cow::Owned(bytes)
        };
        let threshold = |network: &Option<&TrainedLayer>| {
            network.map_or(PREDICTOR_DENSE, |network| network.threshold)
        };
        let mut all = Vec::new();
        if self.first.down.is_some() {
            all.push(matrices(|layer| layer.down.as_ref()));
        }
        all.push(matrices(|layer| Some(&layer.up)));
        all.push(self.networks.iter().map(bias).collect());
        if self.of_experts {
            let thresholds = self.networks.iter().map(threshold);
            let bytes: Vec<u8> = thresholds.flat_map(f32::to_le_bytes).collect();
            all.push(vec![bytes.into()]);
        }
        all
    }
}
