//! The llama architecture in f64, written for reading.
//!
//! Sources: the architecture as published (RMSNorm, rotary embedding, grouped-query attention,
//! SwiGLU), and the conventions of GGUF files: matrices are (columns, rows) with one output per
//! row, and the query and key rows of a llama file are permuted so that RoPE rotates the
//! neighbours (2i, 2i + 1).

use std::collections::BTreeSet;
use std::path::Path;

use super::Unreadable;
use super::file::{File, Value};

/// A model with all weights in f64.
#[derive(Debug)]
pub struct Model {
    config: Config,
    token_embd: Matrix,
    layers: Vec<Layer>,
    output_norm: Vec<f64>,
    /// `None`: tied to `token_embd`.
    output: Option<Matrix>,
    /// Divisors of the RoPE frequencies, one per rotated pair; all 1 where the file has none.
    rope_factors: Vec<f64>,
}

impl Model {
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
        let config = Config::load(file)?;
        let mut source = Source {
            file,
            used: BTreeSet::new(),
        };
        let Config { n_embd, n_rot, .. } = config;
        let token_embd = source.matrix_of_columns("token_embd.weight", n_embd)?;
        let n_vocab = token_embd.rows;
        let layers = (0..config.n_layer)
            .map(|index| Layer::load(&mut source, &config, index))
            .collect::<Result<_, _>>()?;
        let output_norm = source.vector("output_norm.weight", n_embd)?;
        let output = if file.tensor_info("output.weight").is_some() {
            Some(source.matrix("output.weight", n_vocab, n_embd)?)
        } else {
            None
        };
        let rope_factors = if file.tensor_info("rope_freqs.weight").is_some() {
            source.vector("rope_freqs.weight", n_rot / 2)?
        } else {
            vec![1.0; n_rot / 2]
        };
        if let Some(name) = file
            .tensor_names()
            .find(|&name| !source.used.contains(name))
        {
            return Err(Unreadable::new(format!("tensor {name} would be ignored")));
        }
        Ok(Self {
            config,
            token_embd,
            layers,
            output_norm,
            output,
            rope_factors,
        })
    }

    /// The logits after each prefix of `ids`: row i, of `n_vocab`, belongs to tokens 0..=i.
    ///
    /// # Panics
    /// When an id is not below [`n_vocab`](Self::n_vocab).
    #[must_use]
    pub fn logits(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let embedding = |&id: &u32| self.token_embd.row(id as usize).to_vec();
        // The residual stream: (n_tokens, n_embd).
        let mut x: Vec<Vec<f64>> = ids.iter().map(embedding).collect();
        for layer in &self.layers {
            self.attention(layer, &mut x);
            self.feed_forward(layer, &mut x);
        }
        let output = self.output.as_ref().unwrap_or(&self.token_embd);
        x.iter()
            .map(|x| output.times(&self.rms_norm(x, &self.output_norm)))
            .collect()
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.token_embd.rows
    }

    /// x += wo · attention(norm(x)), for every token over itself and those before it.
    fn attention(&self, layer: &Layer, x: &mut [Vec<f64>]) {
        let Config {
            n_head,
            n_head_kv,
            head_len,
            value_len,
            ..
        } = self.config;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in x.iter_mut().enumerate() {
            let normed = self.rms_norm(x, &layer.attn_norm);
            let mut query = layer.attn_q.times(&normed);
            let mut key = layer.attn_k.times(&normed);
            self.rope(&mut query, position);
            self.rope(&mut key, position);
            keys.push(key);
            values.push(layer.attn_v.times(&normed));

            let mut attended = vec![0.0; n_head * value_len];
            for head in 0..n_head {
                // n_head / n_head_kv neighbouring query heads share one key and value head.
                let head_kv = head / (n_head / n_head_kv);
                let query = &query[head * head_len..][..head_len];
                let key_of = |key: &Vec<f64>| dot(query, &key[head_kv * head_len..][..head_len]);
                let scale = 1.0 / (head_len as f64).sqrt();
                let mut weights: Vec<f64> = keys.iter().map(|key| key_of(key) * scale).collect();
                softmax(&mut weights);
                let attended = &mut attended[head * value_len..][..value_len];
                for (weight, value) in weights.iter().zip(&values) {
                    let value = &value[head_kv * value_len..][..value_len];
                    for (sum, value) in attended.iter_mut().zip(value) {
                        *sum += weight * value;
                    }
                }
            }
            add(x, &layer.attn_output.times(&attended));
        }
    }

    /// x += down · (silu(gate · norm(x)) ⊙ (up · norm(x))), for every token by itself.
    fn feed_forward(&self, layer: &Layer, x: &mut [Vec<f64>]) {
        for x in x {
            let normed = self.rms_norm(x, &layer.ffn_norm);
            let mut hidden = layer.ffn_gate.times(&normed);
            for (gate, up) in hidden.iter_mut().zip(layer.ffn_up.times(&normed)) {
                let silu = *gate / (1.0 + (-*gate).exp());
                *gate = silu * up;
            }
            add(x, &layer.ffn_down.times(&hidden));
        }
    }

    fn rms_norm(&self, x: &[f64], weight: &[f64]) -> Vec<f64> {
        let mean_square = dot(x, x) / x.len() as f64;
        let scale = 1.0 / (mean_square + self.config.rms_eps).sqrt();
        x.iter()
            .zip(weight)
            .map(|(x, weight)| x * scale * weight)
            .collect()
    }

    /// Rotates the first `n_rot` elements of every head in `heads` to `position`.
    fn rope(&self, heads: &mut [f64], position: usize) {
        let Config {
            n_rot,
            head_len,
            rope_freq_base,
            ..
        } = self.config;
        for head in heads.chunks_exact_mut(head_len) {
            for (pair, factor) in self.rope_factors.iter().enumerate() {
                let frequency = rope_freq_base.powf(-2.0 * pair as f64 / n_rot as f64);
                let (sin, cos) = (position as f64 * frequency / factor).sin_cos();
                let (a, b) = (head[2 * pair], head[2 * pair + 1]);
                head[2 * pair] = a * cos - b * sin;
                head[2 * pair + 1] = a * sin + b * cos;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Config {
    n_layer: usize,
    n_embd: usize,
    n_head: usize,
    n_head_kv: usize,
    n_ff: usize,
    /// Elements of a query or key head.
    head_len: usize,
    /// Elements of a value head.
    value_len: usize,
    n_rot: usize,
    rope_freq_base: f64,
    rms_eps: f64,
}

impl Config {
    fn load(file: &File) -> Result<Self, Unreadable> {
        if file.value("general.architecture") != Some(&Value::Text("llama".into())) {
            return Err(Unreadable::new("the architecture is not llama"));
        }
        if let Some(scaling) = file.value("llama.rope.scaling.type")
            && *scaling != Value::Text("none".into())
        {
            return Err(Unreadable::new(format!("RoPE scaling {scaling:?}")));
        }
        let n_embd = file.length("llama.embedding_length")?;
        let n_head = file.length("llama.attention.head_count")?;
        let optional = |key: &str, default| match file.value(key) {
            Some(_) => file.length(key),
            None => Ok(default),
        };
        let n_head_kv = optional("llama.attention.head_count_kv", n_head)?;
        if n_head == 0 || n_head_kv == 0 || !n_head.is_multiple_of(n_head_kv) {
            return Err(Unreadable::new(format!("{n_head} heads share {n_head_kv}")));
        }
        let head_len = optional("llama.attention.key_length", n_embd / n_head)?;
        let n_rot = optional("llama.rope.dimension_count", head_len)?;
        if n_rot > head_len || !n_rot.is_multiple_of(2) {
            return Err(Unreadable::new(format!(
                "RoPE turns {n_rot} of {head_len} elements"
            )));
        }
        let eps_key = "llama.attention.layer_norm_rms_epsilon";
        let rms_eps = file.number(eps_key);
        Ok(Self {
            n_layer: file.length("llama.block_count")?,
            n_embd,
            n_head,
            n_head_kv,
            n_ff: file.length("llama.feed_forward_length")?,
            head_len,
            value_len: optional("llama.attention.value_length", n_embd / n_head)?,
            n_rot,
            rope_freq_base: file.number("llama.rope.freq_base").unwrap_or(10_000.0),
            rms_eps: rms_eps.ok_or_else(|| Unreadable::new(format!("{eps_key} is missing")))?,
        })
    }
}

/// One decoder layer. Matrix shapes are (rows, columns); every row is one output.
#[derive(Debug)]
struct Layer {
    attn_norm: Vec<f64>,
    /// (`n_head` * `head_len`, `n_embd`)
    attn_q: Matrix,
    /// (`n_head_kv` * `head_len`, `n_embd`)
    attn_k: Matrix,
    /// (`n_head_kv` * `value_len`, `n_embd`)
    attn_v: Matrix,
    /// (`n_embd`, `n_head` * `value_len`)
    attn_output: Matrix,
    ffn_norm: Vec<f64>,
    /// (`n_ff`, `n_embd`)
    ffn_gate: Matrix,
    /// (`n_ff`, `n_embd`)
    ffn_up: Matrix,
    /// (`n_embd`, `n_ff`)
    ffn_down: Matrix,
}

impl Layer {
    fn load(source: &mut Source<'_>, config: &Config, index: usize) -> Result<Self, Unreadable> {
        let Config {
            n_embd,
            n_head,
            n_head_kv,
            n_ff,
            head_len,
            value_len,
            ..
        } = *config;
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        Ok(Self {
            attn_norm: source.vector(&name("attn_norm"), n_embd)?,
            attn_q: source.matrix(&name("attn_q"), n_head * head_len, n_embd)?,
            attn_k: source.matrix(&name("attn_k"), n_head_kv * head_len, n_embd)?,
            attn_v: source.matrix(&name("attn_v"), n_head_kv * value_len, n_embd)?,
            attn_output: source.matrix(&name("attn_output"), n_embd, n_head * value_len)?,
            ffn_norm: source.vector(&name("ffn_norm"), n_embd)?,
            ffn_gate: source.matrix(&name("ffn_gate"), n_ff, n_embd)?,
            ffn_up: source.matrix(&name("ffn_up"), n_ff, n_embd)?,
            ffn_down: source.matrix(&name("ffn_down"), n_embd, n_ff)?,
        })
    }
}

/// Row-major weights.
#[derive(Debug)]
struct Matrix {
    rows: usize,
    columns: usize,
    weights: Vec<f64>,
}

impl Matrix {
    fn row(&self, index: usize) -> &[f64] {
        &self.weights[index * self.columns..][..self.columns]
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.columns);
        self.weights
            .chunks_exact(self.columns)
            .map(|row| dot(row, x))
            .collect()
    }
}

/// The tensors of a file, checked for shape; remembers which were asked for.
struct Source<'f> {
    file: &'f File,
    used: BTreeSet<String>,
}

impl Source<'_> {
    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f64>, Unreadable> {
        self.elements(name, &[len])
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix, Unreadable> {
        let weights = self.elements(name, &[columns, rows])?;
        Ok(Matrix {
            rows,
            columns,
            weights,
        })
    }

    /// A matrix of as many rows as the file has.
    fn matrix_of_columns(&mut self, name: &str, columns: usize) -> Result<Matrix, Unreadable> {
        let dims = self.file.tensor_info(name).map(|info| info.dims.as_slice());
        let rows = dims.and_then(|dims| dims.get(1).copied()).unwrap_or(0);
        self.matrix(name, rows, columns)
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

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

fn softmax(x: &mut [f64]) {
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
