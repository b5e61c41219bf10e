//! Encoders of all families, and heads that rank: against an f64 evaluation and llama.cpp, and the same
//! bits whatever the workers, the kernels and the rest of the batch.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice::embed::{EmbedOptions, Normalization};
use sluice::host::topology::Cores;
use sluice::{Limits, Model, Team};
use sluice_core::engine::{BatchEntry, Engine, EngineLimits, StepOptions, Wants};
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

/// The models of `tests/fixtures/embedders.py`, and a hash of the hidden states of all texts.
const MODELS: [(&str, u64); 16] = [
    ("nomic-bert", 0x3ebd_7a54_296a_28ea),
    ("nomic-bert-fused", 0xe3fd_3fce_64b9_dcec),
    ("jina-bert-v3", 0xa305_6a74_1ce7_0691),
    ("jina-bert-v3-fused", 0x1c3d_229f_e8aa_3328),
    ("eurobert", 0x2ca3_e64a_7641_cab7),
    ("eurobert-gqa", 0x0c5e_b71c_9c2f_1b45),
    ("modern-bert", 0xb1c1_3617_0908_21c4),
    ("modern-bert-silu", 0x4816_b30e_1322_692f),
    ("gemma-embedding", 0x9d39_a1a0_ed99_2c20),
    ("gemma-embedding-gqa", 0x6789_78e2_2d98_84bf),
    ("bert-rank", 0xa09a_7700_6452_16fa),
    ("jina-bert-v2", 0x1218_281f_f5df_99d5),
    ("jina-bert-v2-fused", 0x9ae8_e181_47ad_6a23),
    ("nomic-bert-moe", 0xc0e4_932a_fd92_805e),
    ("nomic-bert-moe-fused", 0x682e_9798_b37e_df78),
    ("qwen3-rank", 0x4596_0e34_edf1_ad94),
];
/// Models with a head for ranking.
const RANKERS: [&str; 5] = [
    "modern-bert",
    "modern-bert-silu",
    "bert-rank",
    "jina-bert-v2",
    "qwen3-rank",
];

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/embed");
    folder.join(format!("{name}.gguf"))
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

/// The texts that the goldens are of.
fn texts() -> Vec<Vec<u32>> {
    let long = (0..150).map(|i| 5 + (7 * i * i + 3 * i) % 60);
    vec![
        vec![2, 5, 6, 7, 8, 3],
        vec![2, 9, 10, 11, 12, 13, 5, 6, 22, 14, 5, 15, 16, 23, 3],
        core::iter::once(2).chain(long).chain([3]).collect(),
        vec![2, 15, 3],
        vec![7],
    ]
}

/// The file with GELU as ggml computes it, where the published code takes the error function.
fn by_tanh(name: &str) -> Vec<u8> {
    let arches = [
        "nomic-bert-moe",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "bert",
    ];
    let arch = arches.iter().find(|arch| name.starts_with(*arch));
    match arch.filter(|_| !name.ends_with("silu")) {
        Some(arch) => header::with_text(
            &read(name),
            &format!("{arch}.activation"),
            "gelu_pytorch_tanh",
        ),
        None => read(name),
    }
}

/// llama.cpp's hidden states.
fn peer(name: &str, n_embd: usize) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path(name).with_extension("hidden.f32")).unwrap();
    let peer = dequantise(0, &bytes, bytes.len() / 4).unwrap();
    peer.chunks_exact(n_embd).map(<[f32]>::to_vec).collect()
}

