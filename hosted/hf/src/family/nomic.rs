//! Nomic and Jina encoders: BERT's layers with rotary embeddings or distance biases, with gates or experts.

use super::bert::{GELU, write_gelu};
use super::description::Description;
use super::encoders::{ENCODER, three, two_ff, write_encoder};
use super::keys::{Key, Or, Said};
use super::rope::RopeTraits;
use super::rows::{Need, Row, bare, block, block_when, n_embd, n_expert, n_ff, n_vocab, row};
use super::shape::{ExpertSizes, HeadDim};
use super::traits::{NotSpelled, Traits, means};
use super::wanted::Change;
use super::{Object, Shape};
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use sluice_core::kernels::words;

fn n_types(shape: &Shape) -> u64 {
    shape.size("type_vocab_size")
}

fn has_biases(shape: &Shape) -> bool {
    shape.size("qkv_proj_bias") > 0
}

const NOMIC_BIAS: Need = Need::Where(has_biases);

const NOMIC_GLOBALS: &[Row] = &[
    row(
        "token_embd",
        "embeddings.word_embeddings",
        &[n_vocab, n_embd],
    ),
    row(
        "token_types",
        "embeddings.token_type_embeddings",
        &[n_types, n_embd],
    ),
    row("token_embd_norm", "emb_ln", &[n_embd]).bias(Need::Always),
];

const NOMIC_LAYER: &[Row] = &[
    row("attn_qkv", "attn.Wqkv", &[three, n_embd]).bias(NOMIC_BIAS),
    row("attn_output", "attn.out_proj", &[n_embd, n_embd]).bias(NOMIC_BIAS),
    row("attn_output_norm", "norm1", &[n_embd]).bias(Need::Always),
    row("layer_output_norm", "norm2", &[n_embd]).bias(Need::Always),
];

pub(super) const NOMIC: Traits = Traits {
    globals: NOMIC_GLOBALS,
    layers: "encoder.layers.",
    blocks: &[
        block(NOMIC_LAYER),
        block(&[
            row("ffn_up", "mlp.fc11", &[n_ff, n_embd]),
            row("ffn_gate", "mlp.fc12", &[n_ff, n_embd]),
            row("ffn_down", "mlp.fc2", &[n_embd, n_ff]),
        ]),
    ],
    keys: &[Key::By(write_nomic_context), Key::By(write_encoder)],
    head_dim: HeadDim::Hidden,
    n_ff: |config| config.count(&["n_inner", "intermediate_size"]),
    respell: respell_nomic,
    sizes: &[("type_vocab_size", Some(2)), ("qkv_proj_bias", Some(0))],
    means: &[
        means("activation_function", Neutral::Text(&["swiglu"])),
        means("causal", Neutral::Off),
        means("prenorm", Neutral::Off),
        means("mlp_fc1_bias", Neutral::Off),
        means("mlp_fc2_bias", Neutral::Off),
        means("rotary_emb_fraction", Neutral::Number(1.0)),
        means("rotary_emb_interleaved", Neutral::Off),
        means("rotary_emb_scale_base", Neutral::Off),
        means("parallel_block", Neutral::Off),
        means("use_rms_norm", Neutral::Off),
    ],
    ..ENCODER
};

/// The class of transformers 5 has another default base than the class of published files.
fn respell_nomic(config: &mut Object) -> Result<(), NotSpelled> {
    if !config.contains_key("n_inner") {
        config.entry("rope_theta").or_insert(1000.0.into());
        config.entry("layer_norm_eps").or_insert(1e-12.into());
    }
    Ok(())
}

/// config.json of published files gives a context that the models were not trained for.
fn write_nomic_context(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    if config.find(&["n_positions"]).is_none() {
        out.set(
            "context_length",
            config.count(&["max_position_embeddings"])?,
        );
        return Ok(());
    }
    let trained = config
        .maybe_count(&["max_trained_positions"])?
        .unwrap_or(2048);
    let n_ctx = match (config.count(&["n_positions"])?, trained) {
        (8192, 2048) => 2048_u32,
        (2048, 2048) => 512,
        (n, _) => {
            let what = format!("is {n}, but {trained} were trained, which is not supported");
            return Err(config.error(&["n_positions"], &what));
        }
    };
    out.set("context_length", n_ctx);
    Ok(())
}

