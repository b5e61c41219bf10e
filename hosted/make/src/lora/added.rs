//! What changes which rows of a model's tensors: products of adapters, and what else they change.

use super::{LoraError, Matrices};
use core::cell::OnceCell;
use core::ops::Range;
use sluice::adapter::{AdapterFile, AdapterLoadError, Factors, rows_in_file, transposed};
use sluice::neurons::NEURON_ORDER;
use sluice_core::gguf::Gguf;
use sluice_core::model::ModelConfig;
use sluice_hf::adapter::{AdapterStart, Edit, MergeAdapter, TensorEdit, WholeTensor};
use std::borrow::Cow;
use std::collections::HashMap;

/// A change of some rows of one matrix.
#[derive(Clone, Debug)]
pub(super) struct Added<'m> {
    /// Index of the matrix in a stack.
    pub(super) part: u64,
    /// The first row in that matrix.
    first_row: usize,
    n_rows: usize,
    pub(super) by: By<'m>,
    /// Whether the embedding changes as the output matrix, too.
    pub(super) is_tied: bool,
}

/// How rows change. `scale` is the total factor.
#[derive(Clone, Debug)]
pub(super) enum By<'m> {
    /// `scale` · B · A is added. B: (rows, rank), A: (rank, columns).
    Product {
        rank: usize,
        a: Cow<'m, [f32]>,
        b: Cow<'m, [f32]>,
        scale: f32,
    },
    /// The rows are replaced.
    Rows(&'m WholeTensor),
    /// These rows are replaced.
    SomeRows { rows: &'m [u64], numbers: &'m [f32] },
    /// A part is taken out; it is found in the model's weights and is a product then.
    TakeOut {
        start: AdapterStart,
        rank: usize,
        scale: f32,
    },
    /// A vector is added.
    Vector { x: &'m [f32], scale: f32 },
    /// Rows get these lengths.
    Lengths(&'m [f32]),
}

pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";

/// The changes, by tensor of the model.
pub(super) type ByTensor<'m> = HashMap<String, Vec<Added<'m>>>;

/// Finds the tensor rows of all changes. Each adapter has a factor, for its products and the biases of these.
pub(super) fn by_tensor<'m>(
    gguf: &Gguf<'m>,
    adapters: &'m [(MergeAdapter, f32)],
) -> Result<ByTensor<'m>, LoraError> {
    let matrices = Matrices::of_gguf(gguf);
    let config = OnceCell::new();
    let mut found = ByTensor::new();
    for (adapter, factor) in adapters {
        let (file, edits) = (&adapter.file, &adapter.edits);
        matrices.check_family(file)?;
        let is_last = |edit: &&TensorEdit| matches!(edit.edit, Edit::Lengths(_));
        for edit in edits.iter().filter(|edit| !is_last(edit)) {
            put_edit(file, edit, *factor, gguf, &mut found)?;
        }
        for factors in &file.factors {
            if matrices.find(&factors.tensor).is_none() {
                // If this program does not run the model, only the names in its file are available.
                let config = config.get_or_init(|| ModelConfig::from_gguf(gguf).ok());
                if let Some(config) = config
                    && put_elsewhere(file, factors, *factor, &matrices, config, &mut found)?
                {
                    continue;
                }
            }
            matrices.check_one(&file.path, factors)?;
            let added = Added {
                is_tied: adapter.is_tying && factors.tensor == EMBEDDING,
                ..Added::new(factors, *factor)
            };
            found.entry(factors.tensor.clone()).or_default().push(added);
        }
        for edit in edits.iter().filter(is_last) {
            put_edit(file, edit, *factor, gguf, &mut found)?;
        }
    }
    let is_ordered = is_ordered(gguf);
    for (tensor, all) in &found {
        check_replaced(tensor, all)?;
        if is_ordered && is_of_neurons(tensor) {
            return Err(LoraError::CannotSay {
                tensor: tensor.clone(),
                what: "has its neurons ordered by activity: merge into the file that this one was made from".into(),
            });
        }
    }
    Ok(found)
}

