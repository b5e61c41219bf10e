//! Our logits against an f64 evaluation of the same file, and against llama.cpp's distance to it.

use sluice_core::engine::Limits;
use sluice_core::kernels::KvType;
use sluice_tests::goldens::{self, Golden};
use sluice_tests::reference::Model as Reference;
use sluice_tests::run::{self, Room, Weights};

/// Logits of a golden's tokens by Sluice.
fn ours(golden: &Golden, file: &[u8], kv_type: KvType) -> Vec<Vec<f32>> {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let limits = Limits {
        n_outputs: 64,
        kv_type,
        ..Limits::single(64, 1)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    run::logits(&mut engine, golden.ids, 64).unwrap()
}

#[test]
fn as_near_to_f64_as_twice_llama_cpp() {
    let Some(shared) = sluice_tests::shared() else {
        return;
    };
    for golden in goldens::LLAMA
        .iter()
        .filter(|golden| golden.name != "tiny-llama-Q5_K")
    {
        let path = shared.join(golden.model);
        let exact = Reference::open(&path).unwrap().logits(golden.ids);
        let theirs = goldens::distance(&golden.llama_cpp_logits(&shared).unwrap(), &exact);
        let file = std::fs::read(&path).unwrap();
        for kv_type in KvType::ALL {
            let logits = ours(golden, &file, kv_type);
            let ours = goldens::distance(&logits, &exact);
            println!(
                "{:22} {kv_type:5} {:.6} llama.cpp {:.6} ratio {:.3} argmax {}/{}",
                golden.name,
                ours.rms,
                theirs.rms,
                ours.rms / theirs.rms,
                ours.argmax_equal,
                ours.rows
            );
        }
    }
}
