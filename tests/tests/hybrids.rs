//! Families of several kinds of layers: logits against an f64 evaluation and llama.cpp's distance to it, and
//! the same bits whatever the kernels, the workers and the cut of the prompt.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::Limits;
use sluice_core::kernels::{KernelTable, KvType};
use sluice_tests::goldens::{self, Golden, HYBRIDS};
use sluice_tests::reference::Hybrid;
use sluice_tests::run::{self, Room, Weights};
use std::path::Path;

/// Those that run here.
const MODELS: [&str; 10] = [
    "qwen35",
    "qwen35-mtp",
    "qwen35moe",
    "qwen35moe-fused",
    "qwen3next",
    "granitehybrid",
    "granitehybrid-moe",
    "granitehybrid-rope",
    "nemotron_h",
    "nemotron_h_moe",
];

fn models() -> impl Iterator<Item = &'static Golden> {
    MODELS.iter().map(|name| {
        let golden = HYBRIDS.iter().find(|golden| golden.name == *name);
        golden.unwrap()
    })
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Logits after each of `ids`, in steps of `chunk`.
fn logits(
    golden: &Golden,
    (table, kv_type): (&'static KernelTable, KvType),
    (n_workers, chunk): (usize, usize),
    ids: &[u32],
) -> Vec<Vec<f32>> {
    let file = std::fs::read(folder().join(golden.model)).unwrap();
    let mut weights = Weights::plan(&file).unwrap();
    let model = weights.load(&file, 1).unwrap();
    let limits = Limits {
        n_batch: 600,
        n_outputs: 600,
        type_k: kv_type,
        type_v: kv_type,
        ..Limits::single(600, n_workers)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, table, &limits).unwrap();
    run::logits(&mut engine, ids, chunk).unwrap()
}

#[test]
fn at_most_twice_as_far_from_f64_as_llama_cpp() {
    for golden in models() {
        let exact = Hybrid::open(&folder().join(golden.model)).unwrap();
        let exact = exact.logits(golden.ids);
        let peer = golden.llama_cpp_logits(folder()).unwrap();
        let theirs = goldens::distance(&peer, &exact);
        let [f16, f32] = [KvType::F16, KvType::F32].map(|ty| {
            let logits = logits(golden, (run::table(), ty), (1, 64), golden.ids);
            goldens::distance(&logits, &exact)
        });
        println!(
            "{:22} rms {:.6}, llama.cpp {:.6}, ratio {:.3}, argmax {}/{} (llama.cpp {}), cache in f32 {:.1e}",
            golden.name,
            f16.rms,
            theirs.rms,
            f16.rms / theirs.rms,
            f16.argmax_equal,
            f16.rows,
            theirs.argmax_equal,
            f32.rms_relative,
        );
        assert!(f16.rms <= 2.0 * theirs.rms, "{}", golden.name);
        // Nothing but f32 arithmetic is left with an f32 cache.
        assert!(f32.rms_relative < 1e-5, "{}: {f32:?}", golden.name);
    }
}

#[test]
fn kernels_workers_and_chunks_change_no_bit() {
    for golden in models() {
        let ids: Vec<u32> = (0..200)
            .map(|i| 3 + (5 * i * i + 13 * i + 1) % 256)
            .collect();
        let expected = logits(golden, (run::table(), KvType::F16), (1, 600), &ids);
        for table in KernelTable::available(sluice::host::isa::features()) {
            for (n_workers, chunk) in [(1, 600), (2, 7), (3, 64), (5, 1), (1, 33)] {
                let found = logits(golden, (table, KvType::F16), (n_workers, chunk), &ids);
                let case = (golden.name, table.name(), n_workers, chunk);
                assert!(found == expected, "{case:?}");
            }
        }
    }
}
