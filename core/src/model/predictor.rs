//! Predictors: small matrices that tell from what a feed-forward network reads which of its neurons will be active.
//!
//! A layer's scores are `up · (down · x) + bias`, or `up · x` without a down; neurons whose score is above the
//! layer's threshold are computed. They come from files of their own, `MODEL.sparse.gguf`, or are part of PowerInfer's
//! model files: there x is the residual stream without a norm, and a ReLU stands between the two matrices.
//!
//! Each expert of a mixture has its own, or none: matrices of a layer's experts are stacked, as the model's are. An expert
//! whose threshold is [`DENSE`] is computed whole.

mod tensors;

use super::arch::PowerInfer;
use super::config::ModelConfig;
use super::error::ModelError;
use super::refs::{MatrixRef, VectorRef, floats};
use super::weight::Weight;
use crate::gguf::source::TensorSource;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::activation::ActivationKinds;
use crate::kernels::bytes::{Pod, cast};
use crate::memory::{ALIGN, Arena, MemoryPlan};
use core::fmt;
use tensors::{Matrix, Names, Network, Tensors};

/// The key of the threshold of each layer's scores, in files of predictors.
pub const THRESHOLDS: &str = "predictor.thresholds";
/// The threshold of an expert without a predictor.
pub const DENSE: f32 = f32::MIN;

/// What an engine needs to have room for a predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictorLimits {
    /// Maximum rows of the first of its two matrices.
    pub rank: usize,
    /// The kinds of activations that its matrices read; empty for no predictor.
    pub kinds: ActivationKinds,
    /// Whether experts have some.
    pub has_experts: bool,
}

impl PredictorLimits {
    /// No predictor.
    pub const NONE: Self = Self {
        rank: 0,
        kinds: ActivationKinds::empty(),
        has_experts: false,
    };

    /// Whether there is a predictor.
    pub const fn is_some(&self) -> bool {
        !self.kinds.is_empty()
    }
}

/// How much memory a predictor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictorPlan {
    /// Bytes of memory, aligned to [`ALIGN`].
    pub memory_bytes: usize,
    /// The room that engines need for it.
    pub limits: PredictorLimits,
    /// Layers that have one; the others are computed whole.
    pub n_layer: usize,
    weight_bytes: usize,
    row_bytes: usize,
}

/// A layer's matrices, as plain numbers: a table of these is stored in the caller's memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct LayerRef {
    down: MatrixRef,
    up: MatrixRef,
    /// The bits of an f32.
    threshold: usize,
    /// A threshold for each expert.
    thresholds: VectorRef,
}

const _: () = assert!(size_of::<LayerRef>() == 25 * size_of::<usize>());
// SAFETY: repr(C) of `usize` alone, without padding by the assertion above.
unsafe impl Pod for LayerRef {}

/// A predictor in the caller's memory. Immutable; every worker reads it.
#[derive(Clone)]
pub struct Predictor<'p> {
    layers: &'p [LayerRef],
    memory: &'p [u8],
    limits: PredictorLimits,
    is_of_stream: bool,
}

/// Two are equal that are in the same memory.
impl PartialEq for Predictor<'_> {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.layers, other.layers)
    }
}

/// A layer's predictor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerPredictor<'p> {
    /// (rank, n_embd); `None` where `up` reads the row itself.
    pub(crate) down: Option<Weight<'p>>,
    /// (n_ff, rank)
    pub(crate) up: Weight<'p>,
    /// Neurons with scores above it are computed.
    pub(crate) threshold: f32,
}

impl fmt::Debug for Predictor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl PredictorPlan {
    /// Sizes for the predictor in `gguf` of the model `config`: a file of predictors, or a model file of PowerInfer.
    ///
    /// # Errors
    /// A tensor that does not fit the model, by name; a file without predictors.
    pub fn new(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        let mut plan = Self {
            memory_bytes: 0,
            limits: PredictorLimits::NONE,
            n_layer: 0,
            weight_bytes: 0,
            row_bytes: 0,
        };
        let names = Names::of(gguf);
        for layer in 0..config.n_layer() {
            let Some(tensors) = names.layer(gguf, config, layer)? else {
                continue;
            };
            plan.n_layer += 1;
            plan.limits.has_experts |= tensors.thresholds.is_some();
            for (_, layout) in tensors.matrices() {
                plan.add(tensors.n_networks * layout.bytes());
                plan.row_bytes = plan.row_bytes.max(layout.gguf_row_bytes());
                plan.limits.kinds |= ActivationKinds::for_weights(layout.ty());
            }
            if let Some((_, down)) = tensors.down {
                plan.limits.rank = plan.limits.rank.max(down.n_rows());
            }
            if tensors.bias.is_some() {
                plan.add(4 * tensors.n_networks * tensors.up.1.n_rows());
            }
            if tensors.thresholds.is_some() {
                plan.add(4 * tensors.n_networks);
            }
        }
        if plan.n_layer == 0 {
            let name = names.first();
            return Err(ModelError::MissingTensor { name });
        }
        let mut memory = MemoryPlan::new();
        memory.slice::<LayerRef>(config.n_layer())?;
        memory.slice::<u8>(plan.weight_bytes)?;
        memory.slice::<u8>(plan.row_bytes)?;
        plan.memory_bytes = memory.bytes();
        Ok(plan)
    }

