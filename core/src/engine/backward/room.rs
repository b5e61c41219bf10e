//! The memory of backward passes.

use super::error::BackwardError;
use super::matrix::{Kept, Matrix};
use crate::engine::scratch::{Count, PerWorker, Room};
use crate::kernels::KvType;
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::{Attention, Channel, Mixer, ModelConfig, QkNorm};

/// Rows that are multiplied with the output layer at once: logits take this many times the vocabulary.
pub(super) const CHUNK: usize = 256;
/// Queries that are multiplied with the keys of a text at once.
pub(super) const QUERIES: usize = 64;
/// Rows and columns of weights that are dequantised at once: the group of sums.
pub(super) const TILE: usize = crate::kernels::contract::GROUP;

/// The numbers that gradients of layers' inputs are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientType {
    /// Gradients and weights are rounded to bf16 before they are multiplied.
    Bf16,
    /// They are multiplied as they are.
    F32,
}

/// Limits of backward passes, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardLimits {
    /// Maximum tokens of a pass.
    pub n_tokens: usize,
    /// Maximum tokens of a text.
    pub n_text: usize,
    /// Largest rank of a pair.
    pub rank: usize,
    /// Workers that run a pass.
    pub n_workers: usize,
    /// Layers whose products are kept from the forward pass: all, or 1.
    pub n_kept: usize,
    /// How gradients of layers' inputs are computed.
    pub gradients: GradientType,
    /// Element type of keys in the engine's KV cache: f32, f16 or bf16.
    pub type_k: KvType,
    /// Element type of values in the engine's KV cache: f32, f16 or bf16.
    pub type_v: KvType,
}

/// Memory that backward passes need, to be aligned to [`crate::memory::ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardPlan {
    /// Bytes in all.
    pub bytes: usize,
    /// Bytes of them for the products of a layer that are kept, for each layer of [`BackwardLimits::n_kept`].
    pub layer_bytes: usize,
}

impl BackwardPlan {
    /// Refuses a model with a part that has no backward pass, by name.
    ///
    /// # Errors
    /// [`BackwardError::Unsupported`], the first such part.
    pub fn check(config: &ModelConfig) -> Result<(), BackwardError> {
        check(config)
    }

    /// Pure arithmetic on the model's shape and the limits.
    ///
    /// # Errors
    /// A part of the model without a backward pass; a limit out of range; sizes beyond the address space.
    pub fn new(config: &ModelConfig, limits: &BackwardLimits) -> Result<Self, BackwardError> {
        check(config)?;
        limits.check(config)?;
        let bytes = |limits: &BackwardLimits| {
            let mut count = Count::default();
            Rooms::new(config, limits, &mut count)?;
            Ok::<_, MemoryError>(count.bytes())
        };
        let all = bytes(limits)?;
        let more = BackwardLimits {
            n_kept: limits.n_kept + 1,
            ..*limits
        };
        Ok(Self {
            bytes: all,
            layer_bytes: bytes(&more)? - all,
        })
    }
}

impl BackwardLimits {
    fn check(&self, config: &ModelConfig) -> Result<(), BackwardError> {
        const N_MAX: usize = 1 << 24;
        let is_whole = |kept: usize| kept == 1 || kept == config.n_layer();
        let of = |name, value, is_sound: bool| match is_sound {
            true => Ok(()),
            false => Err(BackwardError::Limit { name, value }),
        };
        let within = |value: usize, max| (1..=max).contains(&value);
        of("n_tokens", self.n_tokens, within(self.n_tokens, N_MAX))?;
        of("n_text", self.n_text, within(self.n_text, self.n_tokens))?;
        of("rank", self.rank, within(self.rank, 4096))?;
        let n_workers = self.n_workers;
        of(
            "n_workers",
            n_workers,
            within(n_workers, crate::team::WORKERS_MAX),
        )?;
        of("n_kept", self.n_kept, is_whole(self.n_kept))?;
        of("type_k", self.type_k as usize, !self.type_k.is_coarse())?;
        of("type_v", self.type_v as usize, !self.type_v.is_coarse())
    }
}

