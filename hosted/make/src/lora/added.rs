//! Which products are added to which rows of a model's tensors.

use super::Matrices;
use core::cell::OnceCell;
use core::ops::Range;
use sluice::adapter::{AdapterFile, AdapterLoadError, Factors, rows_in_file, transposed};
use sluice_core::gguf::Gguf;
use sluice_core::model::ModelConfig;
use std::borrow::Cow;
use std::collections::HashMap;

/// A pair with its total factor (`scale`), for some rows of one matrix. B: (rows, rank), A: (rank, columns).
#[derive(Clone, Debug)]
pub(super) struct Added<'m> {
    /// Index of the matrix in a stack.
    pub(super) part: u64,
    /// The first row in that matrix.
    first_row: usize,
    rank: usize,
    a: Cow<'m, [f32]>,
    b: Cow<'m, [f32]>,
    scale: f32,
}

pub(super) const EMBEDDING: &str = "token_embd.weight";

/// The products to add, by tensor of the model.
pub(super) type ByTensor<'m> = HashMap<String, Vec<Added<'m>>>;

/// Finds the tensor rows of all pairs. Each adapter has a factor.
pub(super) fn by_tensor<'m>(
    gguf: &Gguf<'m>,
    adapters: &'m [(AdapterFile, f32)],
) -> Result<ByTensor<'m>, AdapterLoadError> {
    let matrices = Matrices::of_gguf(gguf);
    let config = OnceCell::new();
    let mut found = ByTensor::new();
    for (file, factor) in adapters {
        matrices.check_family(file)?;
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
            let added = Added::new(factors, *factor);
            found.entry(factors.tensor.clone()).or_default().push(added);
        }
    }
    Ok(found)
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
        let added = Added {
            first_row: place.first_row,
            b: factors.b[rows].into(),
            ..Added::new(factors, factor)
        };
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
            rank: factors.rank,
            a,
            b,
            scale: factors.scale * factor,
        }
    }

    /// The rows of the matrix that this product changes.
    fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.b.len() / self.rank
    }

    /// Whether the product changes one of these rows.
    pub(super) fn meets(&self, rows: &Range<usize>) -> bool {
        let own = self.rows();
        own.start < rows.end && rows.start < own.end
    }

    /// Adds the product to `numbers`, whose rows start at `first` and have `row_len` numbers each; `product` is a
    /// scratch buffer.
    pub(super) fn add(
        &self,
        numbers: &mut [f32],
        first: usize,
        row_len: usize,
        product: &mut Vec<f32>,
    ) {
        product.resize(row_len, 0.0);
        let own = self.rows();
        for (row, numbers) in (first..).zip(numbers.chunks_exact_mut(row_len)) {
            if !own.contains(&row) {
                continue;
            }
            let at = (row - own.start) * self.rank;
            product.fill(0.0);
            let coefficients = &self.b[at..at + self.rank];
            for (coefficient, a) in coefficients.iter().zip(self.a.chunks_exact(row_len)) {
                for (sum, x) in product.iter_mut().zip(a) {
                    *sum += coefficient * x;
                }
            }
            for (number, sum) in numbers.iter_mut().zip(&*product) {
                *number += self.scale * sum;
            }
        }
    }
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
        let adapters = [(file, 2.0)];
        let found = by_tensor(gguf, &adapters).expect("for this model");
        let sum = |(tensor, added): (String, Vec<Added<'_>>)| {
            let [n_cols, n_rows, ..] = gguf.tensor(&tensor).expect("a tensor").dims;
            let [n_cols, n_rows] = [n_cols, n_rows].map(|n| usize::try_from(n).expect("small"));
            let mut numbers = vec![0.0; n_cols * n_rows];
            for added in added {
                added.add(&mut numbers, 0, n_cols, &mut Vec::new());
            }
            (tensor, numbers)
        };
        found.into_iter().map(sum).collect()
    }

    /// The unmodified product of a pair.
    fn product(pair: &Factors) -> Vec<f32> {
        let mut numbers = vec![0.0; pair.n_rows() * pair.n_cols()];
        Added::new(pair, 2.0).add(&mut numbers, 0, pair.n_cols(), &mut Vec::new());
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
        let adapters = [(file, 1.0)];
        let refused = by_tensor(&gguf, &adapters);
        assert!(
            matches!(refused, Err(AdapterLoadError::Shape { .. })),
            "{refused:?}"
        );
    }
}
