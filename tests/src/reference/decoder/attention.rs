//! Attention of a layer, over each token's window of those before it.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, soft_cap, softmax};
use super::config::Config;
use super::families::QkNorm;
use super::norm::Norm;

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct Attention {
    projections: Projections,
    /// (`head_len`), or of all heads.
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
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
            family,
            ..
        } = *config;
        let n_head_kv = config.n_head_kv[index];
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        let rows = [
            n_head * head_len,
            n_head_kv * head_len,
            n_head_kv * value_len,
        ];
        let projections = if source.has(&name("attn_qkv")) {
            let all = rows.iter().sum();
            Projections::Fused(source.matrix(&name("attn_qkv"), all, n_embd)?, rows)
        } else {
            Projections::Separate([
                source.matrix(&name("attn_q"), rows[0], n_embd)?,
                source.matrix(&name("attn_k"), rows[1], n_embd)?,
                source.matrix(&name("attn_v"), rows[2], n_embd)?,
            ])
        };
        let lens = match family.qk_norm {
            QkNorm::None => None,
            QkNorm::MaybeHead => source.has(&name("attn_q_norm")).then_some([head_len; 2]),
            QkNorm::Head => Some([head_len; 2]),
            QkNorm::Row => Some([rows[0], rows[1]]),
        };
        let mut norm = |tensor: &str, len: Option<usize>| {
            len.map(|len| Norm::load(source, config, &name(tensor), len))
                .transpose()
        };
        Ok(Self {
            projections,
            q_norm: norm("attn_q_norm", lens.map(|lens| lens[0]))?,
            k_norm: norm("attn_k_norm", lens.map(|lens| lens[1]))?,
            sinks: match family.has_sinks {
                true => Some(source.vector(&name("attn_sinks"), n_head)?),
                false => None,
            },
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
                let rotate = |heads: &mut [f64]| {
                    if config.rotated[layer] {
                        let is_local = config.is_local(layer);
                        let len = config.head_len;
                        config
                            .rope
                            .rotate(heads, len, position, is_local, rope_factors);
                    }
                };
                if config.family.is_norm_late {
                    rotate(heads);
                }
                if let Some(norm) = norm {
                    norm.of_each(heads);
                }
                if !config.family.is_norm_late {
                    rotate(heads);
                }
            }
            if let Some((share, n)) = config.temperature {
                let growth = 1.0 + share * (1.0 + (position / n) as f64).ln();
                query.iter_mut().for_each(|x| *x *= growth);
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
            let (scale, cap) = (config.factors.attention, config.factors.attention_cap);
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
