use super::Architecture;
use super::activation::Activation;
use super::config::{Fusion, LayerActivations, ModelConfig};
use super::error::{ModelError, Name};
use super::kind::{Channel, LayerKind, Mixer};
use super::rope::{Rope, RopeConfig, RopeScaling, RopeScalingKind, Yarn, frequencies};
use super::shape::{
    Attention, Experts, Ffn, Latent, QkNorm, QueryTemperature, Router, SharedExpert,
};
use crate::kernels::activation::ActivationKinds;
use crate::kernels::table::RopePairing;
use crate::kernels::{CpuFeatures, KernelTable};
extern crate std;
use std::format;
use std::string::ToString as _;
use std::vec;
use std::vec::Vec;

const ROPE: RopeConfig = RopeConfig {
    n_rot: 16,
    freq_base: 10_000.0,
    is_scaled: true,
    pairing: RopePairing::Interleaved,
};

/// A layer of a small llama.
pub(crate) const KIND: LayerKind = LayerKind {
    mixer: Mixer::Attention(ATTENTION),
    channel: Channel::Ffn(Ffn {
        n_ff: 128,
        is_gated: true,
        activation: Activation::Silu,
    }),
    has_post_norms: false,
    is_parallel: false,
    n_embd_layer: 0,
    has_output_scale: false,
    has_second_norm: false,
};

pub(crate) const ATTENTION: Attention = Attention {
    n_head: 4,
    n_head_kv: 2,
    head_dim_k: 16,
    head_dim_v: 16,
    rope: Some(0),
    window: None,
    qk_norm: QkNorm::None,
    scale: 0.25,
    soft_cap: 0.0,
    has_sink: false,
    max_alibi_bias: 0.0,
    keys_of: None,
    has_gate: false,
    latent: None,
    norms_rotated: false,
    norms_values: false,
    values_from_keys: false,
    temperature: None,
};

/// A small llama with layers of these kinds.
pub(crate) fn config_of(kinds: &[LayerKind]) -> ModelConfig {
    let mut config = ModelConfig {
        fused: Fusion {
            qkv: false,
            gate_up: false,
            gate_up_exps: false,
            down_by_neuron: false,
        },
        architecture: Architecture::all().next().unwrap(),
        n_embd: 64,
        n_vocab: 100,
        n_ctx_train: 128,
        norm_eps: 1e-5,
        kinds: heapless::Vec::new(),
        layers: heapless::Vec::new(),
        ropes: heapless::Vec::from_slice(&[ROPE]).unwrap(),
        rope_scaling: RopeScaling::NONE,
        logit_soft_cap: 0.0,
        logit_scale: 1.0,
        residual_scale: 1.0,
        n_embd_layer: 0,
        embedding_scale: 1.0,
        is_causal: true,
        norms_replace_stream: false,
        tied_output: true,
        activations: LayerActivations::all(ActivationKinds::F32),
        output_activations: ActivationKinds::F32,
        next_token: None,
    };
    for kind in kinds {
        config.push_layer(*kind).unwrap();
    }
    config
}

fn frequencies_of(rope: &RopeConfig, scaling: &RopeScaling, factors: Option<&[f32]>) -> Vec<f64> {
    let mut out = vec![0.0; rope.n_rot / 2];
    frequencies(rope, scaling, factors, &mut out);
    out
}

