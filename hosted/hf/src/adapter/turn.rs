//! From a pair for a Hugging Face matrix to pairs for the GGUF tensors made from it.
//!
//! The converter moves rows and columns and transposes matrices. A product B · A takes its rows from B and its columns
//! from A, so the same moves are applied to the factors, without rounding.

use crate::family::{Change, Slice, Wanted};
use sluice::adapter::{Factors, transposed};

/// A: (rank, columns) and B: (rows, rank), row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// The rank.
    pub rank: usize,
    /// A.
    pub a: Vec<f32>,
    /// B.
    pub b: Vec<f32>,
    /// The factor of the product.
    pub scale: f32,
}

impl Pair {
    /// The pair for the source of `wanted` that becomes `factors`; `None` if the source has rows or columns that the
    /// tensor lacks, or is transposed.
    #[must_use]
    pub fn turned_back(factors: &Factors, wanted: &Wanted) -> Option<Self> {
        let mut pair = Self {
            rank: factors.rank,
            a: factors.a.clone(),
            b: factors.b.clone(),
            scale: factors.scale,
        };
        if wanted.source.len() != 2 || wanted.shape.len() != 2 {
            return None;
        }
        let rows = wanted.shape[0];
        match &wanted.change {
            Change::None => {}
            Change::PairRows(n_head) => {
                let of_a_head = rows.checked_div(u64::from(*n_head))?;
                let places: Vec<_> = (0..rows).map(|row| paired(row, of_a_head)).collect();
                pair.b = pair.pick_rows(inverse(&places, wanted.source[0])?.into_iter());
            }
            Change::Rows(slices) => {
                let places: Vec<_> = places(slices).collect();
                pair.b = pair.pick_rows(inverse(&places, wanted.source[0])?.into_iter());
            }
            Change::Columns(slices) => {
                let places: Vec<_> = places(slices).collect();
                pair.a = pair.pick_columns(&inverse(&places, wanted.source[1])?);
            }
            Change::Turned { .. } => return None,
        }
        Some(pair)
    }

    /// The pairs for `wanted`; this pair is for its source `place`. The shape has been compared with the source's.
    pub(super) fn turned(&self, wanted: &Wanted, place: usize) -> Vec<Factors> {
        if let Change::Turned { start, step, of } = wanted.change {
            return self.matrices_turned(wanted, [start, step, of]);
        }
        let columns: u64 = wanted.shape.last().copied().unwrap_or(0);
        let rows: u64 = wanted.shape.iter().rev().skip(1).product();
        let (mut a, mut b) = (self.a.clone(), self.b.clone());
        match &wanted.change {
            Change::None | Change::Turned { .. } => {}
            Change::PairRows(n_head) => {
                let of_a_head = rows.checked_div(u64::from(*n_head)).unwrap_or(0);
                b = self.pick_rows((0..rows).map(|row| paired(row, of_a_head)));
            }
            Change::Rows(slices) => b = self.pick_rows(places(slices)),
            Change::Columns(slices) => a = self.pick_columns(&places(slices).collect::<Vec<_>>()),
        }
        debug_assert_eq!(a.len() as u64, columns * self.rank as u64);
        debug_assert_eq!(b.len() as u64, rows * self.rank as u64);
        let [n_matrices, rows] = match *wanted.shape {
            [n, rows, _] => [n, rows],
            _ => [1, rows],
        };
        let len = fits(rows) * self.rank;
        let number = |matrix: u64| match wanted.shape.len() {
            3 => Some(narrow(matrix)),
            _ => wanted.is_stack_of_parts().then(|| narrow(place as u64)),
        };
        let matrices = (0..n_matrices).map(|matrix| Factors {
            tensor: wanted.name.clone(),
            part: number(matrix),
            rank: self.rank,
            a: a.clone(),
            b: b[fits(matrix) * len..][..len].to_vec(),
            scale: self.scale,
        });
        matrices.collect()
    }

    /// Row i of matrix m is column `start` + i · `step` of the rows from m · `of` on, as many as there are columns: A
    /// and B swap roles.
    fn matrices_turned(&self, wanted: &Wanted, [start, step, of]: [u64; 3]) -> Vec<Factors> {
        let [n_matrices, rows, columns] = match *wanted.shape {
            [n, rows, columns] => [n, rows, columns],
            [rows, columns] => [1, rows, columns],
            _ => return Vec::new(),
        };
        let places: Vec<_> = (0..rows).map(|row| start + row * step).collect();
        let b = transposed(&self.pick_columns(&places), self.rank);
        let matrices = (0..n_matrices).map(|matrix| {
            let first = matrix * of;
            let own = self.pick_rows(first..first + columns);
            Factors {
                tensor: wanted.name.clone(),
                part: Some(narrow(matrix)).filter(|_| wanted.shape.len() == 3),
                rank: self.rank,
                a: transposed(&own, fits(columns)),
                b: b.clone(),
                scale: self.scale,
            }
        });
        matrices.collect()
    }

