//! Encoders: hidden states against an f64 evaluation and llama.cpp's, embeddings against
//! llama.cpp's, and the same bits whatever the workers, the kernels and the rest of the batch.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::{BatchEntry, Engine, EngineError, EngineLimits, StepOptions, Wants};
use sluice_core::kernels::{KernelTable, KvType};
use sluice_core::pooling::Pooling;
use sluice_core::team::StopFlag;
use sluice_tests::drive::drive;
use sluice_tests::goldens;
use sluice_tests::header;
use sluice_tests::reference::Encoder;
use sluice_tests::reference::dequant::dequantise;
use sluice_tests::run::{self, Room, Weights, YieldWait};
use std::path::{Path, PathBuf};

/// Hash of the hidden states of all texts.
const RECORDED: [(KvType, u64); 3] = [
    (KvType::F32, 0xd3cd_5c53_2515_451d),
    (KvType::F16, 0xd7a5_32c5_41ec_f6bb),
    (KvType::BF16, 0x51d9_f813_b69e_a3af),
];

/// The first of them with GELU in its tanh approximation.
const RECORDED_BY_TANH: u64 = 0x7a09_23e3_7996_80f9;

/// The texts of the golden as tokens.
const TEXTS: [&[u32]; 4] = [
    &[2, 5, 6, 7, 8, 3],
    &[2, 9, 10, 11, 12, 13, 5, 6, 22, 14, 5, 15, 16, 23, 3],
    &[2, 15, 3],
    &[2, 5, 15, 7, 17, 51, 24, 1, 11, 70, 25, 3],
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/embed")
}

fn model_file() -> Vec<u8> {
    std::fs::read(folder().join("tiny-bert-f16.gguf")).unwrap()
}

fn limits(n_workers: usize, kv_type: KvType) -> EngineLimits {
    EngineLimits {
        n_batch: 64,
        n_outputs: 64,
        n_seq: 5,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(5 * 64, n_workers)
    }
}