/// Experts in every other layer.
pub(super) const NOMIC_MOE: Traits = Traits {
    blocks: &[
        block(NOMIC_LAYER),
        block_when(
            |shape, layer| !is_nomic_sparse(shape, layer),
            &[
                row("ffn_up", "mlp.fc1", &[n_ff, n_embd]).bias(Need::Always),
                row("ffn_down", "mlp.fc2", &[n_embd, n_ff]).bias(Need::Always),
            ],
        ),
        block_when(
            is_nomic_sparse,
            &[
                row("ffn_gate_inp", "mlp.router.layer", &[n_expert, n_embd]),
                bare(
                    "ffn_up_exps.weight",
                    "mlp.experts.mlp.w1",
                    &[n_expert, n_ff, n_embd],
                )
                .of(&[|shape| n_expert(shape) * n_ff(shape), n_embd], |_| {
                    Change::None
                }),
                bare(
                    "ffn_down_exps.weight",
                    "mlp.experts.mlp.w2",
                    &[n_expert, n_embd, n_ff],
                )
                .of(&[|shape| n_expert(shape) * n_ff(shape), n_embd], |shape| {
                    Change::Turned {
                        start: 0,
                        step: 1,
                        of: n_ff(shape),
                    }
                }),
            ],
        ),
    ],
    keys: &[
        Key::By(write_nomic_context),
        Key::By(write_encoder),
        Key::Count("moe_every_n_layers", "moe_every_n_layers", Or::Missing),
        Key::Count("moe_top_k", "expert_used_count", Or::Missing),
        EXACT_GELU,
    ],
    sizes: &[
        ("type_vocab_size", Some(2)),
        ("qkv_proj_bias", Some(0)),
        ("moe_every_n_layers", None),
    ],
    means: &[
        means("activation_function", Neutral::Text(&["gelu"])),
        means("causal", Neutral::Off),
        means("prenorm", Neutral::Off),
        means("mlp_fc1_bias", Neutral::On),
        means("mlp_fc2_bias", Neutral::On),
        means("rotary_emb_fraction", Neutral::Number(1.0)),
        means("rotary_emb_interleaved", Neutral::Off),
        means("rotary_emb_scale_base", Neutral::Off),
        means("parallel_block", Neutral::Off),
        means("use_rms_norm", Neutral::Off),
        means("expert_choice_router", Neutral::Off),
        means("moe_normalize_expert_weights", Neutral::Off),
    ],
    experts: ExpertSizes::Always(""),
    // A bias shared by all experts, which is zero in the published model.
    rename: |name| (!name.ends_with("mlp.experts.bias")).then(|| name.into()),
    ..NOMIC
};

/// The published code takes GELU by the error function, in Jina v2 whatever `hidden_act` is.
const EXACT_GELU: Key = Key::Always("activation", Said::Text("gelu"));

fn is_nomic_sparse(shape: &Shape, layer: u32) -> bool {
    let every = shape.size("moe_every_n_layers").max(1);
    u64::from(layer) % every == 1
}

