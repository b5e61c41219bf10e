//! Families of models: what their tensors are called, on both sides, and what is said about them.
//!
//! Names and keys are those that llama.cpp's converter writes (`conversion/`, `gguf-py/`). A family
//! is a row of [`FAMILIES`] and [`Traits`], in a file of its own where its layers are not Llama's.
#![forbid(unsafe_code)]

mod bert;
mod decoder;
mod gemma;
mod gpt_oss;
mod lfm2;
mod parameters;
mod pooling;
mod shape;
mod traits;
mod wanted;

pub(super) use parameters::narrow;
pub(super) use shape::Shape;
pub(super) use traits::Parts;
pub(super) use wanted::{Change, Wanted, wanted};

use traits::Traits;

use super::ConvertError;
use super::config::{Config, whole};
use serde_json::Value;
use std::path::Path;

/// One family.
#[derive(Debug)]
pub(super) struct Family {
    /// `architectures` in `config.json`.
    class: &'static str,
    /// `model_type`, which counts where there are no `architectures`.
    model_type: &'static str,
    pub(super) kind: Kind,
    /// `general.architecture`.
    pub(super) architecture: &'static str,
}

/// What sets families apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Llama,
    Mistral,
    Mixtral,
    Qwen2,
    Qwen3,
    Phi3,
    Olmoe,
    Qwen3Moe,
    Gemma2,
    Gemma3,
    Bert,
    /// BERT with positions that begin behind the padding token's number.
    Roberta,
    Lfm2,
    GptOss,
}

const FAMILIES: [Family; 18] = [
    family("LlamaForCausalLM", "llama", Kind::Llama, "llama"),
    family("MistralForCausalLM", "mistral", Kind::Mistral, "llama"),
    family("MixtralForCausalLM", "mixtral", Kind::Mixtral, "llama"),
    family("Qwen2ForCausalLM", "qwen2", Kind::Qwen2, "qwen2"),
    family("Qwen3ForCausalLM", "qwen3", Kind::Qwen3, "qwen3"),
    family("Phi3ForCausalLM", "phi3", Kind::Phi3, "phi3"),
    family("OlmoeForCausalLM", "olmoe", Kind::Olmoe, "olmoe"),
    family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        Kind::Qwen3Moe,
        "qwen3moe",
    ),
    family("Gemma2ForCausalLM", "gemma2", Kind::Gemma2, "gemma2"),
    family("Gemma3ForCausalLM", "gemma3_text", Kind::Gemma3, "gemma3"),
    family(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        Kind::Gemma3,
        "gemma3",
    ),
    family("Lfm2ForCausalLM", "lfm2", Kind::Lfm2, "lfm2"),
    family(
        "GptOssForCausalLM",
        "gpt_oss",
        Kind::GptOss,
        gpt_oss::ARCHITECTURE,
    ),
    family("BertModel", "bert", Kind::Bert, "bert"),
    family("BertForMaskedLM", "bert", Kind::Bert, "bert"),
    family("RobertaModel", "roberta", Kind::Roberta, "bert"),
    family("XLMRobertaModel", "xlm-roberta", Kind::Roberta, "bert"),
    family("LFM2ForCausalLM", "lfm2", Kind::Lfm2, "lfm2"),
];

const fn family(
    class: &'static str,
    model_type: &'static str,
    kind: Kind,
    architecture: &'static str,
) -> Family {
    Family {
        class,
        model_type,
        kind,
        architecture,
    }
}

