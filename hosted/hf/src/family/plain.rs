//! Decoders without experts that differ from Llama only in norms, rotations and a few numbers.

use super::context::narrow;
use super::keys::{Key, Or, Said, write_windows};
use super::mixers::{self, Mixer};
use super::parts::Parts;
use super::rows::{
    ATTENTION, HEAD_NORMS, NORMS, PAIRED_ATTENTION, Row, SWIGLU, WIDE_NORMS, block, n_embd,
    n_vocab, row,
};
use super::traits::{Traits, means};
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use serde_json::Value;
use sluice::file::GgufHeader;

/// Ministral 3, and the text model of Mistral Small 3.
pub(super) const MISTRAL3: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &[Key::By(write_temperature)],
    is_wrapped: true,
    ..Traits::LLAMA_TABLES
};

/// Ministral's query scale, which grows beyond the original training context.
fn write_temperature(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    let (config, rope) = (parts.config, parts.rope);
    if config.str("model_type") != Some("ministral3") {
        return Ok(());
    }
    let scaling = rope.scaling();
    let multiplier = scaling.number(&["mscale_all_dim"])?;
    let scale = scaling.number(&["llama_4_scaling_beta"])?;
    let own = scaling.maybe_number(&["mscale"])?.unwrap_or(1.0);
    if narrow(own).to_bits() != 1_f32.to_bits() {
        let what = format!("is {own}, but mistral3 in GGUF implies 1");
        return Err(scaling.error(&["mscale"], &what));
    }
    header.set(
        "mistral3.rope.scaling.yarn_log_multiplier",
        narrow(multiplier),
    );
    header.set("mistral3.attention.temperature_scale", narrow(scale));
    Ok(())
}

pub(super) const SMOLLM3: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &[Key::By(check_fourth_layers)],
    is_tied: true,
    ..Traits::LLAMA_TABLES
};

/// The engine skips rotation in every fourth layer.
fn check_fourth_layers(
    _: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    let (config, n_layer) = (parts.config, parts.shape.n_layer);
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
    mixers: |config, n_layer| {
        let listed = mixers::listed(config, n_layer)?;
        Ok(match listed.is_empty() {
            true => mixers::all_but_every(4, n_layer),
            false => listed,
        })
    },
    keys: &[Key::By(write_windows)],
    has_windows: true,
    has_window_rope: true,
    says_window_base: true,
    ..OLMO2
};

pub(super) const SEED_OSS: Traits = Traits {
    blocks: &[
        block(&[
            row("attn_norm", "input_layernorm", &[n_embd]),
            row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
        ]),
        block(ATTENTION),
        block(SWIGLU),
    ],
    ..Traits::TABLES
};

pub(super) const EXAONE4: Traits = Traits {
    blocks: &[
        block(POST_NORMS),
        block(ATTENTION),
        block(HEAD_NORMS),
        block(SWIGLU),
    ],
    keys: &[
        Key::Count("vocab_size", "vocab_size", Or::Missing),
        Key::By(write_windows),
    ],
    mixers: exaone4_mixers,
    has_windows: true,
    has_rope_factors: true,
    ..Traits::TABLES
};

/// `layer_types`, or a period: a string such as `LLLG` (local, local, local, global), or a number.
fn exaone4_mixers(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    let listed = mixers::listed(config, n_layer)?;
    let key = "sliding_window_pattern";
    let (pattern, has_window) = (
        config.find(&[key]),
        config.find(&["sliding_window"]).is_some(),
    );
    if !listed.is_empty() || !has_window {
        return Ok(listed);
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
        Some(_) => Ok(mixers::all_but_every(config.count(&[key])?, n_layer)),
    }
}

pub(super) const COHERE2: Traits = Traits {
    globals: &[
        row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
        row("output_norm", "model.norm", &[n_embd]),
    ],
    blocks: &[
        block(&[row("attn_norm", "input_layernorm", &[n_embd])]),
        block(ATTENTION),
        block(SWIGLU),
    ],
    keys: &[
        Key::Number("logit_scale", "logit_scale", Or::Missing),
        Key::Count("sliding_window", "attention.sliding_window", Or::Missing),
        Key::Count("vocab_size", "vocab_size", Or::Missing),
        Key::By(write_cohere2_rope),
        Key::Always("rope.scaling.type", Said::Text("none")),
    ],
    mixers: |config, n_layer| {
        let listed = mixers::listed(config, n_layer)?;
        if listed.is_empty() || listed == mixers::all_but_every(4, n_layer) {
            return Ok(listed);
        }
        let what = "is not full attention in every fourth layer, as cohere2 in GGUF implies";
        Err(config.error(&["layer_types"], what))
    },
    means: &[
        means("sliding_window_pattern", Neutral::Number(4.0)),
        means("use_qk_norm", Neutral::Off),
        means("use_gated_activation", Neutral::On),
        means("use_parallel_block", Neutral::On),
        means("use_parallel_embedding", Neutral::Off),
        means("position_embedding_type", Neutral::Text(&["rope_gptj"])),
    ],
    is_tied: true,
    has_windows: true,
    head_dim: |n_embd, n_head| Some(n_embd / n_head),
    ..Traits::TABLES
};

fn write_cohere2_rope(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    let share = parts.config.maybe_number(&["rotary_pct"])?.unwrap_or(1.0);
    let head_dim = parts.shape.n_embd / parts.shape.n_head;
    let n_rot = parts.rope.rotated(parts.config, head_dim, share)?;
    header.set("cohere2.rope.dimension_count", n_rot);
    Ok(())
}
