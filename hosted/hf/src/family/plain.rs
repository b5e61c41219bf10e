//! Decoders without experts that differ from Llama only in norms, rotations and a few numbers.

use super::attention::{
    ATTENTION, ATTENTION_IN, HEAD_NORMS, NO_BIAS, PAIRED_ATTENTION, WIDE_NORMS, attention,
};
use super::context::narrow;
use super::description::Description;
use super::keys::{Key, N_VOCAB, Or, UNSCALED, write_windows};
use super::mixers::{Mixer, all_but_every, listed, listed_or_every, only_every};
use super::rope::{RopeTraits, WindowBase};
use super::rows::{NORMS, Need, Row, SWIGLU, block, is_tied, n_embd, n_vocab, row};
use super::shape::HeadDim;
use super::traits::{Traits, means};
use super::windows;
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use serde_json::Value;

/// Ministral 3, and the text model of Mistral Small 3.
pub(super) const MISTRAL3: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &[Key::By(write_temperature), Key::By(windows::in_all)],
    is_wrapped: true,
    ..Traits::LLAMA_TABLES
};

/// Ministral's query scale, which grows beyond the original training context.
fn write_temperature(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, rope) = (out.config, out.rope);
    if config.str("model_type") != Some("ministral3") {
        return Ok(());
    }
    let scaling = rope.scaling();
    let multiplier = scaling.number(&["mscale_all_dim"])?;
    let scale = scaling.number(&["llama_4_scaling_beta"])?;
    let own = scaling.maybe_number(&["mscale"])?;
    if own.is_none_or(|own| narrow(own).to_bits() != 1_f32.to_bits()) {
        let own = own.map_or_else(|| "missing".into(), |own| own.to_string());
        let what = format!("is {own}, but mistral3 in GGUF implies 1");
        return Err(scaling.error(&["mscale"], &what));
    }
    out.set("rope.scaling.yarn_log_multiplier", narrow(multiplier));
    out.set("attention.temperature_scale", narrow(scale));
    Ok(())
}

pub(super) const SMOLLM3: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &[Key::By(check_fourth_layers), Key::By(windows::in_unrotated)],
    is_tied: true,
    rope: RopeTraits {
        base: 2e6,
        ..RopeTraits::DIVIDED
    },
    ..Traits::LLAMA_TABLES
};

/// The engine skips rotation in every fourth layer.
fn check_fourth_layers(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, n_layer) = (out.config, out.shape.n_layer);
    let interval = config
        .maybe_count(&["no_rope_layer_interval"])?
        .unwrap_or(4);
    let turns: Vec<_> = match config.numbers("no_rope_layers")? {
        Some(list) => list.into_iter().map(|flag| flag.to_bits() != 0).collect(),
        None => (1..=n_layer).map(|layer| layer % interval != 0).collect(),
    };
    if (1..=n_layer).map(|layer| layer % 4 != 0).eq(turns) {
        return Ok(());
    }
    let what = "is not every fourth layer, as smollm3 in GGUF implies";
    Err(config.error(&["no_rope_layers", "no_rope_layer_interval"], what))
}

/// Norms after attention and the feed-forward network, and no norms before them.
const POST_NORMS: &[Row] = &[
    row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
    row("post_ffw_norm", "post_feedforward_layernorm", &[n_embd]),
];

pub(super) const OLMO2: Traits = Traits {
    blocks: &[
        block(POST_NORMS),
        block(ATTENTION),
        block(WIDE_NORMS),
        block(SWIGLU),
    ],
    ..Traits::TABLES
};

pub(super) const OLMO3: Traits = Traits {
    mixers: |config, n_layer| listed_or_every(4, config, n_layer),
    keys: &[Key::By(write_windows)],
    defaults: r#"{"sliding_window": 4096}"#,
    rope: RopeTraits {
        window: WindowBase::Always,
        ..RopeTraits::of_base(5e5)
    },
    ..OLMO2
};

pub(super) const SEED_OSS: Traits = Traits {
    blocks: &[
        block(&[
            row("attn_norm", "input_layernorm", &[n_embd]),
            row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
        ]),
        block(ATTENTION_IN),
        block(SWIGLU),
    ],
    defaults: r#"{"attention_bias": true}"#,
    ..Traits::TABLES
};

pub(super) const EXAONE4: Traits = Traits {
    blocks: &[
        block(POST_NORMS),
        block(&attention(NO_BIAS, NO_BIAS)),
        block(HEAD_NORMS),
        block(SWIGLU),
    ],
    keys: &[N_VOCAB, Key::By(write_windows)],
    mixers: exaone4_mixers,
    defaults: r#"{"sliding_window": 4096, "sliding_window_pattern": 4}"#,
    rope: RopeTraits::DIVIDED,
    ..Traits::TABLES
};

/// `layer_types`, or a period: a string such as `LLLG` (local, local, local, global), or a number.
fn exaone4_mixers(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    let own = listed(config, n_layer)?;
    let key = "sliding_window_pattern";
    let (pattern, has_window) = (
        config.find(&[key]),
        config.find(&["sliding_window"]).is_some(),
    );
    if !own.is_empty() || !has_window {
        return Ok(own);
    }
    match pattern {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if !text.is_empty() => {
            let kinds = text.chars().map(|kind| match kind {
                'L' => Mixer::Window,
                _ => Mixer::Full,
            });
            Ok(kinds.cycle().take(n_layer as usize).collect())
        }
        Some(_) => Ok(all_but_every(config.count(&[key])?, n_layer)),
    }
}

pub(super) const COHERE2: Traits = Traits {
    globals: &[
        row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
        row("output_norm", "model.norm", &[n_embd]),
        row("output", "lm_head", &[n_vocab, n_embd]).need(Need::Unless(is_tied)),
    ],
    blocks: &[
        block(&[row("attn_norm", "input_layernorm", &[n_embd])]),
        block(ATTENTION),
        block(SWIGLU),
    ],
    keys: &[
        Key::Number("logit_scale", "logit_scale", Or::Missing),
        Key::Count("sliding_window", "attention.sliding_window", Or::Missing),
        N_VOCAB,
        Key::By(|out| {
            out.set("rope.dimension_count", out.shape.head_dim);
            Ok(())
        }),
        UNSCALED,
    ],
    mixers: |config, n_layer| only_every(4, config, n_layer),
    means: &[
        means("sliding_window_pattern", Neutral::Number(4.0)),
        means("use_qk_norm", Neutral::Off),
        means("use_gated_activation", Neutral::On),
        means("use_parallel_block", Neutral::On),
        means("use_parallel_embedding", Neutral::Off),
        means("position_embedding_type", Neutral::Text(&["rope_gptj"])),
    ],
    is_tied: true,
    head_dim: HeadDim::Share,
    ..Traits::TABLES
};
