//! The threshold of a layer's scores, and what it chooses.

use super::labels::Labels;
use super::rows::{Rows, part};

/// What a predictor chooses on tokens that it was not made from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Share of neurons that are active.
    pub active: f64,
    /// Share of neurons that are chosen.
    pub selected: f64,
    /// Share of active neurons that are chosen.
    pub recall: f64,
    /// Share of the sum of squares of contributions that chosen neurons have.
    pub energy_recall: f64,
    /// Norm of what the others would have added to the outputs, as a share of the outputs' norm.
    pub output_error: f64,
}

/// The largest threshold with which at least a share `recall` of active neurons has scores above it.
pub(super) fn threshold(scores: &Rows, labels: &Labels, recall: f64) -> f32 {
    let mut active = Vec::with_capacity(labels.n_active());
    for token in 0..scores.n_rows() {
        let row = scores.row(token).iter().enumerate();
        let of_active = row.filter(|(neuron, _)| labels.is_active(token, *neuron));
        active.extend(of_active.map(|(_, score)| *score));
    }
    active.sort_by(f32::total_cmp);
    let n_missed = part(1.0 - recall, active.len());
    match active.get(n_missed.min(active.len().saturating_sub(1))) {
        Some(score) => score.next_down(),
        // Nothing is active: nothing need be chosen.
        None => scores.values.iter().copied().fold(0.0, f32::max),
    }
}

/// What a threshold chooses. `values` are what the neurons are, in the shape of the scores, and `norms` the norms of their
/// columns of down.
pub(super) fn measure(
    scores: &Rows,
    labels: &Labels,
    values: &Rows,
    norms: &[f32],
    threshold: f32,
) -> Measured {
    let (mut n_selected, mut n_both) = (0usize, 0usize);
    let (mut energy, mut of_selected) = (0f64, 0f64);
    for token in 0..scores.n_rows() {
        let pairs = scores.row(token).iter().zip(values.row(token)).zip(norms);
        for (neuron, ((score, value), norm)) in pairs.enumerate() {
            let contribution = f64::from(*value) * f64::from(*norm);
            let square = contribution * contribution;
            energy += square;
            if *score > threshold {
                n_selected += 1;
                n_both += usize::from(labels.is_active(token, neuron));
                of_selected += square;
            }
        }
    }
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 1.0 };
    let (n, n_active) = (scores.values.len() as f64, labels.n_active() as f64);
    Measured {
        active: share(n_active, n),
        selected: share(n_selected as f64, n),
        recall: share(n_both as f64, n_active),
        energy_recall: share(of_selected, energy),
        output_error: 0.0,
    }
}

/// The error of the network's outputs, as a share of their norm: what neurons that are not chosen would have added, by
/// `down`, (n_embd, n_ff).
pub(super) fn output_error(scores: &Rows, values: &Rows, down: &Rows, threshold: f32) -> f64 {
    let mut missed = values.clone();
    for (value, score) in missed.values.iter_mut().zip(&scores.values) {
        if *score > threshold {
            *value = 0.0;
        }
    }
    let square = |rows: &Rows| -> f64 {
        let outputs = rows.times_turned(down);
        let values = outputs.values.iter();
        values.map(|x| f64::from(*x) * f64::from(*x)).sum()
    };
    let all = square(values);
    if all > 0.0 {
        (square(&missed) / all).sqrt()
    } else {
        0.0
    }
}
