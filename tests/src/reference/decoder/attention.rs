//! Attention of a layer, over each token's window of those before it.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, rms_norm, soft_cap, softmax};
use super::config::Config;

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct Attention {
    projections: Projections,
    /// (`head_len`), or of all heads.
    q_norm: Option<Vec<f64>>,
    k_norm: Option<Vec<f64>>,
    /// (`n_head`)
    sinks: Option<Vec<f64>>,
    /// (`n_embd`, `n_head` * `value_len`)
    output: Matrix,
}

/// `n_head` * `head_len` queries, `n_head_kv` * `head_len` keys and `n_head_kv` * `value_len`
/// values, from `n_embd`.
#[derive(Debug)]
enum Projections {
    Separate([Matrix; 3]),
    /// All rows in one matrix, and how many are whose.
    Fused(Matrix, [usize; 3]),
}

impl Attention {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let Config {
            n_embd,
            n_head,
            head_len,
            value_len,
            ..
        } = *config;
        let n_head_kv = config.n_head_kv[index];
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        let rows = [
            n_head * head_len,
            n_head_kv * head_len,
            n_head_kv * value_len,
        ];
        let projections = if config.is_fused {
            let all = rows.iter().sum();
            Projections::Fused(source.matrix(&name("attn_qkv"), all, n_embd)?, rows)
        } else {
            Projections::Separate([
                source.matrix(&name("attn_q"), rows[0], n_embd)?,
                source.matrix(&name("attn_k"), rows[1], n_embd)?,
                source.matrix(&name("attn_v"), rows[2], n_embd)?,
            ])
        };
        let [q_norm, k_norm] = match config.has_row_norms {
            true => [rows[0], rows[1]],
            false => [head_len; 2],
        };
        let mut vector_if = |there: bool, tensor: &str, len: usize| {
            let name = name(tensor);
            there.then(|| source.vector(&name, len)).transpose()
        };
        Ok(Self {
            projections,
            q_norm: vector_if(config.has_head_norms, "attn_q_norm", q_norm)?,
            k_norm: vector_if(config.has_head_norms, "attn_k_norm", k_norm)?,
            sinks: vector_if(config.has_sinks, "attn_sinks", n_head)?,
            output: source.matrix(&name("attn_output"), n_embd, n_head * value_len)?,
        })
    }

    /// What attention makes of the tokens `normed`: of each by itself, those before it, and no
    /// others.
    pub(super) fn of(
        &self,
        config: &Config,
        layer: usize,
        rope_factors: &[f64],
        normed: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let attended = normed.iter().enumerate().map(|(position, x)| {
            let [mut query, mut key, value] = self.qkv(x);
            for (heads, norm) in [(&mut query, &self.q_norm), (&mut key, &self.k_norm)] {
                if let Some(norm) = norm {
                    // One head, or all of them (olmoe).
                    for head in heads.chunks_exact_mut(norm.len()) {
                        head.copy_from_slice(&rms_norm(head, norm, config.rms_eps));
                    }
                }
                rope(config, rope_factors, heads, position, layer);
            }
            keys.push(key);
            values.push(value);
            let window = config.window(layer).unwrap_or(position + 1);
            let first = (position + 1).saturating_sub(window);
            let attended = self.attend(config, &query, &keys[first..], &values[first..]);
            self.output.times(&attended)
        });
        attended.collect()
    }

    /// The heads' sums of `values`, weighted by what `query` is to `keys`.
    fn attend(
        &self,
        config: &Config,
        query: &[f64],
        keys: &[Vec<f64>],
        values: &[Vec<f64>],
    ) -> Vec<f64> {
        let Config {
            n_head,
            head_len,
            value_len,
            ..
        } = *config;
        // Neighbouring query heads share one key and value head.
        let group = n_head / (keys[0].len() / head_len);
        let mut attended = vec![0.0; n_head * value_len];
        for head in 0..n_head {
            let head_kv = head / group;
            let query = &query[head * head_len..][..head_len];
            let key_of = |key: &Vec<f64>| dot(query, &key[head_kv * head_len..][..head_len]);
            let (scale, cap) = (config.attention_scale, config.attention_cap);
            let scores = keys.iter().map(key_of);
            let mut weights: Vec<f64> = scores.map(|x| soft_cap(x * scale, cap)).collect();
            weights.extend(self.sinks.iter().map(|sinks| sinks[head]));
            softmax(&mut weights);
            let attended = &mut attended[head * value_len..][..value_len];
            // A sink's weight stands last, and has no value.
            for (weight, value) in weights.iter().zip(values) {
                let value = &value[head_kv * value_len..][..value_len];
                for (sum, value) in attended.iter_mut().zip(value) {
                    *sum += weight * value;
                }
            }
        }
        attended
    }

    /// Queries, keys and values of a token.
    fn qkv(&self, x: &[f64]) -> [Vec<f64>; 3] {
        match &self.projections {
            Projections::Separate(parts) => parts.each_ref().map(|part| part.times(x)),
            Projections::Fused(all, [q, k, _]) => {
                let mut queries = all.times(x);
                let mut keys = queries.split_off(*q);
                let values = keys.split_off(*k);
                [queries, keys, values]
            }
        }
    }
}

/// Rotates the first `n_rot` elements of every head in `heads` to `position`.
fn rope(config: &Config, factors: &[f64], heads: &mut [f64], position: usize, layer: usize) {
    for head in heads.chunks_exact_mut(config.head_len) {
        for (pair, divisor) in factors.iter().enumerate() {
            let (frequency, scale) = config.frequency(pair, *divisor, config.is_local(layer));
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (i, j) = match config.rope.is_neighbours {
                true => (2 * pair, 2 * pair + 1),
                false => (pair, pair + config.n_rot / 2),
            };
            let (a, b) = (head[i] * scale, head[j] * scale);
            head[i] = a * cos - b * sin;
            head[j] = a * sin + b * cos;
        }
    }
}
