//! The largest part of a matrix: left singular vectors, by products with the matrix alone.

use sluice_core::team::StopFlag;

/// W: (rows, columns).
pub(super) struct Matrix<'w> {
    pub(super) numbers: &'w [f32],
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

type Vector = Vec<f64>;

impl Matrix<'_> {
    /// W · x of each vector.
    fn times(&self, vectors: &[Vector]) -> Vec<Vector> {
        let mut products: Vec<_> = vectors.iter().map(|_| Vec::new()).collect();
        let mut own = vec![0.0; self.n_cols];
        for row in self.numbers.chunks_exact(self.n_cols) {
            widen(row, &mut own);
            for (product, x) in products.iter_mut().zip(vectors) {
                product.push(dot(&own, x));
            }
        }
        products
    }

    /// Wᵀ · x of each vector.
    pub(super) fn times_turned(&self, vectors: &[Vector]) -> Vec<Vector> {
        let mut products = vec![vec![0.0; self.n_cols]; vectors.len()];
        let mut rooms = [[0.0; TILE]; N_ROWS];
        for first in (0..self.n_cols).step_by(TILE) {
            let len = TILE.min(self.n_cols - first);
            for row in (0..self.n_rows).step_by(N_ROWS) {
                let n = N_ROWS.min(self.n_rows - row);
                for (i, room) in rooms.iter_mut().enumerate().take(n) {
                    let start = (row + i) * self.n_cols + first;
                    widen(&self.numbers[start..start + len], &mut room[..len]);
                }
                for (product, x) in products.iter_mut().zip(vectors) {
                    // Behind the last row, zeros.
                    let factors = core::array::from_fn(|i| if i < n { x[row + i] } else { 0.0 });
                    add_rows(&mut product[first..first + len], factors, &rooms);
                }
            }
        }
        products
    }

    /// The first columns of Q, where W = Q · R.
    pub(super) fn first_columns(&self, rank: usize) -> Vec<Vector> {
        let mut basis = Vec::new();
        for column in 0..rank {
            let own = self.numbers.iter().skip(column).step_by(self.n_cols);
            join(&mut basis, own.map(|x| f64::from(*x)).collect());
        }
        basis
    }

    /// The left singular vectors of the largest singular values; `None` if `stop` was set meanwhile.
    ///
    /// A basis grows by blocks W · Wᵀ · Q (Krylov's) until the vectors found in it no longer move.
    pub(super) fn largest(&self, rank: usize, stop: &StopFlag) -> Option<Vec<Vector>> {
        let (mut basis, mut images) = (Vec::new(), Vec::new());
        let mut seed = 1u64;
        for _ in 0..rank + SPARE {
            let start = (0..self.n_rows).map(|_| random(&mut seed)).collect();
            join(&mut basis, start);
        }
        let mut wanted = 4 * (rank + SPARE);
        let mut begin = 0;
        while !stop.is_set() {
            let end = basis.len();
            images.extend(self.times_turned(&basis[begin..end]));
            let is_whole = end >= self.n_rows || begin == end;
            if is_whole || end >= wanted {
                let (values, vectors) = eigen(&images, rank.min(end), stop)?;
                let found: Vec<Vector> = vectors.iter().map(|own| mix(&basis, own)).collect();
                let rows: Vec<Vector> = vectors.iter().map(|own| mix(&images, own)).collect();
                let moved = self.times(&rows);
                let moves = |k: usize| {
                    let pairs = moved[k].iter().zip(&found[k]);
                    let rest = pairs.map(|(x, q)| (x - values[k] * q).powi(2));
                    rest.sum::<f64>().sqrt() > TOLERANCE * values[0]
                };
                if is_whole || !(0..found.len()).any(moves) {
                    return Some(found);
                }
                wanted = end + end / 2;
            }
            for image in self.times(&images[begin..end]) {
                join(&mut basis, image);
            }
            begin = end;
        }
        None
    }
}

/// Columns and rows that are widened to f64 at once.
const TILE: usize = 256;
const N_ROWS: usize = 4;

/// Vectors in a block beyond the rank.
const SPARE: usize = 8;

/// How far a vector may still move, relative to the largest eigenvalue.
const TOLERANCE: f64 = 1e-10;

