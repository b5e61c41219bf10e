//! The tensors of a file as f64, and the little arithmetic that all parts share.

use std::collections::BTreeSet;

use super::Unreadable;
use super::file::{File, Value};

/// Row-major weights.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    columns: usize,
    weights: Vec<f64>,
    /// Added to the outputs, where the file has one.
    bias: Option<Vec<f64>>,
}

impl Matrix {
    pub(super) fn row(&self, index: usize) -> &[f64] {
        &self.weights[index * self.columns..][..self.columns]
    }

    /// One output: row `index` times `x`, and its bias.
    pub(super) fn output(&self, index: usize, x: &[f64]) -> f64 {
        let bias = self.bias.as_ref().map_or(0.0, |bias| bias[index]);
        dot(self.row(index), x) + bias
    }

    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.columns);
        (0..self.rows).map(|row| self.output(row, x)).collect()
    }
}

/// The tensors of a file, checked for shape; remembers which were asked for.
pub(super) struct Source<'f> {
    file: &'f File,
    used: BTreeSet<String>,
}

impl<'f> Source<'f> {
    pub(super) const fn new(file: &'f File) -> Self {
        let used = BTreeSet::new();
        Self { file, used }
    }

    /// Nothing of the file is left over, which an evaluation would have ignored.
    pub(super) fn finish(self) -> Result<(), Unreadable> {
        let mut names = self.file.tensor_names();
        match names.find(|&name| !self.used.contains(name)) {
            Some(name) => Err(Unreadable::new(format!("tensor {name} would be ignored"))),
            None => Ok(()),
        }
    }

    /// Whether the file has a tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.tensor_info(name).is_some()
    }

    /// Elements of a row of it.
    pub(super) fn len(&self, name: &str) -> Option<usize> {
        self.file.tensor_info(name)?.dims.first().copied()
    }

    /// Tensors whose names begin with `prefix` are left out on purpose.
    pub(super) fn pass_over(&mut self, prefix: &str) {
        let names = self.file.tensor_names();
        let names = names.filter(|name| name.starts_with(prefix));
        self.used.extend(names.map(str::to_owned));
    }

    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f64>, Unreadable> {
        self.elements(name, &[len])
    }

    pub(super) fn optional_vector(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<Option<Vec<f64>>, Unreadable> {
        self.optional(name, &[len])
    }

    /// With its bias, if it is a layer's and has one, and times its factor.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix, Unreadable> {
        let mut weights = self.elements(name, &[columns, rows])?;
        self.scale(name, 1, &mut weights)?;
        let bias = self.bias(name, &[rows])?;
        Ok(Matrix {
            rows,
            columns,
            weights,
            bias,
        })
    }

    /// A matrix with the number of rows that the file sets.
    pub(super) fn matrix_of_columns(
        &mut self,
        name: &str,
        columns: usize,
    ) -> Result<Matrix, Unreadable> {
        let dims = self.file.tensor_info(name).map(|info| info.dims.as_slice());
        let rows = dims.and_then(|dims| dims.get(1).copied()).unwrap_or(0);
        self.matrix(name, rows, columns)
    }

    /// Matrices of one shape, and their biases, one below the other.
    pub(super) fn stack(
        &mut self,
        name: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix, Unreadable> {
        let mut weights = self.elements(name, &[columns, rows, count])?;
        self.scale(name, count, &mut weights)?;
        let bias = self.bias(name, &[rows, count])?;
        Ok(Matrix {
            rows: count * rows,
            columns,
            weights,
            bias,
        })
    }

    /// Multiplies each of `count` matrices by its factor, `NAME.scale`, where the file has them. Gemma's of
    /// experts belong to the router.
    fn scale(&mut self, name: &str, count: usize, all: &mut [f64]) -> Result<(), Unreadable> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let arch = self.file.value("general.architecture");
        if matches!(arch, Some(Value::Text(name)) if name == "gemma4") {
            return Ok(());
        }
        let Some(factors) = self.optional(&format!("{stem}.scale"), &[count])? else {
            return Ok(());
        };
        let one = all.len() / count;
        for (factor, weights) in factors.iter().zip(all.chunks_exact_mut(one)) {
            weights.iter_mut().for_each(|weight| *weight *= factor);
        }
        Ok(())
    }

    fn bias(&mut self, name: &str, dims: &[usize]) -> Result<Option<Vec<f64>>, Unreadable> {
        match name.strip_suffix(".weight") {
            Some(stem) if stem.starts_with("blk.") => self.optional(&format!("{stem}.bias"), dims),
            _ => Ok(None),
        }
    }

    fn optional(&mut self, name: &str, dims: &[usize]) -> Result<Option<Vec<f64>>, Unreadable> {
        self.has(name)
            .then(|| self.elements(name, dims))
            .transpose()
    }

    fn elements(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f64>, Unreadable> {
        if let Some(info) = self.file.tensor_info(name)
            && info.dims != dims
        {
            return Err(Unreadable::new(format!(
                "{name} is {:?}, not {dims:?}",
                info.dims
            )));
        }
        self.used.insert(name.to_owned());
        Ok(self.file.tensor(name)?.into_iter().map(f64::from).collect())
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

pub(super) fn softmax(x: &mut [f64]) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - max).exp();
        sum += *x;
    }
    for x in x.iter_mut() {
        *x /= sum;
    }
}

/// x / sqrt(mean(x²) + eps) · weight
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + eps).sqrt();
    x.iter()
        .zip(weight)
        .map(|(x, weight)| x * scale * weight)
        .collect()
}

/// cap · tanh(x / cap); a cap of 0 leaves x unchanged.
pub(super) fn soft_cap(x: f64, cap: f64) -> f64 {
    if cap == 0.0 {
        return x;
    }
    cap * (x / cap).tanh()
}
