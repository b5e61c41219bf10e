//! Base values of [`Traits`].

use super::shape::{ExpertSizes, Nextn};
use super::traits::{Traits, VocabularyTraits};
use super::{decoder, keys, mixers, parameters, rows, tables};

impl Traits {
    /// The traits of most families, with Llama's layers.
    pub(super) const LLAMA: Self = Self {
        first: decoder::first,
        layer: decoder::layer,
        write: parameters::write,
        last_norm: ["output_norm.weight", "model.norm.weight"],
        norms_add_one: false,
        n_ff: |config| config.count(&["intermediate_size"]),
        mixers: |_, _| Ok(Vec::new()),
        head_dim: |n_embd, n_head| Some(n_embd / n_head),
        hides_head_dim: false,
        says_head_dim_itself: false,
        is_tied: false,
        stacks_experts: false,
        rope_base: 10_000.0,
        is_llama: false,
        has_rope_factors: false,
        has_window_rope: false,
        says_window_base: false,
        has_windows: false,
        is_encoder: false,
        is_wrapped: false,
        experts: ExpertSizes::Never,
        has_qkv_bias: false,
        has_alpha_rope: false,
        has_share_rope: false,
        vocabulary: VocabularyTraits::PLAIN,
        head: &[],
        has_dense: false,
        rename: |name| Some(name.into()),
        other_parts: &[],
        globals: rows::GLOBALS,
        layers: "model.layers.",
        blocks: &[],
        keys: &[],
        sizes: &[],
        means: &[],
        activations: &["silu", "swish"],
        nextn: Nextn::Never,
        has_sections: false,
    };

    /// The base for a family with tables of tensors and keys.
    pub(super) const TABLES: Self = Self {
        first: tables::first,
        layer: tables::layer,
        write: keys::write,
        mixers: mixers::listed,
        head_dim: |_, _| None,
        ..Self::LLAMA
    };

    /// [`Traits::TABLES`] for a text model that llama.cpp converts with its Llama class.
    pub(super) const LLAMA_TABLES: Self = Self {
        is_llama: true,
        has_rope_factors: true,
        ..Self::TABLES
    };
}
