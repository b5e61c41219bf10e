//! Attention over the whole text, or a window around each token.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, softmax};
use super::config::Config;
use super::norm::Norm;

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct Attention {
    /// Queries, keys and values, or all in one.
    projections: Vec<Matrix>,
    /// Norms over a head, or over all heads.
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    output: Matrix,
}

impl Attention {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (n_embd, head_len) = (config.n_embd, config.head_len);
        let n_query = config.n_head * head_len;
        let n_key = config.n_head_kv * head_len;
        let projections = match source.has(&name("attn_qkv.weight")) {
            true => vec![("attn_qkv", n_query + 2 * n_key)],
            false => vec![("attn_q", n_query), ("attn_k", n_key), ("attn_v", n_key)],
        };
        let projections = projections
            .iter()
            .map(|(part, rows)| source.matrix(&name(&format!("{part}.weight")), *rows, n_embd));
        Ok(Self {
            projections: projections.collect::<Result<_, _>>()?,
            q_norm: Norm::optional(source, config, &name("attn_q_norm"))?,
            k_norm: Norm::optional(source, config, &name("attn_k_norm"))?,
            output: source.matrix(&name("attn_output.weight"), n_embd, n_query)?,
        })
    }

    /// What attention makes of every token.
    pub(super) fn of(&self, config: &Config, layer: usize, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let tokens: Vec<[Vec<f64>; 3]> = x
            .iter()
            .enumerate()
            .map(|(position, x)| self.qkv(config, layer, position, x))
            .collect();
        let attend = |p1: usize| {
            let attended = Self::attend(config, layer, &tokens, p1);
            self.output.times(&attended)
        };
        (0..x.len()).map(attend).collect()
    }

    /// Queries, keys and values of a token, normalised and rotated.
    fn qkv(&self, config: &Config, layer: usize, position: usize, x: &[f64]) -> [Vec<f64>; 3] {
        let mut query: Vec<f64> = self.projections.iter().flat_map(|m| m.times(x)).collect();
        let mut key = query.split_off(config.n_head * config.head_len);
        let value = key.split_off(config.n_head_kv * config.head_len);
        for (heads, norm) in [(&mut query, &self.q_norm), (&mut key, &self.k_norm)] {
            if let Some(norm) = norm {
                for head in heads.chunks_exact_mut(norm.len()) {
                    norm.apply(head);
                }
            }
            if let Some(base) = config.freq_base(layer) {
                for head in heads.chunks_exact_mut(config.head_len) {
                    rotate(head, position as f64, base);
                }
            }
        }
        [query, key, value]
    }

    fn attend(config: &Config, layer: usize, tokens: &[[Vec<f64>; 3]], p1: usize) -> Vec<f64> {
        let (n_head, len) = (config.n_head, config.head_len);
        let group = n_head / config.n_head_kv;
        let seen: Vec<usize> = (0..tokens.len())
            .filter(|p0| config.sees(layer, p1, *p0))
            .collect();
        let mut attended = vec![0.0; n_head * len];
        for (head, attended) in attended.chunks_exact_mut(len).enumerate() {
            let query = &tokens[p1][0][head * len..][..len];
            let part = head / group * len..(head / group + 1) * len;
            let score = |p0: &usize| {
                let score = dot(query, &tokens[*p0][1][part.clone()]) / (len as f64).sqrt();
                score - config.slope(head) * p1.abs_diff(*p0) as f64
            };
            let mut weights: Vec<f64> = seen.iter().map(score).collect();
            softmax(&mut weights);
            for (weight, p0) in weights.iter().zip(&seen) {
                let value = &tokens[*p0][2][part.clone()];
                for (sum, value) in attended.iter_mut().zip(value) {
                    *sum += weight * value;
                }
            }
        }
        attended
    }
}

/// Turns (i, i + half) of a head together.
fn rotate(head: &mut [f64], position: f64, base: f64) {
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position * base.powf(-((2 * i) as f64) / head.len() as f64);
        let (sin, cos) = angle.sin_cos();
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * cos - b * sin;
        head[i + half] = a * sin + b * cos;
    }
}
