//! The gated delta net of Qwen3-Next and its successors, one token after the other.
//!
//! Source: Gated Delta Networks (Yang and others, 2024). A head's state S remembers values by keys. At each token it
//! fades by exp(g); its value for the key k is moved by the share beta towards the value v; and the query reads it: S =
//! exp(g) S, S += k (beta (v - S^T k))^T, o = S^T q / sqrt(len). Keys and queries are x / sqrt(sum x^2 + eps), as
//! published and in llama.cpp since August 2026.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, rms_norm};
use super::{convolved, sigmoid, silu, softplus};

#[derive(Clone, Debug)]
pub(super) struct NetHeads {
    pub(super) n_embd: usize,
    pub(super) n_key: usize,
    pub(super) n_value: usize,
    /// Elements of a key, and of a value.
    pub(super) len: usize,
    /// Taps of the convolution.
    pub(super) n_tap: usize,
    pub(super) eps: f64,
    /// Whether heads of values that share a key are neighbours, otherwise they are `n_key` apart.
    pub(super) is_grouped: bool,
}

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct DeltaNet {
    heads: NetHeads,
    inputs: Inputs,
    rates: Rates,
    /// (channels, `n_tap`): queries, keys, values; the last tap on the token itself.
    taps: Matrix,
    /// A value for each head of values.
    dt: Vec<f64>,
    a: Vec<f64>,
    norm: Vec<f64>,
    /// (`n_embd`, `n_value` * `len`)
    out: Matrix,
}

#[derive(Debug)]
enum Inputs {
    /// All queries, all keys, all values; and what gates the output.
    Apart { qkv: Matrix, z: Matrix },
    /// For each head of keys its query, its key, its values and their gates.
    ByKey(Matrix),
}

/// What becomes beta, and what becomes g.
#[derive(Debug)]
enum Rates {
    Apart {
        beta: Matrix,
        alpha: Matrix,
    },
    /// For each head of keys all betas, then all alphas.
    ByKey(Matrix),
}

/// What a token gives to the heads.
#[derive(Debug)]
struct Token {
    /// Before the convolution.
    qkv: Vec<f64>,
    z: Vec<f64>,
    /// For each head of values.
    beta: Vec<f64>,
    g: Vec<f64>,
}

