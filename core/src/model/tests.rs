use super::arch::{Architecture, Fused};
use super::config::{
    Activation, LayerActivations, ModelConfig, QkNorm, RopeScaling, RopeScalingKind, WindowPattern,
};
use super::error::{ModelError, Name};
use super::rope::{Rope, frequencies};
use crate::kernels::activation::ActivationKinds;
use crate::kernels::table::RopePairing;
use crate::kernels::{CpuFeatures, KernelTable};
extern crate std;
use std::format;
use std::string::ToString as _;
use std::vec;
use std::vec::Vec;

pub(crate) const CONFIG: ModelConfig = ModelConfig {
    fused: Fused {
        qkv: false,
        gate_up: false,
    },
    architecture: Architecture::Llama,
    n_layer: 1,
    n_embd: 64,
    n_head: 4,
    n_head_kv: 2,
    head_dim_k: 16,
    head_dim_v: 16,
    n_ff: 128,
    n_vocab: 100,
    n_ctx_train: 128,
    n_rot: 16,
    rope_freq_base: 10_000.0,
    rope_scaling: RopeScaling::NONE,
    rope_local: None,
    rope_pairing: RopePairing::Interleaved,
    rms_eps: 1e-5,
    qk_norm: QkNorm::None,
    post_norms: false,
    attention_scale: 0.25,
    attention_soft_cap: 0.0,
    logit_soft_cap: 0.0,
    embedding_scale: 1.0,
    sliding_window: 0,
    window_pattern: WindowPattern::Period(1),
    activation: Activation::Silu,
    n_expert: 0,
    n_expert_used: 0,
    expert_weights_norm: false,
    is_gated: true,
    is_causal: true,
    norms_replace_stream: false,
    tied_output: true,
    activations: LayerActivations::all(ActivationKinds::F32),
    output_activations: ActivationKinds::F32,
};

fn frequencies_of(config: &ModelConfig, factors: Option<&[f32]>) -> Vec<f64> {
    let mut out = vec![0.0; config.n_rot / 2];
    let base = (config.rope_freq_base, config.rope_scaling.factor);
    frequencies(config, base, factors, &mut out);
    out
}

#[test]
fn frequencies_are_powers_of_the_base() {
    let linear = RopeScaling {
        kind: RopeScalingKind::Linear,
        factor: 4.0,
        ..RopeScaling::NONE
    };
    for (rope_freq_base, scaling, factors) in [
        (10_000.0, RopeScaling::NONE, None),
        (500_000.0, linear, None),
        (
            1.0,
            RopeScaling::NONE,
            Some([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ),
    ] {
        let config = ModelConfig {
            rope_freq_base,
            rope_scaling: scaling,
            ..CONFIG
        };
        let found = frequencies_of(&config, factors.as_ref().map(<[f32; 8]>::as_slice));
        for (i, found) in found.into_iter().enumerate() {
            let scale = f64::from(scaling.factor);
            let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
            let base = f64::from(rope_freq_base);
            let expected = base.powf(-(i as f64) / 8.0) / scale / factor;
            assert!((found / expected - 1.0).abs() < 1e-14, "{found} {expected}");
        }
    }
}

#[test]
fn rotating_back_undoes_a_rotation() {
    let frequencies = frequencies_of(&CONFIG, None);
    for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
        let rope = Rope::new(&frequencies, pairing, 1.0);
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
            // Dimensions behind the rotary ones are not touched.
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

#[test]
fn every_number_of_a_configuration_is_checked() {
    assert_eq!(CONFIG.check(), Ok(()));
    type Change = fn(&mut ModelConfig);
    let bad: [(&str, Change); 22] = [
        ("embedding_length", |c| c.n_embd = 0),
        ("feed_forward_length", |c| c.n_ff = 1 << 25),
        ("vocab_size", |c| c.n_vocab = 0),
        ("attention.key_length", |c| c.head_dim_k = 0),
        ("attention.value_length", |c| c.head_dim_v = 0),
        ("attention.head_count", |c| c.n_head = 0),
        ("attention.head_count", |c| c.n_head = 1 << 22),
        ("attention.head_count_kv", |c| c.n_head_kv = 0),
        ("attention.head_count_kv", |c| c.n_head_kv = 3),
        ("block_count", |c| c.n_layer = 4097),
        ("rope.dimension_count", |c| c.n_rot = 15),
        ("rope.dimension_count", |c| c.n_rot = 18),
        ("rope.freq_base", |c| c.rope_freq_base = 0.5),
        ("rope.freq_base", |c| c.rope_freq_base = f32::INFINITY),
        ("attention.layer_norm_rms_epsilon", |c| c.rms_eps = 0.0),
        ("attention.layer_norm_rms_epsilon", |c| c.rms_eps = f32::NAN),
        ("rope.scaling.factor", |c| c.rope_scaling.factor = -1.0),
        ("rope.scaling.attn_factor", |c| {
            c.rope_scaling.attn_factor = f32::INFINITY;
        }),
        ("attn_logit_softcapping", |c| c.attention_soft_cap = -50.0),
        ("final_logit_softcapping", |c| c.logit_soft_cap = f32::NAN),
        ("attention.key_length", |c| c.attention_scale = 0.0),
        ("embedding_length", |c| c.embedding_scale = f32::INFINITY),
    ];
    for (expected, change) in bad {
        let mut config = CONFIG;
        change(&mut config);
        let Err(ModelError::Setting { key, .. }) = config.check() else {
            panic!("{expected} is accepted");
        };
        assert_eq!(key.as_str().strip_prefix("llama."), Some(expected));
    }
}