    /// Makes room for `bytes`, after what is there. Sums of tensors that a file holds stay far below the address space.
    const fn add(&mut self, bytes: usize) {
        self.weight_bytes += bytes.next_multiple_of(ALIGN);
    }
}

impl<'p> Predictor<'p> {
    /// Reads the predictor of the model `config` from a file into memory as large as [`PredictorPlan`] says, zeroed and
    /// aligned to [`ALIGN`].
    ///
    /// # Errors
    /// As [`PredictorPlan::new`]; weights and thresholds that are not finite; memory that is misaligned or too small.
    pub fn load(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        source: &dyn TensorSource,
        memory: &'p mut [u8],
    ) -> Result<Self, ModelError> {
        let plan = PredictorPlan::new(gguf, config)?;
        let names = Names::of(gguf);
        let mut arena = Arena::new(memory)?;
        let layers = arena.slice(config.n_layer(), LayerRef::EMPTY)?;
        let weights = arena.bytes(plan.weight_bytes)?;
        let row = arena.bytes(plan.row_bytes)?;
        let mut end = 0;
        for (layer, place) in layers.iter_mut().enumerate() {
            let Some(tensors) = names.layer(gguf, config, layer)? else {
                continue;
            };
            let mut reader = Reader {
                source,
                weights,
                row,
                end,
            };
            *place = reader.layer(&tensors)?;
            if tensors.thresholds.is_none() {
                let threshold = threshold(gguf, names.is_of_stream, layer)?;
                place.threshold = threshold.to_bits() as usize;
            }
            end = reader.end;
        }
        Ok(Self {
            layers,
            memory: weights,
            limits: plan.limits,
            is_of_stream: names.is_of_stream,
        })
    }

    /// The room that engines need for it.
    pub const fn limits(&self) -> PredictorLimits {
        self.limits
    }

    /// Whether a layer has one; the others are computed whole.
    pub fn has_layer(&self, layer: usize) -> bool {
        self.layers
            .get(layer)
            .is_some_and(|layer| layer.up.is_there())
    }

    /// Whether it reads the stream before the network's norm, with a ReLU between its matrices, as PowerInfer's do.
    pub(crate) const fn is_of_stream(&self) -> bool {
        self.is_of_stream
    }

    /// Rows of the first matrix of a layer's predictors; 0 without such a matrix.
    pub(crate) fn rank(&self, layer: usize) -> usize {
        match &self.layers[layer].down {
            down if down.is_there() => down.layout().n_rows(),
            _ => 0,
        }
    }

    /// Rows of a strip of work in the matrices of a layer that has a predictor.
    pub(crate) fn strip_rows(&self, layer: usize) -> usize {
        self.layers[layer].up.layout().strip_rows()
    }

    /// The predictor of a layer's dense network, if it has one.
    pub(crate) fn layer(&self, layer: usize) -> Option<LayerPredictor<'p>> {
        self.network(layer, 0)
    }

    /// The predictor of a layer's dense network, or of an expert, if it has one.
    pub(crate) fn network(&self, layer: usize, expert: u32) -> Option<LayerPredictor<'p>> {
        let layer = self.layers.get(layer).filter(|layer| layer.up.is_there())?;
        let expert = expert as usize;
        let matrix = |matrix: &MatrixRef| matrix.of_expert(expert).weight(self.memory);
        let threshold = match floats(self.memory, &layer.thresholds) {
            #[expect(clippy::cast_possible_truncation, reason = "made from 32 bits")]
            [] => f32::from_bits(layer.threshold as u32),
            thresholds => thresholds[expert],
        };
        (threshold > DENSE).then(|| LayerPredictor {
            down: layer.down.is_there().then(|| matrix(&layer.down)),
            up: matrix(&layer.up),
            threshold,
        })
    }

    /// Whether its matrices are as wide as a model's.
    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        let fits = |(index, layer): (usize, &LayerRef)| {
            let is_whole = !layer.up.is_there();
            let first = match layer.down.is_there() {
                true => layer.down,
                false => layer.up,
            };
            is_whole
                || Network::of(config, index).is_some_and(|network| {
                    let n_expert = network.n_expert.unwrap_or(0);
                    network.n_ff == layer.up.layout().n_rows()
                        && network.n_in == first.layout().n_cols()
                        && n_expert == layer.thresholds.len
                })
        };
        self.layers.len() == config.n_layer() && self.layers.iter().enumerate().all(fits)
    }
}

