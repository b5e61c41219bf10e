//! A predictor of weights alone, for networks without samples.

use super::SparsityError;
use super::error::{check_finite, check_len, setting};
use super::pi::PiChaos;
use super::predictor::{ROWS, listed, multiply};
use crate::kernels::KernelTable;

/// Writes a predictor of a network's weights alone, without samples: rows of `p` (rank, input) are orthonormal, from a
/// fixed seed, and `q` (hidden, rank) is `w1 · p'`. Where the rank is the input's width, its scores are `w1 · x`.
///
/// # Errors
/// An input of no elements, a rank of 0 or above it, slices that are not whole rows, a weight that is not finite.
pub fn project_into(
    table: &KernelTable,
    input: usize,
    w1: &[f32],
    p: &mut [f32],
    q: &mut [f32],
) -> Result<(), SparsityError> {
    if input == 0 {
        return Err(setting("input_dim", 0.0, "at least 1"));
    }
    let (rank, hidden) = (p.len() / input, w1.len() / input);
    if rank == 0 || rank > input {
        return Err(setting("rank", rank as f64, "1 to input_dim"));
    }
    check_len("p", p.len(), rank * input)?;
    check_len("w1", w1.len(), hidden * input)?;
    check_len("q", q.len(), hidden.saturating_mul(rank))?;
    check_finite("w1", w1)?;
    let mut chaos = PiChaos::hashed(3);
    p.fill_with(|| chaos.next_float() - 0.5);
    orthonormalize(table, input, p);
    for (row, q) in w1.chunks_exact(input).zip(q.chunks_exact_mut(rank)) {
        multiply(table, p, row, q);
    }
    Ok(())
}

/// Gram and Schmidt, each row twice.
fn orthonormalize(table: &KernelTable, n: usize, rows: &mut [f32]) {
    let kernels = table.float_rows();
    for i in 0..rows.len() / n {
        let (before, row) = rows.split_at_mut(i * n);
        let (before, row) = (&*before, &mut row[..n]);
        for others in before.chunks(ROWS * n).chain(before.chunks(ROWS * n)) {
            let (list, mut along) = (listed(others, n), [0.0; ROWS]);
            let (list, along) = (&list[..others.len() / n], &mut along[..others.len() / n]);
            kernels.dots(list, row, along);
            along.iter_mut().for_each(|x| *x = -*x);
            kernels.add(along, list, row);
        }
        let mut length = [0.0];
        kernels.dots(&[&*row], row, &mut length);
        let length = libm::sqrtf(length[0]).max(f32::MIN_POSITIVE);
        row.iter_mut().for_each(|x| *x /= length);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::tests::{best, numbers};
    use super::*;
    use crate::kernels::CpuFeatures;
    use std::vec;
    use std::vec::Vec;

    fn projected(table: &KernelTable, input: usize, rank: usize, w1: &[f32]) -> [Vec<f32>; 2] {
        let (mut p, mut q) = (vec![0.0; rank * input], vec![0.0; w1.len() / input * rank]);
        project_into(table, input, w1, &mut p, &mut q).unwrap();
        [p, q]
    }

    #[test]
    fn rows_are_orthonormal_and_the_same_on_all_tables() {
        for (input, rank) in [(1, 1), (5, 5), (64, 17), (96, 96)] {
            let w1 = numbers(40 * input, 1);
            let mut tables = KernelTable::available(CpuFeatures::detect());
            let first = projected(tables.next().unwrap(), input, rank, &w1);
            for table in tables {
                assert_eq!(
                    projected(table, input, rank, &w1),
                    first,
                    "{}",
                    table.name()
                );
            }
            for (i, a) in first[0].chunks(input).enumerate() {
                for (j, b) in first[0].chunks(input).enumerate() {
                    let dot: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                    let expected = f32::from(u8::from(i == j));
                    assert!(
                        (dot - expected).abs() < 1e-5,
                        "{input} {rank} {i} {j}: {dot}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_rank_of_the_width_has_the_scores_of_the_weights() {
        let (input, hidden) = (48, 100);
        let (w1, x) = (numbers(hidden * input, 1), numbers(input, 2));
        let [p, q] = projected(best(), input, input, &w1);
        let predictor = super::super::PredictorWeights::new(input, input, &p, &q).unwrap();
        let (mut z, mut scores) = (vec![0.0; input], vec![0.0; hidden]);
        predictor.scores(best(), &x, &mut z, &mut scores).unwrap();
        for (row, score) in w1.chunks(input).zip(&scores) {
            let exact: f32 = row.iter().zip(&x).map(|(w, x)| w * x).sum();
            assert!((exact - score).abs() < 1e-4, "{exact} {score}");
        }
    }

    #[test]
    fn slices_that_do_not_fit_are_named() {
        let (w1, mut q) = ([0.5; 8], [0.0; 4]);
        for (input, n_p, text) in [
            (0, 4, "input_dim is 0: expected at least 1"),
            (4, 20, "rank is 5: expected 1 to input_dim"),
            (4, 3, "rank is 0: expected 1 to input_dim"),
            (4, 9, "p has 9 elements: expected 8"),
            (3, 6, "w1 has 8 elements: expected 6"),
            (4, 4, "q has 4 elements: expected 2"),
        ] {
            let mut p = vec![0.0; n_p];
            let error = project_into(best(), input, &w1, &mut p, &mut q).unwrap_err();
            assert_eq!(std::format!("{error}"), text);
        }
    }
}
