//! Attention with what these families add: gates, values without a weight in their norm, windows, and
//! keys of another layer.

use std::collections::BTreeMap;

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, rms_norm, softmax};
use super::rope::Rope;
use super::{sigmoid, weightless_norm};

/// Keys and values of every layer that has some, for those that share them.
pub(super) type Kept = BTreeMap<usize, KeysValues>;

/// Keys and values of every token, all heads.
#[derive(Debug, Default)]
pub(super) struct KeysValues {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// What a layer's heads are.
#[derive(Clone, Debug)]
pub(super) struct Heads {
    pub(super) n_embd: usize,
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    /// Elements of a query, key or value.
    pub(super) len: usize,
    /// Factor on what queries are to keys.
    pub(super) scale: f64,
    pub(super) eps: f64,
    pub(super) rope: Option<Rope>,
    /// Keys that a token sees, itself among them.
    pub(super) window: Option<usize>,
    pub(super) has_norms: bool,
    /// Whether each query has a gate, whose sigmoid is a factor of attention's output.
    pub(super) has_gates: bool,
    pub(super) normalises_values: bool,
    /// The layer whose keys and values are taken.
    pub(super) keys_of: usize,
}

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct Attention {
    heads: Heads,
    layer: usize,
    /// (`n_head` * `len`, `n_embd`), with gates twice as many rows: of each head the query, the gate
    q: Matrix,
    q_norm: Option<Vec<f64>>,
    own: Option<Own>,
    /// (`n_embd`, `n_head` * `len`)
    output: Matrix,
}

/// Keys and values that a layer makes, each (`n_head_kv` * `len`, `n_embd`).
#[derive(Debug)]
struct Own {
    k: Matrix,
    k_norm: Option<Vec<f64>>,
    /// If `None`, the keys before their norm serve as values.
    v: Option<Matrix>,
}

impl Attention {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        heads: Heads,
    ) -> Result<Self, Unreadable> {
        let Heads {
            n_embd,
            n_head,
            n_head_kv,
            len,
            ..
        } = heads;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let q_len = if heads.has_gates { 2 * len } else { len };
        let mut norm = |tensor: &str| {
            let norm = heads.has_norms.then(|| source.vector(&name(tensor), len));
            norm.transpose()
        };
        let q_norm = norm("attn_q_norm")?;
        let own = if heads.keys_of == layer {
            let k_norm = norm("attn_k_norm")?;
            let k = source.matrix(&name("attn_k"), n_head_kv * len, n_embd)?;
            let has_v = source.has(&name("attn_v"));
            let v = has_v.then(|| source.matrix(&name("attn_v"), n_head_kv * len, n_embd));
            let v = v.transpose()?;
            Some(Own { k, k_norm, v })
        } else {
            // Some files hold what such a layer does not use.
            for tensor in ["attn_k", "attn_k_norm", "attn_v"] {
                source.pass_over(&name(tensor));
            }
            None
        };
        Ok(Self {
            layer,
            q: source.matrix(&name("attn_q"), n_head * q_len, n_embd)?,
            q_norm,
            own,
            output: source.matrix(&name("attn_output"), n_embd, n_head * len)?,
            heads,
        })
    }

    /// What attention makes of the tokens `normed`: of each by itself, those before it, and no others.
    pub(super) fn of(&self, normed: &[Vec<f64>], kept: &mut Kept) -> Vec<Vec<f64>> {
        if let Some(own) = &self.own {
            kept.insert(self.layer, self.keys_values(own, normed));
        }
        let kept = &kept[&self.heads.keys_of];
        let outputs = normed.iter().enumerate().map(|(position, x)| {
            let (queries, gates) = self.queries(x, position);
            let mut attended = self.attend(&queries, position, kept);
            for (attended, gate) in attended.iter_mut().zip(gates) {
                *attended *= sigmoid(gate);
            }
            self.output.times(&attended)
        });
        outputs.collect()
    }

    fn keys_values(&self, own: &Own, normed: &[Vec<f64>]) -> KeysValues {
        let mut made = KeysValues::default();
        for (position, x) in normed.iter().enumerate() {
            let mut key = own.k.times(x);
            let mut value = own.v.as_ref().map_or(key.clone(), |v| v.times(x));
            if self.heads.normalises_values {
                for value in value.chunks_exact_mut(self.heads.len) {
                    value.copy_from_slice(&weightless_norm(value, self.heads.eps));
                }
            }
            for key in key.chunks_exact_mut(self.heads.len) {
                self.place(key, own.k_norm.as_deref(), position);
            }
            made.keys.push(key);
            made.values.push(value);
        }
        made
    }

    /// Queries of a token, and their gates, if there are any.
    fn queries(&self, x: &[f64], position: usize) -> (Vec<f64>, Vec<f64>) {
        let (mut queries, mut gates) = (Vec::new(), Vec::new());
        let all = self.q.times(x);
        for head in all.chunks_exact(all.len() / self.heads.n_head) {
            let (query, gate) = head.split_at(self.heads.len);
            let mut query = query.to_vec();
            self.place(&mut query, self.q_norm.as_deref(), position);
            queries.extend(query);
            gates.extend(gate);
        }
        (queries, gates)
    }

    /// Normalises and rotates a head.
    fn place(&self, head: &mut [f64], norm: Option<&[f64]>, position: usize) {
        if let Some(norm) = norm {
            head.copy_from_slice(&rms_norm(head, norm, self.heads.eps));
        }
        if let Some(rope) = &self.heads.rope {
            rope.turn(head, position);
        }
    }

    fn attend(&self, queries: &[f64], position: usize, kept: &KeysValues) -> Vec<f64> {
        let Heads { len, scale, .. } = self.heads;
        let first = match self.heads.window {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        };
        let group = self.heads.n_head / self.heads.n_head_kv;
        let of_head = |(head, query): (usize, &[f64])| {
            // Neighbouring query heads share one key and value head.
            let part = head / group * len..(head / group + 1) * len;
            let rows = first..=position;
            let keys = kept.keys[rows.clone()].iter().map(|key| &key[part.clone()]);
            let values = kept.values[rows].iter().map(|value| &value[part.clone()]);
            weighted(query, keys, values, scale)
        };
        let heads = queries.chunks_exact(len).enumerate();
        heads.flat_map(of_head).collect()
    }
}

/// The sum of `values`, weighted by what `query` is to `keys`.
pub(super) fn weighted<'x>(
    query: &[f64],
    keys: impl Iterator<Item = &'x [f64]>,
    values: impl Iterator<Item = &'x [f64]>,
    scale: f64,
) -> Vec<f64> {
    let mut weights: Vec<f64> = keys.map(|key| dot(query, key) * scale).collect();
    softmax(&mut weights);
    let mut sums = Vec::new();
    for (weight, value) in weights.iter().zip(values) {
        sums.resize(value.len(), 0.0);
        for (sum, value) in sums.iter_mut().zip(value) {
            *sum += weight * value;
        }
    }
    sums
}
