//! Gradients of adapters over whole models, against torch with peft (tests/tools/train_goldens.py), and their bits over
//! threads, tables, passes and ways to keep activations.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::core::engine::backward::{GradientType, Loss, NO_LABEL};
use sluice::core::kernels::{CpuFeatures, KernelTable, KvType};
use sluice::core::model::Site;
use sluice::file::LoadMode;
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::training::{TrainedAdapter, TrainedMatrix, Training, TrainingLimits, TrainingText};
use sluice::{Model, Team};
use sluice_tests::{fixture, shared};
use std::path::Path;

const SITES: [Site; 7] = [
    Site::AttnQ,
    Site::AttnK,
    Site::AttnV,
    Site::AttnOutput,
    Site::FfnGate,
    Site::FfnUp,
    Site::FfnDown,
];
const LENGTHS: [usize; 2] = [300, 41];

/// Numbers within ±0.1, from their index alone, as the script makes them.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "as the script rounds them"
)]
fn numbers(n: usize) -> Vec<f32> {
    let number = |i: u64| {
        let hashed = (i * 2_654_435_761 + 12_345) % (1 << 32);
        let unit = hashed as f64 / 4_294_967_296.0 - 0.5;
        (2.0 * 0.1 * unit) as f32
    };
    (0..n as u64).map(number).collect()
}

/// The script's texts: tokens, and labels.
fn texts(n_vocab: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let of = |(index, n): (usize, usize)| {
        let token = |i: usize| u32::try_from((7 * i + 3 + 11 * index) % n_vocab).unwrap();
        let tokens: Vec<u32> = (0..n).map(token).collect();
        let mut labels: Vec<u32> = tokens[1..].iter().copied().chain([NO_LABEL]).collect();
        if index == 1 {
            labels[..n / 2].fill(NO_LABEL);
        }
        (tokens, labels)
    };
    LENGTHS.into_iter().enumerate().map(of).collect()
}

fn limits(table: &'static KernelTable) -> TrainingLimits {
    TrainingLimits {
        n_tokens: 341,
        n_text: 300,
        n_texts: 2,
        keeps_all: true,
        gradients: GradientType::F32,
        types: (KvType::F32, KvType::F32),
        table: Some(table),
    }
}

fn load(path: &Path) -> Model {
    let team = Team::new(2, &Cores::detect()).unwrap();
    ModelSource::open(path, LoadMode::Read)
        .unwrap()
        .load(&team)
        .unwrap()
}

fn factors(model: &Model, rank: usize) -> TrainedAdapter {
    let layers = 0..model.config().n_layer();
    let matrices = layers.flat_map(|layer| {
        SITES.map(|site| TrainedMatrix {
            layer,
            site,
            rank,
            scale: 2.0,
        })
    });
    let mut factors = TrainedAdapter::new(model, &matrices.collect::<Vec<_>>()).unwrap();
    factors.values = numbers(factors.values.len());
    factors.publish().unwrap();
    factors
}

/// The loss and the gradients, with the texts of a pass together or one after the other.
fn gradients(
    model: &Model,
    rank: usize,
    n_threads: usize,
    limits: TrainingLimits,
    together: bool,
) -> (Loss, Vec<f32>) {
    let team = Team::new(n_threads, &Cores::detect()).unwrap();
    let mut training = Training::new(model, &team, rank, limits).unwrap();
    let mut factors = factors(model, rank);
    let texts = texts(model.config().n_vocab);
    let all: Vec<TrainingText<'_>> = texts
        .iter()
        .map(|(tokens, labels)| TrainingText { tokens, labels })
        .collect();
    let mut sum = Loss::default();
    for pass in all.chunks(if together { 2 } else { 1 }) {
        training.accumulate(pass, &mut factors, &mut sum).unwrap();
    }
    (sum, factors.gradients)
}

