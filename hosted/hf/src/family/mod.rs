//! Model families: the names of their tensors in both formats, and their metadata.
//!
//! Names and keys are the ones that llama.cpp's converter writes (`conversion/`, `gguf-py/`). A family is a row of
//! [`list`] with its [`Traits`], most of which are tables of tensors ([`rows`]) and keys ([`keys`]).

mod attention;
mod bert;
mod context;
mod decoder;
mod delta;
mod dense;
mod description;
mod encoders;
mod ernie;
mod gemma;
mod gemma4;
mod glm;
mod gpt_oss;
mod granite;
mod hunyuan;
mod keys;
mod labels;
mod latent;
mod lfm2;
mod list;
mod mamba;
mod minicpm;
mod mixers;
mod nomic;
mod plain;
mod pooling;
mod reranker;
mod rope;
mod rows;
mod shape;
mod smallthinker;
mod sparse;
mod tensors;
mod traits;
mod vision;
mod wanted;
mod windows;

pub use context::narrow;
pub use dense::{Dense, read as read_dense};
pub use description::Description;
pub use rope::{Divisors, RotarySettings};
pub use shape::Shape;
pub use tensors::all_tensors;
pub use traits::{VocabularyTraits, Words};
pub use wanted::{Change, Map, Slice, Wanted};

use list::{FAMILIES, known_classes};
use shape::Nextn;
use sluice_core::kernels::words;
use traits::Traits;

use crate::HfError;
use crate::config::{Config, whole};
use crate::unread::short;
use core::fmt;
use serde_json::Value;
use std::path::Path;

type Object = serde_json::Map<String, Value>;

/// One family of models.
pub struct Family {
    /// `architectures` in `config.json`.
    class: &'static str,
    /// `model_type`, used if there are no `architectures`.
    model_type: &'static str,
    pub(crate) kind: Kind,
    /// `general.architecture`.
    pub architecture: &'static str,
    pub(crate) traits: &'static Traits,
    /// If several families share a class, the first one for which this holds is used.
    applies: fn(&Config) -> bool,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family")
            .field("class", &self.class)
            .field("architecture", &self.architecture)
            .finish_non_exhaustive()
    }
}

/// Families that differ in code, not only in their traits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qwen3,
    Gemma2,
    Gemma3,
    Bert,
    /// BERT with positions that start after the padding token's ID.
    Roberta,
    /// A family that its traits describe completely.
    Table,
}