/// Whether the neurons of a file have another order than those that adapters are made for.
fn is_ordered(gguf: &Gguf<'_>) -> bool {
    let is_order = |key: &str| {
        key.rsplit_once('.')
            .is_some_and(|(_, key)| key == NEURON_ORDER)
    };
    gguf.metadata().any(|(key, _)| is_order(key))
}

/// Whether a tensor belongs to a feed-forward network outside of experts.
fn is_of_neurons(tensor: &str) -> bool {
    tensor.contains(".ffn_") && !tensor.contains("_exps")
}

/// Assigns an edit to its tensor.
fn put_edit<'m>(
    file: &AdapterFile,
    edit: &'m TensorEdit,
    factor: f32,
    gguf: &Gguf<'m>,
    found: &mut ByTensor<'m>,
) -> Result<(), AdapterLoadError> {
    let tensor = gguf.tensor(&edit.tensor);
    let tensor = tensor.or_else(|| gguf.tensor(EMBEDDING).filter(|_| edit.tensor == OUTPUT));
    let error = |what| AdapterLoadError::tensor(&file.path, &*edit.tensor, what);
    let tensor = tensor.ok_or_else(|| error("is changed, but the model has no such tensor"))?;
    let [n_cols, n_rows, ..] = tensor.dims;
    let (by, n) = match &edit.edit {
        Edit::Replace(whole) => (
            By::Rows(whole),
            whole.n_cols() as u64 * whole.n_rows() as u64,
        ),
        Edit::ReplaceRows { rows, numbers } => {
            let is_whole = numbers.len() as u64 == rows.len() as u64 * n_cols;
            let n = if is_whole { n_cols * n_rows } else { 0 };
            (By::SomeRows { rows, numbers }, n)
        }
        Edit::TakeOut { start, rank, scale } => {
            let (start, rank, scale) = (*start, *rank, *scale);
            (By::TakeOut { start, rank, scale }, n_cols * n_rows)
        }
        Edit::Add(x) => (By::Vector { x, scale: factor }, x.len() as u64),
        Edit::Lengths(lengths) => (By::Lengths(lengths), lengths.len() as u64 * n_cols),
    };
    let part = edit.part.unwrap_or(0).into();
    let is_vector = matches!(by, By::Vector { .. });
    let has_part = tensor
        .n_rows()
        .checked_div(n_rows)
        .is_some_and(|n| part < n);
    if n != n_cols * n_rows || !has_part || is_vector && tensor.n_dims != 1 {
        return Err(error("is changed, but has another shape in the model"));
    }
    found.entry(edit.tensor.clone()).or_default().push(Added {
        part,
        first_row: 0,
        n_rows: usize::try_from(n_rows).map_err(|_| error("has too many rows"))?,
        by,
        is_tied: edit.is_tied,
    });
    Ok(())
}

/// Refuses a row that is replaced twice, or after something was added to it.
fn check_replaced(tensor: &str, all: &[Added<'_>]) -> Result<(), LoraError> {
    let replaces = |added: &Added<'_>| matches!(added.by, By::Rows(_) | By::SomeRows { .. });
    for (i, later) in all.iter().enumerate().filter(|(_, added)| replaces(added)) {
        let meets = |earlier: &Added<'_>| {
            let rows = 0..later.n_rows;
            let mut rows = rows.filter(|row| later.meets(&(*row..row + 1)));
            earlier.part == later.part && rows.any(|row| earlier.meets(&(row..row + 1)))
        };
        if all[..i].iter().any(meets) {
            return Err(LoraError::CannotSay {
                tensor: tensor.into(),
                what: "is replaced by an adapter, and changed by another one".into(),
            });
        }
    }
    Ok(())
}