/// Jina v3, without the published task adapters.
pub(super) const JINA3: Traits = Traits {
    blocks: &[block(&[
        row("attn_qkv", "mixer.Wqkv", &[three, n_embd]).bias(Need::Always),
        row("attn_output", "mixer.out_proj", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_output_norm", "norm1", &[n_embd]).bias(Need::Always),
        row("layer_output_norm", "norm2", &[n_embd]).bias(Need::Always),
        row("ffn_up", "mlp.fc1", &[n_ff, n_embd]).bias(Need::Always),
        row("ffn_down", "mlp.fc2", &[n_embd, n_ff]).bias(Need::Always),
    ])],
    globals: NOMIC_GLOBALS,
    layers: "encoder.layers.",
    keys: &[
        Key::By(write_jina_context),
        Key::By(write_encoder),
        Key::By(write_gelu),
    ],
    sizes: &[("type_vocab_size", Some(1))],
    activations: GELU,
    defaults: r#"{"layer_norm_eps": 1e-5}"#,
    means: &[means("position_embedding_type", Neutral::Text(&["rotary"]))],
    rope: RopeTraits::of_base(20_000.0),
    rename: |name| {
        let name = name.strip_prefix("roberta.").unwrap_or(name);
        let is_left_out = name.starts_with("pooler.") || name.starts_with("lm_head.");
        if is_left_out || name.ends_with(".lora_A") || name.ends_with(".lora_B") {
            return None;
        }
        let name = name.replace(".parametrizations.", ".");
        Some(name.strip_suffix(".original").unwrap_or(&name).into())
    },
    ..ENCODER
};

/// Positions would start after the padding token's ID if they were learned.
fn write_jina_context(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    // Describes the adapters, whose tensors already cause a warning.
    for key in ADAPTERS {
        config.find(&[key]);
    }
    let n_ctx = config.count(&["max_position_embeddings"])?;
    let n_skipped = match config.maybe_whole(&["pad_token_id"])? {
        Some(pad) => 1 + pad,
        None => 0,
    };
    let n_ctx = n_ctx.saturating_sub(n_skipped);
    out.set("context_length", n_ctx);
    Ok(())
}

const ADAPTERS: [&str; 7] = words(
    "load_trained_adapters lora_adaptations lora_alpha lora_dropout_p lora_main_params_trainable \
     lora_rank task_instructions",
);

/// Whether config.json lists task adapters, which XLM-R does not have.
pub(super) fn has_adapters(config: &Config) -> bool {
    config.find(&["lora_adaptations"]).is_some()
}

pub(super) const JINA2: Traits = Traits {
    globals: &[
        row(
            "token_embd",
            "embeddings.word_embeddings",
            &[n_vocab, n_embd],
        ),
        row(
            "token_types",
            "embeddings.token_type_embeddings",
            &[n_types, n_embd],
        ),
        row("token_embd_norm", "embeddings.LayerNorm", &[n_embd]).bias(Need::Always),
    ],
    layers: "encoder.layer.",
    blocks: &[block(&[
        row("attn_q", "attention.self.query", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_k", "attention.self.key", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_v", "attention.self.value", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_q_norm", "attention.self.layer_norm_q", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
        row("attn_k_norm", "attention.self.layer_norm_k", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
        row("attn_output", "attention.output.dense", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_output_norm", "attention.output.LayerNorm", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
        // The models were published in two layouts.
        row("ffn_up", "mlp.gated_layers", &[two_ff, n_embd]).if_there(),
        row("ffn_down", "mlp.wo", &[n_embd, n_ff])
            .if_there()
            .bias(Need::IfThere),
        row("layer_output_norm", "mlp.layernorm", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
        row("attn_norm_2", "layer_norm_1", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
        row("ffn_up", "mlp.up_gated_layer", &[two_ff, n_embd]).if_there(),
        row("ffn_down", "mlp.down_layer", &[n_embd, n_ff])
            .if_there()
            .bias(Need::IfThere),
        row("layer_output_norm", "layer_norm_2", &[n_embd])
            .if_there()
            .bias(Need::IfThere),
    ])],
    keys: &[Key::By(write_encoder), EXACT_GELU],
    sizes: &[("type_vocab_size", Some(2))],
    activations: GELU,
    means: &[
        means("position_embedding_type", Neutral::Text(&["alibi"])),
        means("feed_forward_type", Neutral::Text(&["geglu"])),
    ],
    rename: |name| {
        let name = name.strip_prefix("bert.").unwrap_or(name);
        let is_left_out = name.starts_with("pooler.") || name.starts_with("cls.");
        (!is_left_out).then(|| name.into())
    },
    ..ENCODER
};
