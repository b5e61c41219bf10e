//! The same logits, bit for bit, whatever the kernels, the workers, the cut of the prompt, the rest
//! of the batch, and where the cache came from.
//!
//! The hashes below are the contract: work on kernels must not change one. They were recorded
//! with the scalar reference, KV cache in f16.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::{Engine, EngineLimits, Wants};
use sluice_core::kernels::{KernelTable, KvType};
use sluice_core::model::LongRope;
use sluice_core::state::Identity;
use sluice_tests::goldens::{self, Golden};
use sluice_tests::run::{self, Room, Weights};
use std::path::Path;

/// Hash of the logits of each golden's ids.
const RECORDED: [(&str, u64); 101] = [
    ("tiny-llama-f16", 0x77ac_0ab9_e41b_bf35),
    ("tiny-llama-Q8_0", 0x862a_a3b8_21e7_91e7),
    ("tiny-llama-Q4_0", 0xb793_5239_3e44_d9ae),
    ("tiny-llama-Q4_K", 0xe14a_e0e6_f2bb_dd39),
    ("tiny-llama-Q6_K", 0x8bcf_28ef_f40b_9468),
    ("stories260k-f32", 0x022a_dc66_c79b_2bcf),
    ("tinystories-656k-f16", 0x8022_b743_7610_87ce),
    ("tiny-llama-Q5_K", 0xaff6_f7b8_6115_46a3),
    ("tiny-llama-IQ4_XS", 0x5327_f44b_b293_9c99),
    ("llama-linear", 0xf25b_af6c_6e72_1f0b),
    ("llama-llama3", 0x7a6b_573c_ffda_8db3),
    ("llama-yarn", 0xb7ad_7935_eb88_8645),
    ("llama-longrope", 0x53c7_db29_2cf3_0748),
    ("qwen3-yarn", 0x4563_0758_64c6_21c3),
    ("phi3-short", 0xe1dc_da0c_f6f7_b3b3),
    ("phi3-long", 0x2820_01d3_80e4_7ccf),
    ("gemma2", 0xb37c_5e53_da73_2ecc),
    ("gemma3", 0x5353_bae8_707e_6d86),
    ("gemma3-listed", 0x3208_2712_b583_de72),
    ("tiny-qwen2-f16", 0xbb99_08f0_4533_073e),
    ("tiny-qwen3-f16", 0x0d75_6b08_66a9_9a4d),
    ("tiny-phi3-f16", 0x4b20_0bce_bc43_0e25),
    ("tiny-mixtral-f16", 0xfcb3_b50d_352a_eea6),
    ("tiny-olmoe-f16", 0x7f50_f94e_a8b5_bf5a),
    ("tiny-qwen3moe-f16", 0x7e62_8472_ffb0_7e65),
    ("odd-experts", 0xc877_b1fe_81b7_8b9a),
    ("lfm2", 0x8a20_7690_bc59_1f0d),
    ("lfm2-Q4_K_M", 0x4e88_85c8_edc1_4432),
    ("gpt-oss", 0xffd4_f7f1_b88d_9bc0),
    ("gpt-oss-MXFP4_MOE", 0x3d7e_ac15_ccd3_e083),
    ("granite", 0x4891_42af_e8ab_ec9d),
    ("granite-unrotated", 0x206d_6035_7a06_266c),
    ("granite-Q4_K_M", 0x96bc_6c61_02ae_c50c),
    ("granitemoe", 0x85ad_99b9_978a_630d),
    ("granitemoe-shared", 0x3f12_8b0b_2694_168e),
    ("granite_swa", 0x599b_a722_37b5_beb3),
    ("granite_swa-moe", 0x17ac_80dc_d11c_abfc),
    ("glm4", 0xbad9_cd7c_f884_787f),
    ("glm4-tied", 0x734b_af7f_9055_11b3),
    ("glm4moe", 0xe00d_ff86_3401_7362),
    ("glm4moe-norms", 0xc1cb_0abc_5e0d_a488),
    ("glm4moe-Q4_K_M", 0x97ff_dc2b_6afd_1419),
    ("mistral3", 0xcde6_3f2f_a78c_e76f),
    ("mistral3-moe", 0x05ba_0311_d95e_62dd),
    ("smollm3", 0x793e_2933_14f0_ec5e),
    ("olmo2", 0x8bca_abff_56ff_7840),
    ("olmo2-window", 0x57d2_8643_66d1_a47b),
    ("qwen2moe", 0x504a_3504_460d_0060),
    ("qwen2moe-64", 0x296f_d3bf_d768_6f14),
    ("ernie4_5", 0xc104_45c6_d495_f220),
    ("ernie4_5-moe", 0x32dc_4695_69ae_ac05),
    ("ernie4_5-moe-step", 0x1146_d145_acbf_221d),
    ("seed_oss", 0x4c8a_8a41_6068_765a),
    ("seed_oss-tied", 0x16dd_e195_caa0_ab93),
    ("cohere2", 0xc845_46ee_b64f_b076),
    ("cohere2-listed", 0x6d98_fe82_666c_8f52),
    ("exaone4", 0x67b8_5be5_d508_598c),
    ("exaone4-window", 0xad4b_2977_b3c3_132e),
    ("minimax-m2", 0x320b_8f04_5d71_d6be),
    ("minimax-m2-pairs", 0x839f_f7d4_e003_63b0),
    ("hunyuan-dense", 0x198a_474d_1654_17c5),
    ("hunyuan-moe", 0x29a2_f9f1_b979_1e28),
    ("hunyuan-moe-equal", 0xba9f_b1dc_2e14_db46),
    ("lfm2moe", 0x35e0_e85d_deac_afd0),
    ("lfm2moe-64", 0xd03d_ae7a_1b41_8f1e),
    ("smallthinker", 0xfea5_a5a1_fae2_ec91),
    ("smallthinker-softmax", 0x3af2_171e_782a_f314),
    ("minicpm", 0x56f9_5c74_7799_24e9),
    ("minicpm-plain", 0xdf62_5030_b893_b5bf),
    ("qwen2", 0x697f_0fe4_c34e_fac4),
    ("mixtral", 0xa42f_8702_5c45_d4fb),
    ("olmoe", 0x4c3f_13c0_cd75_416d),
    ("qwen3moe", 0xa198_b89a_9926_7582),
    ("llama-NVFP4-scaled", 0x6338_1b1f_c060_e5cd),
    ("qwen3moe-scaled", 0xf41f_bb67_5497_f54d),
    ("llama-F32", 0x258e_a746_d39c_66ef),
    ("llama-F16", 0x258e_a746_d39c_66ef),
    ("llama-BF16", 0x288e_cc65_591b_af08),
    ("llama-Q8_0", 0x5d03_e901_95db_c0db),
    ("llama-Q4_0", 0xcb64_3146_8d59_de01),
    ("llama-Q4_1", 0xdf03_11ef_e4ff_ade1),
    ("llama-Q5_0", 0x273b_a2aa_9b51_52b3),
    ("llama-Q5_1", 0x124c_d259_5a7d_f0c5),
    ("llama-Q2_K", 0xa40e_7aae_4e1a_e6cb),
    ("llama-Q3_K", 0xa7a1_32f4_c393_ca92),
    ("llama-Q4_K", 0xf402_e1c5_1f9f_a587),
    ("llama-Q5_K", 0xf68a_e5d0_1ae6_a91f),
    ("llama-Q6_K", 0xb054_d9d6_54bf_8d62),
    ("llama-IQ1_S", 0x5714_1d19_c36c_6728),
    ("llama-IQ1_M", 0x04e0_ced6_49bd_8f07),
    ("llama-IQ2_XXS", 0x9b43_fc8b_cae1_c58c),
    ("llama-IQ2_XS", 0x7fa6_d3e5_1b53_2a2c),
    ("llama-IQ2_S", 0xc70f_d110_799f_66c0),
    ("llama-IQ3_XXS", 0xab39_f923_f582_db02),
    ("llama-IQ3_S", 0xe433_8d93_22e2_d344),
    ("llama-IQ4_NL", 0xf84e_6977_043e_e7a5),
    ("llama-IQ4_XS", 0x7583_24c1_3aaf_af5e),
    ("llama-TQ1_0", 0x6498_e26f_b447_73ce),
    ("llama-TQ2_0", 0x6498_e26f_b447_73ce),
    ("llama-MXFP4", 0x5f00_d6c5_356c_607f),
    ("llama-NVFP4", 0xd27d_4310_64c8_466f),
];