/// Refuses what has no backward pass, by name.
fn check(config: &ModelConfig) -> Result<(), BackwardError> {
    let of_model = [
        (!config.is_causal, "attention to later tokens"),
        (config.norms_replace_stream, "norms that replace the stream"),
        (config.n_embd_layer > 0, "embeddings of its own"),
        (
            config.next_token.is_some(),
            "the input of a head that predicts a token further",
        ),
    ];
    for layer in 0..config.n_layer() {
        let kind = config.kind(layer);
        let attention = match &kind.mixer {
            Mixer::Attention(shape) => unsupported(shape),
            Mixer::ShortConv(_) => Some("a short convolution"),
            Mixer::DeltaNet(_) => Some("a delta net"),
            Mixer::Mamba2(_) => Some("Mamba 2"),
            Mixer::None => Some("no mixer"),
        };
        let channel = match &kind.channel {
            Channel::Ffn(_) => None,
            Channel::Experts(_) => Some("experts"),
            Channel::None => Some("no feed-forward network"),
        };
        let of_kind = [
            (kind.is_parallel, "attention in parallel with its network"),
            (kind.has_second_norm, "a second norm"),
            (kind.n_embd_layer > 0, "an embedding of its own"),
        ];
        let flags = of_model.into_iter().chain(of_kind);
        let first = flags
            .filter(|(is_there, _)| *is_there)
            .map(|(_, part)| part);
        if let Some(part) = first.chain(attention).chain(channel).next() {
            return Err(BackwardError::Unsupported { layer, part });
        }
    }
    Ok(())
}

fn unsupported(shape: &Attention) -> Option<&'static str> {
    let parts = [
        (shape.latent.is_some(), "latent attention"),
        (shape.has_gate, "gated attention heads"),
        (shape.keys_of.is_some(), "keys of another layer"),
        (shape.values_from_keys, "values that are its keys"),
        (shape.norms_values, "norms of values"),
        (shape.max_alibi_bias > 0.0, "slopes of distances (ALiBi)"),
        (
            shape.norms_rotated && shape.qk_norm != QkNorm::None,
            "norms after the rotation",
        ),
    ];
    parts
        .into_iter()
        .find(|(is_there, _)| *is_there)
        .map(|(_, part)| part)
}

/// The widest of each of a layer's rows.
pub(super) struct Widths {
    query: usize,
    key: usize,
    value: usize,
    mixed: usize,
    n_ff: usize,
    head: usize,
    has_post_norms: bool,
}

impl Widths {
    fn new(config: &ModelConfig) -> Self {
        let most = |of: fn(&Attention) -> usize| config.attentions().map(of).max().unwrap_or(0);
        Self {
            query: most(Attention::n_query),
            key: most(Attention::n_key),
            value: most(Attention::n_value),
            mixed: most(Attention::n_mixed),
            n_ff: config
                .kinds
                .iter()
                .map(|kind| kind.n_ff())
                .max()
                .unwrap_or(0),
            head: most(|shape| shape.head_dim_k.max(shape.head_dim_v)),
            has_post_norms: config.kinds.iter().any(|kind| kind.has_post_norms),
        }
    }
}

/// All buffers.
#[derive(Debug)]
pub(super) struct Rooms<'m> {
    /// Inputs of layers, and the last one's output: (n_layer + 1, n_tokens, n_embd).
    pub(super) streams: Matrix<'m>,
    /// The gradient of the stream.
    pub(super) d: Matrix<'m>,
    pub(super) kept: Kept<'m>,
    /// The stream between mixer and channel, norms, and their gradients.
    pub(super) middle: Matrix<'m>,
    pub(super) normed: Matrix<'m>,
    pub(super) d_normed: Matrix<'m>,
    pub(super) d_branch: Matrix<'m>,
    pub(super) neurons: Matrix<'m>,
    pub(super) d_neurons: Matrix<'m>,
    pub(super) d_gate: Matrix<'m>,
    pub(super) d_up: Matrix<'m>,
    /// Queries, keys and values as attention reads them, and gradients.
    pub(super) q: Matrix<'m>,
    pub(super) k: Matrix<'m>,
    pub(super) v: Matrix<'m>,
    pub(super) d_q: Matrix<'m>,
    pub(super) d_k: Matrix<'m>,
    pub(super) d_v: Matrix<'m>,
    pub(super) d_mixed: Matrix<'m>,
    pub(super) linear: LinearRoom<'m>,
    pub(super) head: HeadRoom<'m>,
    pub(super) attention: AttentionRoom<'m>,
    /// A worker's own row, as long as the longest.
    pub(super) rows: PerWorker<'m, f32>,
}

