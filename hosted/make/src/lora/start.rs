//! What PiSSA and OLoRA took out of a model's weights before training, found again in them.
//!
//! PEFT does the same when it loads such an adapter: its product stands for that part of the weights.

use super::LoraError;
use super::added::{Added, By, narrow};
use sluice::adapter::AdapterLoadError;
use sluice::file::ModelFile;
use sluice_core::gguf::TensorInfo;
use sluice_core::gguf::source::TensorSource as _;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_hf::adapter::AdapterStart;

/// The product that `added` takes out of its matrix, with a negative factor.
pub(super) fn product_at_start(
    model: &ModelFile,
    info: &TensorInfo<'_>,
    added: &Added<'_>,
) -> Result<By<'static>, LoraError> {
    let By::TakeOut { start, rank, scale } = added.by else {
        unreachable!("only those are looked for");
    };
    if !matches!(info.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        let what = format!(
            "is {}: what {start:?} took out of the weights can be found only in F32, F16 or BF16",
            info.ty
        );
        return Err(AdapterLoadError::tensor(model.name(), info.name, what).into());
    }
    let fits = |n: u64| usize::try_from(n).expect("the tensor is in memory soon");
    let [n_cols, n_rows, ..] = info.dims;
    let len = n_rows * info.row_bytes();
    let mut bytes = vec![0; fits(len)];
    let read = model.read(info.offset + added.part * len, &mut bytes);
    read.map_err(|error| AdapterLoadError::data(model.name(), info.name, error))?;
    let mut numbers = vec![0.0; fits(n_rows * n_cols)];
    dequantize_row(info.ty, &bytes, &mut numbers);
    let matrix = Matrix {
        numbers: &numbers,
        n_rows: fits(n_rows),
        n_cols: fits(n_cols),
    };
    let rank = rank.min(matrix.n_rows).min(matrix.n_cols);
    let basis = match start {
        AdapterStart::Pissa => matrix.largest(rank),
        AdapterStart::Olora => matrix.first_columns(rank),
    };
    // Q · Qᵀ · W, whose rows are taken from the side that Q belongs to.
    let n_rank = basis.len();
    let (mut a, mut b) = (Vec::new(), vec![0.0; n_rank * matrix.n_rows]);
    for (k, q) in basis.iter().enumerate() {
        a.extend(matrix.times_turned(q).into_iter().map(narrow));
        for (row, x) in q.iter().enumerate() {
            b[row * n_rank + k] = narrow(*x);
        }
    }
    Ok(By::Product {
        rank: n_rank,
        a: a.into(),
        b: b.into(),
        scale: -scale,
    })
}

/// W: (rows, columns).
struct Matrix<'w> {
    numbers: &'w [f32],
    n_rows: usize,
    n_cols: usize,
}

impl Matrix<'_> {
    /// W · x.
    fn times(&self, x: &[f64]) -> Vec<f64> {
        let rows = self.numbers.chunks_exact(self.n_cols);
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }

    /// Wᵀ · x.
    fn times_turned(&self, x: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.n_cols];
        for (row, x) in self.numbers.chunks_exact(self.n_cols).zip(x) {
            for (sum, w) in sum.iter_mut().zip(row) {
                *sum += f64::from(*w) * x;
            }
        }
        sum
    }

    /// The first columns of Q, where W = Q · R.
    fn first_columns(&self, rank: usize) -> Vec<Vec<f64>> {
        let mut basis = Vec::new();
        for column in 0..rank {
            let own = self.numbers.iter().skip(column).step_by(self.n_cols);
            join(&mut basis, own.map(|x| f64::from(*x)).collect());
        }
        basis
    }

    /// The left singular vectors of the largest singular values.
    ///
    /// A basis grows by blocks W · Wᵀ · Q (Krylov's) until the vectors found in it no longer move.
    fn largest(&self, rank: usize) -> Vec<Vec<f64>> {
        let (mut basis, mut images) = (Vec::new(), Vec::new());
        let mut seed = 1u64;
        for _ in 0..rank + SPARE {
            let start = (0..self.n_rows).map(|_| random(&mut seed)).collect();
            join(&mut basis, start);
        }
        let mut wanted = 4 * (rank + SPARE);
        let mut begin = 0;
        loop {
            let end = basis.len();
            images.extend(basis[begin..end].iter().map(|q| self.times_turned(q)));
            let is_whole = end >= self.n_rows || begin == end;
            if is_whole || end >= wanted {
                let (values, vectors) = eigen(&images);
                let found: Vec<Vec<f64>> = (0..rank.min(end))
                    .map(|k| mix(&basis, &vectors[k]))
                    .collect();
                let moves = |k: usize| {
                    let image = self.times(&mix(&images, &vectors[k]));
                    let rest = image
                        .iter()
                        .zip(&found[k])
                        .map(|(x, q)| (x - values[k] * q).powi(2));
                    rest.sum::<f64>().sqrt() > TOLERANCE * values[0]
                };
                if is_whole || !(0..found.len()).any(moves) {
                    return found;
                }
                wanted = 2 * end;
            }
            for image in images[begin..end]
                .iter()
                .map(|image| self.times(image))
                .collect::<Vec<_>>()
            {
                join(&mut basis, image);
            }
            begin = end;
        }
    }
}

