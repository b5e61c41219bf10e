//! BERT-style encoders in f64, written for reading.
//!
//! Sources: the architecture as published (Devlin et al. 2018): embeddings of token, position and
//! sentence A, summed and normalised; layers of attention over the whole text and of a network
//! with GELU, a layer norm after each residual sum. GELU is the tanh approximation, as llama.cpp
//! has it. Tensor names and keys are GGUF's.

use std::path::Path;

use super::Unreadable;
use super::file::{File, Value};
use super::source::{Matrix, Source, add, dot, softmax};

/// An encoder with all weights in f64.
#[derive(Debug)]
pub struct Encoder {
    n_head: usize,
    eps: f64,
    token_embd: Matrix,
    position_embd: Matrix,
    token_types: Matrix,
    token_embd_norm: Norm,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    attn_q: Matrix,
    attn_k: Matrix,
    attn_v: Matrix,
    attn_output: Matrix,
    attn_output_norm: Norm,
    ffn_up: Matrix,
    ffn_down: Matrix,
    layer_output_norm: Norm,
}

#[derive(Debug)]
struct Norm {
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl Norm {
    fn of(source: &mut Source<'_>, stem: &str, n_embd: usize) -> Result<Self, Unreadable> {
        Ok(Self {
            weight: source.vector(&format!("{stem}.weight"), n_embd)?,
            bias: source.vector(&format!("{stem}.bias"), n_embd)?,
        })
    }

    fn apply(&self, x: &mut [f64], eps: f64) {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        for (x, (weight, bias)) in x.iter_mut().zip(self.weight.iter().zip(&self.bias)) {
            *x = (*x - mean) / (variance + eps).sqrt() * weight + bias;
        }
    }
}

impl Encoder {
    /// Reads the GGUF file at `path`.
    ///
    /// # Errors
    /// [`Unreadable`] for a file that is malformed, of another architecture, or has anything
    /// this evaluation would silently ignore.
    pub fn open(path: &Path) -> Result<Self, Unreadable> {
        Self::load(&File::open(path)?)
    }

    /// Reads a GGUF file from memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        Self::load(&File::parse(bytes)?)
    }

    fn load(file: &File) -> Result<Self, Unreadable> {
        if file.value("general.architecture") != Some(&Value::Text("bert".into())) {
            return Err(Unreadable::new("the architecture is not bert"));
        }
        let n_embd = file.length("bert.embedding_length")?;
        let n_ff = file.length("bert.feed_forward_length")?;
        let eps_key = "bert.attention.layer_norm_epsilon";
        let eps = file.number(eps_key);
        let mut source = Source::new(file);
        let layer = |source: &mut Source<'_>, i: usize| {
            let name = |part: &str| format!("blk.{i}.{part}");
            Ok(Layer {
                attn_q: source.matrix(&name("attn_q.weight"), n_embd, n_embd)?,
                attn_k: source.matrix(&name("attn_k.weight"), n_embd, n_embd)?,
                attn_v: source.matrix(&name("attn_v.weight"), n_embd, n_embd)?,
                attn_output: source.matrix(&name("attn_output.weight"), n_embd, n_embd)?,
                attn_output_norm: Norm::of(source, &name("attn_output_norm"), n_embd)?,
                ffn_up: source.matrix(&name("ffn_up.weight"), n_ff, n_embd)?,
                ffn_down: source.matrix(&name("ffn_down.weight"), n_embd, n_ff)?,
                layer_output_norm: Norm::of(source, &name("layer_output_norm"), n_embd)?,
            })
        };
        let encoder = Self {
            n_head: file.length("bert.attention.head_count")?,
            eps: eps.ok_or_else(|| Unreadable::new(format!("{eps_key} is missing")))?,
            token_embd: source.matrix_of_columns("token_embd.weight", n_embd)?,
            position_embd: source.matrix_of_columns("position_embd.weight", n_embd)?,
            token_types: source.matrix_of_columns("token_types.weight", n_embd)?,
            token_embd_norm: Norm::of(&mut source, "token_embd_norm", n_embd)?,
            layers: (0..file.length("bert.block_count")?)
                .map(|i| layer(&mut source, i))
                .collect::<Result<_, Unreadable>>()?,
        };
        source.finish()?;
        Ok(encoder)
    }

    /// The final hidden state of every token of a text.
    ///
    /// # Panics
    /// When an id or a position has no embedding.
    #[must_use]
    pub fn hidden(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let embedding = |(position, &id): (usize, &u32)| {
            let mut x = self.token_embd.row(id as usize).to_vec();
            add(&mut x, self.position_embd.row(position));
            add(&mut x, self.token_types.row(0));
            self.token_embd_norm.apply(&mut x, self.eps);
            x
        };
        let mut x: Vec<Vec<f64>> = ids.iter().enumerate().map(embedding).collect();
        for layer in &self.layers {
            let attended = self.attention(layer, &x);
            for (x, attended) in x.iter_mut().zip(attended) {
                add(x, &layer.attn_output.times(&attended));
                layer.attn_output_norm.apply(x, self.eps);
                let mut inner = layer.ffn_up.times(x);
                inner.iter_mut().for_each(|x| *x = gelu(*x));
                add(x, &layer.ffn_down.times(&inner));
                layer.layer_output_norm.apply(x, self.eps);
            }
        }
        x
    }

    /// Every token looks at all tokens.
    fn attention(&self, layer: &Layer, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let of_all = |linear: &Matrix| x.iter().map(|x| linear.times(x)).collect::<Vec<_>>();
        let (keys, values) = (of_all(&layer.attn_k), of_all(&layer.attn_v));
        let attend = |x: &Vec<f64>| {
            let query = layer.attn_q.times(x);
            let mut attended = vec![0.0; query.len()];
            let head_len = query.len() / self.n_head;
            for head in 0..self.n_head {
                let part = head * head_len..(head + 1) * head_len;
                let score = |key: &Vec<f64>| dot(&query[part.clone()], &key[part.clone()]);
                let scale = 1.0 / (head_len as f64).sqrt();
                let mut weights: Vec<f64> = keys.iter().map(|key| score(key) * scale).collect();
                softmax(&mut weights);
                for (weight, value) in weights.iter().zip(&values) {
                    let value = value[part.clone()].iter();
                    for (sum, value) in attended[part.clone()].iter_mut().zip(value) {
                        *sum += weight * value;
                    }
                }
            }
            attended
        };
        x.iter().map(attend).collect()
    }
}

/// GELU in its tanh approximation.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}
