//! Keys and values of coarse types are rotated before they are stored (`kernels::hadamard`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::state::Identity;
use sluice_core::state::{SnapshotError, StateError};
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice_tests::build::{Random, Shape};
use sluice_tests::drive::Bench;
use sluice_tests::hosted::TALE;
use sluice_tests::run::{self, Room, Weights};

/// Keys of 128 dimensions are rotated whole, values of 192 by 64.
const SHAPE: Shape = Shape {
    n_layer: 2,
    head_dim_k: 128,
    head_dim_v: 192,
    ty: GgmlType::F32,
    ..Shape::TINY
};
const COARSE: [KvType; 3] = [KvType::Q8_0, KvType::Q4_0, KvType::FP8];

fn limits(kv_type: KvType, kv_rotation: bool, n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_outputs: 512,
        type_k: kv_type,
        type_v: kv_type,
        kv_rotation,
        ..EngineLimits::single(512, n_workers)
    }
}

fn ids(n: usize, n_vocab: u32) -> Vec<u32> {
    let mut random = Random(7);
    (0..n).map(|_| random.below(n_vocab)).collect()
}

fn logits(shape: &Shape, limits: &EngineLimits, ids: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    Bench::new(shape).with(limits, |engine| run::logits(engine, ids, chunk).unwrap())
}

/// Rms of the difference, relative to the rms of the expected values.
fn relative(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let squares = |row: &dyn Fn(usize, usize) -> f32| -> f64 {
        let all = (0..expected.len()).flat_map(|i| (0..expected[i].len()).map(move |j| (i, j)));
        all.map(|(i, j)| f64::from(row(i, j)).powi(2)).sum()
    };
    let off = squares(&|i, j| found[i][j] - expected[i][j]);
    (off / squares(&|i, j| expected[i][j])).sqrt()
}

#[test]
fn rotation_changes_nothing_but_roundings() {
    let ids = ids(200, 16);
    let exact = logits(&SHAPE, &limits(KvType::F32, true, 1), &ids, 512);
    for (ty, most) in COARSE.into_iter().zip([2e-2, 0.3, 0.15]) {
        let [plain, rotated] = [false, true].map(|on| {
            let found = logits(&SHAPE, &limits(ty, on, 1), &ids, 512);
            (relative(&found, &exact), found)
        });
        println!("{ty}: plain {:.2e}, rotated {:.2e}", plain.0, rotated.0);
        assert!(plain.1 != rotated.1, "{ty}");
        assert!(rotated.0 < most && plain.0 < most, "{ty}");
    }
}

#[test]
fn other_types_and_lengths_are_not_rotated() {
    let odd = Shape {
        head_dim_k: 96,
        head_dim_v: 32,
        ..SHAPE
    };
    let fine = [KvType::F32, KvType::F16, KvType::BF16].map(|ty| (SHAPE, ty));
    let ids = ids(70, 16);
    for (shape, ty) in fine.into_iter().chain(COARSE.map(|ty| (odd, ty))) {
        let [plain, rotated] = [false, true].map(|on| logits(&shape, &limits(ty, on, 1), &ids, 64));
        assert!(plain == rotated, "{ty}");
    }
}

#[test]
fn workers_and_chunks_change_no_bit() {
    let ids = ids(150, 16);
    for ty in COARSE {
        let expected = logits(&SHAPE, &limits(ty, true, 1), &ids, 512);
        for (n_workers, chunk) in [(2, 512), (3, 7), (2, 1), (5, 64)] {
            let found = logits(&SHAPE, &limits(ty, true, n_workers), &ids, chunk);
            assert!(found == expected, "{ty}: {n_workers} workers, {chunk}");
        }
    }
}

/// The latent rows of all heads and what follows them are one key.
#[test]
fn latent_rows_are_rotated_whole() {
    let path = sluice_tests::fixture("models/deepseek2-glm.gguf");
    let file = std::fs::read(path).unwrap();
    let run = |limits: &EngineLimits, chunk| {
        let mut weights = Weights::plan(&file).unwrap();
        let model = weights.load(&file, 1).unwrap();
        let n_vocab = u32::try_from(model.config().n_vocab).unwrap();
        let mut room = Room::plan(model.config(), limits).unwrap();
        let mut engine = room.engine(model, run::table(), limits).unwrap();
        run::logits(&mut engine, &ids(100, n_vocab), chunk).unwrap()
    };
    let exact = run(&limits(KvType::F32, true, 1), 512);
    let rotated = run(&limits(KvType::Q8_0, true, 1), 512);
    let plain = run(&limits(KvType::Q8_0, false, 1), 512);
    let [rotated_by, plain_by] = [&rotated, &plain].map(|found| relative(found, &exact));
    println!("latent: plain {plain_by:.2e}, rotated {rotated_by:.2e}");
    // A token that is routed to another expert moves logits by more than rounding.
    assert!(rotated_by < 0.1 && plain != rotated);
    for (n_workers, chunk) in [(2, 7), (3, 1)] {
        let found = run(&limits(KvType::Q8_0, true, n_workers), chunk);
        assert!(found == rotated, "{n_workers} workers, {chunk}");
    }
}

