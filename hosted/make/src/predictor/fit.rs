//! Low-rank fits of a network's gates: the best for their weights, or for what a text makes of them.
//!
//! A rank-r fit of W that is best for inputs of covariance C takes the top eigenvectors U of W·C·Wᵀ: scores are U·Uᵀ·W·x
//! (reduced-rank regression). C is the covariance of the text's inputs with a ridge, or, without a text, the identity: then
//! this is the singular value decomposition. Eigenvectors are found by iteration on a subspace, from fixed vectors, on one
//! thread, so that the same input gives the same bytes.

use super::rows::{Rows, narrow};
use nalgebra::{DMatrix, SymmetricEigen};

/// What a text makes of a network's inputs: their mean and covariance.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    /// (n_embd)
    pub(super) mean: Vec<f32>,
    /// (n_embd, n_embd)
    pub(super) covariance: Rows,
}

impl Inputs {
    /// The mean and covariance of rows, with a ridge of `ridge` times the mean variance.
    pub(super) fn of(rows: &Rows, ridge: f32) -> Self {
        let (n, n_cols) = (rows.n_rows().max(1) as f32, rows.n_cols);
        let mean = Self::mean_of(rows);
        let mut centred = rows.clone();
        for row in centred.values.chunks_exact_mut(n_cols) {
            row.iter_mut().zip(&mean).for_each(|(x, mean)| *x -= mean);
        }
        let mut covariance = centred.turned_times(&centred);
        covariance.values.iter_mut().for_each(|x| *x /= n);
        let trace: f32 = (0..n_cols)
            .map(|i| covariance.values[i * (n_cols + 1)])
            .sum();
        for i in 0..n_cols {
            covariance.values[i * (n_cols + 1)] += ridge * trace / n_cols as f32;
        }
        Self { mean, covariance }
    }

    /// The mean of rows.
    pub(super) fn mean_of(rows: &Rows) -> Vec<f32> {
        let n = rows.n_rows().max(1) as f64;
        let mut sums = vec![0f64; rows.n_cols];
        for row in rows.values.chunks_exact(rows.n_cols) {
            let pairs = sums.iter_mut().zip(row);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x));
        }
        sums.iter().map(|sum| narrow(sum / n)).collect()
    }
}

/// A fit of rank r: scores are `up · (down · x) + bias`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fit {
    /// (r, n_embd); where there are inputs, its products have mean squares of 1 about their mean.
    pub(super) down: Rows,
    /// (n_ff, r)
    pub(super) up: Rows,
    /// (n_ff)
    pub(super) bias: Vec<f32>,
    /// For each neuron, the root of the mean square of what the fit misses, where there are inputs.
    pub(super) missed: Vec<f32>,
}

/// The best fit of rank `rank` of `gate · x + bias`, for the inputs' covariance, or for the weights alone.
///
/// `rank` is at most both dimensions of `gate`, (n_ff, n_embd).
pub(super) fn fit(gate: &Rows, bias: &[f32], inputs: Option<&Inputs>, rank: usize) -> Fit {
    let through = |rows: Rows| match inputs {
        Some(inputs) => inputs.covariance.times(&rows),
        None => rows,
    };
    let n_wide = (rank + EXTRA).min(gate.n_cols).min(gate.n_rows());
    let mut vectors = orthonormal(start(gate.n_rows(), n_wide));
    for _ in 0..ITERATIONS {
        let inner = through(gate.turned_times(&vectors));
        vectors = orthonormal(gate.times(&inner));
    }
    // Rayleigh and Ritz: the best vectors within the subspace.
    let inner = gate.turned_times(&vectors);
    let small = inner.turned_times(&through(inner.clone()));
    let small = DMatrix::from_fn(n_wide, n_wide, |i, j| {
        let at = |i, j| f64::from(small.values[i * n_wide + j]);
        0.5 * (at(i, j) + at(j, i))
    });
    let eigen = SymmetricEigen::new(small);
    let mut order: Vec<usize> = (0..n_wide).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let largest = order
        .first()
        .map_or(0.0, |i| eigen.eigenvalues[*i])
        .max(f64::MIN_POSITIVE);
    let mut turn = Rows::zeros(n_wide, rank);
    let mut roots = Vec::with_capacity(rank);
    for (j, from) in order.iter().take(rank).enumerate() {
        roots.push(narrow(eigen.eigenvalues[*from].max(1e-10 * largest).sqrt()));
        // A vector's sign is free: its largest component is positive.
        let column = eigen.eigenvectors.column(*from);
        let top = column
            .iter()
            .fold(0f64, |top, x| if x.abs() > top.abs() { *x } else { top });
        for i in 0..n_wide {
            turn.values[i * rank + j] = narrow(column[i] * top.signum());
        }
    }
    let mut up = vectors.times(&turn);
    let mut down = up.turned_times(gate);
    for row in up.values.chunks_exact_mut(rank) {
        row.iter_mut().zip(&roots).for_each(|(x, root)| *x *= root);
    }
    for (row, root) in down.values.chunks_exact_mut(gate.n_cols).zip(&roots) {
        row.iter_mut().for_each(|x| *x /= root);
    }
    let (bias, missed) = rest(gate, bias, inputs, &down, &up);
    Fit {
        down,
        up,
        bias,
        missed,
    }
}

