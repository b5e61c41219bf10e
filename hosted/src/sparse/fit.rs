//! The best predictor of a rank for samples: ridge regression, then the largest singular directions of its fit.

use sluice_core::sparse::SparsityError;

/// Share of the mean diagonal that is added to it, so that few samples can be fitted.
const RIDGE: f64 = 1e-4;
/// Passes of the iteration that finds the directions.
const PASSES: usize = 24;

/// Share of the mean square that its deviations have at least, so that samples that hardly differ can be fitted.
const DEVIATION: f64 = 1e-9;

/// A predictor `Q (hidden, rank) · P (rank, input) · x + bias (hidden)`.
pub(super) struct Fit {
    pub(super) p: Vec<f32>,
    pub(super) q: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

/// Fits `Q · P · x + bias` to `y` for pairs of rows of `xs` (n, input) and `ys` (n, hidden), in f64. Rows of P are of
/// length 1.
///
/// X and Y being the deviations from the means x̄ and ȳ, with `C = X'X + λI = L·L'` the ridge solution is `B = Y'X·C⁻¹`. Of
/// `M = B·L = Y'X·L'⁻¹` the `rank` largest right singular vectors V give the best fit of that rank: `Q = M·V`,
/// `P = V'·L⁻¹`, `bias = ȳ - Q·P·x̄`.
///
/// # Errors
/// No memory for matrices of (input, input) and (hidden, input), by the size at fault.
#[expect(clippy::cast_possible_truncation, reason = "to the nearest f32")]
pub(super) fn low_rank(
    xs: &[Vec<f32>],
    ys: &[Vec<f32>],
    rank: usize,
) -> Result<Fit, SparsityError> {
    let (input, hidden) = (xs[0].len(), ys[0].len());
    let (x_mean, y_mean) = (mean(xs), mean(ys));
    let mut c = zeros("input_dim", input, input)?;
    let mut m = zeros("hidden_dim", hidden, input)?;
    let mut squares = 0f64;
    for (x, y) in xs.iter().zip(ys) {
        squares += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let x = deviation(x, &x_mean);
        for (i, row) in c.chunks_exact_mut(input).enumerate() {
            add(x[i], &x[..=i], &mut row[..=i]);
        }
        for (y, row) in deviation(y, &y_mean).iter().zip(m.chunks_exact_mut(input)) {
            add(*y, &x, row);
        }
    }
    let trace: f64 = (0..input).map(|i| c[i * input + i]).sum();
    let trace = trace.max(squares * DEVIATION);
    let ridge = (trace / input as f64 * RIDGE).max(f64::MIN_POSITIVE);
    for i in 0..input {
        c[i * input + i] += ridge;
    }
    cholesky(&mut c, input);
    for row in m.chunks_exact_mut(input) {
        solve_lower(&c, row);
    }
    let mut g = zeros("input_dim", input, input)?;
    for row in m.chunks_exact(input) {
        for (i, out) in g.chunks_exact_mut(input).enumerate() {
            add(row[i], row, out);
        }
    }
    let mut v = directions(&g, input, rank);
    let right = v.clone();
    let mut norms = Vec::with_capacity(rank);
    for row in v.chunks_exact_mut(input) {
        solve_upper(&c, row);
        let norm = dot(row, row).sqrt();
        row.iter_mut().for_each(|x| *x /= norm);
        norms.push(norm);
    }
    let z_mean: Vec<f64> = v.chunks_exact(input).map(|p| dot(p, &x_mean)).collect();
    let (mut q, mut bias) = (
        Vec::with_capacity(hidden * rank),
        Vec::with_capacity(hidden),
    );
    for (m, y) in m.chunks_exact(input).zip(y_mean) {
        let products = right.chunks_exact(input).map(|v| dot(m, v));
        let row: Vec<f64> = products.zip(&norms).map(|(q, norm)| q * norm).collect();
        bias.push((y - dot(&row, &z_mean)) as f32);
        q.extend(row.iter().map(|x| *x as f32));
    }
    let p = v.iter().map(|x| *x as f32).collect();
    Ok(Fit { p, q, bias })
}

/// A matrix of zeros; `name` is of its rows.
fn zeros(name: &'static str, n_rows: usize, n_cols: usize) -> Result<Vec<f64>, SparsityError> {
    let mut all = Vec::new();
    let n = n_rows.checked_mul(n_cols);
    let n = n.filter(|n| all.try_reserve_exact(*n).is_ok());
    let n = n.ok_or(SparsityError::Setting {
        name,
        value: n_rows as f64,
        expected: "a size for which a matrix of f64 by input_dim fits in memory",
    })?;
    all.resize(n, 0f64);
    Ok(all)
}

/// The mean of rows.
fn mean(rows: &[Vec<f32>]) -> Vec<f64> {
    let n = rows.len() as f64;
    let sum = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>();
    (0..rows[0].len()).map(|i| sum(i) / n).collect()
}

fn deviation(row: &[f32], mean: &[f64]) -> Vec<f64> {
    let pairs = row.iter().zip(mean);
    pairs.map(|(x, mean)| f64::from(*x) - mean).collect()
}

/// Matrices whose scales fit into 8 bits, by powers of 2, which change no bits of the product: rows of P have a length near
/// 1, the largest number of Q is near 1, and scores are to be multiplied by the last.
#[expect(clippy::cast_possible_truncation, reason = "to the nearest f32")]
pub(super) fn balanced(p: &[f32], q: &[f32], rank: usize) -> (Vec<f32>, Vec<f32>, f32) {
    let (mut p, q) = (wide(p), wide(q));
    let n = p.len() / rank;
    let scales: Vec<f64> = p
        .chunks_exact_mut(n)
        .map(|row| {
            let scale = power_of_2(dot(row, row).sqrt());
            row.iter_mut().for_each(|x| *x /= scale);
            scale
        })
        .collect();
    let columns = q.iter().zip(scales.iter().cycle());
    let q: Vec<f64> = columns.map(|(q, scale)| q * scale).collect();
    let largest = q.iter().fold(0f64, |most, x| most.max(x.abs()));
    let scale = power_of_2(largest).min(power_of_2(f64::from(f32::MAX) / 2.0));
    let narrow = |x: f64| x as f32;
    let q = q.into_iter().map(|q| narrow(q / scale)).collect();
    (p.into_iter().map(narrow).collect(), q, scale as f32)
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// The power of 2 that is nearest to a length by its logarithm; 1 for 0.
fn power_of_2(length: f64) -> f64 {
    match length >= f64::MIN_POSITIVE {
        true => f64::from_bits((length * core::f64::consts::SQRT_2).to_bits() >> 52 << 52),
        false => 1.0,
    }
}

/// `rank` orthonormal rows that span the largest eigenvectors of `g` (n, n), from a fixed beginning.
fn directions(g: &[f64], n: usize, rank: usize) -> Vec<f64> {
    let mut rows = orthonormal(n, rank);
    for _ in 0..PASSES {
        let mut next = vec![0f64; rank * n];
        for (row, next) in rows.chunks_exact(n).zip(next.chunks_exact_mut(n)) {
            for (x, g) in row.iter().zip(g.chunks_exact(n)) {
                add(*x, g, next);
            }
        }
        orthogonalize(&mut next, n);
        rows = next;
    }
    rows
}

/// `rank` orthonormal rows of `n` elements, from a fixed seed.
fn orthonormal(n: usize, rank: usize) -> Vec<f64> {
    let mut chaos = sluice_core::sparse::pi::PiChaos::hashed(3);
    let mut rows: Vec<f64> = (0..rank * n)
        .map(|_| f64::from(chaos.next_float()) - 0.5)
        .collect();
    orthogonalize(&mut rows, n);
    rows
}

/// Gram and Schmidt, each row twice. A row that nothing is left of becomes an axis, less the rows before it.
fn orthogonalize(rows: &mut [f64], n: usize) {
    for i in 0..rows.len() / n {
        let (before, row) = rows.split_at_mut(i * n);
        let row = &mut row[..n];
        for axis in 0..=n {
            let size = dot(row, row).sqrt();
            for _ in 0..2 {
                for other in before.chunks_exact(n) {
                    let along = dot(other, row);
                    add(-along, other, row);
                }
            }
            let left = dot(row, row).sqrt();
            if left > size * 1e-10 && left > 0.0 {
                row.iter_mut().for_each(|x| *x /= left);
                break;
            }
            row.fill(0.0);
            row[axis.min(n - 1)] = 1.0;
        }
    }
}

/// The lower factor of a positive definite matrix, of which the lower half is read and written.
fn cholesky(c: &mut [f64], n: usize) {
    for i in 0..n {
        let (above, row) = c.split_at_mut(i * n);
        let row = &mut row[..n];
        for j in 0..i {
            let other = &above[j * n..][..n];
            row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
        }
        let left = row[i] - dot(&row[..i], &row[..i]);
        // Positive by the ridge, apart from rounding.
        row[i] = left.max(f64::MIN_POSITIVE).sqrt();
    }
}

/// `L · z = row`, in place: a row of `· L'⁻¹`.
fn solve_lower(l: &[f64], row: &mut [f64]) {
    let n = row.len();
    for i in 0..n {
        let (done, rest) = row.split_at_mut(i);
        rest[0] = (rest[0] - dot(done, &l[i * n..][..i])) / l[i * n + i];
    }
}

/// `L' · z = row`, in place: a row of `· L⁻¹`.
fn solve_upper(l: &[f64], row: &mut [f64]) {
    let n = row.len();
    for i in (0..n).rev() {
        row[i] /= l[i * n + i];
        let value = row[i];
        add(-value, &l[i * n..][..i], &mut row[..i]);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut sums, n) = ([0f64; 4], a.len().min(b.len()));
    let (a, b) = (a[..n].as_chunks::<4>(), b[..n].as_chunks::<4>());
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..4 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f64 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
    (sums[0] + sums[2]) + (sums[1] + sums[3]) + rest
}

/// `out += scale · x`
fn add(scale: f64, x: &[f64], out: &mut [f64]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += scale * x;
    }
}
