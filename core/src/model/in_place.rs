//! Models whose weights are already panels: `.slc` files, in a memory map or in flash.
#![forbid(unsafe_code)]

use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::frequencies::{fill_frequencies, frequencies_len};
use super::place::{Placer, Residency, Target, check_size};
use super::plan::ModelPlan;
use super::rope::LongRope;
use super::weights::{Layer, ModelWeights};
use crate::gguf::TensorInfo;
use crate::gguf::source::{SliceSource, TensorSource as _};
use crate::kernels::bytes::cast;
use crate::memory::{ALIGN, Arena, MemoryError, MemoryPlan};
use crate::slc::Slc;

impl ModelPlan {
    /// Sizes for the model `config` of a `.slc` file: no weight memory, tables only. Its tensors
    /// are checked by [`ModelWeights::in_place`].
    ///
    /// # Errors
    /// A configuration that is out of range.
    pub fn in_place(slc: &Slc<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        check_size(slc.gguf(), config)?;
        let mut tables = MemoryPlan::new();
        tables.slice::<Layer>(config.n_layer())?;
        tables.slice::<f64>(frequencies_len(config))?;
        Ok(Self::of_tables(tables.bytes()))
    }
}

impl<'w> ModelWeights<'w> {
    /// The model `config` of a `.slc` file. No weights are copied. Apart from norms and biases, which must
    /// be finite, none are read.
    ///
    /// `payloads` are the file's bytes from [`crate::slc::FileHeader::payload_offset`] on,
    /// aligned to [`ALIGN`]; `tables` are as large as [`ModelPlan::in_place`] says and aligned
    /// like them.
    ///
    /// # Errors
    /// A tensor that is missing, does not fit the configuration or is laid out differently from what the engine
    /// reads; memory that is misaligned or too small.
    pub fn in_place(
        slc: &Slc<'_>,
        config: &ModelConfig,
        payloads: &'w [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        if config.next_token.is_some() {
            return Err(ModelError::NeedsTrunk);
        }
        Self::any_in_place(slc, config, Residency::All, payloads, tables)
    }

    /// The model `config` of a `.slc` file without the matrices of its experts, which every step takes from an
    /// [`crate::engine::ExpertSource`]: their bytes among `payloads` are not read.
    ///
    /// # Errors
    /// As [`Self::in_place`].
    pub fn in_place_without_experts(
        slc: &Slc<'_>,
        config: &ModelConfig,
        payloads: &'w [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        if config.next_token.is_some() {
            return Err(ModelError::NeedsTrunk);
        }
        let residency = Residency::WithoutExperts;
        Self::any_in_place(slc, config, residency, payloads, tables)
    }

    /// The head `config` that predicts one more token ([`ModelConfig::next_token_head`]), of `trunk`'s `.slc` file, in
    /// the same payloads. `tables` are as large as [`ModelPlan::in_place`] says for the head.
    ///
    /// # Errors
    /// As [`Self::in_place`]; a model that is not a head, or another trunk ([`ModelError::OtherTrunk`]).
    pub fn head_in_place(
        slc: &Slc<'_>,
        config: &ModelConfig,
        trunk: &Self,
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        Self::any_in_place(slc, config, Residency::All, trunk.memory, tables)?.behind(trunk)
    }

    /// The head `config` without the matrices of its experts, as [`Self::in_place_without_experts`].
    ///
    /// # Errors
    /// As [`Self::head_in_place`].
    pub fn head_in_place_without_experts(
        slc: &Slc<'_>,
        config: &ModelConfig,
        trunk: &Self,
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        let residency = Residency::WithoutExperts;
        Self::any_in_place(slc, config, residency, trunk.memory, tables)?.behind(trunk)
    }

    fn any_in_place(
        slc: &Slc<'_>,
        config: &ModelConfig,
        residency: Residency,
        payloads: &'w [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        check_size(slc.gguf(), config)?;
        if !payloads.as_ptr().addr().is_multiple_of(ALIGN) {
            return Err(MemoryError::Misaligned.into());
        }
        let expected = slc.header().file_len - slc.header().payload_offset();
        if (payloads.len() as u64) < expected {
            let missing_bytes = usize::try_from(expected).map_err(|_| MemoryError::TooLarge)?;
            let missing_bytes = missing_bytes - payloads.len();
            return Err(MemoryError::TooSmall { missing_bytes }.into());
        }
        let mut arena = Arena::new(tables)?;
        let layers = arena.slice(config.n_layer(), Layer::EMPTY)?;
        let frequencies = arena.slice(frequencies_len(config), 0f64)?;
        let mut weights = Weights {
            payloads,
            weight_bytes: 0,
            not_finite: None,
        };
        let mut add = |_, tensor: &TensorInfo<'_>, target| weights.add(tensor, target);
        let mut placer = Placer::in_place(slc, config, residency);
        for (i, layer) in layers.iter_mut().enumerate() {
            *layer = placer.layer(config, i, &mut add)?;
        }
        let ends = placer.ends(config, &mut add)?;
        if let Some(name) = weights.not_finite {
            return Err(ModelError::WeightNotFinite { name });
        }
        let read = |index, tensor: &TensorInfo<'_>, at, bytes: &mut [u8]| {
            let header = slc.tensor_header(index, tensor);
            let start = slc.header().payload_offset();
            // It is a vector, so it is stored raw.
            let offset = header.map_or(0, |header| header.offset - start);
            SliceSource(payloads).read(offset + at, bytes)
        };
        let has_long = fill_frequencies(slc.gguf(), config, read, frequencies)?;
        Ok(Self {
            config: config.clone(),
            layers,
            ends,
            frequencies,
            has_long,
            longrope: LongRope::ByLength,
            memory: payloads,
            output_memory: payloads,
            embedding_memory: payloads,
            rows_memory: payloads,
            weight_bytes: weights.weight_bytes,
            has_experts: residency == Residency::All,
        })
    }
}

/// Collected while tensors are found.
struct Weights<'w> {
    payloads: &'w [u8],
    weight_bytes: usize,
    not_finite: Option<Name>,
}

impl Weights<'_> {
    fn add(&mut self, tensor: &TensorInfo<'_>, target: Target) {
        let (start, len) = target.range();
        let bytes = &self.payloads[start..][..len];
        if let Target::Vector(_) = target
            && cast::<f32>(bytes).iter().any(|x| !x.is_finite())
        {
            self.not_finite.get_or_insert(tensor.name.into());
        }
        self.weight_bytes += len;
    }
}