impl DeltaNet {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        heads: NetHeads,
    ) -> Result<Self, Unreadable> {
        let NetHeads {
            n_embd,
            n_key,
            n_value,
            len,
            n_tap,
            is_grouped,
            ..
        } = heads;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let (keys, values) = (n_key * len, n_value * len);
        let inputs = if source.has(&name("ssm_in")) {
            Inputs::ByKey(source.matrix(&name("ssm_in"), 2 * keys + 2 * values, n_embd)?)
        } else {
            Inputs::Apart {
                qkv: source.matrix(&name("attn_qkv"), 2 * keys + values, n_embd)?,
                z: source.matrix(&name("attn_gate"), values, n_embd)?,
            }
        };
        let rates = if is_grouped {
            Rates::ByKey(source.matrix(&name("ssm_ba"), 2 * n_value, n_embd)?)
        } else {
            Rates::Apart {
                beta: source.matrix(&name("ssm_beta"), n_value, n_embd)?,
                alpha: source.matrix(&name("ssm_alpha"), n_value, n_embd)?,
            }
        };
        Ok(Self {
            inputs,
            rates,
            taps: source.matrix(&name("ssm_conv1d"), 2 * keys + values, n_tap)?,
            dt: source.vector(&format!("blk.{layer}.ssm_dt.bias"), n_value)?,
            a: source.vector(&format!("blk.{layer}.ssm_a"), n_value)?,
            norm: source.vector(&name("ssm_norm"), len)?,
            out: source.matrix(&name("ssm_out"), n_embd, values)?,
            heads,
        })
    }

    /// What it makes of the tokens `normed`, from a state of zeros.
    pub(super) fn of(&self, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let NetHeads {
            n_key,
            n_value,
            len,
            eps,
            is_grouped,
            ..
        } = self.heads;
        let tokens: Vec<Token> = normed.iter().map(|x| self.token(x)).collect();
        let inputs: Vec<&[f64]> = tokens.iter().map(|token| &token.qkv[..]).collect();
        let mut states = vec![vec![vec![0.0; len]; len]; n_value];
        let mixed = convolved(&self.taps, &inputs).into_iter();
        let outputs = mixed.zip(&tokens).map(|(qkv, token)| {
            let (queries, keys_values) = qkv.split_at(n_key * len);
            let (keys, values) = keys_values.split_at(n_key * len);
            let mut gated = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = match is_grouped {
                    true => head / (n_value / n_key),
                    false => head % n_key,
                };
                let query = unit(&queries[key_head * len..][..len], eps);
                let key = unit(&keys[key_head * len..][..len], eps);
                let value = &values[head * len..][..len];
                fade(state, token.g[head].exp());
                learn(state, &key, value, token.beta[head]);
                let scale = 1.0 / (len as f64).sqrt();
                let answer: Vec<f64> = asked(state, &query).iter().map(|x| x * scale).collect();
                let normed = rms_norm(&answer, &self.norm, eps);
                let gates = token.z[head * len..].iter();
                gated.extend(normed.iter().zip(gates).map(|(x, z)| x * silu(*z)));
            }
            self.out.times(&gated)
        });
        outputs.collect()
    }

    fn token(&self, x: &[f64]) -> Token {
        let NetHeads { n_key, len, .. } = self.heads;
        let per_key = self.heads.n_value / n_key;
        let (qkv, z) = match &self.inputs {
            Inputs::Apart { qkv, z } => (qkv.times(x), z.times(x)),
            Inputs::ByKey(all) => {
                let lens = [len, len, per_key * len, per_key * len];
                let [q, k, v, z] = by_key(&all.times(x), lens);
                ([q, k, v].concat(), z)
            }
        };
        let (beta, alpha) = match &self.rates {
            Rates::Apart { beta, alpha } => (beta.times(x), alpha.times(x)),
            Rates::ByKey(both) => {
                let [beta, alpha] = by_key(&both.times(x), [per_key; 2]);
                (beta, alpha)
            }
        };
        let rates = alpha.iter().zip(&self.dt).zip(&self.a);
        Token {
            qkv,
            z,
            beta: beta.into_iter().map(sigmoid).collect(),
            g: rates
                .map(|((alpha, dt), a)| a * softplus(alpha + dt))
                .collect(),
        }
    }
}

/// Rows that are grouped by head of keys, taken apart.
fn by_key<const N: usize>(rows: &[f64], lens: [usize; N]) -> [Vec<f64>; N] {
    let mut parts = [const { Vec::new() }; N];
    for mut of_key in rows.chunks_exact(lens.iter().sum()) {
        for (part, len) in parts.iter_mut().zip(lens) {
            let (first, rest) = of_key.split_at(len);
            part.extend(first);
            of_key = rest;
        }
    }
    parts
}

/// x / sqrt(sum x² + eps)
fn unit(x: &[f64], eps: f64) -> Vec<f64> {
    let length = (dot(x, x) + eps).sqrt();
    x.iter().map(|x| x / length).collect()
}

/// A state has a row for each element of a key, with the elements of a value.
fn fade(state: &mut [Vec<f64>], factor: f64) {
    for x in state.iter_mut().flatten() {
        *x *= factor;
    }
}

fn learn(state: &mut [Vec<f64>], key: &[f64], value: &[f64], beta: f64) {
    let known = asked(state, key);
    for (row, key) in state.iter_mut().zip(key) {
        for ((x, value), known) in row.iter_mut().zip(value).zip(&known) {
            *x += key * beta * (value - known);
        }
    }
}

fn asked(state: &[Vec<f64>], query: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; query.len()];
    for (row, query) in state.iter().zip(query) {
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += query * x;
        }
    }
    sums
}