impl Family {
    /// The family of the model that `config` describes.
    ///
    /// # Errors
    /// [`HfError::UnknownArchitecture`].
    pub fn of(config: &Config, path: &Path) -> Result<&'static Self, HfError> {
        let classes = config.find(&["architectures"]).and_then(Value::as_array);
        let class = classes.and_then(|list| list.first()?.as_str());
        let model_type = config.str("model_type");
        let found = FAMILIES.iter().find(|family| {
            let is_named = match class {
                Some(class) => family.class == class,
                None => Some(family.model_type) == model_type,
            };
            is_named && (family.applies)(config)
        });
        found.ok_or_else(|| HfError::UnknownArchitecture {
            path: path.into(),
            name: class.or(model_type).unwrap_or_default().into(),
            known: known_classes(),
        })
    }

    /// All families that share this GGUF architecture, in list order.
    pub(crate) fn of_architecture(name: &str) -> impl Iterator<Item = &'static Self> {
        FAMILIES
            .iter()
            .filter(move |family| family.architecture == name)
    }

    /// Whether rows of Q and K are reordered, from halves side by side (Hugging Face's rotary
    /// embedding) to pairs (llama.cpp's "norm" kind).
    const fn permutes(&self) -> bool {
        self.traits.is_llama
    }

    /// The name of the token embedding, without the prefix of the text model.
    #[must_use]
    pub fn embedding(&self) -> Option<String> {
        let row = self.traits.globals.iter().find(|row| row.is("token_embd"));
        row.map(rows::Row::weight)
    }

    /// Whether its models compute embeddings of texts.
    #[must_use]
    pub(crate) const fn is_encoder(&self) -> bool {
        self.traits.is_encoder
    }

    /// Whether llama.cpp converts it with its Llama class.
    #[must_use]
    pub const fn is_llama(&self) -> bool {
        self.traits.is_llama
    }

    /// Whether its folders may have matrices after the pooling ([`read_dense`]).
    #[must_use]
    pub fn has_dense(&self) -> bool {
        let mut head = self.traits.head.iter();
        head.any(rows::Row::is_dense)
    }

    /// Whether all experts of a layer are in one tensor.
    fn stacks_experts(&self) -> bool {
        let mut blocks = self.traits.blocks.iter();
        blocks.all(|block| block.experts.is_none())
    }

    /// Whether a model of this family may be a reranker that answers yes or no.
    #[must_use]
    pub fn may_rerank(&self) -> bool {
        self.kind == Kind::Qwen3
    }

    /// How its vocabulary differs from what its files say.
    #[must_use]
    pub const fn vocabulary(&self) -> &VocabularyTraits {
        &self.traits.vocabulary
    }

    /// The configuration of the text model, which multimodal models nest inside another, with the defaults of its class.
    /// The outer settings for tokens and weights apply too.
    ///
    /// # Errors
    /// [`HfError::Config`]: the family is never a part of another model.
    pub fn text_config(&self, whole: Config) -> Result<Config, HfError> {
        let mut text = match whole.map().get("text_config") {
            Some(Value::Object(text)) => text.clone(),
            _ => return self.completed(&whole, whole.map().clone()),
        };
        if !self.traits.is_wrapped {
            let what = format!("is not supported in {}", self.class);
            return Err(whole.error(&["text_config"], &what));
        }
        for (key, value) in whole.map() {
            let counts = key.ends_with("_token_id") || OUTER_KEYS.contains(&key.as_str());
            // One of the two is enough; the weights show whether there is another output matrix.
            let is_tied = key == "tie_word_embeddings" && value == &Value::Bool(true);
            if counts && (is_tied || !text.contains_key(key)) {
                text.insert(key.clone(), value.clone());
            }
        }
        self.completed(&whole, text)
    }

    /// A configuration in the spelling of published files, with the defaults of the class for its absent keys.
    fn completed(&self, whole: &Config, mut config: Object) -> Result<Config, HfError> {
        (self.traits.respell)(&mut config)
            .map_err(|error| whole.error(&[error.key], &error.what))?;
        let defaults = serde_json::from_str::<Object>(self.traits.defaults);
        for (key, value) in defaults.expect("traits hold JSON") {
            // Both are names of one setting.
            let is_given = key == "rope_parameters" && config.contains_key("rope_scaling");
            if !is_given {
                config.entry(key).or_insert(value);
            }
        }
        Ok(Config::new(whole.path(), config))
    }

    /// A tensor's name without the prefix of the text model or the encoder; `None` for tensors of other parts.
    #[must_use]
    pub fn plain_name(&self, name: &str, n_layer: u32) -> Option<String> {
        let name = &(self.traits.rename)(name)?;
        let inner = name.strip_prefix("model.").unwrap_or(name);
        let mut others = self.traits.other_parts.iter();
        if others.any(|part| inner.starts_with(part)) {
            return None;
        }
        match self.traits.nextn {
            Nextn::Mtp if inner.starts_with("mtp.") => return mtp_name(inner, n_layer),
            Nextn::Halves if inner.starts_with("mtp.") => return half_name(inner, n_layer),
            Nextn::Dropped if is_behind(inner, n_layer) => return None,
            _ => {}
        }
        if !self.traits.is_wrapped {
            // Models without a head are published without the prefix.
            let is_inner = ["layers.", "embed_tokens.", "norm."];
            let is_bare = is_inner.iter().any(|start| name.starts_with(start));
            return Some(match is_bare && self.traits.layers == "model.layers." {
                true => format!("model.{name}"),
                false => name.into(),
            });
        }
        if WRAPPED_PARTS.iter().any(|part| inner.starts_with(part)) {
            return None;
        }
        // transformers has used two prefixes.
        let newer = name.strip_prefix("model.language_model.");
        let newer = newer.map(|rest| format!("model.{rest}"));
        let older = name.strip_prefix("language_model.").map(str::to_owned);
        Some(newer.or(older).unwrap_or_else(|| name.into()))
    }

    /// Refuses `config.json` values that the engine does not support.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn check(&self, config: &Config) -> Result<(), HfError> {
        self.check_activation(config)?;
        check_quantization(config)?;
        for means in self.traits.means {
            let given = config.find(&[means.key]);
            let is_due = given.map_or(means.may_be_absent, |value| means.value.is(value));
            if !is_due {
                let told = given.map_or_else(|| "missing".into(), short);
                let (architecture, due) = (self.architecture, means.value);
                let what = format!("is {told}, but {architecture} in GGUF implies {due}");
                return Err(config.error(&[means.key], &what));
            }
        }
        Ok(())
    }

    fn check_activation(&self, config: &Config) -> Result<(), HfError> {
        // The key, or its older name.
        let keys: &[&str] = match self.kind {
            Kind::Gemma2 | Kind::Gemma3 => &["hidden_activation"],
            _ => keys::HIDDEN_ACT,
        };
        let known = self.traits.activations;
        let Some(value) = config.find(keys) else {
            return Ok(());
        };
        if value.as_str().is_some_and(|name| known.contains(&name)) {
            return Ok(());
        }
        let what = format!(
            "is {value}, but {} in GGUF computes {}",
            self.architecture, known[0]
        );
        Err(config.error(keys, &what))
    }
}

