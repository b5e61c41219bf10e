//! What a family says about its tensors and itself, where it differs from Llama.

use super::super::ConvertError;
use super::super::config::Config;
use super::super::unread::Neutral;
use super::keys::{Key, Writes};
use super::mixers::Mixer;
use super::parts::Model;
use super::rows::{Block, Row};
use super::shape::{ExpertSizes, Nextn};
use super::wanted::Wanted;

/// Where a family differs from others. Each has a value for itself, made from [`Traits::LLAMA`] or
/// [`Traits::TABLES`].
pub(in crate::convert) struct Traits {
    /// The tensors before those of layers.
    pub(super) first: fn(&Model<'_>) -> Vec<Wanted>,
    /// Adds the tensors of a layer.
    pub(super) layer: fn(&Model<'_>, layer: u32, all: &mut Vec<Wanted>),
    /// Writes what the family says about itself.
    pub(super) write: Writes,
    /// The norm behind all layers, as both sides name it.
    pub(super) last_norm: [&'static str; 2],
    /// 1 is added to what norms multiply by.
    pub(super) norms_add_one: bool,
    /// The width of feed-forward networks.
    pub(super) n_ff: fn(&Config) -> Result<u32, ConvertError>,
    /// What each of so many layers mixes tokens by; nothing where all attend to all of a text.
    pub(super) mixers: fn(&Config, u32) -> Result<Vec<Mixer>, ConvertError>,
    /// Columns of a head where none are given, of `n_embd` and `n_head`; `None` where that is not written.
    pub(super) head_dim: fn(u32, u32) -> Option<u32>,
    /// A head's columns are its share of the width, and the file does not say them.
    pub(super) hides_head_dim: bool,
    /// The family's own keys say a head's columns.
    pub(super) says_head_dim_itself: bool,
    /// Whether the embedding is the output matrix where nothing is said.
    pub(super) is_tied: bool,
    /// All experts of a layer are in one tensor.
    pub(super) stacks_experts: bool,
    /// The base of rotary embeddings where none is given; 0 where nothing rotates.
    pub(in crate::convert) rope_base: f64,
    /// A text model by llama.cpp's class for Llama: queries and keys are in pairs, and a few keys and quirks of
    /// vocabularies follow.
    pub(in crate::convert) is_llama: bool,
    /// A tensor of divisors of rotary frequencies is read.
    pub(in crate::convert) has_rope_factors: bool,
    /// config.json may say a second base, of layers with a window.
    pub(in crate::convert) has_window_rope: bool,
    /// The base of layers with a window is said, also where config.json says one for all.
    pub(in crate::convert) says_window_base: bool,
    /// Windows are in the file, so that the context need not be cut to them.
    pub(super) has_windows: bool,
    pub(in crate::convert) is_encoder: bool,
    /// The text model may be a part of one with more kinds of input.
    pub(super) is_wrapped: bool,
    pub(super) experts: ExpertSizes,
    /// Queries, keys and values have biases though config.json does not say so.
    pub(super) has_qkv_bias: bool,
    /// Scaling of kind `dynamic` is Hunyuan's, which changes the base by one number.
    pub(in crate::convert) has_alpha_rope: bool,
    /// tokenizer_config.json's `add_prefix_space` is written.
    pub(in crate::convert) has_space_flag: bool,
    /// Scaling of kind `proportional`: a share of a head's columns turns, each as fast as if all did.
    pub(in crate::convert) has_share_rope: bool,
    pub(in crate::convert) vocabulary: Words,
    /// What is true of the vocabulary unless its files say otherwise.
    pub(in crate::convert) tokenizer_flags: &'static [(&'static str, bool)],
    /// A head behind the pooling.
    pub(super) head: &'static [Row],
    /// Folders of sentence-transformers may have matrices behind the pooling.
    pub(in crate::convert) has_dense: bool,
    /// A tensor's name without what wraps the encoder; none for heads of other tasks.
    pub(super) rename: fn(&str) -> Option<String>,
    /// Beginnings of names of tensors that are not of the text model.
    pub(super) other_parts: &'static [&'static str],
    /// Tables of tensors: of the model, before a layer's number, of layers.
    pub(super) globals: &'static [Row],
    pub(super) layers: &'static str,
    pub(super) blocks: &'static [Block],
    /// The family's own keys, after those that all have.
    pub(super) keys: &'static [Key],
    /// Sizes that only the family has, and what they are where config.json does not say.
    pub(super) sizes: &'static [(&'static str, Option<u32>)],
    /// Values that keys of config.json must have: the engine computes as if they had.
    pub(super) means: &'static [Means],
    /// What the feed-forward network may compute, by config.json's names.
    pub(super) activations: &'static [&'static str],
    /// Special tokens whose roles no file says: (role, text).
    pub(in crate::convert) roles: &'static [(&'static str, &'static str)],
    /// A key of config.json that says the token at the end of a text, whatever others say.
    pub(in crate::convert) end_key: Option<&'static str>,
    /// What says how many blocks behind the model's layers guess further tokens.
    pub(in crate::convert) nextn: Nextn,
    /// config.json may say how many columns turn by each of several positions.
    pub(in crate::convert) has_sections: bool,
}

/// What is particular about a family's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::convert) enum Words {
    /// Nothing.
    AsTheyAre,
    /// Phi-3's converter reads added tokens its own way.
    Phi3,
    /// Words of characters with their merges: a model of its own name.
    Gemma4,
}

/// The one value of a key that an architecture in a GGUF file has.
pub(super) struct Means {
    pub(super) key: &'static str,
    pub(super) value: Neutral,
    /// Whether config.json may leave it out.
    pub(super) may_be_absent: bool,
}

/// A key that has this value, also where config.json leaves it out.
pub(super) const fn means(key: &'static str, value: Neutral) -> Means {
    Means {
        key,
        value,
        may_be_absent: true,
    }
}

/// A key that has this value, and another where config.json leaves it out.
pub(super) const fn must_say(key: &'static str, value: Neutral) -> Means {
    Means {
        key,
        value,
        may_be_absent: false,
    }
}
