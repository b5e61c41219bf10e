//! Fits, thresholds and files, on networks whose inputs have few directions.

use super::cut::{self, Measured};
use super::fit::{Inputs, fit};
use super::labels::{Labels, largest};
use super::refine::refined;
use super::rows::Rows;
use super::signs::signs;
use super::write::Encoded;

/// Numbers between -1 and 1, of which four are added up.
fn random(n_rows: usize, n_cols: usize, seed: u64) -> Rows {
    let mut state = seed;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut rows = Rows::zeros(n_rows, n_cols);
    rows.values.fill_with(|| (0..4).map(|_| next()).sum());
    rows
}

const N_EMBD: usize = 96;
const N_FF: usize = 320;
const N_TRAIN: usize = 1536;

/// A network's inputs, gates and active neurons: those above the gate's bias.
struct Toy {
    train: Rows,
    held: Rows,
    gate: Rows,
    bias: Vec<f32>,
    labels: Labels,
    of_held: Labels,
    values: Rows,
}

impl Toy {
    fn new() -> Self {
        let mut inputs = random(2048, 24, 1).times(&random(24, N_EMBD, 2));
        let noise = random(2048, N_EMBD, 3);
        let pairs = inputs.values.iter_mut().zip(&noise.values);
        pairs.for_each(|(x, noise)| *x += noise + 0.5);
        let gate = random(N_FF, N_EMBD, 4);
        let bias = vec![-80.0; N_FF];
        let mut gates = inputs.times_turned(&gate);
        gates
            .values
            .iter_mut()
            .for_each(|x| *x = (*x - 80.0).max(0.0));
        let [labels, of_held] = [0..N_TRAIN, N_TRAIN..2048].map(|rows| {
            let mut labels = Labels::new(N_FF);
            rows.for_each(|i| labels.push(gates.row(i).iter().map(|x| *x > 0.0)));
            labels
        });
        Self {
            train: inputs.some(0..N_TRAIN),
            held: inputs.some(N_TRAIN..2048),
            gate,
            bias,
            labels,
            of_held,
            values: gates.some(N_TRAIN..2048),
        }
    }

    fn measure(&self, down: Option<&Rows>, up: &Rows, bias: &[f32], recall: f64) -> Measured {
        let mut scores = match down {
            Some(down) => self.held.times_turned(down).times_turned(up),
            None => self.held.times_turned(up),
        };
        for row in scores.values.chunks_exact_mut(N_FF) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        let threshold = cut::threshold(&scores, &self.of_held, recall);
        let norms = vec![1.0; N_FF];
        cut::measure(&scores, &self.of_held, &self.values, &norms, threshold)
    }
}

#[test]
fn fits_of_low_rank_choose_few_neurons_too_many_and_chance_does_not() {
    let toy = Toy::new();
    let inputs = Inputs::of(&toy.train, 1e-3);
    let plain = fit(&toy.gate, &toy.bias, Some(&inputs), 32);
    let better = refined(&plain, &toy.train, &toy.labels, 0.0);
    for fit in [&plain, &better] {
        let found = toy.measure(Some(&fit.down), &fit.up, &fit.bias, 0.95);
        assert!(
            found.recall >= 0.95 && found.energy_recall > 0.98,
            "{found:?}"
        );
        assert!((0.1..0.4).contains(&found.active), "{found:?}");
        assert!(found.selected < 1.6 * found.active, "{found:?}");
    }
    let chance = random(N_FF, N_EMBD, 77);
    let found = toy.measure(None, &chance, &toy.bias, 0.95);
    assert!(found.selected > 0.85, "{found:?}");
    // A fit for the weights alone sees no directions in them; of full rank, it is exact.
    let all = fit(&toy.gate, &toy.bias, None, N_EMBD);
    let found = toy.measure(Some(&all.down), &all.up, &all.bias, 0.99);
    assert!(found.selected < 1.01 * found.active, "{found:?}");
}

#[test]
fn hidden_values_of_a_fit_have_mean_squares_of_1() {
    let toy = Toy::new();
    let inputs = Inputs::of(&toy.train, 0.0);
    let fit = fit(&toy.gate, &toy.bias, Some(&inputs), 16);
    let mut hidden = toy.train.times_turned(&fit.down);
    let means = Inputs::mean_of(&hidden);
    for row in hidden.values.chunks_exact_mut(16) {
        row.iter_mut().zip(&means).for_each(|(x, mean)| *x -= mean);
    }
    let squares = hidden.turned_times(&hidden);
    for i in 0..16 {
        for j in 0..16 {
            let expected = if i == j { 1.0 } else { 0.0 };
            let found = squares.values[16 * i + j] / N_TRAIN as f32;
            assert!((found - expected).abs() < 0.01, "{i} {j} {found}");
        }
    }
}

#[test]
fn signs_are_stored_exactly_with_a_scale_for_each_block() {
    for (n_cols, len) in [(512, 256), (96, 32)] {
        let gate = random(3, n_cols, 9);
        let found = signs(&gate).unwrap().rows();
        for (found, gate) in found.values.chunks(len).zip(gate.values.chunks(len)) {
            let mean = gate.iter().map(|x| x.abs()).sum::<f32>() / len as f32;
            for (found, gate) in found.iter().zip(gate) {
                assert!((found - mean.copysign(*gate)).abs() < 1e-3 * mean);
            }
        }
    }
    assert!(signs(&random(3, 48, 9)).is_none());
}

#[test]
fn matrices_are_stored_as_near_as_their_type_allows() {
    for (n_cols, error) in [(64, 0.02), (40, 0.002)] {
        let rows = random(5, n_cols, 6);
        let found = Encoded::new(&rows).unwrap().rows();
        let pairs = found.values.iter().zip(&rows.values);
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < error));
        assert!(pairs.clone().any(|(a, b)| a.to_bits() != b.to_bits()));
    }
    let broken = Rows {
        values: vec![f32::NAN; 64],
        n_cols: 64,
    };
    assert!(Encoded::new(&broken).is_err());
}

#[test]
fn thresholds_are_the_largest_that_reach_a_recall() {
    let scores = Rows {
        values: vec![0.1, 0.9, 0.5, 0.7, 0.3, 0.2],
        n_cols: 3,
    };
    let mut labels = Labels::new(3);
    labels.push([false, true, true].into_iter());
    labels.push([true, false, true].into_iter());
    for (recall, n) in [(1.0, 4), (0.75, 3), (0.5, 2), (0.25, 1)] {
        let threshold = cut::threshold(&scores, &labels, recall);
        let found = cut::measure(&scores, &labels, &scores, &[1.0; 3], threshold);
        assert!(
            (found.recall - f64::from(n) / 4.0).abs() < 1e-9,
            "{found:?}"
        );
    }
    let mut none = Labels::new(3);
    none.push([false; 3].into_iter());
    none.push([false; 3].into_iter());
    let threshold = cut::threshold(&scores, &none, 0.95);
    let found = cut::measure(&scores, &none, &scores, &[1.0; 3], threshold);
    assert!(found.selected < 1e-9, "{found:?}");
    assert_eq!(
        largest(&[1.0, 3.0, 2.0, 3.0], 2),
        [false, true, false, true]
    );
}