#[test]
fn frequencies_are_powers_of_the_base() {
    let linear = RopeScaling {
        kind: RopeScalingKind::Linear,
        factor: 4.0,
        ..RopeScaling::NONE
    };
    for (freq_base, scaling, factors) in [
        (10_000.0, RopeScaling::NONE, None),
        (500_000.0, linear, None),
        (
            1.0,
            RopeScaling::NONE,
            Some([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ),
    ] {
        let rope = RopeConfig { freq_base, ..ROPE };
        let factors_of = factors.as_ref().map(<[f32; 8]>::as_slice);
        let found = frequencies_of(&rope, &scaling, factors_of);
        for (i, found) in found.into_iter().enumerate() {
            let scale = f64::from(scaling.factor);
            let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
            let base = f64::from(freq_base);
            let expected = base.powf(-(i as f64) / 8.0) / scale / factor;
            assert!((found / expected - 1.0).abs() < 1e-14, "{found} {expected}");
        }
    }
}

/// A context of 2048, stretched by 8.
fn yarn_of(yarn: Yarn) -> RopeScaling {
    RopeScaling {
        kind: RopeScalingKind::Yarn,
        factor: 8.0,
        n_ctx_orig: 2048,
        attn_factor: 1.0,
        yarn,
    }
}

/// The formulas of transformers' `_compute_yarn_parameters`.
#[test]
fn yarn_has_all_its_settings() {
    let rope = RopeConfig { n_rot: 64, ..ROPE };
    let base = f64::from(rope.freq_base);
    for (beta_fast, beta_slow, ext_factor, truncates) in [
        (32.0, 1.0, 1.0, true),
        (64.0, 4.0, 1.0, true),
        (32.0, 1.0, 0.5, true),
        (32.0, 1.0, 1.0, false),
    ] {
        let yarn = Yarn {
            beta_fast,
            beta_slow,
            ext_factor,
            truncates,
            ..Yarn::DEFAULT
        };
        let dimension = |turns: f32| {
            let length = 2048.0 / (f64::from(turns) * 2.0 * core::f64::consts::PI);
            64.0 * length.ln() / (2.0 * base.ln())
        };
        let whole = |x: f64, rounded: f64| if truncates { rounded } else { x };
        let (low, high) = (dimension(beta_fast), dimension(beta_slow));
        let low = whole(low, low.floor()).max(0.0);
        let high = whole(high, high.ceil()).min(63.0);
        let found = frequencies_of(&rope, &yarn_of(yarn), None);
        for (i, found) in found.into_iter().enumerate() {
            let kept = base.powf(-2.0 * i as f64 / 64.0);
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let share = (1.0 - ramp) * f64::from(ext_factor);
            let expected = kept / 8.0 * (1.0 - share) + kept * share;
            assert!(
                (found / expected - 1.0).abs() < 1e-12,
                "{i}: {found} {expected}"
            );
        }
    }
}

#[test]
fn yarn_scales_what_is_rotated() {
    let rope = RopeConfig { n_rot: 64, ..ROPE };
    let scale = |yarn| {
        let scaling = yarn_of(yarn);
        let frequencies = frequencies_of(&rope, &scaling, None);
        let rope = RopeConfig {
            is_scaled: true,
            ..rope
        };
        let (mut cos, mut sin) = ([0.0; 32], [0.0; 32]);
        Rope::new(&rope, &scaling, &frequencies).angles(0, &mut cos, &mut sin);
        f64::from(cos[0])
    };
    let ln = 8f64.ln();
    let cases = [
        (Yarn::DEFAULT, 1.0 + 0.1 * ln),
        (
            Yarn {
                attn_factor: Some(2.0),
                ..Yarn::DEFAULT
            },
            2.0,
        ),
        (
            Yarn {
                log_multiplier: 0.5,
                ..Yarn::DEFAULT
            },
            (1.0 + 0.1 * ln) / (1.0 + 0.05 * ln),
        ),
        (
            Yarn {
                ext_factor: 0.0,
                ..Yarn::DEFAULT
            },
            1.0,
        ),
    ];
    for (yarn, expected) in cases {
        assert!(
            (scale(yarn) - expected).abs() < 1e-6,
            "{yarn:?}: {}",
            scale(yarn)
        );
    }
}

#[test]
fn rotating_back_undoes_a_rotation() {
    let frequencies = frequencies_of(&ROPE, &RopeScaling::NONE, None);
    for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
        let rope = RopeConfig { pairing, ..ROPE };
        let rope = Rope::new(&rope, &RopeScaling::NONE, &frequencies);
        let (mut cos, mut sin) = ([0.0; 8], [0.0; 8]);
        for table in KernelTable::available(CpuFeatures::detect()) {
            let mut head: Vec<f32> = (0..20u8).map(f32::from).collect();
            for position in [37, -37] {
                rope.angles(position, &mut cos, &mut sin);
                rope.rotate(table, &mut head, &cos, &sin);
            }
            for (i, x) in head.iter().enumerate() {
                assert!((x - i as f32).abs() < 1e-4, "{}: {x} for {i}", table.name());
            }
            // Dimensions after the rotary ones are not touched.
            assert_eq!(head[16..], [16.0, 17.0, 18.0, 19.0]);
        }
    }
}

#[test]
fn names_are_cut_at_whole_characters_and_escaped() {
    let long = Name::from("ä".repeat(40).as_str());
    assert_eq!(long.as_str(), "ä".repeat(31));
    let name = Name::format(format_args!("blk.{}.{}", 3, "attn\u{1b}[2J\n"));
    assert_eq!(name.as_str(), "blk.3.attn\u{1b}[2J\n");
    assert_eq!(name.to_string(), "blk.3.attn\\u{1b}[2J\\n");
    assert_eq!(format!("{name:?}"), "\"blk.3.attn\\u{1b}[2J\\n\"");
}

type Change = fn(&mut ModelConfig);

fn attention(c: &mut ModelConfig) -> &mut Attention {
    match &mut c.kinds[0].mixer {
        Mixer::Attention(shape) => shape,
        _ => unreachable!(),
    }
}

/// Whether each change is refused by its own key.
fn refuses(bad: &[(&str, Change)]) {
    let sound = config_of(&[KIND]);
    assert_eq!(sound.check(), Ok(()));
    for (expected, change) in bad {
        let mut config = sound.clone();
        change(&mut config);
        let Err(ModelError::Setting { key, .. }) = config.check() else {
            panic!("{expected} is accepted");
        };
        assert_eq!(key.as_str().strip_prefix("llama."), Some(*expected));
    }
}

#[test]
fn every_number_of_a_configuration_is_checked() {
    fn n_ff(c: &mut ModelConfig) -> &mut usize {
        match &mut c.kinds[0].channel {
            Channel::Ffn(shape) => &mut shape.n_ff,
            _ => unreachable!(),
        }
    }
    refuses(&[
        ("embedding_length", |c| c.n_embd = 0),
        ("feed_forward_length", |c| *n_ff(c) = 1 << 25),
        ("vocab_size", |c| c.n_vocab = 0),
        ("attention.key_length", |c| attention(c).head_dim_k = 0),
        ("attention.value_length", |c| attention(c).head_dim_v = 0),
        ("attention.head_count", |c| attention(c).n_head = 0),
        ("attention.head_count", |c| attention(c).n_head = 1 << 22),
        ("attention.head_count_kv", |c| attention(c).n_head_kv = 0),
        ("attention.head_count_kv", |c| attention(c).n_head_kv = 3),
        ("attention.sliding_window", |c| {
            attention(c).window = Some(0);
        }),
        ("attention.shared_kv_layers", |c| {
            attention(c).keys_of = Some(0);
        }),
        ("block_count", |c| c.layers.clear()),
        ("rope.dimension_count", |c| c.ropes[0].n_rot = 15),
        ("rope.dimension_count", |c| c.ropes[0].n_rot = 18),
        // Of a rotation that no layer uses.
        ("rope.dimension_count", |c| {
            let rope = RopeConfig {
                n_rot: usize::MAX - 1,
                ..c.ropes[0]
            };
            c.ropes.push(rope).unwrap();
        }),
        ("rope.freq_base", |c| c.ropes[0].freq_base = 0.5),
        ("rope.freq_base", |c| c.ropes[0].freq_base = f32::INFINITY),
        ("attention.layer_norm_rms_epsilon", |c| c.norm_eps = 0.0),
        ("attention.layer_norm_rms_epsilon", |c| {
            c.norm_eps = f32::NAN
        }),
        ("rope.scaling.factor", |c| c.rope_scaling.factor = -1.0),
        ("rope.scaling.attn_factor", |c| {
            c.rope_scaling.attn_factor = f32::INFINITY;
        }),
        ("attn_logit_softcapping", |c| attention(c).soft_cap = -50.0),
        ("final_logit_softcapping", |c| c.logit_soft_cap = f32::NAN),
        ("attention.key_length", |c| attention(c).scale = 0.0),
        ("embedding_scale", |c| c.embedding_scale = f32::INFINITY),
        ("residual_scale", |c| c.residual_scale = 0.0),
        ("logit_scale", |c| c.logit_scale = f32::NAN),
        ("attention.temperature_scale", |c| {
            attention(c).temperature = Some(QueryTemperature {
                scale: 0.1,
                length: 0,
            });
        }),
    ]);
}

#[test]
fn every_number_of_latent_attention_is_checked() {
    const LATENT: Latent = Latent {
        q_rank: 0,
        kv_rank: 32,
        head_dim_nope: 16,
        head_dim_rope: 8,
        head_dim_v: 16,
    };
    refuses(&[
        ("attention.kv_lora_rank", |c| {
            attention(c).latent = Some(Latent { ..LATENT });
        }),
        ("attention.value_length_mla", |c| {
            attention(c).latent = Some(Latent {
                head_dim_v: 0,
                ..LATENT
            });
        }),
    ]);
}

#[test]
fn every_number_of_experts_is_checked() {
    /// Six experts in place of the feed-forward network.
    fn experts(c: &mut ModelConfig) -> &mut Experts {
        if let Channel::Ffn(ffn) = c.kinds[0].channel {
            c.kinds[0].channel = Channel::Experts(Experts {
                n_ff: ffn.n_ff,
                n_expert: 6,
                n_expert_used: 2,
                router: Router::SOFTMAX,
                is_gated: true,
                activation: ffn.activation,
                shared: None,
                has_norms: false,
                n_latent: 0,
                routes_input: false,
            });
        }
        match &mut c.kinds[0].channel {
            Channel::Experts(shape) => shape,
            _ => unreachable!(),
        }
    }
    refuses(&[
        ("expert_used_count", |c| experts(c).n_expert_used = 7),
        ("expert_shared_feed_forward_length", |c| {
            experts(c).shared = Some(SharedExpert {
                n_ff: 0,
                has_gate: false,
            });
        }),
        ("expert_group_count", |c| experts(c).router.n_group = 4),
        ("expert_group_used_count", |c| {
            (experts(c).router.n_group, experts(c).router.n_group_used) = (3, 0);
        }),
        ("expert_group_used_count", |c| {
            experts(c).router = Router {
                n_group: 3,
                ..Router::SOFTMAX
            };
            experts(c).n_expert_used = 3;
        }),
        ("expert_weights_scale", |c| experts(c).router.scale = 0.0),
    ]);
}

#[test]
fn layers_of_a_kind_share_it_and_kinds_are_few() {
    let windowed = LayerKind {
        mixer: Mixer::Attention(Attention {
            window: Some(8),
            ..ATTENTION
        }),
        ..KIND
    };
    let mut config = config_of(&[KIND, windowed, KIND, windowed]);
    assert_eq!((config.kinds.len(), config.n_layer()), (2, 4));
    assert_eq!(config.kind(2), &KIND);
    assert_eq!(config.kind_index(3), 1);
    for window in 9..15 {
        let mixer = Mixer::Attention(Attention {
            window: Some(window),
            ..ATTENTION
        });
        config.push_layer(LayerKind { mixer, ..KIND }).unwrap();
    }
    let many = config.push_layer(LayerKind {
        has_post_norms: true,
        ..KIND
    });
    assert!(matches!(many, Err(ModelError::NotImplemented { .. })));
}
