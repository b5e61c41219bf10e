//! What a file's keys say of an encoder.

use super::super::Unreadable;
use super::super::file::{File, Value};
use super::activation;

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) arch: String,
    pub(super) n_layer: usize,
    pub(super) n_embd: usize,
    pub(super) n_ff: usize,
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    pub(super) head_len: usize,
    pub(super) eps: f64,
    /// Norms by the mean square; otherwise layer norms.
    pub(super) is_rms: bool,
    /// Whether norms follow the residual sums.
    pub(super) has_post_norms: bool,
    /// A token sees only those before it: rerankers that are decoders.
    pub(super) is_causal: bool,
    pub(super) embedding_scale: f64,
    /// The activation of the network.
    pub(super) activation: fn(f64) -> f64,
    /// Largest slope of a distance's score times 2^8; 0 for none.
    pub(super) alibi: f64,
    /// Bases of rotations: of most layers, and of those with a window. None where heads do not rotate.
    freq_bases: Option<[f64; 2]>,
    /// Every layer's window; 0 for the whole text.
    windows: Vec<usize>,
    pub(super) experts: Option<Experts>,
}

/// Which layers have experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    every: usize,
    pub(super) count: usize,
    pub(super) n_used: usize,
}

const KNOWN: [&str; 9] = [
    "bert",
    "nomic-bert",
    "nomic-bert-moe",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "modern-bert",
    "gemma-embedding",
    "qwen3",
];

impl Config {
    pub(super) fn load(file: &File) -> Result<Self, Unreadable> {
        let Some(Value::Text(arch)) = file.value("general.architecture") else {
            return Err(Unreadable::new("no architecture"));
        };
        if !KNOWN.contains(&arch.as_str()) {
            return Err(Unreadable::new(format!("architecture {arch}")));
        }
        let key = |name: &str| format!("{arch}.{name}");
        let length = |name: &str| file.length(&key(name));
        let optional = |name: &str, default| match file.value(&key(name)) {
            Some(_) => length(name),
            None => Ok(default),
        };
        let number = |name: &str, default| file.number(&key(name)).unwrap_or(default);
        let is_rms = matches!(arch.as_str(), "eurobert" | "gemma-embedding" | "qwen3");
        let eps_key = key(match is_rms {
            true => "attention.layer_norm_rms_epsilon",
            false => "attention.layer_norm_epsilon",
        });
        let eps = file.number(&eps_key);
        let (n_embd, n_head) = (length("embedding_length")?, length("attention.head_count")?);
        let n_layer = length("block_count")?;
        let text = |name: &str| match file.value(&key(name)) {
            Some(Value::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let activation = text("activation").or(text("hidden_activation"));
        let activation = activation.unwrap_or(match arch.as_str() {
            "nomic-bert" | "eurobert" | "qwen3" => "silu",
            "gemma-embedding" => "gelu_pytorch_tanh",
            _ => "gelu",
        });
        let rotates = !matches!(arch.as_str(), "bert" | "jina-bert-v2");
        let bases = [
            number("rope.freq_base", 1e4),
            number("rope.freq_base_swa", 1e4),
        ];
        Ok(Self {
            n_layer,
            n_embd,
            n_ff: length("feed_forward_length")?,
            n_head,
            n_head_kv: optional("attention.head_count_kv", n_head)?,
            head_len: optional("attention.key_length", n_embd / n_head)?,
            eps: eps.ok_or_else(|| Unreadable::new(format!("{eps_key} is missing")))?,
            is_rms,
            has_post_norms: arch == "bert" || arch.starts_with("nomic") || arch.starts_with("jina"),
            is_causal: arch == "qwen3",
            embedding_scale: match arch.as_str() {
                "gemma-embedding" => (n_embd as f64).sqrt(),
                _ => 1.0,
            },
            activation: activation::named(activation)?,
            alibi: if arch == "jina-bert-v2" { 8.0 } else { 0.0 },
            freq_bases: rotates.then_some(bases),
            windows: windows(file, arch, n_layer)?,
            experts: match optional("moe_every_n_layers", 0)? {
                0 => None,
                every => Some(Experts {
                    every,
                    count: length("expert_count")?,
                    n_used: length("expert_used_count")?,
                }),
            },
            arch: arch.clone(),
        })
    }

    /// The base of a layer's rotation.
    pub(super) fn freq_base(&self, layer: usize) -> Option<f64> {
        let bases = self.freq_bases?;
        Some(bases[usize::from(self.windows[layer] > 0)])
    }

    /// Whether a token of `layer` at position `p1` sees that at `p0`.
    pub(super) fn sees(&self, layer: usize, p1: usize, p0: usize) -> bool {
        let window = self.windows[layer];
        let is_near = window == 0 || p1.abs_diff(p0) <= window / 2;
        is_near && (!self.is_causal || p0 <= p1)
    }

    /// What a step of distance takes off a head's scores (Press et al. 2021).
    pub(super) fn slope(&self, head: usize) -> f64 {
        let whole = 1usize << self.n_head.ilog2();
        let (n, power) = match head < whole {
            true => (whole as f64, (head + 1) as f64),
            false => (2.0 * whole as f64, (2 * (head - whole) + 1) as f64),
        };
        match self.alibi > 0.0 {
            true => (-self.alibi / n * power).exp2(),
            false => 0.0,
        }
    }

    /// Whether a layer has experts.
    pub(super) fn has_experts(&self, layer: usize) -> bool {
        self.experts
            .is_some_and(|experts| layer % experts.every == 1)
    }
}

fn windows(file: &File, arch: &str, n_layer: usize) -> Result<Vec<usize>, Unreadable> {
    let key = |name: &str| format!("{arch}.attention.{name}");
    if file.value(&key("sliding_window")).is_none() {
        return Ok(vec![0; n_layer]);
    }
    let window = file.length(&key("sliding_window"))?;
    let is_dense_first = arch == "modern-bert";
    let period = if is_dense_first { 3 } else { 6 };
    let has_window: Vec<bool> = match file.value(&key("sliding_window_pattern")) {
        Some(Value::Array(list)) => (list.iter())
            .map(|value| *value == Value::Bool(true))
            .collect(),
        given => {
            let period = match given {
                Some(_) => file.length(&key("sliding_window_pattern"))?,
                None => period,
            };
            let is_dense = |layer: usize| match is_dense_first {
                true => layer.is_multiple_of(period),
                false => layer % period == period - 1,
            };
            (0..n_layer).map(|layer| !is_dense(layer)).collect()
        }
    };
    Ok((has_window.iter())
        .map(|has| if *has { window } else { 0 })
        .collect())
}
