//! Families of several kinds of layers: logits against an f64 evaluation and llama.cpp's distance to it, and
//! the same bits whatever the kernels, the workers and the cut of the prompt.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::EngineLimits;
use sluice_core::kernels::{KernelTable, KvType};
use sluice_tests::goldens::{self, Golden, HYBRIDS};
use sluice_tests::reference::Hybrid;
use sluice_tests::run::{self, Room, Weights};
use std::path::Path;

/// Models that run here, with the hash of the logits of their ids, KV cache in f16: as in `bits.rs`.
const RECORDED: [(&str, u64); 20] = [
    ("qwen35", 0xfb51_565b_f667_c90a),
    ("qwen35-mtp", 0xe1df_dc73_43e1_e8c6),
    ("qwen35moe", 0xcff1_88f5_2f9f_2f99),
    ("qwen35moe-fused", 0xe756_bcf1_5754_f80a),
    ("qwen3next", 0x0e27_56bc_dd9f_65fa),
    ("qwen3next-old", 0x265d_d945_a37c_8945),
    ("qwen35moe-mtp", 0x11ef_a0d6_e084_a9cc),
    ("qwen3next-mtp", 0x39c4_fa55_0396_fe69),
    ("deepseek2-mtp", 0x7a27_556a_b6f7_d433),
    ("granitehybrid", 0x4691_d8ec_474e_db77),
    ("granitehybrid-moe", 0xe3f9_865e_3192_61f3),
    ("granitehybrid-rope", 0x1032_00d8_37eb_32a5),
    ("nemotron_h", 0x63f2_aa1d_b065_a68c),
    ("deepseek2", 0x5952_cf3c_67f5_3f89),
    ("deepseek2-glm", 0xed66_cdef_14b0_6bad),
    ("gemma4", 0xab25_ecdb_8f31_f4a8),
    ("gemma4-moe", 0xa982_bb21_4f76_c571),
    ("gemma4-wide", 0x4e06_12c2_2027_507b),
    ("nemotron_h_moe", 0x1c93_e89f_5cb0_e8f4),
    ("nemotron_h_moe-latent", 0x846e_4e06_5b31_39fd),
];

fn models() -> impl Iterator<Item = &'static Golden> {
    RECORDED.iter().map(|(name, _)| {
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
    let limits = EngineLimits {
        n_batch: 600,
        n_outputs: 600,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(600, n_workers)
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
fn hybrids_have_the_recorded_hashes() {
    let mut wrong = Vec::new();
    for golden in models() {
        let logits = logits(golden, (run::table(), KvType::F16), (1, 64), golden.ids);
        let hash = run::hash(&logits);
        println!("    (\"{}\", {hash:#018x}),", golden.name);
        if !RECORDED.contains(&(golden.name, hash)) {
            wrong.push(golden.name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn kernels_workers_and_chunks_change_no_bit() {
    for golden in models() {
        let ids: Vec<u32> = (0..200)
            .map(|i| 3 + (5 * i * i + 13 * i + 1) % 256)
            .collect();
        let expected = logits(golden, (run::table(), KvType::F16), (1, 600), &ids);
        for table in run::tables() {
            for (n_workers, chunk) in [(1, 600), (2, 7), (3, 64), (5, 1), (1, 33)] {
                let found = logits(golden, (table, KvType::F16), (n_workers, chunk), &ids);
                let case = (golden.name, table.name(), n_workers, chunk);
                assert!(found == expected, "{case:?}");
            }
        }
    }
}
