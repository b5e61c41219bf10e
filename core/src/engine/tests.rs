use super::limits::EngineLimits;
use super::plan::{EnginePlan, Scratch};
use crate::kernels::activation::ActivationKinds;
use crate::memory::{ALIGN, MemoryError};
use crate::model::tests::{ATTENTION, KIND, config_of};
use crate::model::{
    Activation, Attention, Channel, Experts, Ffn, LayerActivations, LayerKind, Mixer, ModelConfig,
    QkNorm, Router, ShortConv,
};
extern crate std;
use std::vec;
use std::vec::Vec;

fn attention(shape: Attention) -> LayerKind {
    LayerKind {
        mixer: Mixer::Attention(shape),
        ..KIND
    }
}

fn shapes() -> Vec<ModelConfig> {
    let odd = Attention {
        head_dim_k: 6,
        head_dim_v: 5,
        rope: None,
        ..ATTENTION
    };
    let experts = LayerKind {
        channel: Channel::Experts(Experts {
            n_ff: 48,
            n_expert: 5,
            n_expert_used: 2,
            router: Router::SOFTMAX,
            is_gated: true,
            shared: None,
            has_norms: false,
            n_latent: 0,
            routes_input: false,
            activation: Activation::Silu,
        }),
        ..KIND
    };
    let tiny = LayerKind {
        channel: Channel::Ffn(Ffn {
            n_ff: 1,
            is_gated: true,
            activation: Activation::Silu,
        }),
        ..KIND
    };
    let conv = LayerKind {
        mixer: Mixer::ShortConv(ShortConv { n_taps: 3 }),
        has_post_norms: true,
        ..KIND
    };
    let rows = attention(Attention {
        qk_norm: QkNorm::Row,
        n_head_kv: 1,
        window: Some(7),
        ..ATTENTION
    });
    let mut of_types = config_of(&[experts]);
    of_types.activations = LayerActivations {
        stream: ActivationKinds::all(),
        experts: ActivationKinds::INT8_256,
        mixed: ActivationKinds::BF16,
        neurons: ActivationKinds::INT8_32,
    };
    let mut wide = config_of(&[KIND]);
    wide.n_embd = 1000;
    wide.activations = LayerActivations::all(ActivationKinds::all());
    wide.output_activations = ActivationKinds::all();
    vec![
        config_of(&[KIND]),
        config_of(&[attention(odd)]),
        config_of(&[tiny]),
        of_types,
        wide,
        config_of(&[conv, KIND, experts, rows, conv]),
    ]
}

#[test]
fn a_plan_is_exactly_what_scratch_memory_takes() {
    for config in shapes() {
        for (n_batch, n_outputs, n_workers, adapter_rank) in
            [(1, 0, 1, 0), (7, 7, 3, 5), (40, 1, 64, 0)]
        {
            let limits = EngineLimits {
                n_batch,
                n_outputs,
                adapter_rank,
                observes: n_batch == 40,
                selects: n_batch == 7,
                ..EngineLimits::single(64, n_workers)
            };
            let bytes = EnginePlan::new(&config, &limits).unwrap().scratch_bytes;
            let mut memory = vec![0u8; bytes + ALIGN];
            let start = memory.as_ptr().align_offset(ALIGN);
            let memory = &mut memory[start..start + bytes];
            assert!(Scratch::new(&config, &limits, memory).is_ok());
            let small = Scratch::new(&config, &limits, &mut memory[..bytes - ALIGN]);
            let error = MemoryError::TooSmall {
                missing_bytes: ALIGN,
            };
            assert_eq!(small.map(drop), Err(error));
        }
    }
}
