//! Refinement of a fit: logistic regression of which neurons are active on the hidden values.

use super::fit::{Fit, Inputs};
use super::labels::Labels;
use super::rows::Rows;
use sluice::host::isa;
use sluice_core::kernels::KernelTable;

/// Makes a fit's scores the log-odds of neurons being active, by gradient descent with momentum on the mean loss over a
/// text's tokens; the hidden values have mean squares of 1, so one step size suits all. `cut` is the value above which a
/// gate opens.
///
/// Needs [`Fit::missed`].
pub(super) fn refined(fit: &Fit, inputs: &Rows, labels: &Labels, cut: f32) -> Fit {
    let table = KernelTable::best(isa::features());
    let rank = fit.down.n_rows();
    let mut hidden = inputs.times_turned(&fit.down);
    let means = centre(&mut hidden);
    let n_tokens = hidden.n_rows();
    let mut up = fit.up.clone();
    let mut bias = fit.bias.clone();
    // Scores in units of what the fit misses are log-odds, nearly.
    for (i, bias) in bias.iter_mut().enumerate() {
        let scale = ODDS_OF_NORMAL / fit.missed[i].max(f32::MIN_POSITIVE.sqrt());
        let row = &mut up.values[i * rank..(i + 1) * rank];
        *bias = (*bias - cut + dot(row, &means)) * scale;
        row.iter_mut().for_each(|x| *x *= scale);
        *bias = bias.clamp(-ODDS_MAX, ODDS_MAX);
        let norm = dot(row, row).sqrt();
        if norm > ODDS_MAX {
            row.iter_mut().for_each(|x| *x *= ODDS_MAX / norm);
        }
    }
    let n_ff = bias.len();
    let (mut of_up, mut of_bias) = (Rows::zeros(n_ff, rank), vec![0f32; n_ff]);
    for _ in 0..STEPS {
        let (gradient, of_biases) = gradient(table, &up, &bias, &hidden, labels);
        let scale = 1.0 / n_tokens as f32;
        let pairs = up
            .values
            .iter_mut()
            .zip(&mut of_up.values)
            .zip(&gradient.values);
        for ((x, speed), gradient) in pairs {
            *speed = MOMENTUM * *speed - STEP * (gradient * scale + DECAY * *x);
            *x += *speed;
        }
        for ((x, speed), gradient) in bias.iter_mut().zip(&mut of_bias).zip(&of_biases) {
            *speed = MOMENTUM * *speed - STEP * gradient * scale;
            *x += *speed;
        }
    }
    for (i, bias) in bias.iter_mut().enumerate() {
        *bias -= dot(up.row(i), &means);
    }
    Fit {
        down: fit.down.clone(),
        up,
        bias,
        missed: Vec::new(),
    }
}

/// The sums over all tokens of the loss's derivatives by up and by bias.
fn gradient(
    table: &KernelTable,
    up: &Rows,
    bias: &[f32],
    hidden: &Rows,
    labels: &Labels,
) -> (Rows, Vec<f32>) {
    let n_ff = bias.len();
    let (mut of_up, mut of_bias) = (Rows::zeros(n_ff, up.n_cols), vec![0f32; n_ff]);
    for start in (0..hidden.n_rows()).step_by(BLOCK) {
        let tokens = start..(start + BLOCK).min(hidden.n_rows());
        let some = hidden.some(tokens.clone());
        let mut errors = some.times_turned(up);
        for (token, errors) in tokens.zip(errors.values.chunks_exact_mut(n_ff)) {
            errors.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            table.sigmoid(errors);
            for (neuron, error) in errors.iter_mut().enumerate() {
                *error -= f32::from(u8::from(labels.is_active(token, neuron)));
            }
            of_bias
                .iter_mut()
                .zip(&*errors)
                .for_each(|(sum, error)| *sum += error);
        }
        let part = errors.turned_times(&some);
        of_up
            .values
            .iter_mut()
            .zip(&part.values)
            .for_each(|(sum, x)| *sum += x);
    }
    (of_up, of_bias)
}

/// Takes the mean of each column from it, and returns the means.
fn centre(rows: &mut Rows) -> Vec<f32> {
    let means = Inputs::mean_of(rows);
    for row in rows.values.chunks_exact_mut(means.len()) {
        row.iter_mut().zip(&means).for_each(|(x, mean)| *x -= mean);
    }
    means
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A normal distribution's tail is about the logistic function of this many times its deviations.
const ODDS_OF_NORMAL: f32 = 1.702;
/// Bound of the log-odds that the descent begins with.
const ODDS_MAX: f32 = 12.0;
const STEPS: usize = 60;
const STEP: f32 = 1.0;
const MOMENTUM: f32 = 0.9;
const DECAY: f32 = 1e-5;
/// Tokens whose scores are in memory at once.
const BLOCK: usize = 256;
