//! The tensors of a layer: the entries of its family's table that its kind needs.

use super::{Placed, Placer};
use crate::kernels::panel::PANEL_ROWS;
use crate::model::arch::{GATE_UP_EXPS, Tensor, UP_EXPS};
use crate::model::config::ModelConfig;
use crate::model::error::{ModelError, Name};
use crate::model::refs::NormRef;
use crate::model::site::{Site, Vector};
use crate::model::weights::Layer;

impl<'a> Placer<'_, 'a> {
    pub(in crate::model) fn layer(
        &mut self,
        c: &ModelConfig,
        i: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<Layer, ModelError> {
        let (mut layer, block) = (Layer::EMPTY, c.block(i));
        for tensor in c.architecture.family().tensors() {
            match *tensor {
                Tensor::Vector(part, vector) => {
                    let name = Name::format(format_args!("blk.{block}.{part}.weight"));
                    self.vector_of(name, vector, c, i, &mut layer, placed)?;
                }
                Tensor::Named(part, vector) => {
                    let name = Name::format(format_args!("blk.{block}.{part}"));
                    self.vector_of(name, vector, c, i, &mut layer, placed)?;
                }
                Tensor::Matrix(part, parts) => {
                    for (part, parts) in c.fused.instead(parts).unwrap_or(&[(part, parts)]) {
                        let stem = Name::format(format_args!("blk.{block}.{part}"));
                        self.parts(&stem, c, i, parts, &mut layer, placed)?;
                    }
                }
                Tensor::Experts(part, site) => {
                    self.experts(part, site, c, i, &mut layer, placed)?;
                }
                Tensor::Heads(part, site) => {
                    let stem = Name::format(format_args!("blk.{block}.{part}"));
                    let kind = c.kind(i);
                    if let (Some(attention), Some(shape)) =
                        (kind.attention(), site.shape(kind, c.n_embd))
                    {
                        let first =
                            self.stack(&stem, &stem, attention.n_head, None, shape, placed)?;
                        layer.matrices[site as usize] = first;
                    }
                }
                Tensor::LayerNorm(part, norm) | Tensor::LayerNormAfterFirst(part, norm) => {
                    let stem = Name::format(format_args!("blk.{block}.{part}"));
                    let name = Name::format(format_args!("{}.weight", stem.as_str()));
                    let may_lack = i == 0 && matches!(tensor, Tensor::LayerNormAfterFirst(..));
                    if !may_lack || self.gguf.tensor(name.as_str()).is_some() {
                        self.norm_of(&stem, norm, c, i, &mut layer, placed)?;
                    }
                }
                Tensor::OutputNormBefore(first, part, norm) => {
                    let stem = match i {
                        0 => Name::from(first),
                        _ => Name::format(format_args!("blk.{}.{part}", i - 1)),
                    };
                    self.norm_of(&stem, norm, c, i, &mut layer, placed)?;
                }
            }
        }
        if c.kind(i).experts().is_some() {
            for (part, site) in c.architecture.family().beside_experts {
                let stem = Name::format(format_args!("blk.{block}.{part}"));
                self.parts(&stem, c, i, &[*site], &mut layer, placed)?;
            }
        }
        Ok(layer)
    }

    /// The matrices of a layer's experts, if it has any.
    fn experts(
        &mut self,
        part: &str,
        site: Site,
        c: &ModelConfig,
        i: usize,
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let (kind, block) = (c.kind(i), c.block(i));
        let (Some(experts), Some(shape)) = (kind.experts(), site.shape(kind, c.n_embd)) else {
            return Ok(());
        };
        if c.fused.has(site) {
            return match site {
                Site::FfnGate => self.gate_up(block, experts.n_expert, shape, layer, placed),
                _ => Ok(()),
            };
        }
        let stem = Name::format(format_args!("blk.{block}.{part}"));
        let first = self.stack(&stem, &stem, experts.n_expert, Some(site), shape, placed)?;
        layer.matrices[site as usize] = first;
        Ok(())
    }

    /// The gates and ups of experts that are one tensor; `shape` is a gate's.
    fn gate_up(
        &mut self,
        block: usize,
        n_expert: usize,
        [n_ff, n_cols]: [usize; 2],
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let stem = Name::format(format_args!("blk.{block}.{GATE_UP_EXPS}"));
        if !n_ff.is_multiple_of(PANEL_ROWS) {
            return Err(ModelError::PartNotAligned {
                name: Name::format(format_args!("{}.weight", stem.as_str())),
                first_row: n_ff,
            });
        }
        // As llama.cpp names them.
        let factors = Name::format(format_args!("blk.{block}.{UP_EXPS}"));
        let (site, shape) = (Some(Site::FfnGate), [2 * n_ff, n_cols]);
        let both = self.stack(&stem, &factors, n_expert, site, shape, placed)?;
        for (site, first_row) in [(Site::FfnGate, 0), (Site::FfnUp, n_ff)] {
            layer.matrices[site as usize] = both.rows(first_row, n_ff);
        }
        Ok(())
    }

    /// A vector of a layer, if its kind has it.
    fn vector_of(
        &mut self,
        name: Name,
        vector: Vector,
        c: &ModelConfig,
        i: usize,
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let shape = vector.shape(c.kind(i), c.n_embd);
        if shape[0] > 0 {
            layer.vectors[vector as usize] = self.table(name, shape, placed)?;
        }
        Ok(())
    }

    /// A layer norm of a layer, if its kind has it.
    fn norm_of(
        &mut self,
        stem: &Name,
        norm: Vector,
        c: &ModelConfig,
        i: usize,
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let shape = norm.shape(c.kind(i), c.n_embd);
        if shape[0] > 0 {
            let NormRef { weight, kind } = self.layer_norm(stem, shape, placed)?;
            (layer.vectors[norm as usize], layer.norms[norm as usize]) = (weight, kind);
        }
        Ok(())
    }

    /// A tensor whose rows are `parts`, one after the other.
    fn parts(
        &mut self,
        stem: &Name,
        c: &ModelConfig,
        i: usize,
        parts: &[Site],
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let has_experts = c.kind(i).experts().is_some();
        let shape = |part: &Site| match has_experts && part.is_of_experts() {
            // Each expert has its own.
            true => None,
            false => part.shape(c.kind(i), c.n_embd),
        };
        let shapes = || parts.iter().filter_map(shape);
        // A layer of another kind, or one that reads another's keys.
        let Some([_, n_cols]) = shapes().next() else {
            return Ok(());
        };
        let n_rows = shapes().map(|[n_rows, _]| n_rows).sum();
        let is_by_columns = c.fused.down_by_neuron && parts == [Site::FfnDown];
        let whole = self.matrix_by(stem, [n_rows, n_cols], is_by_columns, placed)?;
        let mut first_row = 0usize;
        for part in parts {
            let Some([n_rows, _]) = shape(part) else {
                continue;
            };
            if !first_row.is_multiple_of(PANEL_ROWS) {
                // A panel with rows of two matrices.
                let name = Name::format(format_args!("{}.weight", stem.as_str()));
                return Err(ModelError::PartNotAligned { name, first_row });
            }
            layer.matrices[*part as usize] = whole.rows(first_row, n_rows);
            first_row += n_rows;
        }
        Ok(())
    }
}