/// The bias that makes scores right on the mean input, and what they miss elsewhere.
fn rest(
    gate: &Rows,
    bias: &[f32],
    inputs: Option<&Inputs>,
    down: &Rows,
    up: &Rows,
) -> (Vec<f32>, Vec<f32>) {
    let Some(inputs) = inputs else {
        return (bias.to_vec(), Vec::new());
    };
    let mean = Rows {
        values: inputs.mean.clone(),
        n_cols: inputs.mean.len(),
    };
    let of_gate = mean.times_turned(gate);
    let of_fit = mean.times_turned(down).times_turned(up);
    let seen = gate.times(&inputs.covariance);
    let variance = |i: usize| dot(gate.row(i), seen.row(i)) - dot(up.row(i), up.row(i));
    let missed = (0..gate.n_rows())
        .map(|i| variance(i).max(0.0).sqrt())
        .collect();
    let both = of_gate.values.iter().zip(&of_fit.values).zip(bias);
    (
        both.map(|((gate, fit), bias)| bias + gate - fit).collect(),
        missed,
    )
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Fixed vectors that no matrix is likely to be blind to.
fn start(n_rows: usize, n_cols: usize) -> Rows {
    let mut rows = Rows::zeros(n_rows, n_cols);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for x in &mut rows.values {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *x = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    }
    rows
}

/// Orthonormal columns of the same span: twice by Cholesky's factor of their products.
fn orthonormal(mut rows: Rows) -> Rows {
    for _ in 0..2 {
        let n = rows.n_cols;
        let scale = rows.values.iter().fold(0f32, |top, x| top.max(x.abs()));
        if scale > 0.0 {
            rows.values.iter_mut().for_each(|x| *x /= scale);
        }
        let gram = rows.turned_times(&rows);
        let trace: f64 = (0..n).map(|i| f64::from(gram.values[i * (n + 1)])).sum();
        // Columns that are nearly alike must not divide by 0.
        let ridge = (1e-7 * trace / n as f64).max(f64::MIN_POSITIVE);
        let gram = DMatrix::from_fn(n, n, |i, j| {
            f64::from(gram.values[i * n + j]) + if i == j { ridge } else { 0.0 }
        });
        let Some(factor) = gram.cholesky() else {
            return rows;
        };
        let inverse = factor.l().solve_lower_triangular(&DMatrix::identity(n, n));
        let Some(inverse) = inverse else {
            return rows;
        };
        let mut turn = Rows::zeros(n, n);
        for i in 0..n {
            for j in 0..n {
                turn.values[i * n + j] = narrow(inverse[(j, i)]);
            }
        }
        rows = rows.times(&turn);
    }
    rows
}

/// Vectors beyond the rank, which make the others converge.
const EXTRA: usize = 16;
const ITERATIONS: usize = 8;