/// Room for gradients of a linear layer.
#[derive(Debug)]
pub(super) struct LinearRoom<'m> {
    /// The outputs' gradients, column after column: f32, or pairs of bf16.
    pub(super) columns: Shared<'m, f32>,
    pub(super) pairs: Shared<'m, u32>,
    /// The inputs' gradients, column after column.
    pub(super) inputs: Shared<'m, f32>,
    /// `scale · A x`, `scale · dy B`, (n_tokens, rank), and the latter column after column.
    pub(super) down: Shared<'m, f32>,
    pub(super) up: Shared<'m, f32>,
    pub(super) up_columns: Shared<'m, f32>,
    /// A worker's own tile of weights.
    pub(super) tile: PerWorker<'m, f32>,
    pub(super) tile_pairs: PerWorker<'m, u32>,
}

/// Room for the output layer.
#[derive(Debug)]
pub(super) struct HeadRoom<'m> {
    /// Rows of a chunk as the output layer reads them.
    pub(super) rows: Shared<'m, u8>,
    pub(super) layout: ActivationLayout,
    pub(super) logits: Matrix<'m>,
    pub(super) d: Matrix<'m>,
    /// Numbers of the rows with labels, and their labels.
    pub(super) labelled: Shared<'m, u32>,
    pub(super) labels: Shared<'m, u32>,
    /// Of each labelled row, and whether the label was the most likely token.
    pub(super) losses: Shared<'m, f64>,
    pub(super) hits: Shared<'m, u32>,
}

/// A worker's own room for attention.
#[derive(Debug)]
pub(super) struct AttentionRoom<'m> {
    /// Keys and values of a head, dimension after dimension.
    pub(super) k: PerWorker<'m, f32>,
    pub(super) v: PerWorker<'m, f32>,
    /// Weights and their gradients of some queries, ([`QUERIES`], n_text + 1).
    pub(super) p: PerWorker<'m, f32>,
    pub(super) d: PerWorker<'m, f32>,
    /// Capped scores, where there is a cap.
    pub(super) capped: PerWorker<'m, f32>,
    pub(super) angles: PerWorker<'m, f32>,
}

impl<'m> Rooms<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &BackwardLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (n, n_embd, widths) = (limits.n_tokens, config.n_embd, Widths::new(config));
        let streams = (config.n_layer() + 1).checked_mul(n);
        let kept = limits.n_kept.checked_mul(n).ok_or(MemoryError::TooLarge)?;
        let longest = n_embd.max(widths.n_ff).max(widths.query).max(widths.mixed);
        let post = if widths.has_post_norms { n_embd } else { 0 };
        // With a cap, a row of logits is kept while it becomes a gradient.
        let own = match config.logit_soft_cap > 0.0 {
            true => longest.max(config.n_vocab),
            false => longest,
        };
        let mut rows = |n: usize, width: usize| Matrix::new(n, width, room);
        Ok(Self {
            streams: rows(streams.ok_or(MemoryError::TooLarge)?, n_embd)?,
            d: rows(n, n_embd)?,
            kept: Kept {
                q: rows(kept, widths.query)?,
                k: rows(kept, widths.key)?,
                v: rows(kept, widths.value)?,
                mixed: rows(kept, widths.mixed)?,
                mixer: rows(kept, n_embd)?,
                gate: rows(kept, widths.n_ff)?,
                up: rows(kept, widths.n_ff)?,
                down: rows(kept, post)?,
            },
            middle: rows(n, n_embd)?,
            normed: rows(n, n_embd)?,
            d_normed: rows(n, n_embd)?,
            d_branch: rows(n, n_embd)?,
            neurons: rows(n, widths.n_ff)?,
            d_neurons: rows(n, widths.n_ff)?,
            d_gate: rows(n, widths.n_ff)?,
            d_up: rows(n, widths.n_ff)?,
            q: rows(n, widths.query)?,
            k: rows(n, widths.key)?,
            v: rows(n, widths.value)?,
            d_q: rows(n, widths.query)?,
            d_k: rows(n, widths.key)?,
            d_v: rows(n, widths.value)?,
            d_mixed: rows(n, widths.mixed)?,
            linear: LinearRoom::new(config, limits, longest, room)?,
            head: HeadRoom::new(config, limits, room)?,
            attention: AttentionRoom::new(config, limits, &widths, room)?,
            rows: room.of_workers(limits.n_workers, own)?,
        })
    }
}