    /// The pair of the transposed product: A and B swap roles.
    pub(super) fn exchanged(&self) -> Self {
        Self {
            rank: self.rank,
            a: transposed(&self.b, self.b.len() / self.rank),
            b: transposed(&self.a, self.rank),
            scale: self.scale,
        }
    }

    /// Picks rows of B.
    pub(super) fn pick_rows(&self, places: impl Iterator<Item = u64>) -> Vec<f32> {
        pick_rows(&self.b, self.rank, places)
    }

    /// Picks columns of A.
    fn pick_columns(&self, places: &[u64]) -> Vec<f32> {
        pick_columns(&self.a, self.a.len() / self.rank.max(1), places)
    }
}

/// The numbers of a matrix or a vector in the order of `wanted`; `None` where that transposes them.
pub(super) fn rearranged(x: Vec<f32>, wanted: &Wanted) -> Option<Vec<f32>> {
    let rows = wanted.source[0];
    let n_cols = x.len() / fits(rows);
    Some(match &wanted.change {
        Change::None => x,
        Change::PairRows(n_head) => {
            let of_a_head = rows.checked_div(u64::from(*n_head))?;
            pick_rows(&x, n_cols, (0..rows).map(|row| paired(row, of_a_head)))
        }
        Change::Rows(slices) => pick_rows(&x, n_cols, places(slices)),
        Change::Columns(slices) => pick_columns(&x, n_cols, &places(slices).collect::<Vec<_>>()),
        Change::Turned { .. } => return None,
    })
}

/// Whether a tensor has all rows of its source, each once, with the columns in place or not.
pub(super) fn has_all_rows(wanted: &Wanted) -> bool {
    match &wanted.change {
        Change::None | Change::PairRows(_) => true,
        Change::Rows(slices) => {
            let places: Vec<_> = places(slices).collect();
            inverse(&places, wanted.source[0]).is_some()
        }
        Change::Columns(slices) => {
            let places: Vec<_> = places(slices).collect();
            inverse(&places, wanted.source[1]).is_some()
        }
        Change::Turned { .. } => false,
    }
}

fn pick_rows(x: &[f32], n_cols: usize, places: impl Iterator<Item = u64>) -> Vec<f32> {
    let mut picked = Vec::new();
    for place in places {
        picked.extend(&x[fits(place) * n_cols..][..n_cols]);
    }
    picked
}

fn pick_columns(x: &[f32], n_cols: usize, places: &[u64]) -> Vec<f32> {
    let mut picked = Vec::with_capacity(places.len() * x.len() / n_cols.max(1));
    for row in x.chunks_exact(n_cols.max(1)) {
        picked.extend(places.iter().map(|&place| row[fits(place)]));
    }
    picked
}

/// Maps a row of a head in pairs to its row in halves.
const fn paired(row: u64, of_a_head: u64) -> u64 {
    let (head, row) = (row / of_a_head, row % of_a_head);
    head * of_a_head + row / 2 + (row % 2) * (of_a_head / 2)
}

/// The new position of each of `n` places; `None` if one is missing.
fn inverse(places: &[u64], n: u64) -> Option<Vec<u64>> {
    let mut back = vec![None; usize::try_from(n).ok().filter(|n| *n == places.len())?];
    for (to, &from) in places.iter().enumerate() {
        *back.get_mut(usize::try_from(from).ok()?)? = Some(to as u64);
    }
    back.into_iter().collect()
}

fn places(slices: &[Slice]) -> impl Iterator<Item = u64> {
    let slices = slices.iter();
    slices.flat_map(|slice| (0..slice.n).map(|i| slice.place(i)))
}

pub(super) fn fits(n: u64) -> usize {
    usize::try_from(n).expect("the matrices are in memory")
}

