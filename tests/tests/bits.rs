//! The same logits, bit for bit, whatever the kernels, the workers, the cut of the prompt, the
//! company in a batch, and where the cache came from.
//!
//! The hashes below are the contract: work on kernels must not change one. They were recorded
//! with the scalar reference, KV cache in f16.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "figures for whoever runs it with --nocapture"
)]

use sluice_core::engine::{Engine, Limits};
use sluice_core::kernels::{KernelTable, KvType};
use sluice_tests::goldens::{self, Golden};
use sluice_tests::run::{self, Room, Weights};

/// Hash of the logits of each golden's ids.
const RECORDED: [(&str, u64); 9] = [
    ("tiny-llama-f16", 0x77ac_0ab9_e41b_bf35),
    ("tiny-llama-Q8_0", 0x862a_a3b8_21e7_91e7),
    ("tiny-llama-Q4_0", 0xb793_5239_3e44_d9ae),
    ("tiny-llama-Q4_K", 0xe14a_e0e6_f2bb_dd39),
    ("tiny-llama-Q6_K", 0x8bcf_28ef_f40b_9468),
    ("stories260k-f32", 0x022a_dc66_c79b_2bcf),
    ("tinystories-656k-f16", 0x8022_b743_7610_87ce),
    ("tiny-llama-Q5_K", 0xaff6_f7b8_6115_46a3),
    ("tiny-llama-IQ4_XS", 0x5327_f44b_b293_9c99),
];

/// Hash of the last row's logits after [`long_ids`]: more than one KV split, a last block that
/// is not full.
const RECORDED_LONG: [(&str, KvType, u64); 12] = [
    ("tiny-llama-Q4_K", KvType::F32, 0x4576_58c1_b337_7778),
    ("tiny-llama-Q4_K", KvType::F16, 0xfd3b_d0a8_df8e_f23e),
    ("tiny-llama-Q4_K", KvType::BF16, 0x1aee_74e1_ed25_d921),
    ("stories260k-f32", KvType::F32, 0x369c_1a3d_ecbb_30b5),
    ("stories260k-f32", KvType::F16, 0x8d0f_badc_e487_9c37),
    ("stories260k-f32", KvType::BF16, 0xb710_1b3b_1d40_07f8),
    ("tiny-llama-Q4_K", KvType::Q8_0, 0xddd8_1ae0_f570_1e79),
    ("tiny-llama-Q4_K", KvType::Q4_0, 0x0341_d035_048a_9387),
    ("tiny-llama-Q4_K", KvType::FP8, 0x0238_6f67_5f9e_c705),
    ("stories260k-f32", KvType::Q8_0, 0x0751_ff3f_48c2_801a),
    ("stories260k-f32", KvType::Q4_0, 0x5edf_d0da_3fb1_8b4c),
    ("stories260k-f32", KvType::FP8, 0xda75_24aa_8092_c6ba),
];

/// 530 tokens of a vocabulary of at least 512, from a fixed recurrence.
fn long_ids() -> Vec<u32> {
    (0..530u32)
        .scan(7u32, |x, i| {
            *x = (*x * 171 + 11 * i + 3) % 509;
            Some(*x)
        })
        .collect()
}

fn golden(name: &str) -> &'static Golden {
    goldens::LLAMA
        .iter()
        .find(|golden| golden.name == name)
        .expect("a golden of that name")
}

struct Bench {
    file: Vec<u8>,
    weights: Weights,
}

impl Bench {
    fn open(golden: &Golden) -> Option<Self> {
        let file = std::fs::read(sluice_tests::shared()?.join(golden.model)).unwrap();
        let weights = Weights::plan(&file).unwrap();
        Some(Self { file, weights })
    }

    /// Hands an engine with these limits to `act`.
    fn with<R>(
        &mut self,
        table: &'static KernelTable,
        limits: &Limits,
        act: impl FnOnce(&mut Engine<'_>) -> R,
    ) -> R {
        let model = self.weights.load(&self.file, 1).unwrap();
        let mut room = Room::plan(model.config(), limits).unwrap();
        act(&mut room.engine(model, table, limits).unwrap())
    }
}

fn limits(n_workers: usize, kv_type: KvType) -> Limits {
    Limits {
        n_batch: 600,
        n_outputs: 600,
        n_seq: 4,
        type_k: kv_type,
        type_v: kv_type,
        ..Limits::single(4 * 640, n_workers)
    }
}

/// The tables to run: the one named by `SLUICE_ISA`, or all.
fn tables() -> Vec<&'static KernelTable> {
    match std::env::var_os("SLUICE_ISA") {
        Some(_) => vec![run::table()],
        None => KernelTable::available(sluice::isa::features()).collect(),
    }
}