const STORY: &str = "Once upon a time, there was a little girl named Lily. She lived in a small house near the \
    woods with her mom and her dog, Max. One sunny day, Lily and Max went for a walk. They saw a big tree with red \
    apples. Lily wanted to eat one, but the tree was too tall. \"Do not be sad,\" said a small bird. \"I can help \
    you.\" The bird flew up and dropped an apple into her hands. Lily was very happy and said thank you. She gave \
    the bird some bread, and they became good friends. From that day on, Lily and Max went to see the bird every \
    morning, and they played together until the sun went down.";

fn encode(file: &[u8], text: &str) -> Vec<u32> {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let mut words = vec![0; tokenizer::plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut ids = vec![0; tokenizer.max_tokens(text.len())];
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    tokenizer
        .encode(text, options, &mut workspace, &mut ids)
        .unwrap()
        .to_vec()
}

/// A trained model has dimensions that are larger than the others: what rotation is for.
#[test]
fn a_trained_model_loses_less() {
    let file = std::fs::read(TALE).unwrap();
    let mut weights = Weights::plan(&file).unwrap();
    let model = weights.load(&file, 1).unwrap();
    let ids = encode(&file, STORY);
    assert!(ids.len() > 100);
    let run = |ty, on| {
        let limits = limits(ty, on, 2);
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model.clone(), run::table(), &limits).unwrap();
        run::logits(&mut engine, &ids, 512).unwrap()
    };
    let exact = run(KvType::F32, true);
    for ty in COARSE {
        let [plain, rotated] = [false, true].map(|on| relative(&run(ty, on), &exact));
        println!("Tale, {ty}: plain {plain:.2e}, rotated {rotated:.2e}");
        // What q8_0 costs is less than what a change of any bit does to quantised activations.
        let most = if ty == KvType::Q8_0 { 1.1 } else { 0.95 };
        assert!(rotated < most * plain, "{ty}: {rotated} {plain}");
    }
}

#[test]
fn a_removed_range_is_forgotten_by_rotated_keys() {
    let one_layer = Shape {
        n_layer: 1,
        ..SHAPE
    };
    let ids = ids(180, 16);
    let short: Vec<u32> = ids[..40].iter().chain(&ids[125..]).copied().collect();
    for (ty, most) in COARSE.into_iter().zip([2e-2, 0.3, 0.15]) {
        let expected = logits(&one_layer, &limits(ty, true, 1), &short, 512).pop();
        let found = Bench::new(&one_layer).with(&limits(ty, true, 1), |engine| {
            run::logits(engine, &ids[..179], 512).unwrap();
            engine.remove(0, 40..125).unwrap();
            let entry = run::entries(&ids[179..], 0, 94);
            run::step(engine, &entry).unwrap().pop()
        });
        let off = relative(&[found.unwrap()], &[expected.unwrap()]);
        assert!(off < most, "{ty}: {off}");
    }
}

#[test]
fn saved_sequences_say_how_they_are_rotated() {
    let saved = Bench::new(&SHAPE).with(&limits(KvType::Q8_0, true, 1), |engine| {
        run::logits(engine, &ids(70, 16), 512).unwrap();
        let mut bytes = vec![0; engine.state().saved_bytes(0)];
        engine
            .state()
            .save(0, &Identity([1; 32]), &mut bytes)
            .unwrap();
        bytes
    });
    for (on, expected) in [
        (true, Ok(())),
        (false, Err(StateError::Snapshot(SnapshotError::OtherShape))),
    ] {
        let found = Bench::new(&SHAPE).with(&limits(KvType::Q8_0, on, 1), |engine| {
            engine.state_mut().restore(0, &Identity([1; 32]), &saved)
        });
        assert_eq!(found, expected);
    }
    let mut older = saved;
    older[4] = 3;
    let found = Bench::new(&SHAPE).with(&limits(KvType::Q8_0, true, 1), |engine| {
        engine.state_mut().restore(0, &Identity([1; 32]), &older)
    });
    assert_eq!(found, Err(StateError::Snapshot(SnapshotError::Version(3))));
}