fn with<R>(
    limits: &EngineLimits,
    table: &'static KernelTable,
    act: impl FnOnce(&mut Engine<'_>) -> R,
) -> R {
    with_file(&model_file(), limits, table, act)
}

fn with_file<R>(
    file: &[u8],
    limits: &EngineLimits,
    table: &'static KernelTable,
    act: impl FnOnce(&mut Engine<'_>) -> R,
) -> R {
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 1).unwrap();
    let mut room = Room::plan(model.config(), limits).unwrap();
    act(&mut room.engine(model, table, limits).unwrap())
}

fn entries(ids: &[u32], sequence: u32) -> Vec<BatchEntry> {
    let mut entries = run::entries(ids, sequence, 0);
    entries
        .iter_mut()
        .for_each(|entry| entry.wants = Wants::Hidden);
    entries
}

/// Hidden states of a batch in which all want them.
fn hidden(engine: &mut Engine<'_>, batch: &[BatchEntry]) -> Vec<Vec<f32>> {
    let stop = StopFlag::new();
    let ended = drive(engine, batch, StepOptions::new(&YieldWait, &stop)).unwrap();
    let rows = ended.result.unwrap().hidden;
    rows.into_iter().map(Option::unwrap).collect()
}

/// Hidden states of each text, one step a text.
fn one_by_one(engine: &mut Engine<'_>) -> Vec<Vec<f32>> {
    let rows = TEXTS
        .iter()
        .flat_map(|ids| hidden(engine, &entries(ids, 1)));
    rows.collect()
}

#[test]
fn at_most_twice_as_far_from_f64_as_llama_cpp() {
    let bytes = std::fs::read(folder().join("tiny-bert-f16.hidden.f32")).unwrap();
    let peer = dequantise(0, &bytes, bytes.len() / 4).unwrap();
    let peer: Vec<Vec<f32>> = peer.chunks_exact(64).map(<[f32]>::to_vec).collect();
    let theirs = goldens::distance(&peer, &hidden_in_f64(&by_tanh(&model_file())));
    for file in [model_file(), by_tanh(&model_file())] {
        let exact = hidden_in_f64(&file);
        for kv_type in [KvType::F32, KvType::F16, KvType::BF16] {
            let ours = with_file(&file, &limits(1, kv_type), run::table(), one_by_one);
            let ours = goldens::distance(&ours, &exact);
            let ratio = ours.rms / theirs.rms;
            println!(
                "{kv_type}: rms {:.7}, llama.cpp {:.7}, ratio {ratio:.3}",
                ours.rms, theirs.rms
            );
            let bound = match kv_type {
                KvType::F32 => 2.0 * theirs.rms,
                KvType::F16 => 2e-3,
                _ => 2e-2,
            };
            assert!(
                ours.rms <= bound,
                "{kv_type}: {ours:?}, llama.cpp {theirs:?}"
            );
        }
    }
}

/// The file with GELU as ggml computes it.
fn by_tanh(file: &[u8]) -> Vec<u8> {
    header::with_text(file, "bert.activation", "gelu_pytorch_tanh")
}

/// Hidden states of all texts.
fn hidden_in_f64(file: &[u8]) -> Vec<Vec<f64>> {
    let encoder = Encoder::parse(file).unwrap();
    TEXTS.iter().flat_map(|ids| encoder.hidden(ids)).collect()
}

#[test]
fn gelu_is_the_one_that_the_file_names() {
    let of = |name: Option<&str>| {
        let file = name.map(|name| header::with_text(&model_file(), "bert.activation", name));
        let file = file.unwrap_or_else(model_file);
        let found = with_file(&file, &limits(1, KvType::F32), run::table(), one_by_one);
        (
            run::hash(&found),
            goldens::distance(&found, &hidden_in_f64(&file)).rms,
        )
    };
    let [absent, exact, tanh] = [None, Some("gelu"), Some("gelu_pytorch_tanh")].map(of);
    assert_eq!(absent, exact);
    assert!(exact.1 < 1e-6 && tanh.1 < 1e-6, "{exact:?}, {tanh:?}");
    assert_eq!((RECORDED[0].1, RECORDED_BY_TANH), (exact.0, tanh.0));
    let file = header::with_text(&model_file(), "bert.activation", "quick_gelu");
    let gguf = sluice_core::gguf::Gguf::parse(&file, file.len() as u64).unwrap();
    let error = sluice_core::model::ModelConfig::from_gguf(&gguf).unwrap_err();
    assert!(error.to_string().contains("quick_gelu"), "{error}");
}

/// Activations are rounded to 8 bits here and there; llama.cpp's have a scale per 32 columns.
#[test]
fn quantised_encoders_are_as_near_to_f64_as_llama_cpp() {
    for name in ["tiny-bert-Q8_0", "wide-bert-Q4_K_M"] {
        let file = std::fs::read(folder().join(name).with_extension("gguf")).unwrap();
        let file = by_tanh(&file);
        let exact = hidden_in_f64(&file);
        let bytes = std::fs::read(folder().join(name).with_extension("hidden.f32")).unwrap();
        let peer = dequantise(0, &bytes, bytes.len() / 4).unwrap();
        let rows = peer.chunks_exact(exact[0].len());
        let peer: Vec<Vec<f32>> = rows.map(<[f32]>::to_vec).collect();
        let theirs = goldens::distance(&peer, &exact);
        let mut weights = Weights::plan(&file).unwrap();
        let mut all = Vec::new();
        for table in run::tables() {
            let limits = limits(2, KvType::F16);
            let model = weights.load(&file, 1).unwrap();
            let mut room = Room::plan(model.config(), &limits).unwrap();
            all.push(one_by_one(&mut room.engine(model, table, &limits).unwrap()));
        }
        assert!(all.iter().all(|hidden| *hidden == all[0]), "{name}");
        let ours = goldens::distance(&all[0], &exact);
        let ratio = ours.rms / theirs.rms;
        println!(
            "{name}: rms {:.6}, llama.cpp {:.6}, ratio {ratio:.3}",
            ours.rms, theirs.rms
        );
        assert!(ratio <= 2.0, "{name}: {ours:?}, llama.cpp {theirs:?}");
    }
}

#[test]
fn hidden_states_have_the_recorded_hashes_by_any_workers_on_every_table() {
    let mut failures = Vec::new();
    for (kv_type, recorded) in RECORDED {
        for table in run::tables() {
            for n_workers in [1, 2, 3, 5] {
                let found = run::hash(&with(&limits(n_workers, kv_type), table, one_by_one));
                if found != recorded {
                    let name = table.name();
                    failures.push(format!(
                        "({kv_type:?}, {found:#018x}), // {name} {n_workers}"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    with(&limits(2, KvType::F32), run::table(), |engine| {
        let alone = one_by_one(engine);
        // All texts in one batch: 36 tokens.
        let all: Vec<BatchEntry> = (0..4).flat_map(|i| entries(TEXTS[i as usize], i)).collect();
        assert_eq!(run::hash(&hidden(engine, &all)), run::hash(&alone));
        // Token by token of two texts in turn, few enough for every worker to have all rows.
        let (a, b) = (entries(TEXTS[0], 3), entries(TEXTS[2], 0));
        let others = b.iter().copied().map(Some).chain([None; 3]);
        let mixed: Vec<BatchEntry> = a
            .iter()
            .zip(others)
            .flat_map(|(a, b)| b.into_iter().chain([*a]))
            .collect();
        let rows = hidden(engine, &mixed);
        for (entry, row) in mixed.iter().zip(&rows) {
            let first = if entry.sequence == 3 { 0 } else { 6 + 15 };
            let expected = &alone[first + entry.position as usize];
            assert_eq!(
                run::hash(core::slice::from_ref(row)),
                run::hash(core::slice::from_ref(expected))
            );
        }
        assert!((0..5).all(|sequence| engine.state().len(sequence) == 0));
    });
}

#[test]
fn what_an_encoder_cannot_do_is_named() {
    with(&limits(2, KvType::F32), run::table(), |engine| {
        let stop = StopFlag::new();
        let mut refuse = |batch: &[BatchEntry]| {
            let step = engine.step(batch, StepOptions::new(&YieldWait, &stop));
            step.map(drop).unwrap_err()
        };
        let logits = run::entries(&[2, 3], 0, 0);
        assert_eq!(refuse(&logits), EngineError::NoLogits { entry: 0 });
        // A text is read whole: no step may continue an earlier text.
        let mut later = entries(&[2, 3], 0);
        later.iter_mut().for_each(|entry| entry.position += 2);
        assert!(refuse(&later).to_string().contains("expected 0"));
        let long = entries(&[5; 65], 0);
        assert!(matches!(refuse(&long), EngineError::BatchTooLong { .. }));
    });
    let wide = EngineLimits {
        n_batch: 80,
        ..limits(1, KvType::F32)
    };
    with(&wide, run::table(), |engine| {
        let stop = StopFlag::new();
        let batch: Vec<_> = (0..65)
            .map(|i| BatchEntry::new(5, 0, i, Wants::Nothing))
            .collect();
        let refused = engine.step(&batch, StepOptions::new(&YieldWait, &stop));
        let error = refused.map(drop).unwrap_err().to_string();
        assert!(
            error.contains("position 64 has no embedding, the model has 64"),
            "{error}"
        );
    });
}

#[test]
fn pooling_is_read_from_the_file() {
    let file = model_file();
    let gguf = sluice_core::gguf::Gguf::parse(&file, file.len() as u64).unwrap();
    let config = sluice_core::model::ModelConfig::from_gguf(&gguf).unwrap();
    assert_eq!(Pooling::from_gguf(&gguf, &config), Ok(Some(Pooling::Cls)));
    assert!(!config.is_causal);
}
