//! Sums of f32 products, and weighted sums of rows, in one order on every processor.
//!
//! A sum has eight partial sums, by the column modulo 8; they are added in pairs, and the columns after the last whole
//! eight one after the other. Several rows are summed together, which changes nothing in a row's own sum.

/// Partial sums.
const LANES: usize = 8;
/// Rows that share the loads of the input.
pub(super) const ROWS: usize = 4;

/// The products of [`ROWS`] rows with `x`, all of its length.
pub(super) fn dots(rows: [&[f32]; ROWS], x: &[f32]) -> [f32; ROWS] {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let rows = rows.map(|row| row[..x.len()].as_chunks::<LANES>());
    let n = chunks.len();
    let [a, b, c, d] = rows.map(|row| &row.0[..n]);
    let mut sums = [[0f32; LANES]; ROWS];
    for i in 0..n {
        for l in 0..LANES {
            sums[0][l] += a[i][l] * chunks[i][l];
            sums[1][l] += b[i][l] * chunks[i][l];
            sums[2][l] += c[i][l] * chunks[i][l];
            sums[3][l] += d[i][l] * chunks[i][l];
        }
    }
    let mut out = [0.0; ROWS];
    for ((out, sums), row) in out.iter_mut().zip(&sums).zip(&rows) {
        let mut sum = total(sums);
        for (w, x) in row.1.iter().zip(rest) {
            sum += w * x;
        }
        *out = sum;
    }
    out
}

/// The product of one row: the same bits as in [`dots`].
pub(super) fn dot(row: &[f32], x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (weights, row_rest) = row[..x.len()].as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for (w, x) in weights.iter().zip(chunks) {
        for l in 0..LANES {
            sums[l] += w[l] * x[l];
        }
    }
    let mut sum = total(&sums);
    for (w, x) in row_rest.iter().zip(rest) {
        sum += w * x;
    }
    sum
}

/// In pairs: 0 with 4, 1 with 5, and so on.
fn total(sums: &[f32; LANES]) -> f32 {
    let four = [0, 1, 2, 3].map(|i| sums[i] + sums[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Adds `values[r] · rows[r]` for each row, in their order, to `out`, which is as long as each row.
pub(super) fn add_rows(values: [f32; ROWS], rows: [&[f32]; ROWS], out: &mut [f32]) {
    let n = out.len();
    let [a, b, c, d] = rows.map(|row| &row[..n]);
    for i in 0..n {
        let sum = out[i] + values[0] * a[i];
        let sum = sum + values[1] * b[i];
        let sum = sum + values[2] * c[i];
        out[i] = sum + values[3] * d[i];
    }
}

/// One row of [`add_rows`].
pub(super) fn add_row(value: f32, row: &[f32], out: &mut [f32]) {
    for (out, w) in out.iter_mut().zip(row) {
        *out += value * w;
    }
}
