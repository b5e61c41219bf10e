//! Families of models: what their tensors are called, on both sides, and what is said about them.
//!
//! Names and keys are those that llama.cpp's converter writes (`conversion/`, `gguf-py/`). A family
//! is a row of [`FAMILIES`] and, where it differs, an arm below.
#![forbid(unsafe_code)]

use super::ConvertError;
use super::config::Config;
use super::rope::Rope;
use serde_json::Value;
use sluice::file::GgufHeader;
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
    Mixtral,
    Qwen2,
    Qwen3,
    Phi3,
    Olmoe,
    Qwen3Moe,
}

const FAMILIES: [Family; 8] = [
    family("LlamaForCausalLM", "llama", Kind::Llama, "llama"),
    family("MistralForCausalLM", "mistral", Kind::Llama, "llama"),
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

    /// Whether rows of Q and K are reordered, from halves side by side (Hugging Face's rotary
    /// embedding) to pairs (llama.cpp's "norm" kind).
    const fn permutes(&self) -> bool {
        matches!(self.kind, Kind::Llama | Kind::Mixtral)
    }

    pub(super) fn is_llama(&self) -> bool {
        self.architecture == "llama"
    }
}

/// The sizes of a model, from `config.json`.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) n_layer: u32,
    pub(super) n_embd: u32,
    pub(super) n_head: u32,
    pub(super) n_head_kv: u32,
    /// Columns of a head; `head_dim` where it is given, a head's share of `n_embd` otherwise.
    pub(super) head_dim: u32,
    /// Whether the head's size is written: given, or implied by the family.
    says_head_dim: bool,
    n_ff: u32,
    /// Columns of an expert.
    n_ff_exp: Option<u32>,
    n_expert: Option<u32>,
    pub(super) n_vocab: u32,
    is_tied: bool,
    has_attention_bias: bool,
    has_mlp_bias: bool,
}

impl Shape {
    pub(super) fn read(family: &Family, config: &Config) -> Result<Self, ConvertError> {
        let n_embd = config.count(&["hidden_size"])?;
        let n_head = config.count(&["num_attention_heads"])?;
        let n_head_kv = config
            .maybe_count(&["num_key_value_heads"])?
            .unwrap_or(n_head);
        let given = config.maybe_count(&["head_dim"])?;
        let implied = match family.kind {
            Kind::Qwen3 | Kind::Qwen3Moe => Some(128),
            Kind::Llama => Some(n_embd / n_head),
            _ => None,
        };
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
        let n_ff = config.count(&["intermediate_size"])?;
        let is_moe = matches!(family.kind, Kind::Mixtral | Kind::Olmoe | Kind::Qwen3Moe);
        let (n_expert, n_ff_exp) = if is_moe {
            let n_expert = config.count(&["num_local_experts", "num_experts"])?;
            let n_ff_exp = match family.kind {
                Kind::Qwen3Moe => config.count(&["moe_intermediate_size"])?,
                _ => n_ff,
            };
            (Some(n_expert), Some(n_ff_exp))
        } else {
            (None, None)
        };
        let flag = |key| config.bool(key) == Some(true);
        Ok(Self {
            n_layer: config.count(&["num_hidden_layers"])?,
            n_embd,
            n_head,
            n_head_kv,
            head_dim,
            says_head_dim,
            n_ff,
            n_ff_exp,
            n_expert,
            n_vocab: config.count(&["vocab_size"])?,
            is_tied: flag("tie_word_embeddings"),
            has_attention_bias: flag("attention_bias") || family.kind == Kind::Qwen2,
            has_mlp_bias: flag("mlp_bias"),
        })
    }
}

impl Shape {
    /// Whether the folder can have so many layers and experts at all: a list of what is wanted is
    /// then no longer than a few times what is there.
    pub(super) fn check_counts(
        &self,
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
            Some(n_expert) if n_layer * n_expert > n_tensors => {
                Err(config.error(&["num_local_experts", "num_experts"], &told(n_expert)))
            }
            _ => Ok(()),
        }
    }
}

/// One tensor to be, and those it is made of.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// As GGUF names it.
    pub(super) name: String,
    /// Hugging Face's tensors, one after the other; several are experts.
    pub(super) parts: Vec<String>,
    /// Of each part: (rows, columns), or one dimension.
    pub(super) shape: Vec<u64>,
    /// Heads whose rows are reordered.
    pub(super) permute_heads: Option<u32>,
    pub(super) is_optional: bool,
}

/// All tensors of a model. Experts of a layer stand together, in the order in which llama.cpp's
/// converter writes them.
pub(super) fn wanted(family: &Family, shape: &Shape) -> Vec<Wanted> {
    let (n_embd, n_vocab) = (u64::from(shape.n_embd), u64::from(shape.n_vocab));
    let mut all = vec![
        one(
            "token_embd.weight",
            "model.embed_tokens.weight",
            &[n_vocab, n_embd],
        ),
        one("output_norm.weight", "model.norm.weight", &[n_embd]),
    ];
    let mut output = one("output.weight", "lm_head.weight", &[n_vocab, n_embd]);
    output.is_optional = shape.is_tied;
    all.push(output);
    for layer in 0..shape.n_layer {
        layer_tensors(family, shape, layer, &mut all);
    }
    all
}