/// Assigns a pair's rows to the tensors that hold them under other names in the model's file; returns whether all were
/// found.
fn put_elsewhere<'m>(
    file: &AdapterFile,
    factors: &'m Factors,
    factor: f32,
    matrices: &Matrices,
    config: &ModelConfig,
    found: &mut ByTensor<'m>,
) -> Result<bool, AdapterLoadError> {
    let places = rows_in_file(config, &factors.tensor, factors.part);
    let Some(last) = places.last() else {
        return Ok(false);
    };
    if places
        .iter()
        .any(|place| matrices.find(&place.tensor).is_none())
    {
        return Ok(false);
    }
    let expected = [last.rows.end, last.n_cols];
    let shape = [factors.n_rows(), factors.n_cols()];
    if shape != expected {
        return Err(AdapterLoadError::Shape {
            path: file.path.clone(),
            tensor: factors.tensor.clone(),
            found: shape.map(|n| n as u64),
            expected: expected.map(|n| n as u64),
        });
    }
    for place in places {
        let rows = place.rows.start * factors.rank..place.rows.end * factors.rank;
        let mut added = Added::new(factors, factor);
        (added.first_row, added.n_rows) = (place.first_row, place.rows.len());
        if let By::Product { b, .. } = &mut added.by {
            *b = factors.b[rows].into();
        }
        found.entry(place.tensor).or_default().push(added);
    }
    Ok(true)
}

impl<'m> Added<'m> {
    fn new(factors: &'m Factors, factor: f32) -> Self {
        let (mut a, mut b) = (Cow::from(&factors.a), Cow::from(&factors.b));
        if factors.tensor == EMBEDDING {
            // A token's row is a column of A.
            a = transposed(&factors.b, factors.n_rows()).into();
            b = transposed(&factors.a, factors.rank).into();
        }
        Self {
            part: factors.part.unwrap_or(0).into(),
            first_row: 0,
            n_rows: b.len() / factors.rank,
            by: By::Product {
                rank: factors.rank,
                a,
                b,
                scale: factors.scale * factor,
            },
            is_tied: false,
        }
    }

    /// The rows of the matrix that this changes, or may change.
    fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.n_rows
    }

    /// Whether one of these rows changes.
    pub(super) fn meets(&self, rows: &Range<usize>) -> bool {
        let own = self.rows();
        let is_in = |row: &u64| rows.contains(&usize::try_from(*row).unwrap_or(usize::MAX));
        match &self.by {
            By::SomeRows { rows, .. } => rows.iter().any(is_in),
            _ => own.start < rows.end && rows.start < own.end,
        }
    }

    /// Changes `numbers`, whose rows start at `first` and have `row_len` numbers each; `room` is a scratch buffer.
    pub(super) fn apply(
        &self,
        numbers: &mut [f32],
        first: usize,
        row_len: usize,
        room: &mut Vec<f32>,
    ) -> Result<(), AdapterLoadError> {
        let own = self.rows();
        if let By::Rows(whole) = &self.by {
            whole.read(first..first + numbers.len() / row_len, room)?;
            numbers.copy_from_slice(room);
            return Ok(());
        }
        room.resize(row_len, 0.0);
        for (row, numbers) in (first..).zip(numbers.chunks_exact_mut(row_len)) {
            if own.contains(&row) {
                self.by.change(row - own.start, numbers, room);
            }
        }
        Ok(())
    }
}