impl Family {
    pub(super) fn of(config: &Config, path: &Path) -> Result<&'static Self, ConvertError> {
        let classes = config.find(&["architectures"]).and_then(Value::as_array);
        let class = classes.and_then(|list| list.first()?.as_str());
        let model_type = config.str("model_type");
        let found = FAMILIES.iter().find(|family| match class {
            Some(class) => family.class == class,
            None => Some(family.model_type) == model_type,
        });
        found.ok_or_else(|| ConvertError::UnknownArchitecture {
            path: path.into(),
            name: class.or(model_type).unwrap_or_default().into(),
            known: FAMILIES.map(|family| family.class).join(", "),
        })
    }

    /// Where the family differs from Llama.
    pub(super) const fn traits(&self) -> &'static Traits {
        match self.kind {
            Kind::Gemma2 => &gemma::TRAITS,
            Kind::Gemma3 => &gemma::GEMMA3,
            Kind::Lfm2 => &lfm2::TRAITS,
            Kind::GptOss => &gpt_oss::TRAITS,
            Kind::Bert | Kind::Roberta => &bert::TRAITS,
            Kind::Phi3 => &decoder::PHI3,
            Kind::Mixtral => &decoder::MIXTRAL,
            Kind::Qwen3 | Kind::Qwen3Moe => &decoder::QWEN3,
            Kind::Qwen2 | Kind::Olmoe => &decoder::QWEN2,
            Kind::Llama | Kind::Mistral => &Traits::LLAMA,
        }
    }

    /// Whether rows of Q and K are reordered, from halves side by side (Hugging Face's rotary
    /// embedding) to pairs (llama.cpp's "norm" kind).
    const fn permutes(&self) -> bool {
        matches!(self.kind, Kind::Llama | Kind::Mistral | Kind::Mixtral)
    }

    pub(super) fn is_llama(&self) -> bool {
        self.architecture == "llama"
    }

    pub(super) const fn is_encoder(&self) -> bool {
        matches!(self.kind, Kind::Bert | Kind::Roberta)
    }

    const fn has_experts(&self) -> bool {
        matches!(
            self.kind,
            Kind::Mixtral | Kind::Olmoe | Kind::Qwen3Moe | Kind::GptOss
        )
    }

    /// The configuration of the text model, which models of several kinds of input have inside of
    /// another. What that says about tokens and weights counts too.
    pub(super) fn text_config(&self, whole: Config) -> Result<Config, ConvertError> {
        let Some(Value::Object(text)) = whole.map().get("text_config") else {
            return Ok(whole);
        };
        if self.kind != Kind::Gemma3 {
            let what = format!("is not known in {}", self.class);
            return Err(whole.error(&["text_config"], &what));
        }
        let mut text = text.clone();
        for (key, value) in whole.map() {
            let counts = key.ends_with("_token_id")
                || ["tie_word_embeddings", "quantization_config"].contains(&key.as_str());
            if counts && !text.contains_key(key) {
                text.insert(key.clone(), value.clone());
            }
        }
        Ok(Config::new(whole.path(), text))
    }

    /// A tensor's name without what wraps the text model or the encoder; none for tensors of other
    /// parts.
    pub(super) fn plain_name(&self, name: &str) -> Option<String> {
        if self.is_encoder() {
            return bert::plain_name(name);
        }
        if self.kind != Kind::Gemma3 {
            return Some(name.into());
        }
        let other = ["vision_tower.", "multi_modal_projector."];
        let inner = name.strip_prefix("model.").unwrap_or(name);
        if other.iter().any(|part| inner.starts_with(part)) {
            return None;
        }
        // Of two ways in which transformers has named them.
        let newer = name.strip_prefix("model.language_model.");
        let newer = newer.map(|rest| format!("model.{rest}"));
        let older = name.strip_prefix("language_model.").map(str::to_owned);
        Some(newer.or(older).unwrap_or_else(|| name.into()))
    }

    /// Refuses values of `config.json` under which the engine computes something else.
    pub(super) fn check(&self, config: &Config) -> Result<(), ConvertError> {
        self.check_activation(config)?;
        check_quantization(config)?;
        // What the engine does with the weights of the chosen experts.
        let normalizes = match self.kind {
            Kind::Qwen3Moe => Some(true),
            Kind::Olmoe => Some(false),
            _ => None,
        };
        if let Some(due) = normalizes {
            let given = config.bool("norm_topk_prob").unwrap_or(false);
            if given != due {
                let architecture = self.architecture;
                let what = format!("is {given}; {architecture} in a GGUF file means {due}");
                return Err(config.error(&["norm_topk_prob"], &what));
            }
        }
        Ok(())
    }

    fn check_activation(&self, config: &Config) -> Result<(), ConvertError> {
        // One key, or its older name.
        let keys: &[&str] = match self.kind {
            Kind::Gemma2 | Kind::Gemma3 => &["hidden_activation"],
            _ => &["hidden_act", "hidden_activation"],
        };
        let known: &[&str] = match self.kind {
            Kind::Gemma2 | Kind::Gemma3 => &["gelu_pytorch_tanh", "gelu_new"],
            Kind::Bert | Kind::Roberta => &[
                "gelu",
                "gelu_new",
                "gelu_pytorch_tanh",
                "gelu_fast",
                "gelu_python",
            ],
            _ => &["silu", "swish"],
        };
        let Some(value) = config.find(keys) else {
            return Ok(());
        };
        if value.as_str().is_some_and(|name| known.contains(&name)) {
            return Ok(());
        }
        let what = format!(
            "is {value}; {} in a GGUF file computes {}",
            self.architecture, known[0]
        );
        Err(config.error(keys, &what))
    }
}

/// Refuses weights that are quantised in a way that is not read.
fn check_quantization(config: &Config) -> Result<(), ConvertError> {
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
                "is {method:?}{format}: of quantised weights, FP8 with scales and MXFP4 can be \
                 converted; take the model before it was quantised"
            );
            Err(about.error(&["quant_method"], &what))
        }
    }
}

/// The rows and columns of a block of 8-bit weights, where the configuration says them.
pub(super) fn scale_block(config: &Config) -> Result<Option<[u64; 2]>, ConvertError> {
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
        _ => Err(about.error(&["weight_block_size"], "is not two numbers above 0")),
    }
}