fn layer_tensors(family: &Family, shape: &Shape, layer: u32, all: &mut Vec<Wanted>) {
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let n_embd = u64::from(shape.n_embd);
    let n_q = u64::from(shape.n_head) * u64::from(shape.head_dim);
    let n_kv = u64::from(shape.n_head_kv) * u64::from(shape.head_dim);
    let mut add = |name: &str, source: &str, dims: &[u64]| {
        all.push(one(
            &format!("{to}{name}"),
            &format!("{from}{source}"),
            dims,
        ));
    };
    add("attn_norm.weight", "input_layernorm.weight", &[n_embd]);
    add(
        "ffn_norm.weight",
        "post_attention_layernorm.weight",
        &[n_embd],
    );
    add(
        "attn_output.weight",
        "self_attn.o_proj.weight",
        &[n_embd, n_q],
    );
    if family.kind == Kind::Phi3 {
        let n_ff = u64::from(shape.n_ff);
        add(
            "attn_qkv.weight",
            "self_attn.qkv_proj.weight",
            &[n_q + 2 * n_kv, n_embd],
        );
        add(
            "ffn_up.weight",
            "mlp.gate_up_proj.weight",
            &[2 * n_ff, n_embd],
        );
        add("ffn_down.weight", "mlp.down_proj.weight", &[n_embd, n_ff]);
        return;
    }
    attention_tensors(family, shape, layer, all);
    if shape.n_expert.is_some() {
        expert_tensors(family, shape, layer, all);
        return;
    }
    let n_ff = u64::from(shape.n_ff);
    let projections = [
        ("gate", n_ff, n_embd),
        ("up", n_ff, n_embd),
        ("down", n_embd, n_ff),
    ];
    for (part, rows, columns) in projections {
        let source = format!("{from}mlp.{part}_proj");
        let (weight, mut bias) = with_bias(&format!("{to}ffn_{part}"), &source, &[rows, columns]);
        bias.is_optional = !shape.has_mlp_bias;
        all.extend([weight, bias]);
    }
}

/// Q, K and V with their biases and norms, and the output's bias.
fn attention_tensors(family: &Family, shape: &Shape, layer: u32, all: &mut Vec<Wanted>) {
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let n_embd = u64::from(shape.n_embd);
    let head_dim = u64::from(shape.head_dim);
    let (n_q, n_kv) = (
        u64::from(shape.n_head) * head_dim,
        u64::from(shape.n_head_kv) * head_dim,
    );
    let norms = match family.kind {
        Kind::Qwen3 | Kind::Qwen3Moe => Some([("q", head_dim), ("k", head_dim)]),
        Kind::Olmoe => Some([("q", n_q), ("k", n_kv)]),
        _ => None,
    };
    for (letter, columns) in norms.into_iter().flatten() {
        let name = format!("{to}attn_{letter}_norm.weight");
        let source = format!("{from}self_attn.{letter}_norm.weight");
        all.push(one(&name, &source, &[columns]));
    }
    let heads = [
        ("q", n_q, shape.n_head),
        ("k", n_kv, shape.n_head_kv),
        ("v", n_kv, 0),
    ];
    for (letter, rows, n_head) in heads {
        let name = format!("{to}attn_{letter}");
        let source = format!("{from}self_attn.{letter}_proj");
        let permute = (family.permutes() && n_head > 0).then_some(n_head);
        let (mut weight, mut bias) = with_bias(&name, &source, &[rows, n_embd]);
        bias.is_optional = !shape.has_attention_bias;
        (weight.permute_heads, bias.permute_heads) = (permute, permute);
        all.extend([weight, bias]);
    }
    let name = format!("{to}attn_output");
    let (_, mut bias) = with_bias(&name, &format!("{from}self_attn.o_proj"), &[n_embd, n_q]);
    // Qwen2 has biases on Q, K and V alone.
    bias.is_optional = !shape.has_attention_bias || family.kind == Kind::Qwen2;
    all.push(bias);
}

