//! Calibration files: thresholds keep what they were made for on other texts, and shares diverge no more than the same
//! share for all layers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::file::LoadMode;
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::session::StepHooks;
use sluice::{Limits, Session, Team};
use sluice_core::engine::{Approximation, NeuronRule, NeuronSignal, Sparse};
use sluice_make::sparsify::{SparsifyGoal, sparsify};
use sluice_tests::shared;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/fixtures/sparse/tale-relu-5.8m-Q8_0.gguf"
);
const CHUNK: usize = 128;
/// Chunks that `sluice_make::sparsify` compares shares on.
const SHARING: [usize; 2] = [8, 24];

fn session() -> Session {
    let team = Team::new(2, &Cores::detect()).unwrap();
    let opened = ModelSource::open(MODEL, LoadMode::Read).unwrap();
    let model = opened.load(&team).unwrap();
    let limits = Limits::for_reading(model.config(), CHUNK, true);
    model.session_on(&team, limits).unwrap()
}

/// Logits of the second half of chunks, and the share of neurons that is kept in all of them.
fn read(session: &mut Session, chunks: &[&[u32]], sparse: Sparse<'_>) -> (Vec<Vec<f32>>, f64) {
    let before = session.neurons();
    let hooks = StepHooks {
        sparse: Some(sparse),
        ..StepHooks::default()
    };
    let mut rows = Vec::new();
    let each = |_, _, logits: &[f32]| rows.push(logits.to_vec());
    session.read_with(chunks, CHUNK / 2, &hooks, each).unwrap();
    let after = session.neurons();
    let skipped = (after.n_skipped - before.n_skipped) as f64;
    (rows, 1.0 - skipped / (after.n - before.n) as f64)
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - top).exp()).sum();
    let shift = f64::from(top) + sum.ln();
    logits.iter().map(|x| f64::from(*x) - shift).collect()
}

fn divergence(whole: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let pairs = whole.iter().zip(found);
    let of_row = |(p, q): (&Vec<f32>, &Vec<f32>)| -> f64 {
        let (p, q) = (log_probabilities(p), log_probabilities(q));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
    };
    pairs.map(of_row).sum::<f64>() / whole.len() as f64
}

#[test]
fn thresholds_keep_their_density_on_other_texts_and_shares_diverge_least() {
    let Some(text) = shared("data/tinystories_1000.txt") else {
        return;
    };
    let mut session = session();
    let model = session.model().clone();
    let text = std::fs::read_to_string(text).unwrap();
    let tokens = model.encode(&text[..80_000], false).unwrap();
    let chunks: Vec<&[u32]> = tokens.chunks_exact(CHUNK).take(96).collect();
    let (chunks, others) = chunks.split_at(32);
    let norms = model.neuron_norms(2).unwrap();
    for (signal, density) in [
        (NeuronSignal::Gate, 0.05),
        (NeuronSignal::Gate, 0.19),
        (NeuronSignal::Contribution, 0.1),
    ] {
        let goal = SparsifyGoal::Density(density);
        let file = sparsify(&mut session, chunks, signal, goal, |_, _, _| ()).unwrap();
        let with = |rule| {
            Sparse::Approximate(Approximation {
                signal,
                rule,
                norms: &norms,
            })
        };
        let case = (signal, density);
        let by_threshold = with(NeuronRule::Threshold(&file.thresholds));
        let (_, kept) = read(&mut session, others, by_threshold);
        assert!((kept / density - 1.0).abs() < 0.05, "{case:?} {kept}");
        let shares = file.shares_at(density).unwrap();
        let (_, kept) = read(&mut session, others, with(NeuronRule::Share(&shares)));
        // Each layer's share is of whole neurons.
        assert!((kept - density).abs() < 0.005, "{case:?} {kept}");
        // Where they were measured, no worse than the same share for all layers.
        let some = SHARING.map(|i| chunks[i]);
        let (whole, _) = read(&mut session, &some, Sparse::Exact);
        let same = vec![narrow(density); shares.len()];
        let [found, uniform] = [&shares, &same].map(|shares| {
            let sparse = with(NeuronRule::Share(shares));
            divergence(&whole, &read(&mut session, &some, sparse).0)
        });
        assert!(
            found <= uniform * (1.0 + 1e-9),
            "{case:?} {found} {uniform}"
        );
        assert_eq!(file.alone.len(), 6);
        assert!(file.alone.iter().all(|[half, quarter]| half < quarter));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a share")]
fn narrow(x: f64) -> f32 {
    x as f32
}