pub(super) fn narrow(n: u64) -> u32 {
    u32::try_from(n).expect("counts are below 2^24")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Map;

    fn wanted(source: [u64; 2], shape: &[u64], change: Change) -> Wanted {
        Wanted {
            name: "x.weight".into(),
            parts: vec!["x".into()],
            source: source.into(),
            shape: shape.into(),
            change,
            map: Map::Same,
            is_optional: false,
            is_ignored: false,
        }
    }

    /// The product (rows, rank) · (rank, columns).
    fn product(a: &[f32], b: &[f32], rank: usize) -> Vec<Vec<f32>> {
        let n_cols = a.len() / rank;
        let rows = b.chunks_exact(rank);
        let row = |b: &[f32]| {
            let number = |c: usize| (0..rank).map(|k| b[k] * a[k * n_cols + c]).sum();
            (0..n_cols).map(number).collect()
        };
        rows.map(row).collect()
    }

    /// A pair whose product differs in every place.
    fn pair(rows: u8, columns: u8) -> Pair {
        let b = (0..rows).flat_map(|row| [f32::from(row) * 32.0, 1.0]);
        let a =
            (0..2).flat_map(|k| (0..columns).map(move |c| if k == 0 { 1.0 } else { f32::from(c) }));
        Pair {
            rank: 2,
            a: a.collect(),
            b: b.collect(),
            scale: 0.5,
        }
    }

    fn products(pair: &Pair, wanted: &Wanted) -> Vec<(Option<u32>, Vec<Vec<f32>>)> {
        let turned = pair.turned(wanted, 0).into_iter();
        turned
            .map(|factors| (factors.part, product(&factors.a, &factors.b, 2)))
            .collect()
    }

    #[test]
    fn rows_and_columns_move_as_the_weights_do() {
        let pair = pair(8, 4);
        let all = product(&pair.a, &pair.b, 2);
        // Two heads of four rows.
        let found = products(&pair, &wanted([8, 4], &[8, 4], Change::PairRows(2)));
        let order = [0, 2, 1, 3, 4, 6, 5, 7];
        assert_eq!(found, [(None, order.map(|row| all[row].clone()).to_vec())]);

        let slices = vec![
            Slice {
                start: 1,
                len: 1,
                of: 4,
                n: 2,
            },
            Slice::run(6, 2),
        ];
        let found = products(&pair, &wanted([8, 4], &[4, 4], Change::Rows(slices)));
        assert_eq!(
            found,
            [(None, [1, 5, 6, 7].map(|row| all[row].clone()).to_vec())]
        );

        let slices = vec![Slice::run(2, 2), Slice::run(0, 2)];
        let found = products(&pair, &wanted([8, 4], &[8, 4], Change::Columns(slices)));
        let moved = all.iter().map(|row| [2, 3, 0, 1].map(|c| row[c]).to_vec());
        assert_eq!(found, [(None, moved.collect())]);
    }

    #[test]
    fn what_only_moves_can_be_moved_back() {
        let pair = pair(8, 4);
        let swap = vec![Slice::run(2, 2), Slice::run(0, 2)];
        for change in [
            Change::None,
            Change::PairRows(2),
            Change::Rows(vec![Slice::run(5, 3), Slice::run(0, 5)]),
            Change::Columns(swap),
        ] {
            let wanted = wanted([8, 4], &[8, 4], change);
            let turned = pair.turned(&wanted, 0).remove(0);
            assert_eq!(Pair::turned_back(&turned, &wanted), Some(pair.clone()));
        }
        let part = wanted([8, 4], &[4, 4], Change::Rows(vec![Slice::run(0, 4)]));
        let turned = pair.turned(&part, 0).remove(0);
        assert_eq!(Pair::turned_back(&turned, &part), None);
    }

    #[test]
    fn heads_are_cut_and_turned() {
        let pair = pair(10, 3);
        let all = product(&pair.a, &pair.b, 2);
        // Two heads of five rows: three transposed, two unchanged.
        let change = Change::Turned {
            start: 0,
            step: 1,
            of: 5,
        };
        let keys = products(&pair, &wanted([10, 3], &[2, 3, 3], change));
        for (head, (part, found)) in keys.into_iter().enumerate() {
            let expected: Vec<Vec<f32>> = (0..3)
                .map(|row| (0..3).map(|c| all[head * 5 + c][row]).collect())
                .collect();
            assert_eq!((part, found), (Some(narrow(head as u64)), expected));
        }
        let slices = vec![Slice {
            start: 3,
            len: 2,
            of: 5,
            n: 4,
        }];
        let values = products(&pair, &wanted([10, 3], &[2, 2, 3], Change::Rows(slices)));
        assert_eq!(values[1], (Some(1), vec![all[8].clone(), all[9].clone()]));
    }
}
