//! A configuration under construction: the defaults of its layers, and what differs from layer to layer.

use super::Keys;
use crate::gguf::{Array, Value, optional};
use crate::model::ModelError;
use crate::model::config::{LAYERS_MAX, ModelConfig};
use crate::model::kind::{Channel, LayerKind, Mixer};
use crate::model::shape::{Attention, Experts, Ffn, QkNorm};

/// A number in the file that may differ from layer to layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum PerLayer<'a> {
    /// One value for all layers.
    Same(usize),
    /// One value per layer.
    Each(Array<'a>),
}

impl<'a> PerLayer<'a> {
    /// Reads the key: a number, or an array with one for each of `n_block` blocks; `default` if it is absent.
    pub(super) fn read(
        keys: &Keys<'_, 'a>,
        key: &str,
        default: Option<usize>,
        n_block: usize,
    ) -> Result<Self, ModelError> {
        let Some(array) = keys.array(key) else {
            return Ok(Self::Same(match default {
                Some(default) => keys.size_or(key, default)?,
                None => keys.size(key)?,
            }));
        };
        let is_numbers = array.iter().all(|value| value.as_u32().is_some());
        if !is_numbers || array.len() != n_block as u64 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let len = array.len() as f64;
            return Err(keys.refuse(key, len, "a number for each layer"));
        }
        Ok(Self::Each(array))
    }

    pub(super) fn of(&self, layer: usize) -> usize {
        match self {
            Self::Same(n) => *n,
            Self::Each(array) => array
                .get(layer as u64)
                .and_then(Value::as_u32)
                .map_or(0, |n| n as usize),
        }
    }
}

/// Which layers have a sliding window.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern<'a> {
    /// No layer.
    Never,
    /// All but the last of every N layers; 0 for all.
    Period(usize),
    /// All but the first of every N layers; 0 for all.
    DenseFirst(usize),
    /// The layers that the file lists.
    Listed(Array<'a>),
}

impl<'a> Pattern<'a> {
    /// `attention.sliding_window_pattern`: a period, whose last layer sees all keys, or a boolean for
    /// each of `n_block` blocks.
    pub(super) fn read(
        keys: &Keys<'_, 'a>,
        default_period: usize,
        n_block: usize,
    ) -> Result<Self, ModelError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        match Self::listed(keys, PATTERN, n_block)? {
            Some(listed) => Ok(listed),
            None => Ok(Self::Period(keys.size_or(PATTERN, default_period)?)),
        }
    }

    /// A boolean for each layer; `None` if the key is absent or not an array.
    pub(super) fn listed(
        keys: &Keys<'_, 'a>,
        key: &str,
        n_block: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(array) = keys.array(key) else {
            return Ok(None);
        };
        let is_bools = array.iter().all(|value| value.as_bool().is_some());
        if !is_bools || array.len() != n_block as u64 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let len = array.len() as f64;
            return Err(keys.refuse(key, len, "a truth value for each layer"));
        }
        Ok(Some(Self::Listed(array)))
    }

    fn has(&self, layer: usize) -> bool {
        match self {
            Self::Never => false,
            Self::Period(0) | Self::DenseFirst(0) => true,
            Self::Period(n) => layer % n < n - 1,
            Self::DenseFirst(n) => !layer.is_multiple_of(*n),
            Self::Listed(array) => {
                let value = array.get(layer as u64);
                value.and_then(Value::as_bool).unwrap_or(false)
            }
        }
    }
}

/// Which layers rotate queries and keys.
#[derive(Clone, Copy, Debug)]
pub(super) enum RopeLayers<'a> {
    All,
    /// The layers with a window.
    Windowed,
    /// All but the last of every N layers.
    AllButEvery(usize),
    /// All but the first of every N layers.
    AllButFirst(usize),
    /// The layers that the file lists.
    Listed(Array<'a>),
    /// No layer.
    Never,
}