/// Vectors in a block beyond the rank.
const SPARE: usize = 8;

/// How far a vector may still move, relative to the largest eigenvalue.
const TOLERANCE: f64 = 1e-10;

/// A number from -1 to 1, by a linear congruence (Knuth's constants).
#[expect(clippy::cast_precision_loss, reason = "31 bits")]
fn random(seed: &mut u64) -> f64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0
}

/// Adds what is new in `x` to an orthonormal basis.
fn join(basis: &mut Vec<Vec<f64>>, mut x: Vec<f64>) {
    let before = dot(&x, &x).sqrt();
    // Twice is enough.
    for _ in 0..2 {
        for q in basis.iter() {
            let along = dot(q, &x);
            x.iter_mut().zip(q).for_each(|(x, q)| *x -= along * q);
        }
    }
    let len = dot(&x, &x).sqrt();
    if len > 1e-12 * before {
        x.iter_mut().for_each(|x| *x /= len);
        basis.push(x);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The sum of vectors, by these factors.
fn mix(vectors: &[Vec<f64>], factors: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; vectors.first().map_or(0, Vec::len)];
    for (vector, factor) in vectors.iter().zip(factors) {
        sum.iter_mut()
            .zip(vector)
            .for_each(|(sum, x)| *sum += factor * x);
    }
    sum
}

/// Eigenvalues, the largest first, and eigenvectors of the products of `images` with each other, by Jacobi's rotations.
fn eigen(images: &[Vec<f64>]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let n = images.len();
    let mut x: Vec<Vec<f64>> = images
        .iter()
        .map(|a| images.iter().map(|b| dot(a, b)).collect())
        .collect();
    let unit = |k: usize| (0..n).map(|i| f64::from(u8::from(i == k))).collect();
    let mut vectors: Vec<Vec<f64>> = (0..n).map(unit).collect();
    for _ in 0..SWEEPS_MAX {
        let mut largest: f64 = 0.0;
        for p in 0..n {
            for q in p + 1..n {
                let scale = (x[p][p] * x[q][q]).abs().sqrt();
                if x[p][q].abs() <= 1e-15 * scale {
                    continue;
                }
                largest = largest.max(x[p][q].abs() / scale.max(f64::MIN_POSITIVE));
                let tau = (x[q][q] - x[p][p]) / (2.0 * x[p][q]);
                let t = tau.signum() / (tau.abs() + tau.hypot(1.0));
                let (c, s) = (1.0 / t.hypot(1.0), t / t.hypot(1.0));
                let turn = |a: f64, b: f64| (c * a - s * b, s * a + c * b);
                for row in &mut x {
                    (row[p], row[q]) = turn(row[p], row[q]);
                }
                for k in 0..n {
                    (x[p][k], x[q][k]) = turn(x[p][k], x[q][k]);
                    (vectors[p][k], vectors[q][k]) = turn(vectors[p][k], vectors[q][k]);
                }
            }
        }
        if largest < 1e-14 {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| x[*b][*b].total_cmp(&x[*a][*a]));
    let values = order.iter().map(|k| x[*k][*k]).collect();
    (values, order.iter().map(|k| vectors[*k].clone()).collect())
}

const SWEEPS_MAX: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    /// W = Σ σ · u · vᵀ with known orthogonal vectors.
    #[test]
    fn the_largest_part_of_a_matrix_is_found() {
        let (n_rows, n_cols, rank) = (60, 90, 5);
        let mut seed = 7;
        let mut side = |n: usize| {
            let mut basis = Vec::new();
            for _ in 0..60 {
                join(&mut basis, (0..n).map(|_| random(&mut seed)).collect());
            }
            basis
        };
        let (left, right) = (side(n_rows), side(n_cols));
        let mut values: Vec<f64> = (0..60).map(|k| 3.0 * 0.9f64.powi(k)).collect();
        values[rank - 1] = values[rank] * 1.001;
        let part = |range: core::ops::Range<usize>| {
            let number = |i: usize| -> f64 {
                let (row, column) = (i / n_cols, i % n_cols);
                range
                    .clone()
                    .map(|k| values[k] * left[k][row] * right[k][column])
                    .sum()
            };
            (0..n_rows * n_cols).map(number).collect::<Vec<_>>()
        };
        let numbers: Vec<f32> = part(0..60).into_iter().map(narrow).collect();
        let matrix = Matrix {
            numbers: &numbers,
            n_rows,
            n_cols,
        };
        let basis = matrix.largest(rank);
        let expected = part(0..rank);
        let rows: Vec<_> = basis.iter().map(|q| matrix.times_turned(q)).collect();
        for (i, expected) in expected.iter().enumerate() {
            let found: f64 = basis
                .iter()
                .zip(&rows)
                .map(|(q, a)| q[i / n_cols] * a[i % n_cols])
                .sum();
            assert!(
                (found - expected).abs() < 1e-4,
                "{i}: {found}, not {expected}"
            );
        }
    }
}
