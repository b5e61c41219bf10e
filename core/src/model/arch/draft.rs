//! A configuration in the making: what most layers are, and what differs from layer to layer.

use super::Keys;
use crate::gguf::{Array, Value, optional};
use crate::model::ModelError;
use crate::model::config::ModelConfig;
use crate::model::kind::{Channel, LayerKind, Mixer};
use crate::model::shape::{Attention, Ffn};

/// A number of the file that may differ from layer to layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum PerLayer<'a> {
    /// The same in all layers.
    Same(usize),
    /// One for each.
    Each(Array<'a>),
}

impl<'a> PerLayer<'a> {
    /// The key, a number or an array of one for each of `n_layer` layers; `default` where it is absent.
    pub(super) fn read(
        keys: &Keys<'_, 'a>,
        key: &str,
        default: Option<usize>,
        n_layer: usize,
    ) -> Result<Self, ModelError> {
        let Some(array) = keys.array(key) else {
            return Ok(Self::Same(match default {
                Some(default) => keys.size_or(key, default)?,
                None => keys.size(key)?,
            }));
        };
        let is_numbers = array.iter().all(|value| value.as_u32().is_some());
        if !is_numbers || array.len() != n_layer as u64 {
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
    /// None.
    Never,
    /// All but the last of every so many; 0 for all.
    Period(usize),
    /// All but the first of every so many; 0 for all.
    DenseFirst(usize),
    /// Those that the file lists, layer by layer.
    Listed(Array<'a>),
}

impl<'a> Pattern<'a> {
    /// `attention.sliding_window_pattern`: a period, whose last layer sees all keys, or a truth value for
    /// each layer.
    pub(super) fn read(
        keys: &Keys<'_, 'a>,
        default_period: usize,
        n_layer: usize,
    ) -> Result<Self, ModelError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let Some(array) = keys.array(PATTERN) else {
            return Ok(Self::Period(keys.size_or(PATTERN, default_period)?));
        };
        let is_bools = array.iter().all(|value| value.as_bool().is_some());
        if !is_bools || array.len() != n_layer as u64 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let len = array.len() as f64;
            return Err(keys.refuse(PATTERN, len, "a truth value for each layer"));
        }
        Ok(Self::Listed(array))
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

/// What a family reads before there are layers.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// Everything outside of layers.
    pub(super) config: ModelConfig,
    pub(super) n_layer: usize,
    /// Attention as most layers have it.
    pub(super) attention: Attention,
    /// The channel as most layers have it.
    pub(super) channel: Channel,
    pub(super) has_post_norms: bool,
    pub(super) n_head: PerLayer<'a>,
    pub(super) n_head_kv: PerLayer<'a>,
    pub(super) n_ff: PerLayer<'a>,
    /// Keys that a query of a layer with a window sees; 0 for all.
    pub(super) window: usize,
    pub(super) windows: Pattern<'a>,
    /// The rotation of layers with a window, where it is another.
    pub(super) window_rope: Option<usize>,
    /// What a layer without KV heads has instead of attention.
    pub(super) instead: Option<Mixer>,
}

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
        }
        let mixer = match self.instead {
            Some(mixer) if attention.n_head_kv == 0 => mixer,
            _ => Mixer::Attention(attention),
        };
        let channel = match self.channel {
            Channel::Ffn(shape) => Channel::Ffn(Ffn {
                n_ff: self.n_ff.of(layer),
                ..shape
            }),
            Channel::Experts(_) => self.channel,
        };
        LayerKind {
            mixer,
            channel,
            has_post_norms: self.has_post_norms,
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
}

/// A number that may be absent.
pub(super) fn optional_size(keys: &Keys<'_, '_>, key: &str) -> Result<Option<usize>, ModelError> {
    Ok(optional(keys.size(key))?)
}