#[test]
fn golden_models_have_the_recorded_hashes() {
    for (name, recorded) in RECORDED {
        let golden = golden(name);
        let Some(mut bench) = Bench::open(golden) else {
            return;
        };
        for table in tables() {
            let hash = bench.with(table, &limits(1, KvType::F16), |engine| {
                run::hash(&run::logits(engine, golden.ids, 600).unwrap())
            });
            println!("(\"{name}\", {hash:#018x}), // {}", table.name());
            assert_eq!(hash, recorded, "{name} on {}", table.name());
        }
    }
}

#[test]
fn long_sequences_have_the_recorded_hashes() {
    let ids = long_ids();
    for (name, kv_type, recorded) in RECORDED_LONG {
        let Some(mut bench) = Bench::open(golden(name)) else {
            return;
        };
        for table in tables() {
            let hash = bench.with(table, &limits(1, kv_type), |engine| {
                run::hash(&run::logits(engine, &ids, 600).unwrap()[529..])
            });
            println!(
                "(\"{name}\", KvType::{kv_type:?}, {hash:#018x}), // {}",
                table.name()
            );
            assert_eq!(hash, recorded, "{name} {kv_type} on {}", table.name());
        }
    }
}

#[test]
fn workers_and_chunks_change_no_bit() {
    let ids = long_ids();
    for name in ["tiny-llama-Q4_K", "stories260k-f32"] {
        let Some(mut bench) = Bench::open(golden(name)) else {
            return;
        };
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
    let ids: Vec<u32> = (0..2).flat_map(|_| long_ids()).collect();
    let types = [
        (KvType::F16, KvType::F16),
        (KvType::BF16, KvType::BF16),
        (KvType::Q8_0, KvType::Q8_0),
        (KvType::Q8_0, KvType::Q4_0),
        (KvType::FP8, KvType::F32),
    ];
    let Some(mut bench) = Bench::open(golden("tiny-llama-Q4_K")) else {
        return;
    };
    let (prompt, rest) = ids.split_at(1048);
    for (type_k, type_v) in types {
        let mut run = |n_workers, chunk: usize| {
            let limits = Limits {
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
fn company_in_a_batch_changes_no_bit() {
    for golden in goldens::LLAMA {
        let Some(mut bench) = Bench::open(golden) else {
            return;
        };
        let ids = golden.ids;
        let others: Vec<u32> = ids.iter().rev().copied().collect();
        let limits = limits(2, KvType::F16);
        bench.with(run::table(), &limits, |engine| {
            let alone = run::logits(engine, ids, 600).unwrap();
            let other = run::step(engine, &run::entries(&others, 1, 0)).unwrap();
            engine.kv_mut().clear(0).unwrap();
            engine.kv_mut().clear(1).unwrap();
            // Token by token of one sequence between those of another, in one batch.
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

#[test]
fn forked_and_restored_caches_go_on_with_the_same_bits() {
    let ids = long_ids();
    let (start, rest) = ids.split_at(100);
    for kv_type in KvType::ALL {
        let Some(mut bench) = Bench::open(golden("tiny-llama-Q4_K")) else {
            return;
        };
        bench.with(run::table(), &limits(2, kv_type), |engine| {
            let whole = run::hash(&run::logits(engine, &ids, 600).unwrap()[100..]);
            engine.kv_mut().truncate(0, 100).unwrap();
            engine.kv_mut().fork(0, 1).unwrap();
            let mut saved = vec![0; engine.kv().saved_bytes(0)];
            let fingerprint = engine.model().fingerprint();
            engine.kv().save(0, fingerprint, &mut saved).unwrap();
            engine.kv_mut().restore(2, fingerprint, &saved).unwrap();
            // The fork goes on differently first, so that sharing would show.
            run::step(engine, &run::entries(&[5, 6, 7], 1, 100)).unwrap();
            engine.kv_mut().truncate(1, 100).unwrap();
            for sequence in [2, 0, 1] {
                let rows = run::step(engine, &run::entries(rest, sequence, 100)).unwrap();
                assert_eq!(run::hash(&rows), whole, "{kv_type}, sequence {sequence}");
            }
            assert_eq!(engine.kv().len(0), start.len() + rest.len());
        });
    }
}