/// The largest difference over the largest magnitude, and 1 - cosine.
fn distance(found: &[f32], expected: &[f32]) -> (f64, f64) {
    let wide = |x: &f32| f64::from(*x);
    let largest = expected
        .iter()
        .map(wide)
        .fold(0.0, |m: f64, x| m.max(x.abs()));
    let pairs = || found.iter().map(wide).zip(expected.iter().map(wide));
    let difference = pairs().fold(0.0, |m: f64, (a, b)| m.max((a - b).abs()));
    let dot: f64 = pairs().map(|(a, b)| a * b).sum();
    let of = |x: &[f32]| x.iter().map(|x| wide(x).powi(2)).sum::<f64>().sqrt();
    (difference / largest, 1.0 - dot / (of(found) * of(expected)))
}

fn golden(name: &str) -> (f64, Vec<f32>) {
    let read = |ending: &str| std::fs::read(fixture(&format!("train/{name}.{ending}"))).unwrap();
    let bytes = read("f32");
    let (numbers, _) = bytes.as_chunks::<4>();
    let record = String::from_utf8(read("json")).unwrap();
    let loss = record
        .split("\"loss\": ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    (
        loss.parse().unwrap(),
        numbers.iter().map(|x| f32::from_le_bytes(*x)).collect(),
    )
}

fn table() -> &'static KernelTable {
    KernelTable::best(CpuFeatures::detect())
}

#[test]
fn gradients_are_those_of_torch_and_peft() {
    let of_models = ["qwen2", "stablelm"].map(|name| (name, format!("models/{name}.gguf")));
    let own = ["gemma2", "gemma3", "olmo2", "granite", "exaone4"];
    let of_own = own.map(|name| (name, format!("train/{name}.gguf")));
    let of_fixtures = of_models.into_iter().chain(of_own);
    let of_fixtures = of_fixtures.map(|(name, path)| (name, 2, fixture(&path)));
    let of_shared = shared("models/stories260k-f32.gguf").map(|model| ("stories260k", 4, model));
    for (name, rank, path) in of_shared.into_iter().chain(of_fixtures) {
        let model = load(&path);
        let (loss, expected) = golden(name);
        let (found, gradients) = gradients(&model, rank, 2, limits(table()), true);
        assert!(
            (found.sum / loss - 1.0).abs() < 1e-6,
            "{name}: loss {} {loss}",
            found.sum
        );
        assert_eq!(found.n_labelled, 319);
        let factors = factors(&model, rank);
        for (matrix, [a, b], _) in factors.matrices() {
            for (which, range) in [("A", a), ("B", b)] {
                let (largest, cosine) = distance(&gradients[range.clone()], &expected[range]);
                assert!(
                    largest < 2e-5 && cosine < 1e-7,
                    "{name} {matrix:?} {which}: {largest:e} {cosine:e}"
                );
            }
        }
    }
}

#[test]
fn gradients_have_the_same_bits_on_any_threads_tables_and_passes() {
    let Some(path) = shared("models/stories260k-f32.gguf") else {
        return;
    };
    let model = load(&path);
    for gradients_type in [GradientType::F32, GradientType::Bf16] {
        let with = |table| TrainingLimits {
            gradients: gradients_type,
            types: (KvType::F16, KvType::F16),
            ..limits(table)
        };
        let (loss, expected) = gradients(&model, 4, 1, with(table()), true);
        let same = |what: &str, (found, gradients): (Loss, Vec<f32>)| {
            assert_eq!(found, loss, "{what}");
            let differs = gradients
                .iter()
                .zip(&expected)
                .position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differs, None, "{what}");
        };
        for n in [2, 3, 8] {
            same("threads", gradients(&model, 4, n, with(table()), true));
        }
        same(
            "a pass for each text",
            gradients(&model, 4, 2, with(table()), false),
        );
        let one = TrainingLimits {
            keeps_all: false,
            ..with(table())
        };
        same("checkpointing", gradients(&model, 4, 2, one, true));
        for table in KernelTable::available(CpuFeatures::detect()) {
            same(table.name(), gradients(&model, 4, 2, with(table), true));
        }
    }
}
