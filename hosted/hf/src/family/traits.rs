//! How a family's tensors and metadata differ from Llama's.

use super::keys::{Key, Writes};
use super::mixers::Mixer;
use super::parts::Model;
use super::rows::{Block, Row};
use super::shape::{ExpertSizes, Nextn};
use super::wanted::Wanted;
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;

/// How a family differs from others. Each family has a value, based on [`Traits::LLAMA`] or [`Traits::TABLES`].
pub(crate) struct Traits {
    /// Returns the tensors before the layers.
    pub(super) first: fn(&Model<'_>) -> Vec<Wanted>,
    /// Adds the tensors of a layer.
    pub(super) layer: fn(&Model<'_>, layer: u32, all: &mut Vec<Wanted>),
    /// Writes the family's metadata.
    pub(super) write: Writes,
    /// The norm after all layers, by its GGUF name and its Hugging Face name.
    pub(super) last_norm: [&'static str; 2],
    /// Norms multiply by 1 + weight.
    pub(super) norms_add_one: bool,
    /// The width of feed-forward networks.
    pub(super) n_ff: fn(&Config) -> Result<u32, HfError>,
    /// Returns each layer's mixer, from the configuration and `n_layer`; empty if all layers attend to the whole text.
    pub(super) mixers: fn(&Config, u32) -> Result<Vec<Mixer>, HfError>,
    /// Default head size, from `n_embd` and `n_head`; `None` if it is not written.
    pub(super) head_dim: fn(u32, u32) -> Option<u32>,
    /// The head size is `n_embd / n_head`, and the file does not state it.
    pub(super) hides_head_dim: bool,
    /// The family's own keys state the head size.
    pub(super) says_head_dim_itself: bool,
    /// Whether the output matrix is tied to the embedding by default.
    pub(super) is_tied: bool,
    /// All experts of a layer are in one tensor.
    pub(super) stacks_experts: bool,
    /// The default base of rotary embeddings; 0 without rotation.
    pub(super) rope_base: f64,
    /// llama.cpp converts the text model with its Llama class: queries and keys are in pairs, and a few keys and
    /// vocabulary quirks follow.
    pub(super) is_llama: bool,
    /// The engine reads a tensor of divisors of rotary frequencies.
    pub(super) has_rope_factors: bool,
    /// config.json may give a second base, for layers with a window.
    pub(super) has_window_rope: bool,
    /// The base of layers with a window is written, even if config.json gives a single base.
    pub(super) says_window_base: bool,
    /// The file describes the windows, so the context need not be limited to them.
    pub(super) has_windows: bool,
    pub(super) is_encoder: bool,
    /// The text model may be part of a multimodal model.
    pub(super) is_wrapped: bool,
    pub(super) experts: ExpertSizes,
    /// Queries, keys and values have biases, although config.json does not mention them.
    pub(super) has_qkv_bias: bool,
    /// Scaling of kind `dynamic` is Hunyuan's: a single number changes the base.
    pub(super) has_alpha_rope: bool,
    /// Scaling of kind `proportional`: a share of a head's columns rotates, at the speed they would have if all did.
    pub(super) has_share_rope: bool,
    pub(super) vocabulary: VocabularyTraits,
    /// A head after the pooling.
    pub(super) head: &'static [Row],
    /// sentence-transformers folders may have matrices after the pooling.
    pub(super) has_dense: bool,
    /// A tensor's name without the encoder's prefix; `None` for heads of other tasks.
    pub(super) rename: fn(&str) -> Option<String>,
    /// Prefixes of tensors that are not part of the text model.
    pub(super) other_parts: &'static [&'static str],
    /// Tables of tensors: the global ones, the prefix of a layer's number, the layers' own.
    pub(super) globals: &'static [Row],
    pub(super) layers: &'static str,
    pub(super) blocks: &'static [Block],
    /// The family's own keys, written after the common ones.
    pub(super) keys: &'static [Key],
    /// Sizes specific to the family, and their defaults if config.json does not have them.
    pub(super) sizes: &'static [(&'static str, Option<u32>)],
    /// Values that config.json keys must have, because the engine assumes them.
    pub(super) means: &'static [Means],
    /// Accepted activations of the feed-forward network, by config.json's names.
    pub(super) activations: &'static [&'static str],
    /// Where the model keeps its MTP blocks, and how they are counted.
    pub(super) nextn: Nextn,
    /// config.json may give the number of columns that rotate by each of several positions.
    pub(super) has_sections: bool,
}

/// How a family's vocabulary differs from what its files say.
#[derive(Clone, Copy, Debug)]
pub struct VocabularyTraits {
    /// The kind of words.
    pub words: Words,
    /// Flags that apply unless the files set them.
    pub flags: &'static [(&'static str, bool)],
    /// tokenizer_config.json's `add_prefix_space` is written.
    pub has_space_flag: bool,
    /// Special tokens whose roles no file gives: (role, text).
    pub roles: &'static [(&'static str, &'static str)],
    /// The config.json key that gives the end-of-text token, overriding other files.
    pub end_key: Option<&'static str>,
}

impl VocabularyTraits {
    /// As the files say.
    pub(super) const PLAIN: Self = Self {
        words: Words::AsTheyAre,
        flags: &[],
        has_space_flag: false,
        roles: &[],
        end_key: None,
    };

    pub(super) const fn with_roles(roles: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            roles,
            ..Self::PLAIN
        }
    }
}

/// Special handling of a family's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// No special handling.
    AsTheyAre,
    /// Phi-3's converter reads added tokens in its own way.
    Phi3,
    /// Character-based words with merges: a tokenizer model with its own name.
    Gemma4,
}

/// The only value of a key that the engine supports for an architecture.
pub(super) struct Means {
    pub(super) key: &'static str,
    pub(super) value: Neutral,
    /// Whether config.json may omit it.
    pub(super) may_be_absent: bool,
}

/// A key with this value, which is also the default if config.json omits it.
pub(super) const fn means(key: &'static str, value: Neutral) -> Means {
    Means {
        key,
        value,
        may_be_absent: true,
    }
}

/// A key with this value, which config.json must state because its default differs.
pub(super) const fn must_say(key: &'static str, value: Neutral) -> Means {
    Means {
        key,
        value,
        may_be_absent: false,
    }
}