impl<'m> LinearRoom<'m> {
    fn new(
        config: &ModelConfig,
        limits: &BackwardLimits,
        longest: usize,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (n, n_workers) = (limits.n_tokens, limits.n_workers);
        let of_head = config.n_vocab.checked_mul(CHUNK.min(n));
        let of_layer = longest.checked_mul(n).ok_or(MemoryError::TooLarge)?;
        let elements = of_head.ok_or(MemoryError::TooLarge)?.max(of_layer);
        let tile = TILE * TILE;
        let (floats, pairs) = match limits.gradients {
            GradientType::F32 => (elements, 0),
            // An odd number of rows ends with half a pair.
            GradientType::Bf16 => (0, elements / 2 + n.max(CHUNK)),
        };
        Ok(Self {
            columns: room.buffer(1, floats)?,
            pairs: room.buffer(1, pairs)?,
            inputs: room.buffer(n, longest)?,
            down: room.buffer(n, limits.rank)?,
            up: room.buffer(n, limits.rank)?,
            up_columns: room.buffer(n, limits.rank)?,
            tile: room.of_workers(n_workers, tile)?,
            tile_pairs: room.of_workers(n_workers, if pairs == 0 { 0 } else { tile / 2 })?,
        })
    }
}

impl<'m> HeadRoom<'m> {
    fn new(
        config: &ModelConfig,
        limits: &BackwardLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (n, n_embd) = (CHUNK.min(limits.n_tokens), config.n_embd);
        let layout = ActivationLayout::new(n_embd, config.output_activations);
        Ok(Self {
            rows: room.buffer(n, layout.row_bytes())?,
            layout,
            logits: Matrix::new(n, config.n_vocab, room)?,
            d: Matrix::new(n, n_embd, room)?,
            labelled: room.buffer(1, limits.n_tokens)?,
            labels: room.buffer(1, limits.n_tokens)?,
            losses: room.buffer(1, limits.n_tokens)?,
            hits: room.buffer(1, limits.n_tokens)?,
        })
    }
}

impl<'m> AttentionRoom<'m> {
    fn new(
        config: &ModelConfig,
        limits: &BackwardLimits,
        widths: &Widths,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (n_workers, n) = (limits.n_workers, limits.n_text);
        let head = widths.head.checked_mul(n).ok_or(MemoryError::TooLarge)?;
        let weights = QUERIES.checked_mul(n + 1).ok_or(MemoryError::TooLarge)?;
        let angles = config.ropes.iter().map(|rope| rope.n_rot).max();
        let is_capped = config.attentions().any(|shape| shape.soft_cap > 0.0);
        Ok(Self {
            k: room.of_workers(n_workers, head)?,
            v: room.of_workers(n_workers, head)?,
            p: room.of_workers(n_workers, weights)?,
            d: room.of_workers(n_workers, weights)?,
            capped: room.of_workers(n_workers, if is_capped { weights } else { 0 })?,
            angles: room.of_workers(n_workers, angles.unwrap_or(0))?,
        })
    }
}