/// Hash of the last row's logits after [`long_ids`]: more than one KV split, a last block that
/// is not full.
const RECORDED_LONG: [(&str, KvType, u64); 30] = [
    ("tiny-llama-Q4_K", KvType::F32, 0x4576_58c1_b337_7778),
    ("tiny-llama-Q4_K", KvType::F16, 0xfd3b_d0a8_df8e_f23e),
    ("tiny-llama-Q4_K", KvType::BF16, 0x1aee_74e1_ed25_d921),
    ("stories260k-f32", KvType::F32, 0x369c_1a3d_ecbb_30b5),
    ("stories260k-f32", KvType::F16, 0x8d0f_badc_e487_9c37),
    ("stories260k-f32", KvType::BF16, 0xb710_1b3b_1d40_07f8),
    ("tiny-llama-Q4_K", KvType::Q8_0, 0xbbd9_dab7_97a5_0340),
    ("tiny-llama-Q4_K", KvType::Q4_0, 0x4108_520b_8ddf_2094),
    ("tiny-llama-Q4_K", KvType::FP8, 0xa974_ead5_5fbd_3e3e),
    ("stories260k-f32", KvType::Q8_0, 0x0751_ff3f_48c2_801a),
    ("stories260k-f32", KvType::Q4_0, 0x8ae6_bdc0_ccd4_3a87),
    ("stories260k-f32", KvType::FP8, 0xda75_24aa_8092_c6ba),
    ("gemma2", KvType::F32, 0x5d41_ad13_4a1a_a1f4),
    ("gemma2", KvType::F16, 0x7012_806c_c2b6_2d0b),
    ("gemma2", KvType::BF16, 0x19dc_8d79_3cb3_553a),
    ("gemma3", KvType::F32, 0x6e17_794a_ac32_2fa7),
    ("gemma3", KvType::F16, 0x5ce4_9f73_d94f_634b),
    ("gemma3", KvType::BF16, 0x54f4_bf79_1e06_0a21),
    ("llama-Q4_K", KvType::F32, 0xe6a5_daa3_25f2_63d8),
    ("llama-Q4_K", KvType::F16, 0xc914_31f5_e1ed_0e0e),
    ("llama-Q4_K", KvType::BF16, 0xc1cc_560e_3b22_81c2),
    ("llama-Q4_K", KvType::Q8_0, 0xf6bd_7c77_cb51_2710),
    ("llama-Q4_K", KvType::Q4_0, 0x409c_f316_8f38_3f4d),
    ("llama-Q4_K", KvType::FP8, 0x898e_7244_85e5_5a94),
    ("llama-F32", KvType::F32, 0x36e5_72e0_d0cc_3015),
    ("llama-F32", KvType::F16, 0xc149_5e1b_8b53_8efc),
    ("llama-F32", KvType::BF16, 0x8eef_43d1_7275_7dcd),
    ("llama-F32", KvType::Q8_0, 0x1277_7bb5_ea8b_622f),
    ("llama-F32", KvType::Q4_0, 0x8254_65fb_1cb3_3c1f),
    ("llama-F32", KvType::FP8, 0x610a_7a9b_72b1_5e55),
];