impl<'a> RopeLayers<'a> {
    /// `attention.rope_pattern`, a boolean for each of `n_block` blocks; all layers if it is absent.
    pub(super) fn read(keys: &Keys<'_, 'a>, n_block: usize) -> Result<Self, ModelError> {
        const PATTERN: &str = "attention.rope_pattern";
        let Some(array) = keys.array(PATTERN) else {
            return Ok(Self::All);
        };
        if !array.iter().all(|value| truth(value).is_some()) || array.len() != n_block as u64 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let len = array.len() as f64;
            return Err(keys.refuse(PATTERN, len, "a truth value for each layer"));
        }
        Ok(Self::Listed(array))
    }
}

/// A boolean, or a number that stands for one.
fn truth(value: Value<'_>) -> Option<bool> {
    value.as_bool().or(value.as_i64().map(|number| number != 0))
}

/// Which layers have experts, in a model with experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertLayers {
    /// The number of leading layers without experts: `leading_dense_block_count`.
    pub(super) n_leading: usize,
    /// Of the other layers, the last of every N has experts: `interleave_moe_layer_step`.
    pub(super) step: usize,
}

impl ExpertLayers {
    pub(super) const ALL: Self = Self {
        n_leading: 0,
        step: 1,
    };

    const fn has(&self, layer: usize) -> bool {
        layer >= self.n_leading && (layer + 1).is_multiple_of(self.step)
    }
}

/// What a family reads before its layers are built.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// Everything outside of the layers.
    pub(super) config: ModelConfig,
    pub(super) n_layer: usize,
    /// Layers, including the blocks after them that predict further tokens (`nextn_predict_layers`).
    pub(super) n_block: usize,
    /// The default attention.
    pub(super) attention: Attention,
    /// The feed-forward network of layers without experts.
    pub(super) ffn: Ffn,
    pub(super) experts: Option<Experts>,
    pub(super) expert_layers: ExpertLayers,
    pub(super) has_post_norms: bool,
    pub(super) is_parallel: bool,
    pub(super) has_output_scale: bool,
    pub(super) has_second_norm: bool,
    /// The layers that use their keys as values.
    pub(super) values_from_keys: [bool; LAYERS_MAX],
    /// The number of last layers that read the keys and values of the last preceding layer of their kind.
    pub(super) n_shared: usize,
    /// Head dimensions in layers with a window, if they differ.
    pub(super) window_head_dim: Option<usize>,
    pub(super) n_head: PerLayer<'a>,
    pub(super) n_head_kv: PerLayer<'a>,
    pub(super) n_ff: PerLayer<'a>,
    /// Keys that a query sees in a layer with a window; 0 for all.
    pub(super) window: usize,
    pub(super) windows: Pattern<'a>,
    /// The rotation of layers with a window, if it differs.
    pub(super) window_rope: Option<usize>,
    pub(super) rope_layers: RopeLayers<'a>,
    /// The mixer of layers without KV heads, in place of attention.
    pub(super) instead: Option<Mixer>,
    /// Further layers with that mixer.
    pub(super) recurrent: Pattern<'a>,
    /// Whether a layer is a mixer or a channel alone: it is a channel if it has neurons.
    pub(super) is_mixer_or_channel: bool,
}

impl<'a> Draft<'a> {
    /// Gives layers the file's window: those that it lists, or all of them. Without a window nothing changes.
    pub(super) fn read_windows(&mut self, keys: &Keys<'_, 'a>) -> Result<(), ModelError> {
        self.window = keys.size_or("attention.sliding_window", 0)?;
        self.windows = Pattern::read(keys, 0, self.n_block)?;
        Ok(())
    }
}

/// The keys of [`Draft::read_windows`].
pub(super) const WINDOW_KEYS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
];

