//! What follows the hidden states: dense layers of an embedding, and heads that score.

use super::super::Unreadable;
use super::super::file::{File, Value};
use super::super::source::{Matrix, Source, add, softmax};
use super::activation::gelu;
use super::config::Config;
use super::norm::Norm;

#[derive(Debug)]
pub(super) struct Head {
    /// `dense_2`, `dense_3`.
    dense: Vec<Matrix>,
    cls: Option<Layer>,
    cls_norm: Option<Norm>,
    cls_output: Option<Layer>,
    /// What the score is made of.
    reads: Reads,
}

#[derive(Clone, Copy, Debug)]
enum Reads {
    First,
    Last,
    Mean,
}

#[derive(Debug)]
struct Layer {
    weight: Matrix,
    bias: Option<Vec<f64>>,
}

impl Layer {
    fn optional(
        source: &mut Source<'_>,
        name: &str,
        n_embd: usize,
    ) -> Result<Option<Self>, Unreadable> {
        let stem = format!("{name}.weight");
        if !source.has(&stem) {
            return Ok(None);
        }
        let weight = source.matrix_of_columns(&stem, n_embd)?;
        let bias = source.optional_vector(&format!("{name}.bias"), weight.rows)?;
        Ok(Some(Self { weight, bias }))
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut out = self.weight.times(x);
        if let Some(bias) = &self.bias {
            add(&mut out, bias);
        }
        out
    }
}

impl Head {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        file: &File,
    ) -> Result<Self, Unreadable> {
        let mut dense = Vec::new();
        let mut n = config.n_embd;
        for name in ["dense_2.weight", "dense_3.weight"] {
            if source.has(name) {
                let matrix = source.matrix_of_columns(name, n)?;
                n = matrix.rows;
                dense.push(matrix);
            }
        }
        let is_first =
            file.value("modern-bert.classifier.pooling_type") == Some(&Value::Integer(2));
        Ok(Self {
            dense,
            cls: Layer::optional(source, "cls", config.n_embd)?,
            cls_norm: Norm::optional(source, config, "cls.norm")?,
            cls_output: Layer::optional(source, "cls.output", config.n_embd)?,
            reads: match config.arch.as_str() {
                "qwen3" => Reads::Last,
                "modern-bert" if !is_first => Reads::Mean,
                _ => Reads::First,
            },
        })
    }

    /// The mean of a text's hidden states, through the dense layers.
    pub(super) fn embedding(&self, hidden: &[Vec<f64>]) -> Vec<f64> {
        let apply = |x: Vec<f64>, matrix: &Matrix| matrix.times(&x);
        self.dense.iter().fold(mean(hidden), apply)
    }

    /// The score of a text.
    pub(super) fn score(&self, config: &Config, hidden: &[Vec<f64>]) -> f64 {
        let mut x = match self.reads {
            Reads::First => hidden[0].clone(),
            Reads::Last => hidden[hidden.len() - 1].clone(),
            Reads::Mean => mean(hidden),
        };
        if let Some(cls) = &self.cls {
            x = cls.times(&x);
            let is_modern = config.arch == "modern-bert";
            let act = |x: f64| if is_modern { gelu(x) } else { x.tanh() };
            x.iter_mut().for_each(|x| *x = act(*x));
            x = Norm::of(self.cls_norm.as_ref(), &x);
        }
        if let Some(output) = &self.cls_output {
            x = output.times(&x);
        }
        if config.arch == "qwen3" {
            softmax(&mut x);
        }
        x[0]
    }
}

fn mean(rows: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = vec![0.0; rows[0].len()];
    rows.iter().for_each(|row| add(&mut sum, row));
    sum.iter_mut().for_each(|x| *x /= rows.len() as f64);
    sum
}
