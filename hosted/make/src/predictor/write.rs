//! Writing predictors: MODEL.sparse.gguf.

use super::rows::{Rows, narrow};
use super::{PredictorError, PredictorOptions, TrainedLayer, TrainedPredictor};
use crate::convert::encode;
use sluice::file::{GgufHeader, MetaValue, OutputFile};
use sluice::sparse::{PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::panel::{WeightType, dequantize_gguf_row};
use sluice_core::kernels::quantize::Quantizer;
use sluice_core::model::PREDICTOR_THRESHOLDS;

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
    /// [`PredictorError::Output`]; no layer has a predictor.
    pub fn write(
        &self,
        options: &PredictorOptions,
        fingerprint: &str,
        output: OutputFile,
    ) -> Result<(), PredictorError> {
        if self.layers.iter().all(|layer| layer.trained.is_none()) {
            return Err(PredictorError::NoLayer);
        }
        let of = |value: fn(&TrainedLayer) -> f64| -> MetaValue {
            let values: Vec<f32> = self
                .layers
                .iter()
                .map(|layer| narrow(layer.trained.as_ref().map_or(1.0, value)))
                .collect();
            MetaValue::f32s(&values)
        };
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
        header.set(PREDICTOR_THRESHOLDS, of(|layer| layer.threshold.into()));
        header.set("predictor.recall", of(|layer| layer.measured.recall));
        header.set(
            "predictor.energy_recall",
            of(|layer| layer.measured.energy_recall),
        );
        header.set("predictor.selected", of(|layer| layer.measured.selected));
        let errors = of(|layer| layer.measured.output_error);
        header.set("predictor.output_error", errors);
        let mut all: Vec<&[u8]> = Vec::new();
        let biases: Vec<Vec<u8>> = self.layers.iter().map(|layer| layer.bias_bytes()).collect();
        for (i, (layer, bias)) in self.layers.iter().zip(&biases).enumerate() {
            let Some(layer) = &layer.trained else {
                continue;
            };
            let matrices = [
                ("ffn_pred_down", layer.down.as_ref()),
                ("ffn_pred_up", Some(&layer.up)),
            ];
            for (name, matrix) in matrices {
                let Some(matrix) = matrix else {
                    continue;
                };
                let dims = [matrix.n_cols as u64, matrix.n_rows as u64];
                header.add_tensor(&format!("blk.{i}.{name}.weight"), &dims, matrix.ty);
                all.push(&matrix.bytes);
            }
            let name = format!("blk.{i}.ffn_pred_up.bias");
            header.add_tensor(&name, &[layer.bias.len() as u64], GgmlType::F32);
            all.push(bias);
        }
        let writer = header.start(output)?;
        for (index, bytes) in all.into_iter().enumerate() {
            writer.write(index, 0, bytes)?;
        }
        Ok(writer.finish()?)
    }
}