impl Draft<'_> {
    /// The kind of a layer.
    fn kind(&self, layer: usize) -> LayerKind {
        let mut attention = Attention {
            n_head: self.n_head.of(layer),
            n_head_kv: self.n_head_kv.of(layer),
            ..self.attention
        };
        if self.window > 0 && self.windows.has(layer) {
            attention.window = Some(self.window);
            attention.rope = self.window_rope.or(attention.rope);
            if let Some(head_dim) = self.window_head_dim {
                (attention.head_dim_k, attention.head_dim_v) = (head_dim, head_dim);
            }
        }
        attention.keys_of = self.keys_of(layer);
        attention.values_from_keys = self.values_from_keys[layer] && attention.keys_of.is_none();
        let is_turned = match self.rope_layers {
            RopeLayers::All => true,
            RopeLayers::Windowed => attention.window.is_some(),
            RopeLayers::AllButEvery(n) => !(layer + 1).is_multiple_of(n),
            RopeLayers::AllButFirst(n) => !layer.is_multiple_of(n),
            RopeLayers::Listed(array) => {
                let value = array.get(layer as u64);
                value.and_then(truth).unwrap_or(false)
            }
            RopeLayers::Never => false,
        };
        if !is_turned {
            attention.rope = None;
        }
        let mixer = match self.instead {
            Some(mixer) if attention.n_head_kv == 0 || self.is_recurrent(layer) => mixer,
            _ => Mixer::Attention(attention),
        };
        let is_channel = self.n_ff.of(layer) > 0;
        let mixer = match self.is_mixer_or_channel && is_channel {
            true => Mixer::None,
            false => mixer,
        };
        let channel = match self.experts {
            _ if self.is_mixer_or_channel && !is_channel => Channel::None,
            Some(experts) if self.expert_layers.has(layer) => Channel::Experts(experts),
            _ => Channel::Ffn(Ffn {
                n_ff: self.n_ff.of(layer),
                ..self.ffn
            }),
        };
        LayerKind {
            mixer,
            channel,
            has_post_norms: self.has_post_norms,
            is_parallel: self.is_parallel,
            n_embd_layer: self.config.n_embd_layer,
            has_output_scale: self.has_output_scale,
            has_second_norm: self.has_second_norm,
        }
    }

    /// Whether a layer has the replacement for attention. Blocks that predict further tokens never have it.
    fn is_recurrent(&self, layer: usize) -> bool {
        layer < self.n_layer && self.recurrent.has(layer)
    }

    /// The layer whose keys and values are read, if it is another one.
    fn keys_of(&self, layer: usize) -> Option<usize> {
        let first = self.n_layer.saturating_sub(self.n_shared);
        let has_window = |layer: usize| self.window > 0 && self.windows.has(layer);
        let is_alike = |other: &usize| has_window(*other) == has_window(layer);
        (first..self.n_layer)
            .contains(&layer)
            .then(|| (0..first).rev().find(is_alike))?
    }

    /// Drops the norms of queries and keys if the file has none.
    pub(super) fn qk_norm_if_there(&mut self, keys: &Keys<'_, '_>) {
        if keys.gguf().tensor("blk.0.attn_q_norm.weight").is_none() {
            self.attention.qk_norm = QkNorm::None;
        }
    }

    /// The configuration with its layers.
    pub(super) fn finish(mut self) -> Result<ModelConfig, ModelError> {
        for layer in 0..self.n_layer {
            let kind = self.kind(layer);
            self.config.push_layer(kind)?;
        }
        Ok(self.config)
    }

    /// The configuration with only that block of the file.
    pub(super) fn finish_block(mut self, block: usize) -> Result<ModelConfig, ModelError> {
        let kind = self.kind(block);
        self.config.push_layer(kind)?;
        Ok(self.config)
    }
}

/// A number that may be absent.
pub(super) fn optional_size(keys: &Keys<'_, '_>, key: &str) -> Result<Option<usize>, ModelError> {
    Ok(optional(keys.size(key))?)
}