impl By<'_> {
    /// Changes a row; `room` is as long.
    fn change(&self, row: usize, numbers: &mut [f32], room: &mut [f32]) {
        match self {
            Self::Product { rank, a, b, scale } => {
                room.fill(0.0);
                let coefficients = &b[row * rank..][..*rank];
                for (coefficient, a) in coefficients.iter().zip(a.chunks_exact(numbers.len())) {
                    for (sum, x) in room.iter_mut().zip(a) {
                        *sum += coefficient * x;
                    }
                }
                for (number, sum) in numbers.iter_mut().zip(&*room) {
                    *number += scale * sum;
                }
            }
            Self::SomeRows { rows, numbers: own } => {
                if let Some(i) = rows.iter().position(|own| *own == row as u64) {
                    numbers.copy_from_slice(&own[i * numbers.len()..][..numbers.len()]);
                }
            }
            Self::Vector { x, scale } => {
                for (number, x) in numbers.iter_mut().zip(*x) {
                    *number += scale * x;
                }
            }
            Self::Lengths(lengths) => {
                let square: f64 = numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
                let factor = f64::from(lengths[row]) / square.sqrt();
                numbers
                    .iter_mut()
                    .for_each(|x| *x = narrow(f64::from(*x) * factor));
            }
            // Replaced before, or a product by now.
            Self::Rows(_) | Self::TakeOut { .. } => {}
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
pub(super) const fn narrow(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair of rank 2 for `tensor`; all numbers differ.
    fn factors(tensor: &str, n_rows: usize, n_cols: usize) -> Factors {
        let numbers = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
        Factors {
            tensor: tensor.into(),
            part: None,
            rank: 2,
            scale: 0.5,
            a: numbers(2 * n_cols),
            b: numbers(n_rows * 2),
        }
    }

    fn merged(file: AdapterFile) -> MergeAdapter {
        MergeAdapter {
            file,
            edits: Vec::new(),
            is_tying: false,
        }
    }

    fn fixture(model: &str) -> Vec<u8> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = folder.join(format!("../../tests/fixtures/models/{model}.gguf"));
        std::fs::read(path).expect("a fixture")
    }

    /// The sum added to each tensor, starting from zeros.
    fn sums(gguf: &Gguf<'_>, pairs: Vec<Factors>) -> HashMap<String, Vec<f32>> {
        let file = AdapterFile {
            factors: pairs,
            ..AdapterFile::default()
        };
        let adapters = [(merged(file), 2.0)];
        let found = by_tensor(gguf, &adapters).expect("for this model");
        let sum = |(tensor, added): (String, Vec<Added<'_>>)| {
            let [n_cols, n_rows, ..] = gguf.tensor(&tensor).expect("a tensor").dims;
            let [n_cols, n_rows] = [n_cols, n_rows].map(|n| usize::try_from(n).expect("small"));
            let mut numbers = vec![0.0; n_cols * n_rows];
            for added in added {
                let applied = added.apply(&mut numbers, 0, n_cols, &mut Vec::new());
                applied.expect("in memory");
            }
            (tensor, numbers)
        };
        found.into_iter().map(sum).collect()
    }

    /// The unmodified product of a pair.
    fn product(pair: &Factors) -> Vec<f32> {
        let mut numbers = vec![0.0; pair.n_rows() * pair.n_cols()];
        let applied = Added::new(pair, 2.0).apply(&mut numbers, 0, pair.n_cols(), &mut Vec::new());
        applied.expect("in memory");
        numbers
    }

    fn sizes(gguf: &Gguf<'_>) -> ([usize; 3], usize) {
        let config = ModelConfig::from_gguf(gguf).expect("a configuration");
        let shape = *config.kind(0).attention().expect("has attention");
        let rows = [shape.n_query(), shape.n_key(), shape.n_value()];
        (rows, config.n_embd)
    }

    #[test]
    fn three_matrices_of_an_adapter_are_one_tensor_of_the_file() {
        let bytes = fixture("phi3-long");
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("a model");
        let ([q, k, v], n_embd) = sizes(&gguf);
        let pair = |name: &str, n| factors(&format!("blk.0.{name}.weight"), n, n_embd);
        let pairs = [pair("attn_v", v), pair("attn_q", q), pair("attn_k", k)];
        let [of_v, of_q, of_k] = [0, 1, 2].map(|i| product(&pairs[i]));
        let found = sums(&gguf, pairs.to_vec());
        assert_eq!(found.len(), 1);
        assert_eq!(found["blk.0.attn_qkv.weight"], [of_q, of_k, of_v].concat());
    }

    #[test]
    fn one_matrix_of_an_adapter_is_three_tensors_of_the_file() {
        let bytes = fixture("qwen2");
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("a model");
        let ([q, k, v], n_embd) = sizes(&gguf);
        let pair = factors("blk.0.attn_qkv.weight", q + k + v, n_embd);
        let all = product(&pair);
        let found = sums(&gguf, vec![pair.clone()]);
        let name = |part: &str| format!("blk.0.attn_{part}.weight");
        let parts = ["q", "k", "v"].map(|part| &*found[&name(part)]);
        assert_eq!(parts.concat(), all);

        let short = factors("blk.0.attn_qkv.weight", q + k + v - 1, n_embd);
        let file = AdapterFile {
            factors: vec![short],
            ..AdapterFile::default()
        };
        let adapters = [(merged(file), 1.0)];
        let refused = by_tensor(&gguf, &adapters);
        assert!(
            matches!(
                refused,
                Err(LoraError::Adapter(AdapterLoadError::Shape { .. }))
            ),
            "{refused:?}"
        );
    }
}