fn widen(numbers: &[f32], room: &mut [f64]) {
    for (x, number) in room.iter_mut().zip(numbers) {
        *x = f64::from(*number);
    }
}

/// Adds rows, each multiplied by its factor.
fn add_rows(sum: &mut [f64], factors: [f64; N_ROWS], rows: &[[f64; TILE]; N_ROWS]) {
    let [a, b, c, d] = rows;
    for (i, sum) in sum.iter_mut().enumerate().take(TILE) {
        *sum += factors[0] * a[i] + factors[1] * b[i] + (factors[2] * c[i] + factors[3] * d[i]);
    }
}

/// A number from -1 to 1, by a linear congruence (Knuth's constants).
#[expect(clippy::cast_precision_loss, reason = "31 bits")]
pub(super) fn random(seed: &mut u64) -> f64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0
}

/// Adds what is new in `x` to an orthonormal basis.
pub(super) fn join(basis: &mut Vec<Vector>, mut x: Vector) {
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

/// Eight sums, so that no addition waits for the last one.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (a, b) in a.0.iter().zip(b.0) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a.1.iter().zip(b.1).map(|(a, b)| a * b);
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

/// The sum of vectors, by these factors.
fn mix(vectors: &[Vector], factors: &[f64]) -> Vector {
    let mut sum = vec![0.0; vectors.first().map_or(0, Vec::len)];
    for (vector, factor) in vectors.iter().zip(factors) {
        sum.iter_mut()
            .zip(vector)
            .for_each(|(sum, x)| *sum += factor * x);
    }
    sum
}

/// The `n` largest eigenvalues, and their eigenvectors, of the products of `images` with each other; `None` if `stop` was set
/// meanwhile.
fn eigen(images: &[Vector], n: usize, stop: &StopFlag) -> Option<(Vector, Vec<Vector>)> {
    let len = images.len();
    let mut x = vec![vec![0.0; len]; len];
    for i in 0..len {
        for k in 0..=i {
            x[i][k] = dot(&images[i], &images[k]);
            x[k][i] = x[i][k];
        }
    }
    let (mut diagonal, mut beside, mirrors) = tridiagonal(x, stop)?;
    let mut vectors = rotated(&mut diagonal, &mut beside, stop)?;
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|a, b| diagonal[*b].total_cmp(&diagonal[*a]));
    order.truncate(n);
    let values = order.iter().map(|k| diagonal[*k]).collect();
    let of_images = |k: &usize| {
        let mut vector = core::mem::take(&mut vectors[*k]);
        for mirror in mirrors.iter().rev() {
            reflect(mirror, &mut vector);
        }
        vector
    };
    Some((values, order.iter().map(of_images).collect()))
}

/// A symmetric matrix by Householder's reflections: diagonal, what is beside it (as long, the last is 0), and the unit
/// vectors of the reflections in their order.
fn tridiagonal(mut x: Vec<Vector>, stop: &StopFlag) -> Option<(Vector, Vector, Vec<Vector>)> {
    let len = x.len();
    let mut mirrors = Vec::new();
    for at in 0..len.saturating_sub(2) {
        if stop.is_set() {
            return None;
        }
        let mut mirror = x[at].clone();
        mirror[..=at].fill(0.0);
        let length = dot(&mirror, &mirror).sqrt();
        mirror[at + 1] += length.copysign(mirror[at + 1]);
        let length = dot(&mirror, &mirror).sqrt();
        if length == 0.0 {
            continue;
        }
        mirror.iter_mut().for_each(|v| *v /= length);
        // (1 - 2 v vᵀ) X (1 - 2 v vᵀ) = X - v qᵀ - q vᵀ
        let mut q: Vector = x.iter().map(|row| 2.0 * dot(row, &mirror)).collect();
        let along = dot(&q, &mirror);
        q.iter_mut().zip(&mirror).for_each(|(q, v)| *q -= along * v);
        for (row, (v, own)) in x.iter_mut().zip(mirror.iter().zip(&q)) {
            for (x, (q, mirror)) in row.iter_mut().zip(q.iter().zip(&mirror)) {
                *x -= v * q + own * mirror;
            }
        }
        mirrors.push(mirror);
    }
    let diagonal = (0..len).map(|i| x[i][i]).collect();
    let beside = (0..len).map(|i| if i + 1 < len { x[i][i + 1] } else { 0.0 });
    let beside = beside.collect();
    Some((diagonal, beside, mirrors))
}

