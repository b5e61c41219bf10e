//! How much memory a model takes, and which tensors of its file it uses.

use super::arch::{PowerInfer, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT, ROPE_FREQS};
use super::config::ModelConfig;
use super::error::ModelError;
use super::frequencies::frequencies_len;
use super::head::Head;
use super::job::{Job, chunk_bytes};
use super::place::{Placer, Residency, Tables, Target, check_size};
use super::site::Site;
use super::weights::Layer;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::panel::PanelLayout;
use crate::memory::MemoryPlan;
use crate::slc::Slc;

/// How much memory the weights of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Bytes of weights: panels, norms, embedding.
    pub weight_bytes: usize,
    /// Bytes of tables in addition to the weights.
    pub table_bytes: usize,
    /// Bytes of scratch memory that each loading thread needs if the source is not
    /// addressable ([`crate::gguf::source::TensorSource::slice`] gives `None`), or if the file stores matrices by columns
    /// ([`super::config::Fusion::down_by_neuron`]).
    pub staging_bytes: usize,
    pub(super) n_jobs: usize,
    pub(super) residency: Residency,
    pub(super) tables: Tables,
}

/// The matrices of a layer's experts at one site: a tensor of the file.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMatrices {
    /// The layer.
    pub layer: usize,
    /// [`Site::FfnGate`], [`Site::FfnUp`] or [`Site::FfnDown`]; `FfnGate` also if gate and up are one tensor.
    pub site: Site,
    /// Index of the tensor in the file.
    pub tensor: usize,
    /// Shape, type and form of each expert's matrix; 2 n_ff rows if gate and up are one tensor.
    pub layout: PanelLayout,
}

impl ModelPlan {
    /// Sizes for the model `config` in `gguf`. Arithmetic on the header; checks that every
    /// tensor is there with the right shape and a type that has kernels.
    ///
    /// # Errors
    /// The first tensor that is missing or does not fit, by name.
    pub fn new(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        Self::with_residency(gguf, config, Residency::All)
    }

    /// Sizes for the model `config` in `gguf`, of the weights that `residency` puts into memory.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_residency(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        residency: Residency,
    ) -> Result<Self, ModelError> {
        Self::with_tables(gguf, config, residency, Tables::Loaded)
    }

    /// Sizes for the model `config` in `gguf`, with tables stored as `tables` says.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_tables(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        residency: Residency,
        tables_lie: Tables,
    ) -> Result<Self, ModelError> {
        check_size(gguf, config)?;
        let mut placer = Placer::new(gguf, config, residency).with_tables(tables_lie);
        let (mut n_jobs, mut staging_bytes) = (0, 0);
        let mut count = |_, tensor: &TensorInfo<'_>, target| {
            n_jobs += 1;
            if !matches!(target, Target::FileRows(_)) {
                staging_bytes = staging_bytes.max(chunk_bytes(tensor, target));
            }
        };
        for i in 0..config.n_layer() {
            placer.layer(config, i, &mut count)?;
        }
        placer.ends(config, &mut count)?;
        let mut tables = MemoryPlan::new();
        tables.slice::<Layer>(config.n_layer())?;
        tables.slice::<Job>(n_jobs)?;
        tables.slice::<f64>(frequencies_len(config))?;
        Ok(Self {
            weight_bytes: placer.bytes(),
            table_bytes: tables.bytes(),
            staging_bytes,
            n_jobs,
            residency,
            tables: tables_lie,
        })
    }

    /// Calls `told` with every matrix of experts of the layers, in the order of layers.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn experts(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        told: impl FnMut(ExpertMatrices),
    ) -> Result<(), ModelError> {
        check_size(gguf, config)?;
        Self::experts_of(Placer::new(gguf, config, Residency::All), config, told)
    }

    /// [`Self::experts`] of a `.slc` file, in the forms that their matrices have there.
    ///
    /// # Errors
    /// As [`Self::new`]; a tensor that is laid out differently from what the engine reads.
    pub fn experts_in_place(
        slc: &Slc<'_>,
        config: &ModelConfig,
        told: impl FnMut(ExpertMatrices),
    ) -> Result<(), ModelError> {
        check_size(slc.gguf(), config)?;
        let placer = Placer::in_place(slc, config, Residency::All);
        Self::experts_of(placer, config, told)
    }

    fn experts_of<'a>(
        mut placer: Placer<'_, 'a>,
        config: &ModelConfig,
        mut told: impl FnMut(ExpertMatrices),
    ) -> Result<(), ModelError> {
        for layer in 0..config.n_layer() {
            let mut placed = |tensor, _: &TensorInfo<'a>, target| {
                if let Target::OneOf(matrix, 0, Some(site)) = target {
                    told(ExpertMatrices {
                        layer,
                        site,
                        tensor,
                        layout: matrix.layout(),
                    });
                }
            };
            placer.layer(config, layer, &mut placed)?;
        }
        Ok(())
    }

    /// Calls `told` with the file index of every table that is looked up row by row.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn row_tables(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        mut told: impl FnMut(usize),
    ) -> Result<(), ModelError> {
        check_size(gguf, config)?;
        let mut placer = Placer::new(gguf, config, Residency::All).with_tables(Tables::InFile);
        let mut placed = |index, _: &TensorInfo<'_>, target| {
            if let Target::FileRows(_) = target {
                told(index);
            }
        };
        placer.ends(config, &mut placed).map(drop)
    }

    /// Calls `used` with the file index of every tensor that the model, or its head that predicts one more token,
    /// uses, or its predictor of active neurons.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn used_tensors(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        mut used: impl FnMut(usize),
    ) -> Result<(), ModelError> {
        let mut walk = |config: &ModelConfig| {
            check_size(gguf, config)?;
            let mut placer = Placer::new(gguf, config, Residency::All);
            let mut placed = |index, _: &TensorInfo<'_>, _| used(index);
            for i in 0..config.n_layer() {
                placer.layer(config, i, &mut placed)?;
            }
            placer.ends(config, &mut placed)
        };
        walk(config)?;
        // Errors of a head are left to its loader: the model runs without it.
        if let Ok(Some(head)) = ModelConfig::next_token_head(gguf) {
            let _walked = walk(&head);
        }
        let is_factor = |name| [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].contains(&name);
        let others = gguf.tensors().enumerate();
        let others = others.filter(|(_, tensor)| {
            is_factor(tensor.name)
                || PowerInfer::is_of_predictor(tensor.name)
                || Head::has_part(gguf, config, tensor.name)
        });
        others.for_each(|(index, _)| used(index));
        Ok(())
    }

    /// Tables alone: the weights stay in place.
    pub(super) const fn of_tables(table_bytes: usize) -> Self {
        Self {
            weight_bytes: 0,
            table_bytes,
            staging_bytes: 0,
            n_jobs: 0,
            residency: Residency::All,
            tables: Tables::Loaded,
        }
    }
}
