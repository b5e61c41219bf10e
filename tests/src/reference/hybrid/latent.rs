//! Attention whose keys and values come from one short vector a token.
//!
//! Source: DeepSeek-V2 (2024), section 2.1, in the form that makes keys and values of every head. A
//! head's query and key have a part without and a part with position; the latter key all heads share.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, add, rms_norm};
use super::attention::weighted;
use super::rope::Rope;

#[derive(Clone, Debug)]
pub(super) struct LatentHeads {
    pub(super) n_embd: usize,
    pub(super) n_head: usize,
    /// Elements of a query's latent vector; 0 where queries have none.
    pub(super) q_rank: usize,
    pub(super) rank: usize,
    /// Elements of a query or key without, and with position.
    pub(super) n_nope: usize,
    pub(super) n_rot: usize,
    /// Elements of a value.
    pub(super) value_len: usize,
    pub(super) scale: f64,
    pub(super) eps: f64,
    pub(super) rope: Rope,
}

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct LatentAttention {
    heads: LatentHeads,
    queries: Queries,
    /// (`rank` + `n_rot`, `n_embd`): the latent vector, then the key with position
    kv_a: Matrix,
    kv_a_norm: Vec<f64>,
    kv_b: KeysValues,
    /// (`n_embd`, `n_head` * `value_len`)
    output: Matrix,
}

#[derive(Debug)]
enum Queries {
    Direct(Matrix),
    Latent {
        a: Matrix,
        norm: Vec<f64>,
        b: Matrix,
    },
}

#[derive(Debug)]
enum KeysValues {
    /// For each head the rows of its key, then the rows of its value: (`n_head` * both, `rank`).
    Together(Matrix),
    /// For each head a matrix with the key's elements as columns (`rank`, `n_nope`), and one with the value's as rows
    /// (`value_len`, `rank`).
    Apart { k: Matrix, v: Matrix },
}

impl LatentAttention {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        heads: LatentHeads,
    ) -> Result<Self, Unreadable> {
        let LatentHeads {
            n_embd,
            n_head,
            q_rank,
            rank,
            n_nope,
            n_rot,
            value_len,
            ..
        } = heads;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let q_len = n_head * (n_nope + n_rot);
        let queries = if q_rank == 0 {
            Queries::Direct(source.matrix(&name("attn_q"), q_len, n_embd)?)
        } else {
            Queries::Latent {
                a: source.matrix(&name("attn_q_a"), q_rank, n_embd)?,
                norm: source.vector(&name("attn_q_a_norm"), q_rank)?,
                b: source.matrix(&name("attn_q_b"), q_len, q_rank)?,
            }
        };
        let kv_b = if source.has(&name("attn_kv_b")) {
            let rows = n_head * (n_nope + value_len);
            KeysValues::Together(source.matrix(&name("attn_kv_b"), rows, rank)?)
        } else {
            KeysValues::Apart {
                k: source.stack(&name("attn_k_b"), n_head, rank, n_nope)?,
                v: source.stack(&name("attn_v_b"), n_head, value_len, rank)?,
            }
        };
        Ok(Self {
            queries,
            kv_a: source.matrix(&name("attn_kv_a_mqa"), rank + n_rot, n_embd)?,
            kv_a_norm: source.vector(&name("attn_kv_a_norm"), rank)?,
            kv_b,
            output: source.matrix(&name("attn_output"), n_embd, n_head * value_len)?,
            heads,
        })
    }

    /// What attention makes of the tokens `normed`: of each by itself, those before it, and no others.
    pub(super) fn of(&self, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let LatentHeads {
            n_head,
            n_nope,
            n_rot,
            scale,
            ..
        } = self.heads;
        // Of every token and head.
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let outputs = normed.iter().enumerate().map(|(position, x)| {
            let (of_heads, of_values) = self.keys_values(x, position);
            keys.push(of_heads);
            values.push(of_values);
            let mut queries = self.queries(x);
            let heads = queries.chunks_exact_mut(n_nope + n_rot);
            let attended = heads.zip(0..n_head).flat_map(|(query, head)| {
                self.heads.rope.turn(&mut query[n_nope..], position);
                let keys = keys.iter().map(|keys: &Vec<Vec<f64>>| &keys[head][..]);
                let values = values
                    .iter()
                    .map(|values: &Vec<Vec<f64>>| &values[head][..]);
                weighted(query, keys, values, scale)
            });
            self.output.times(&attended.collect::<Vec<_>>())
        });
        outputs.collect()
    }

    fn queries(&self, x: &[f64]) -> Vec<f64> {
        match &self.queries {
            Queries::Direct(q) => q.times(x),
            Queries::Latent { a, norm, b } => b.times(&rms_norm(&a.times(x), norm, self.heads.eps)),
        }
    }

    /// Keys and values of a token, of each head.
    fn keys_values(&self, x: &[f64], position: usize) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let LatentHeads {
            rank,
            n_nope,
            value_len,
            eps,
            ..
        } = self.heads;
        let mut latent = self.kv_a.times(x);
        let mut placed = latent.split_off(rank);
        self.heads.rope.turn(&mut placed, position);
        let latent = rms_norm(&latent, &self.kv_a_norm, eps);
        let of_head = |head: usize| {
            let (mut key, value) = match &self.kv_b {
                KeysValues::Together(both) => {
                    let first = head * (n_nope + value_len);
                    let rows = first..first + n_nope + value_len;
                    let mut key: Vec<f64> = rows.map(|row| both.output(row, &latent)).collect();
                    let value = key.split_off(n_nope);
                    (key, value)
                }
                KeysValues::Apart { k, v } => {
                    let mut key = vec![0.0; n_nope];
                    for (i, x) in latent.iter().enumerate() {
                        let row = k.row(head * rank + i).iter();
                        add(&mut key, &row.map(|weight| weight * x).collect::<Vec<_>>());
                    }
                    let rows = head * value_len..(head + 1) * value_len;
                    (key, rows.map(|row| v.output(row, &latent)).collect())
                }
            };
            key.extend(&placed);
            (key, value)
        };
        (0..self.heads.n_head).map(of_head).unzip()
    }
}