fn reflect(mirror: &[f64], x: &mut [f64]) {
    let along = 2.0 * dot(mirror, x);
    x.iter_mut().zip(mirror).for_each(|(x, v)| *x -= along * v);
}

/// Eigenvectors of a tridiagonal matrix, whose diagonal becomes the eigenvalues, by the implicit QL algorithm.
///
/// Source: Dubrulle, Martin and Wilkinson, "The implicit QL algorithm", 1968.
fn rotated(d: &mut [f64], e: &mut [f64], stop: &StopFlag) -> Option<Vec<Vector>> {
    let len = d.len();
    let unit = |k: usize| (0..len).map(|i| f64::from(u8::from(i == k))).collect();
    let mut vectors: Vec<Vector> = (0..len).map(unit).collect();
    for first in 0..len {
        for _ in 0..STEPS_MAX {
            if stop.is_set() {
                return None;
            }
            let is_split = |m: &usize| e[*m].abs() <= f64::EPSILON * (d[*m].abs() + d[m + 1].abs());
            let last = (first..len - 1).find(is_split).unwrap_or(len - 1);
            if last == first {
                break;
            }
            let shift = (d[first + 1] - d[first]) / (2.0 * e[first]);
            let root = shift.hypot(1.0).copysign(shift);
            let mut g = d[last] - d[first] + e[first] / (shift + root);
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut is_cut = false;
            for i in (first..last).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                let r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= p;
                    e[last] = 0.0;
                    is_cut = true;
                    break;
                }
                (s, c) = (f / r, g / r);
                g = d[i + 1] - p;
                let turn = (d[i] - g) * s + 2.0 * c * b;
                p = s * turn;
                d[i + 1] = g + p;
                g = c * turn - b;
                if let [low, high] = &mut vectors[i..i + 2] {
                    for (low, high) in low.iter_mut().zip(high) {
                        (*low, *high) = (c * *low - s * *high, s * *low + c * *high);
                    }
                }
            }
            if !is_cut {
                d[first] -= p;
                e[first] = g;
                e[last] = 0.0;
            }
        }
    }
    Some(vectors)
}

/// Steps for an eigenvalue; two or three are usual.
const STEPS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::super::added::narrow;
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
        let stop = StopFlag::new();
        let basis = matrix.largest(rank, &stop).unwrap();
        let expected = part(0..rank);
        let rows = matrix.times_turned(&basis);
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

    /// All vectors of a matrix with a double value, a zero one, and rows of any length.
    #[test]
    fn eigenvectors_are_those_of_the_products() {
        let mut seed = 5;
        for (n, len) in [(1, 3), (2, 17), (9, 30), (40, 41)] {
            let mut images: Vec<Vector> = (0..n)
                .map(|_| (0..len).map(|_| random(&mut seed)).collect())
                .collect();
            if n > 8 {
                images[3] = images[7].clone();
            }
            let stop = StopFlag::new();
            let (values, vectors) = eigen(&images, n, &stop).unwrap();
            assert!(values.is_sorted_by(|a, b| a >= b));
            for (k, vector) in vectors.iter().enumerate() {
                for (i, image) in images.iter().enumerate() {
                    let product: f64 = (0..n).map(|j| dot(image, &images[j]) * vector[j]).sum();
                    assert!((product - values[k] * vector[i]).abs() < 1e-11 * values[0]);
                }
                for (j, other) in vectors.iter().enumerate() {
                    let expected = f64::from(u8::from(j == k));
                    assert!((dot(vector, other) - expected).abs() < 1e-12, "{n} {j} {k}");
                }
            }
        }
    }

    #[test]
    fn a_search_ends_when_it_is_stopped() {
        let numbers = vec![1.0; 400 * 300];
        let matrix = Matrix {
            numbers: &numbers,
            n_rows: 400,
            n_cols: 300,
        };
        let stop = StopFlag::new();
        stop.stop();
        assert_eq!(matrix.largest(3, &stop), None);
        let images = vec![vec![1.0; 3]; 5];
        assert_eq!(eigen(&images, 1, &stop), None);
    }
}
