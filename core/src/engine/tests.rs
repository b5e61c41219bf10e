use super::limits::Limits;
use super::scratch::{Scratch, ScratchPlan, lcm};
use crate::kernels::activation::ActivationKinds;
use crate::memory::{ALIGN, MemoryError};
use crate::model::tests::CONFIG;
use crate::model::{LayerActivations, ModelConfig};
extern crate std;
use std::vec;

#[test]
fn a_plan_is_exactly_what_scratch_memory_takes() {
    let shapes = [
        CONFIG,
        ModelConfig {
            head_dim_k: 6,
            head_dim_v: 5,
            n_rot: 6,
            ..CONFIG
        },
        ModelConfig {
            n_vocab: 1,
            n_ff: 1,
            ..CONFIG
        },
        ModelConfig {
            activations: LayerActivations {
                stream: ActivationKinds::all(),
                experts: ActivationKinds::INT8_256,
                attention: ActivationKinds::BF16,
                ffn: ActivationKinds::INT8_32,
            },
            n_expert: 5,
            n_expert_used: 2,
            ..CONFIG
        },
        ModelConfig {
            activations: LayerActivations::all(ActivationKinds::all()),
            output_activations: ActivationKinds::all(),
            n_embd: 1000,
            ..CONFIG
        },
    ];
    for config in shapes {
        for (n_batch, n_outputs, n_workers, adapters) in
            [(1, 0, 1, false), (7, 7, 3, true), (40, 1, 64, false)]
        {
            let limits = Limits {
                n_batch,
                n_outputs,
                adapters,
                ..Limits::single(64, n_workers)
            };
            let plan = ScratchPlan::new(&config, &limits);
            let bytes = plan.memory().unwrap().bytes();
            let mut memory = vec![0u8; bytes + ALIGN];
            let start = memory.as_ptr().align_offset(ALIGN);
            let memory = &mut memory[start..start + bytes];
            assert!(Scratch::new(plan, memory).is_ok());
            assert_eq!(
                Scratch::new(plan, &mut memory[..bytes - ALIGN]).map(drop),
                Err(MemoryError::TooSmall {
                    missing_bytes: ALIGN
                })
            );
        }
    }
}

#[test]
fn common_multiples_of_head_lengths() {
    for (a, b, expected) in [
        (16, 64, 64),
        (16, 80, 80),
        (16, 5, 80),
        (48, 32, 96),
        (7, 7, 7),
    ] {
        assert_eq!(lcm(a, b), expected);
    }
}
