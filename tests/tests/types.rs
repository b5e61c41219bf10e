//! A model of every weight type, from GGUF bytes to logits, against an f64 evaluation.

#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::EngineLimits;
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::{KvType, WeightType};
use sluice_tests::build::{Random, Shape};
use sluice_tests::goldens;
use sluice_tests::reference::Model as Reference;
use sluice_tests::run::{self, Room, Weights};

#[test]
fn models_of_every_type_are_as_near_to_f64_as_their_activations() {
    let mut random = Random(5);
    let ids: Vec<u32> = (0..12).map(|_| random.below(300)).collect();
    let limits = EngineLimits {
        n_outputs: 12,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..EngineLimits::single(64, 1)
    };
    for ty in WeightType::ALL {
        // 300 tokens: the output layer has rows after its last panel.
        let shape = Shape {
            ty: ty.ggml(),
            ..Shape::SMALL
        };
        let file = shape.file().bytes();
        let exact = Reference::parse(&file).unwrap().logits(&ids);
        let mut weights = Weights::plan(&file).unwrap();
        let model = weights.load(&file, 1).unwrap();
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model, run::table(), &limits).unwrap();
        let logits = run::logits(&mut engine, &ids, 64).unwrap();
        let error = goldens::distance(&logits, &exact).rms_relative;
        println!("{:8} relative rms {error:.2e}", ty.ggml().name());
        // What is left is f32 arithmetic, or the 8 bits of the activations.
        let bound = match ActivationKinds::for_weights(ty) {
            ActivationKinds::F32 => 1e-5,
            _ => 0.05,
        };
        assert!(error < bound, "{ty:?}: {error}");
    }
}
