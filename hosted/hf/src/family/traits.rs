//! How a family's tensors and metadata differ from Llama's.

use super::Object;
use super::description::Description;
use super::keys::{self, Key};
use super::mixers::{self, Mixer};
use super::rope::RopeTraits;
use super::rows::{self, Block, Row};
use super::shape::{ExpertSizes, HeadDim, Nextn};
use super::tensors::{self, Model};
use super::wanted::Wanted;
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;

/// How a family differs from others. Each family has a value, based on [`Traits::TABLES`].
pub(crate) struct Traits {
    // Tensors.
    /// A head after the pooling.
    pub(super) head: &'static [Row],
    pub(super) globals: &'static [Row],
    /// The prefix of a layer's number.
    pub(super) layers: &'static str,
    pub(super) blocks: &'static [Block],
    /// Adds the tensors of a layer.
    pub(super) layer: fn(&Model<'_>, layer: u32, all: &mut Vec<Wanted>),
    /// Norms multiply by 1 + weight.
    pub(super) norms_add_one: bool,
    /// A tensor's name without the encoder's prefix; `None` for heads of other tasks.
    pub(super) rename: fn(&str) -> Option<String>,
    /// Prefixes of tensors that are not part of the text model.
    pub(super) other_parts: &'static [&'static str],
    /// The text model may be part of a multimodal model.
    pub(super) is_wrapped: bool,
    /// Where the model keeps its MTP blocks, and how they are counted.
    pub(super) nextn: Nextn,

    // Sizes.
    pub(super) head_dim: HeadDim,
    /// The width of feed-forward networks.
    pub(super) n_ff: fn(&Config) -> Result<u32, HfError>,
    /// Returns each layer's mixer, from the configuration and `n_layer`; empty if all layers attend to the whole text.
    pub(super) mixers: fn(&Config, u32) -> Result<Vec<Mixer>, HfError>,
    /// Whether the output matrix is tied to the embedding by default.
    pub(super) is_tied: bool,
    pub(super) experts: ExpertSizes,
    /// Sizes specific to the family, and their defaults if config.json does not have them.
    pub(super) sizes: &'static [(&'static str, Option<u32>)],

    // Metadata.
    pub(super) is_encoder: bool,
    /// llama.cpp converts the text model with its Llama class: queries and keys are in pairs, and a few keys and
    /// vocabulary quirks follow.
    pub(super) is_llama: bool,
    pub(super) rope: RopeTraits,
    pub(super) vocabulary: VocabularyTraits,
    /// Writes the keys that come first.
    pub(super) write: fn(&mut Description<'_>) -> Result<(), HfError>,
    /// The family's own keys.
    pub(super) keys: &'static [Key],
    /// Turns what transformers 5 saves into the spelling of published files.
    pub(super) respell: fn(&mut Object) -> Result<(), NotSpelled>,
    /// What transformers' class takes for absent keys where the engine takes something else: a JSON object.
    pub(super) defaults: &'static str,
    /// Values that config.json keys must have, because the engine assumes them.
    pub(super) means: &'static [Means],
    /// Accepted activations of the feed-forward network, by config.json's names.
    pub(super) activations: &'static [&'static str],
}

impl Traits {
    /// The traits of most families; each adds its blocks.
    pub(super) const TABLES: Self = Self {
        head: &[],
        globals: rows::GLOBALS,
        layers: "model.layers.",
        blocks: &[],
        layer: tensors::layer,
        norms_add_one: false,
        rename: |name| Some(name.into()),
        other_parts: &[],
        is_wrapped: false,
        nextn: Nextn::Never,
        head_dim: HeadDim::IfGiven,
        n_ff: |config| config.count(&["intermediate_size"]),
        mixers: mixers::listed,
        is_tied: false,
        experts: ExpertSizes::Never,
        sizes: &[],
        is_encoder: false,
        is_llama: false,
        rope: RopeTraits::PLAIN,
        vocabulary: VocabularyTraits::PLAIN,
        write: keys::write,
        keys: &[],
        respell: |_| Ok(()),
        defaults: "{}",
        means: &[],
        activations: &["silu", "swish", "relu", "fatrelu", "drelu"],
    };

    /// [`Traits::TABLES`] for a text model that llama.cpp converts with its Llama class.
    pub(super) const LLAMA_TABLES: Self = Self {
        is_llama: true,
        rope: RopeTraits::DIVIDED,
        ..Self::TABLES
    };
}

/// The activations of families that take SiLU whatever config.json says, or also outside of feed-forward networks.
pub(super) const SILU: &[&str] = &["silu", "swish"];

/// A setting of transformers 5 that published files have no spelling for.
pub(super) struct NotSpelled {
    pub(super) key: &'static str,
    pub(super) what: String,
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

    pub(super) const fn of(words: Words) -> Self {
        Self {
            words,
            ..Self::PLAIN
        }
    }

    pub(super) const fn with_flags(flags: &'static [(&'static str, bool)]) -> Self {
        Self {
            flags,
            ..Self::PLAIN
        }
    }

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