/// The value of `key` in the golden.
fn golden(name: &str, key: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(path(name).with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json[key].clone()
}

fn limits(n_workers: usize, kv_type: KvType) -> EngineLimits {
    EngineLimits {
        n_batch: 256,
        n_outputs: 256,
        n_seq: 5,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(5 * 256, n_workers)
    }
}

fn with<R>(
    name: &str,
    limits: &EngineLimits,
    table: &'static KernelTable,
    act: impl FnOnce(&mut Engine<'_>) -> R,
) -> R {
    with_file(&read(name), limits, table, act)
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

/// Hidden states of each text, one step a text, each in a sequence of its own.
fn one_by_one(engine: &mut Engine<'_>) -> Vec<Vec<f32>> {
    let texts = texts();
    let rows = (0..)
        .zip(&texts)
        .flat_map(|(i, ids)| hidden(engine, &entries(ids, i)));
    rows.collect()
}

fn cosine(a: &[f32], b: &[f64]) -> f64 {
    let a: Vec<f64> = a.iter().map(|x| f64::from(*x)).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(&a, b) / (dot(&a, &a) * dot(b, b)).sqrt()
}

#[test]
fn hidden_states_are_those_of_f64_and_llama_cpp() {
    for (name, _) in MODELS {
        let as_ggml = by_tanh(name);
        let encoder = Encoder::parse(&as_ggml).unwrap();
        let exact: Vec<_> = texts().iter().flat_map(|ids| encoder.hidden(ids)).collect();
        let peer = peer(name, exact[0].len());
        assert_eq!(peer.len(), exact.len(), "{name}");
        // llama.cpp's tokens have passed the dense layers, where there are some.
        let dense: Vec<_> = texts().iter().flat_map(|ids| encoder.tokens(ids)).collect();
        let theirs = goldens::distance(&peer, &dense);
        let has_dense = dense != exact;
        for (file, kv_type) in [
            (&as_ggml, KvType::F32),
            (&as_ggml, KvType::F16),
            (&read(name), KvType::F32),
        ] {
            let encoder = Encoder::parse(file).unwrap();
            let exact: Vec<_> = texts().iter().flat_map(|ids| encoder.hidden(ids)).collect();
            let found = with_file(file, &limits(1, kv_type), run::table(), one_by_one);
            let ours = goldens::distance(&found, &exact);
            let to_exact = found.iter().zip(&exact).map(|(a, b)| cosine(a, b));
            let to_exact = to_exact.fold(1.0, f64::min);
            let to_peer = found.iter().zip(&peer).map(|(a, b)| {
                let b: Vec<f64> = b.iter().map(|x| f64::from(*x)).collect();
                cosine(a, &b)
            });
            let to_peer = to_peer.filter(|_| !has_dense).fold(1.0, f64::min);
            println!(
                "{name} {kv_type}: rms {:.7}, llama.cpp {:.7}; least cosine {to_exact:.8}, \
                 to llama.cpp {to_peer:.8}",
                ours.rms, theirs.rms
            );
            assert!(to_exact >= 0.9999 && to_peer >= 0.9999, "{name} {kv_type}");
            if kv_type == KvType::F32 {
                assert!(ours.rms <= 2.0 * theirs.rms, "{name}: {ours:?}, {theirs:?}");
            }
        }
    }
}

#[test]
fn hidden_states_have_the_recorded_hashes_by_any_workers_on_every_table() {
    let mut failures = Vec::new();
    for (name, recorded) in MODELS {
        for table in run::tables() {
            for n_workers in [1, 2, 3, 5] {
                let limits = limits(n_workers, KvType::F32);
                let found = run::hash(&with(name, &limits, table, one_by_one));
                if found != recorded {
                    let table = table.name();
                    failures.push(format!(
                        "(\"{name}\", {found:#018x}), // {table} {n_workers}"
                    ));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    for (name, _) in MODELS {
        let alone = with(name, &limits(1, KvType::F32), run::table(), one_by_one);
        with(name, &limits(2, KvType::F32), run::table(), |engine| {
            let texts = texts();
            let all = (0..).zip(&texts).flat_map(|(i, ids)| entries(ids, i));
            let found = hidden(engine, &all.collect::<Vec<_>>());
            assert_eq!(run::hash(&found), run::hash(&alone), "{name}");
        });
    }
}

/// A model, and a session for texts of 256 tokens.
fn session(name: &str, n_workers: usize) -> (Model, sluice::Session) {
    let opened = sluice::model::ModelSource::open(path(name), sluice::file::LoadMode::Map).unwrap();
    let team = Team::with_options(n_workers, &Cores::detect(), Default::default()).unwrap();
    let model = opened.load(&team).unwrap();
    let limits = Limits::for_embedding(&model, 256, 256);
    let session = model.session_on(&team, limits).unwrap();
    (model, session)
}

#[test]
fn scores_are_those_of_f64_and_llama_cpp_in_their_order() {
    for name in RANKERS {
        let (_, mut one) = session(name, 1);
        let found = one.rank_tokens(&texts()).unwrap();
        let encoder = Encoder::parse(&read(name)).unwrap();
        let peer: Vec<f64> = serde_json::from_value(golden(name, "rank")).unwrap();
        for (i, text) in texts().iter().enumerate() {
            let (ours, exact) = (f64::from(found[i]), encoder.score(text));
            println!(
                "{name} {i}: {ours:.6}, f64 {exact:.6}, llama.cpp {:.6}",
                peer[i]
            );
            assert!((ours - exact).abs() < 3e-3, "{name}: {ours}, f64 {exact}");
            assert!((ours - peer[i]).abs() < 1e-2, "{name}: {ours}, {}", peer[i]);
        }
        let order = |scores: &[f64]| {
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            order
        };
        let wide: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
        assert_eq!(order(&wide), order(&peer), "{name}");
        // Bits depend neither on the workers nor on the other texts.
        let (_, mut two) = session(name, 2);
        for (text, score) in texts().into_iter().zip(&found) {
            let alone = two.rank_tokens(&[text]).unwrap();
            assert_eq!(alone[0].to_bits(), score.to_bits(), "{name}");
        }
    }
}

#[test]
fn dense_layers_stand_behind_pooling() {
    let name = "gemma-embedding";
    let (_, mut session) = session(name, 2);
    let options = EmbedOptions {
        pooling: Pooling::Mean,
        normalization: Normalization::None,
    };
    let tokens = EmbedOptions {
        pooling: Pooling::None,
        ..options
    };
    let mut found = Vec::new();
    let each = |_, vector: &[f32]| found.push(vector.to_vec());
    session.embed_tokens(&texts(), &tokens, each).unwrap();
    let peer = peer(name, found[0].len());
    assert_eq!(found.len(), peer.len());
    for (found, peer) in found.iter().zip(&peer) {
        let peer: Vec<f64> = peer.iter().map(|x| f64::from(*x)).collect();
        assert!(cosine(found, &peer) > 0.9999);
    }
    let mut found = Vec::new();
    let each = |_, vector: &[f32]| found.push(vector.to_vec());
    session.embed_tokens(&texts(), &options, each).unwrap();
    let encoder = Encoder::parse(&read(name)).unwrap();
    let peer: Vec<Vec<f64>> = serde_json::from_value(golden(name, "mean")).unwrap();
    for ((found, peer), text) in found.iter().zip(&peer).zip(texts()) {
        let exact = encoder.embedding(&text);
        assert!(cosine(found, &exact) > 0.999_999);
        assert!(cosine(found, peer) > 0.9999);
        let far = found
            .iter()
            .zip(&exact)
            .map(|(a, b)| (f64::from(*a) - b).abs());
        assert!(far.fold(0.0, f64::max) < 3e-3);
    }
}

#[test]
fn prompts_of_rerankers() {
    let (model, _) = session("bert-rank", 1);
    // [CLS] query [SEP] document: as llama-server joins them in a WordPiece vocabulary.
    assert_eq!(
        model.rank_prompt("the sea", "was calm").unwrap(),
        [2, 5, 6, 3, 7, 8]
    );
    assert_eq!(model.rank_prompt("", "").unwrap(), [2, 3]);
    let (model, mut session) = session("qwen3-rank", 1);
    let prompt = model.rank_prompt("the sea", "{query} cat").unwrap();
    assert_eq!((prompt[0], prompt[prompt.len() - 1]), (2, 3));
    assert!(prompt.windows(2).any(|pair| pair == [5, 6]));
    let scores = session
        .rank("the sea", &["the sea was calm", "a cat"])
        .unwrap();
    assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)));
    let (model, mut session) = self::session("eurobert", 1);
    assert!(!model.ranks() && model.rank_pooling().is_none());
    let error = session.rank("a", &["b"]).unwrap_err().to_string();
    assert!(error.contains("no ranking head"), "{error}");
}