/// 530 tokens, from a fixed recurrence.
fn long_ids(n_vocab: usize) -> Vec<u32> {
    let n_vocab = u32::try_from(n_vocab).unwrap();
    (0..530u32)
        .scan(7u32, |x, i| {
            *x = (*x * 171 + 11 * i + 3) % 509;
            Some(*x % n_vocab)
        })
        .collect()
}

struct Bench {
    file: Vec<u8>,
    weights: Weights,
}

impl Bench {
    /// The golden called `name`; `None` if it is in the shared folder and that does not exist: every kind also has a
    /// golden of the project's own.
    fn open(name: &str) -> Option<(&'static Golden, Self)> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let hybrids = goldens::HYBRIDS.iter().map(|golden| (golden, own.into()));
        let mut all = goldens::all().into_iter().chain(hybrids);
        let (golden, folder) = all.find(|(golden, _)| golden.name == name).or_else(|| {
            let is_shared = goldens::SHARED.iter().any(|golden| golden.name == name);
            assert!(is_shared, "{name} is not a golden");
            None
        })?;
        Some((golden, Self::read(golden, &folder)))
    }

    fn read(golden: &Golden, folder: &Path) -> Self {
        let file = std::fs::read(folder.join(golden.model)).unwrap();
        let weights = Weights::plan(&file).unwrap();
        Self { file, weights }
    }