impl LayerRef {
    const EMPTY: Self = Self {
        down: MatrixRef::EMPTY,
        up: MatrixRef::EMPTY,
        threshold: 0,
        thresholds: VectorRef::EMPTY,
    };
}

/// The threshold of a layer's scores.
fn threshold(gguf: &Gguf<'_>, is_of_stream: bool, layer: usize) -> Result<f32, ModelError> {
    let (key, value) = match is_of_stream {
        true => {
            let key = PowerInfer::THRESHOLD;
            (key, gguf.f32(key)?)
        }
        false => {
            let thresholds = gguf.array(THRESHOLDS)?;
            let value = thresholds
                .get(layer as u64)
                .and_then(|value| value.as_f32());
            // A list that is too short is refused like a number that is not one.
            (THRESHOLDS, value.unwrap_or(f32::NAN))
        }
    };
    if value.is_finite() {
        return Ok(value);
    }
    Err(ModelError::Setting {
        key: key.into(),
        value: value.into(),
        expected: "a finite number for each layer",
    })
}

/// Reads tensors into memory, one after the other.
struct Reader<'r> {
    source: &'r dyn TensorSource,
    weights: &'r mut [u8],
    row: &'r mut [u8],
    end: usize,
}

impl Reader<'_> {
    /// The place of the next `len` bytes.
    fn place(&mut self, len: usize) -> usize {
        let start = self.end;
        self.end += len.next_multiple_of(ALIGN);
        start
    }

    fn layer(&mut self, tensors: &Tensors<'_>) -> Result<LayerRef, ModelError> {
        let (n, mut layer) = (tensors.n_networks, LayerRef::EMPTY);
        let bias = match &tensors.bias {
            Some(bias) => Some(self.vector(bias, n * tensors.up.1.n_rows())?),
            None => None,
        };
        layer.up = self.matrices(&tensors.up, n, bias)?;
        if let Some(down) = &tensors.down {
            layer.down = self.matrices(down, n, None)?;
        }
        if let Some(thresholds) = &tensors.thresholds {
            layer.thresholds = self.vector(thresholds, n)?;
        }
        Ok(layer)
    }

    /// The first of `n` matrices, each of which has the layout.
    fn matrices(
        &mut self,
        (tensor, layout): &Matrix<'_>,
        n: usize,
        bias: Option<VectorRef>,
    ) -> Result<MatrixRef, ModelError> {
        let (bytes, n_rows) = (layout.bytes(), layout.n_rows());
        let first = self.place(n * bytes);
        let row = &mut self.row[..layout.gguf_row_bytes()];
        for index in 0..n * n_rows {
            read(self.source, tensor, (index * row.len()) as u64, row)?;
            let (offset, index) = (first + index / n_rows * bytes, index % n_rows);
            let band = layout.byte_range(layout.band(index));
            let band = &mut self.weights[offset + band.start..offset + band.end];
            layout.pack_row(index, row, band);
        }
        Ok(MatrixRef::new(layout, first, bias).with_stride(bytes))
    }

    fn vector(&mut self, tensor: &TensorInfo<'_>, len: usize) -> Result<VectorRef, ModelError> {
        let offset = self.place(4 * len);
        let bytes = &mut self.weights[offset..][..4 * len];
        read(self.source, tensor, 0, bytes)?;
        match cast::<f32>(bytes).iter().all(|x| x.is_finite()) {
            true => Ok(VectorRef { offset, len }),
            false => Err(ModelError::WeightNotFinite {
                name: tensor.name.into(),
            }),
        }
    }
}

fn read(
    source: &dyn TensorSource,
    tensor: &TensorInfo<'_>,
    at: u64,
    into: &mut [u8],
) -> Result<(), ModelError> {
    let result = source.read(tensor.offset + at, into);
    result.map_err(|error| ModelError::Source {
        name: tensor.name.into(),
        error,
    })
}