/// Whether a tensor belongs to a layer after the model's own.
fn is_behind(inner: &str, n_layer: u32) -> bool {
    let rest = inner.strip_prefix("layers.");
    let number = rest.and_then(|rest| rest.split('.').next()?.parse().ok());
    number.is_some_and(|layer: u32| layer >= n_layer)
}

/// Renames a tensor of a separate MTP block as if the block were a layer after the others.
fn mtp_name(inner: &str, n_layer: u32) -> Option<String> {
    let rest = inner.strip_prefix("mtp.")?;
    if let Some(rest) = rest.strip_prefix("layers.") {
        let (number, rest) = rest.split_once('.')?;
        let layer = n_layer.checked_add(number.parse().ok()?)?;
        return Some(format!("model.layers.{layer}.{rest}"));
    }
    let (module, end) = rest.split_once('.')?;
    let module = match module {
        "fc" => "eh_proj",
        "pre_fc_norm_embedding" => "enorm",
        "pre_fc_norm_hidden" => "hnorm",
        "norm" => "shared_head.norm",
        other => other,
    };
    Some(format!("model.layers.{n_layer}.{module}.{end}"))
}

/// Renames a tensor of either half of an MTP block as if both were one layer after the others.
fn half_name(inner: &str, n_layer: u32) -> Option<String> {
    let (half, rest) = inner.strip_prefix("mtp.layers.")?.split_once('.')?;
    let rest = match (half, rest) {
        ("1", "norm.weight") => "post_attention_layernorm.weight",
        ("1", "final_layernorm.weight") => "shared_head.norm.weight",
        (_, rest) => rest,
    };
    Some(format!("backbone.layers.{n_layer}.{rest}"))
}

/// Settings of a multimodal model that its text model shares.
const OUTER_KEYS: [&str; 3] = words("tie_word_embeddings quantization_config vision_config");

/// The parts of a multimodal model other than the text model.
const WRAPPED_PARTS: [&str; 7] = words(
    "mm_projector. vision_tower. multi_modal_projector. visual. audio_tower. embed_vision. \
     embed_audio.",
);

/// Refuses quantised weights in an unsupported format.
fn check_quantization(config: &Config) -> Result<(), HfError> {
    let about = config.part("quantization_config");
    if about.is_empty() {
        return Ok(());
    }
    let method = about.str("quant_method").unwrap_or("unknown");
    let format = about.str("format").unwrap_or_default();
    let is_float = ["float-quantized", "naive-quantized"].contains(&format);
    match method {
        "fp8" | "fbgemm_fp8" | "mxfp4" => Ok(()),
        "compressed-tensors" if is_float => Ok(()),
        _ => {
            let format = if format.is_empty() {
                String::new()
            } else {
                format!(" ({format})")
            };
            let what = format!(
                "is {method:?}{format}: of quantized weights, only FP8 with scales and MXFP4 can be converted; use \
                 the unquantized model"
            );
            Err(about.error(&["quant_method"], &what))
        }
    }
}

/// Rows and columns of a block of 8-bit weights, if the configuration gives them.
///
/// # Errors
/// [`HfError::Config`].
pub fn scale_block(config: &Config) -> Result<Option<[u64; 2]>, HfError> {
    let about = config.part("quantization_config");
    let Some(value) = about.find(&["weight_block_size"]) else {
        return Ok(None);
    };
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    match list
        .iter()
        .map(whole)
        .collect::<Option<Vec<_>>>()
        .as_deref()
    {
        Some([rows, columns]) if *rows > 0 && *columns > 0 => Ok(Some([*rows, *columns])),
        _ => Err(about.error(&["weight_block_size"], "is not a pair of numbers above 0")),
    }
}