    fn n_vocab(&mut self) -> usize {
        self.weights.load(&self.file, 1).unwrap().config().n_vocab
    }

    /// Hands an engine with these limits to `act`.
    fn with<R>(
        &mut self,
        table: &'static KernelTable,
        limits: &EngineLimits,
        act: impl FnOnce(&mut Engine<'_>) -> R,
    ) -> R {
        let model = self.weights.load(&self.file, 1).unwrap();
        let mut room = Room::plan(model.config(), limits).unwrap();
        act(&mut room.engine(model, table, limits).unwrap())
    }
}

fn limits(n_workers: usize, kv_type: KvType) -> EngineLimits {
    EngineLimits {
        n_batch: 600,
        n_outputs: 600,
        n_seq: 4,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(4 * 640, n_workers)
    }
}

/// As [`limits`], for tests that put entries of texts of any length into a step.
fn pinned(n_workers: usize, kv_type: KvType) -> EngineLimits {
    EngineLimits {
        longrope: LongRope::Long,
        ..limits(n_workers, kv_type)
    }
}

#[test]
fn golden_models_have_the_recorded_hashes() {
    let mut wrong = Vec::new();
    for (golden, folder) in goldens::all() {
        let name = golden.name;
        let recorded = RECORDED.iter().find(|(other, _)| *other == name);
        let mut bench = Bench::read(golden, &folder);
        for table in run::tables() {
            let hash = bench.with(table, &limits(1, KvType::F16), |engine| {
                run::hash(&run::logits(engine, golden.ids, 600).unwrap())
            });
            println!("(\"{name}\", {hash:#018x}), // {}", table.name());
            if recorded.is_none_or(|(_, recorded)| hash != *recorded) {
                wrong.push((name, table.name(), hash));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#x?}");
}

#[test]
fn long_sequences_have_the_recorded_hashes() {
    let mut wrong = Vec::new();
    for (name, kv_type, recorded) in RECORDED_LONG {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        let ids = long_ids(bench.n_vocab());
        for table in run::tables() {
            let hash = bench.with(table, &limits(1, kv_type), |engine| {
                run::hash(&run::logits(engine, &ids, 600).unwrap()[529..])
            });
            println!(
                "(\"{name}\", KvType::{kv_type:?}, {hash:#018x}), // {}",
                table.name()
            );
            if hash != recorded {
                wrong.push((name, kv_type, table.name(), hash));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#x?}");
}

/// A golden of every architecture and kind of rotation, and quantised weights.
const OF_EACH_KIND: [&str; 16] = [
    "llama-Q4_K",
    "llama-F32",
    "qwen2",
    "tiny-llama-Q4_K",
    "stories260k-f32",
    "tiny-qwen2-f16",
    "qwen3-yarn",
    "llama-longrope",
    "phi3-long",
    "gemma2",
    "gemma3",
    "gemma3-listed",
    "lfm2",
    "lfm2-Q4_K_M",
    "gpt-oss",
    "gpt-oss-MXFP4_MOE",
];

#[test]
fn workers_and_chunks_change_no_bit() {
    for name in OF_EACH_KIND {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        let ids = long_ids(bench.n_vocab());
        let table = run::table();
        let reference = bench.with(table, &limits(1, KvType::F16), |engine| {
            run::hash(&run::logits(engine, &ids, 600).unwrap())
        });
        // Every number of workers and every chunk, not every pair: a chunk of 1 is slow.
        for (n_workers, chunk) in [
            (1, 7),
            (2, 32),
            (3, 512),
            (5, 7),
            (2, 1),
            (5, 600),
            (64, 32),
        ] {
            let hash = bench.with(table, &limits(n_workers, KvType::F16), |engine| {
                run::hash(&run::logits(engine, &ids, chunk).unwrap())
            });
            assert_eq!(
                hash, reference,
                "{name}: {n_workers} workers, chunks of {chunk}"
            );
        }
    }
}

/// Prompts in any cut on any number of workers, then tokens one by one, and four at once.
#[test]
fn cache_types_keep_their_bits_over_workers_chunks_and_splits() {
    let types = [
        (KvType::F16, KvType::F16),
        (KvType::BF16, KvType::BF16),
        (KvType::Q8_0, KvType::Q8_0),
        (KvType::Q8_0, KvType::Q4_0),
        (KvType::FP8, KvType::F32),
    ];
    let Some((_, mut bench)) = Bench::open("llama-Q4_K") else {
        return;
    };
    let ids = long_ids(bench.n_vocab()).repeat(2);
    let (prompt, rest) = ids.split_at(1048);
    for (type_k, type_v) in types {
        let mut run = |n_workers, chunk: usize| {
            let limits = EngineLimits {
                type_v,
                ..limits(n_workers, type_k)
            };
            bench.with(run::table(), &limits, |engine| {
                let mut rows = run::logits(engine, prompt, chunk).unwrap();
                rows.drain(..prompt.len() - 1);
                for (i, id) in rest[..4].iter().enumerate() {
                    let entry = run::entries(&[*id], 0, prompt.len() + i);
                    rows.extend(run::step(engine, &entry).unwrap());
                }
                let entries = run::entries(&rest[4..8], 0, prompt.len() + 4);
                rows.extend(run::step(engine, &entries).unwrap());
                run::hash(&rows)
            })
        };
        let reference = run(1, 600);
        for (n_workers, chunk) in [(2, 100), (3, 600), (4, 77), (5, 300), (64, 600)] {
            let found = run(n_workers, chunk);
            assert_eq!(found, reference, "{type_k} {type_v}: {n_workers} workers");
        }
    }
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    for (golden, folder) in goldens::all() {
        let mut bench = Bench::read(golden, &folder);
        let ids = golden.ids;
        let others: Vec<u32> = ids.iter().rev().copied().collect();
        let limits = pinned(2, KvType::F16);
        bench.with(run::table(), &limits, |engine| {
            let alone = run::logits(engine, ids, 600).unwrap();
            let other = run::step(engine, &run::entries(&others, 1, 0)).unwrap();
            engine.state_mut().clear(0).unwrap();
            engine.state_mut().clear(1).unwrap();
            // Token by token, alternating with another sequence, in one batch.
            let mixed: Vec<_> = run::entries(ids, 3, 0)
                .into_iter()
                .zip(run::entries(&others, 1, 0))
                .flat_map(|(a, b)| [b, a])
                .collect();
            let rows = run::step(engine, &mixed).unwrap();
            for i in 0..ids.len() {
                assert_eq!(run::hash(&rows[2 * i..=2 * i]), run::hash(&other[i..=i]));
                assert_eq!(
                    run::hash(&rows[2 * i + 1..2 * i + 2]),
                    run::hash(&alone[i..=i])
                );
            }
        });
    }
}

/// The last layer leaves out what no output depends on. That must not change the outputs, nor what
/// comes after them.
#[test]
fn which_entries_want_outputs_changes_no_bit() {
    const N: usize = 70;
    let patterns: [fn(usize) -> bool; 6] = [
        |_| false,
        |i| i == 0,
        |i| i == 2 * N - 1,
        |i| i % 11 == 3,
        |i| (20..75).contains(&i),
        |i| i != 30,
    ];
    for name in
        OF_EACH_KIND
            .into_iter()
            .chain(["olmoe", "mixtral", "tiny-olmoe-f16", "tiny-mixtral-f16"])
    {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        let ids = long_ids(bench.n_vocab());
        let (first, second) = (&ids[..=N], &ids[100..=100 + N]);
        let table = run::table();
        let alone = bench.with(table, &pinned(1, KvType::F16), |engine| {
            [0, 1].map(|s| {
                let ids = [first, second][s as usize];
                run::step(engine, &run::entries(ids, s, 0)).unwrap()
            })
        });
        // One sequence after the other, and token by token.
        let queue: Vec<_> = [(first, 0), (second, 1)]
            .iter()
            .flat_map(|(ids, s)| run::entries(&ids[..N], *s, 0))
            .collect();
        let mixed: Vec<_> = (0..2 * N).map(|i| queue[i % 2 * N + i / 2]).collect();
        for (n_workers, batch) in [(1, &queue), (2, &mixed), (3, &queue), (5, &mixed)] {
            for wanted in patterns {
                bench.with(table, &pinned(n_workers, KvType::F16), |engine| {
                    let mut batch = batch.clone();
                    for (i, entry) in batch.iter_mut().enumerate() {
                        if !wanted(i) {
                            entry.wants = Wants::Nothing;
                        }
                    }
                    let rows = run::step(engine, &batch).unwrap();
                    let wanting = batch.iter().filter(|entry| entry.wants == Wants::Logits);
                    assert_eq!(wanting.clone().count(), rows.len());
                    for (entry, row) in wanting.zip(rows) {
                        let [s, i] = [entry.sequence, entry.position].map(|n| n as usize);
                        let same = run::hash(&[row]) == run::hash(&alone[s][i..=i]);
                        assert!(same, "{name}: {n_workers} workers, entry {i} of {s}");
                    }
                    let next =
                        [(first, 0), (second, 1)].map(|(ids, s)| run::entries(&ids[N..], s, N)[0]);
                    let rows = run::step(engine, &next).unwrap();
                    let expected = alone.each_ref().map(|rows| rows[N].clone());
                    let same = run::hash(&rows) == run::hash(&expected);
                    assert!(same, "{name}: {n_workers} workers, after the batch");
                });
            }
        }
    }
}

/// The last layer's few rows over a long context: splits of the keys are units of work of their own.
#[test]
fn a_few_outputs_after_a_long_context_keep_their_bits() {
    for name in ["llama-Q4_K", "llama-F32", "gemma2", "stories260k-f32"] {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        let ids = long_ids(bench.n_vocab()).repeat(2);
        let (ids, second) = (&ids[..630], &ids[40..60]);
        let table = run::table();
        let expected = bench.with(table, &pinned(1, KvType::F16), |engine| {
            let long = run::logits(engine, ids, 600).unwrap();
            let short = run::step(engine, &run::entries(second, 1, 0)).unwrap();
            [long, short].map(|rows| rows.last().unwrap().clone())
        });
        for n_workers in [1, 2, 3, 5, 7] {
            bench.with(table, &pinned(n_workers, KvType::F16), |engine| {
                let (before, last) = ids.split_at(590);
                run::logits(engine, before, 590).unwrap();
                let mut batch = run::entries(last, 0, before.len());
                batch.extend(run::entries(second, 1, 0));
                for (i, entry) in batch.iter_mut().enumerate() {
                    if i + 1 != last.len() && i + 1 != last.len() + second.len() {
                        entry.wants = Wants::Nothing;
                    }
                }
                let rows = run::step(engine, &batch).unwrap();
                let same = run::hash(&rows) == run::hash(&expected);
                assert!(same, "{name}: {n_workers} workers");
            });
        }
    }
}

/// In a model of one layer, keys and values follow from token and position alone: after a context
/// shift the rest goes on as if the tokens removed had never been there.
#[test]
fn context_shifts_rotate_as_each_model_does() {
    for name in [
        "llama-linear",
        "llama-llama3",
        "qwen3-yarn",
        "phi3-long",
        "gemma3",
        "olmo2",
        "glm4",
        // One layer, in which the rotated part of a key follows the latent row.
        "deepseek2-glm",
    ] {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        // The first layer of gemma3 alone: one with a window and a rotary base of its own.
        let key = b"gemma3.block_count";
        if let Some(at) = bench.file.windows(key.len()).position(|w| w == key) {
            bench.file[at + key.len() + 4] = 1;
            for at in 0..bench.file.len() - 6 {
                let name = &mut bench.file[at..at + 6];
                // Tensors of other layers would be missed.
                if name.starts_with(b"blk.") && name[4] != b'0' && name[5] == b'.' {
                    name[0] = b'x';
                }
            }
        }
        let mut ids = long_ids(bench.n_vocab());
        ids.truncate(150);
        bench.with(run::table(), &limits(2, KvType::F32), |engine| {
            let rest = [&ids[..10], &ids[90..]].concat();
            let expected = run::logits(engine, &rest, 600).unwrap();
            engine.state_mut().clear(0).unwrap();
            run::logits(engine, &ids[..149], 600).unwrap();
            engine.remove(0, 10..90).unwrap();
            let last = run::step(engine, &run::entries(&ids[149..], 0, 69)).unwrap();
            for (a, b) in last[0].iter().zip(&expected[69]) {
                assert!((a - b).abs() < 2e-5, "{name}: {a} {b}");
            }
        });
    }
}

/// Keys cannot be rotated back if a norm follows their rotation.
#[test]
fn keys_that_cannot_be_turned_back_do_not_move() {
    let (golden, mut bench) = Bench::open("hunyuan-dense").unwrap();
    bench.with(run::table(), &limits(2, KvType::F32), |engine| {
        run::logits(engine, golden.ids, 64).unwrap();
        let error = engine.remove(0, 4..9).unwrap_err().to_string();
        let expected = "this model's state does not allow tokens to be removed before the end";
        assert_eq!(error, expected);
        engine.remove(0, 9..golden.ids.len()).unwrap();
    });
}

/// A text is computed with the divisors for its length, whatever the context and the steps: the original context of
/// this model is 16 tokens.
#[test]
fn longrope_follows_the_length_of_the_text() {
    let (golden, mut bench) = Bench::open("phi3-long").unwrap();
    let mut run = |n_ctx, longrope, n_tokens: usize, chunk| {
        let limits = EngineLimits {
            n_outputs: 64,
            longrope,
            ..EngineLimits::single(n_ctx, 1)
        };
        let ids = &golden.ids[..n_tokens];
        bench.with(run::table(), &limits, |engine| {
            run::hash(&run::logits(engine, ids, chunk).unwrap())
        })
    };
    for n_tokens in [3, 16, 17, 40] {
        let own = run(n_tokens, LongRope::ByLength, n_tokens, n_tokens);
        assert_eq!(own, run(4096, LongRope::ByLength, n_tokens, 5));
        let is_long = n_tokens > 16;
        let short = run(64, LongRope::Short, n_tokens, n_tokens);
        let long = run(64, LongRope::Long, n_tokens, n_tokens);
        assert_eq!(
            (own == short, own == long),
            (!is_long, is_long),
            "{n_tokens}"
        );
    }
}

/// A text that passes the original context is read again once; then it is as if it had been read at once.
#[test]
fn a_longrope_text_that_becomes_long_is_read_again() {
    let (golden, mut bench) = Bench::open("phi3-long").unwrap();
    bench.with(run::table(), &limits(1, KvType::F16), |engine| {
        let whole = run::logits(engine, &golden.ids[..20], 64).unwrap();
        engine.state_mut().clear(0).unwrap();
        run::logits(engine, &golden.ids[..16], 64).unwrap();
        let next = run::entries(&golden.ids[16..17], 0, 16);
        let refused = run::step(engine, &next).unwrap_err().to_string();
        assert!(
            refused.contains("not prepared for a text of this length"),
            "{refused}"
        );
        assert!(engine.fit(0, 17).unwrap() && engine.state().is_empty(0));
        run::step(engine, &run::entries(&golden.ids[..17], 0, 0)).unwrap();
        // It stays long, and a copy of it is.
        assert!(!engine.fit(0, 20).unwrap());
        engine.state_mut().fork(0, 1).unwrap();
        let rows = run::step(engine, &run::entries(&golden.ids[17..20], 1, 17)).unwrap();
        assert_eq!(run::hash(&rows), run::hash(&whole[17..]));
    });
}

#[test]
fn forked_and_restored_caches_go_on_with_the_same_bits() {
    let names = ["llama-Q4_K", "gemma3"];
    let cases = names.map(|name| KvType::ALL.map(|kv_type| (name, kv_type)));
    for (name, kv_type) in cases.into_iter().flatten() {
        let Some((_, mut bench)) = Bench::open(name) else {
            continue;
        };
        let ids = long_ids(bench.n_vocab());
        let (start, rest) = ids.split_at(100);
        bench.with(run::table(), &limits(2, kv_type), |engine| {
            let whole = run::hash(&run::logits(engine, &ids, 600).unwrap()[100..]);
            engine.state_mut().rewind(0, 100).unwrap();
            engine.state_mut().fork(0, 1).unwrap();
            let mut saved = vec![0; engine.state().saved_bytes(0)];
            let identity = Identity([7; 32]);
            engine.state().save(0, &identity, &mut saved).unwrap();
            engine.state_mut().restore(2, &identity, &saved).unwrap();
            // First continues the fork differently, so that sharing would show.
            run::step(engine, &run::entries(&[5, 6, 7], 1, 100)).unwrap();
            engine.state_mut().rewind(1, 100).unwrap();
            for sequence in [2, 0, 1] {
                let rows = run::step(engine, &run::entries(rest, sequence, 100)).unwrap();
                assert_eq!(run::hash(&rows), whole, "{kv_type}, sequence {sequence}");
            }
            assert_eq!(engine.state().len(0), start.len() + rest.len());
        });
    }
}
