//! The sizes of a model, from `config.json`.

use super::super::ConvertError;
use super::super::config::Config;
use super::{Family, Kind};
use serde_json::Value;

/// The sizes of a model, from `config.json`.
#[derive(Clone, Debug)]
pub(in crate::convert) struct Shape {
    pub(in crate::convert) n_layer: u32,
    pub(in crate::convert) n_embd: u32,
    pub(in crate::convert) n_head: u32,
    pub(in crate::convert) n_head_kv: u32,
    /// Columns of a head; `head_dim` where it is given, a head's share of `n_embd` otherwise.
    pub(in crate::convert) head_dim: u32,
    /// Whether the head's size is written: given, or implied by the family.
    pub(super) says_head_dim: bool,
    pub(super) n_ff: u32,
    /// Columns of an expert.
    pub(super) n_ff_exp: Option<u32>,
    pub(super) n_expert: Option<u32>,
    pub(in crate::convert) n_vocab: u32,
    /// Whether the embedding is the output matrix too.
    pub(in crate::convert) is_tied: bool,
    pub(super) has_attention_bias: bool,
    pub(super) has_mlp_bias: bool,
    /// Layers that convolve instead of attending; all false where none does.
    pub(super) is_conv: Vec<bool>,
    /// Taps of a convolution.
    pub(super) n_taps: u32,
    /// Of encoders: rows of the position embeddings, how many of them are skipped, token types.
    pub(super) positions: [u32; 3],
}

/// How many experts a layer has, and their width.
fn experts(
    family: &Family,
    config: &Config,
    n_ff: u32,
) -> Result<(Option<u32>, Option<u32>), ConvertError> {
    if !family.has_experts() {
        return Ok((None, None));
    }
    let n_expert = config.count(&["num_local_experts", "num_experts"])?;
    let n_ff_exp = match family.kind {
        Kind::Qwen3Moe => config.count(&["moe_intermediate_size"])?,
        _ => n_ff,
    };
    Ok((Some(n_expert), Some(n_ff_exp)))
}

impl Shape {
    pub(in crate::convert) fn read(family: &Family, config: &Config) -> Result<Self, ConvertError> {
        let is_gemma3 = family.kind == Kind::Gemma3;
        // Gemma 3's published text_config leaves out what are defaults in transformers.
        let count = |key: &str, default: u32| match config.maybe_count(&[key])? {
            None if is_gemma3 => Ok(default),
            None => Err(config.error(&[key], "is missing")),
            Some(n) => Ok(n),
        };
        let n_layer = config.count(&["num_hidden_layers"])?;
        let n_embd = config.count(&["hidden_size"])?;
        let n_head = count("num_attention_heads", 8)?;
        let n_head_kv = config.maybe_count(&["num_key_value_heads"])?;
        let n_head_kv = n_head_kv.unwrap_or(if is_gemma3 { 4 } else { n_head });
        let given = config.maybe_count(&["head_dim"])?;
        let traits = family.traits();
        let implied = (traits.head_dim)(n_embd, n_head);
        let head_dim = given.or(implied).unwrap_or(n_embd / n_head);
        let says_head_dim = given.or(implied).is_some() && family.kind != Kind::Phi3;
        if head_dim == 0 || (family.permutes() && !head_dim.is_multiple_of(2)) {
            let what = format!("gives heads of {head_dim} columns, which cannot be rotated");
            return Err(config.error(&["head_dim", "num_attention_heads"], &what));
        }
        if !n_head.is_multiple_of(n_head_kv) {
            let what = format!("is {n_head_kv}, which does not divide the {n_head} heads");
            return Err(config.error(&["num_key_value_heads"], &what));
        }
        let n_ff = (traits.n_ff)(config)?;
        let (n_expert, n_ff_exp) = experts(family, config, n_ff)?;
        let (is_conv, n_taps) = (traits.convolutions)(config, n_layer)?;
        let flag = |key| config.bool(key) == Some(true);
        let is_tied = config
            .find(&["tie_word_embeddings", "tie_embedding"])
            .and_then(Value::as_bool)
            .unwrap_or(traits.is_tied);
        Ok(Self {
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            head_dim,
            says_head_dim,
            n_ff,
            n_ff_exp,
            n_expert,
            n_vocab: count("vocab_size", 262_208)?,
            is_tied,
            has_attention_bias: flag("attention_bias") || family.kind == Kind::Qwen2,
            has_mlp_bias: flag("mlp_bias"),
            is_conv,
            n_taps,
            positions: match family.is_encoder() {
                true => super::bert::positions(family, config)?,
                false => [0; 3],
            },
        })
    }

    /// Whether the folder can have so many layers and experts at all: a list of what is wanted is
    /// then no longer than a few times what is there.
    pub(in crate::convert) fn check_counts(
        &self,
        family: &Family,
        config: &Config,
        n_tensors: usize,
    ) -> Result<(), ConvertError> {
        let told = |n| format!("is {n}, and the files have only {n_tensors} tensors");
        let n_tensors = n_tensors as u64;
        let n_layer = u64::from(self.n_layer);
        if n_layer > n_tensors {
            return Err(config.error(&["num_hidden_layers"], &told(n_layer)));
        }
        match self.n_expert.map(u64::from) {
            Some(n_expert) if !family.traits().stacks_experts && n_layer * n_expert > n_tensors => {
                Err(config.error(&["num_local_experts", "num_experts"], &told(n_expert)))
            }
            _ => Ok(()),
        }
    }
}