fn expert_tensors(family: &Family, shape: &Shape, layer: u32, all: &mut Vec<Wanted>) {
    let (Some(n_expert), Some(n_ff)) = (shape.n_expert, shape.n_ff_exp) else {
        return;
    };
    let (n_embd, n_ff) = (u64::from(shape.n_embd), u64::from(n_ff));
    let (module, projections) = match family.kind {
        Kind::Mixtral => ("block_sparse_moe", ["w1", "w2", "w3"]),
        _ => ("mlp", ["down_proj", "gate_proj", "up_proj"]),
    };
    let from = format!("model.layers.{layer}.{module}");
    let router = format!("blk.{layer}.ffn_gate_inp.weight");
    let source = format!("{from}.gate.weight");
    all.push(one(&router, &source, &[u64::from(n_expert), n_embd]));
    for projection in projections {
        let (part, dims) = match projection {
            "w1" | "gate_proj" => ("gate", [n_ff, n_embd]),
            "w2" | "down_proj" => ("down", [n_embd, n_ff]),
            _ => ("up", [n_ff, n_embd]),
        };
        let mut stacked = one(&format!("blk.{layer}.ffn_{part}_exps.weight"), "", &dims);
        let experts = 0..n_expert;
        stacked.parts = experts
            .map(|expert| format!("{from}.experts.{expert}.{projection}.weight"))
            .collect();
        all.push(stacked);
    }
}

fn one(name: &str, source: &str, shape: &[u64]) -> Wanted {
    Wanted {
        name: name.into(),
        parts: vec![source.into()],
        shape: shape.into(),
        permute_heads: None,
        is_optional: false,
    }
}

fn with_bias(name: &str, source: &str, shape: &[u64]) -> (Wanted, Wanted) {
    let weight = one(
        &format!("{name}.weight"),
        &format!("{source}.weight"),
        shape,
    );
    let bias = one(
        &format!("{name}.bias"),
        &format!("{source}.bias"),
        &shape[..1],
    );
    (weight, bias)
}

/// Writes what a family says about itself; `file_type` is llama.cpp's number for most tensors'
/// type.
pub(super) fn write_parameters(
    header: &mut GgufHeader,
    family: &Family,
    config: &Config,
    shape: &Shape,
    rope: &Rope,
    file_type: u32,
) -> Result<(), ConvertError> {
    let architecture = family.architecture;
    let key = |name: &str| format!("{architecture}.{name}");
    if family.kind == Kind::Phi3 {
        return write_phi3(header, config, shape, rope, file_type);
    }
    header.set(&key("block_count"), shape.n_layer);
    header.set(
        &key("context_length"),
        config.count(&["max_position_embeddings"])?,
    );
    header.set(&key("embedding_length"), shape.n_embd);
    header.set(&key("feed_forward_length"), shape.n_ff);
    header.set(&key("attention.head_count"), shape.n_head);
    header.set(&key("attention.head_count_kv"), shape.n_head_kv);
    rope.write(header, architecture);
    let epsilon = match family.kind {
        Kind::Olmoe => 1e-5,
        _ => narrow(config.number(&["rms_norm_eps"])?),
    };
    header.set(&key("attention.layer_norm_rms_epsilon"), epsilon);
    if let Some(n_expert) = shape.n_expert {
        header.set(&key("expert_count"), n_expert);
        let n_used = config.count(&["num_experts_per_tok"])?;
        header.set(&key("expert_used_count"), n_used);
    }
    if shape.says_head_dim {
        header.set(&key("attention.key_length"), shape.head_dim);
        header.set(&key("attention.value_length"), shape.head_dim);
    }
    header.set("general.file_type", file_type);
    if family.is_llama() {
        header.set(&key("vocab_size"), shape.n_vocab);
        header.set(&key("rope.dimension_count"), shape.head_dim);
    }
    if let (Kind::Qwen3Moe, Some(n_ff)) = (family.kind, shape.n_ff_exp) {
        header.set(&key("expert_feed_forward_length"), n_ff);
    }
    Ok(())
}

fn write_phi3(
    header: &mut GgufHeader,
    config: &Config,
    shape: &Shape,
    rope: &Rope,
    file_type: u32,
) -> Result<(), ConvertError> {
    let n_ctx = config.count(&["max_position_embeddings"])?;
    let n_ctx_original = rope.original_context()?.unwrap_or(n_ctx);
    header.set("phi3.context_length", n_ctx);
    header.set("phi3.rope.scaling.original_context_length", n_ctx_original);
    header.set("phi3.embedding_length", shape.n_embd);
    header.set("phi3.feed_forward_length", shape.n_ff);
    header.set("phi3.block_count", shape.n_layer);
    header.set("phi3.attention.head_count", shape.n_head);
    header.set("phi3.attention.head_count_kv", shape.n_head_kv);
    let epsilon = narrow(config.number(&["rms_norm_eps"])?);
    header.set("phi3.attention.layer_norm_rms_epsilon", epsilon);
    header.set("phi3.rope.dimension_count", rope.n_rot(shape)?);
    header.set("phi3.rope.freq_base", rope.freq_base);
    header.set("general.file_type", file_type);
    // Zero tells Phi-4, which has no window, from other models of the family.
    let window = config.maybe_count(&["sliding_window"])?.unwrap_or(0);
    header.set("phi3.attention.sliding_window", window);
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "GGUF's floats are f32")]
pub(super) const fn narrow(x: f64) -> f32 {
    x as f32
}
