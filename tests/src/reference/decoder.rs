//! Decoders in f64, written for reading: llama, qwen2, qwen3, phi3, gemma2, gemma3, olmoe and
//! qwen3moe.
//!
//! Sources: the architectures as published (RMSNorm, rotary embedding, grouped-query attention,
//! SwiGLU; Qwen's biases and head norms; Phi-3's fused projections and longrope; Gemma's soft caps,
//! windows, GeGLU and norms after each part; YaRN, arXiv 2309.00071), and the conventions of
//! GGUF files: matrices are (columns, rows) with one output per row, and the query and key rows
//! of a llama file are permuted so that RoPE rotates the neighbours (2i, 2i + 1). Where files
//! leave a choice it is llama.cpp's: phi3 has no window, longrope takes its long factors when the
//! context is longer than the original one.

use std::collections::BTreeSet;
use std::path::Path;

use super::Unreadable;
use super::experts::{ExpertConfig, Experts};
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
    output_bias: Option<Vec<f64>>,
    /// Divisors of the RoPE frequencies, one per rotated pair; all 1 where the file has none.
    rope_factors: Vec<f64>,
}

/// Context that models are evaluated in, as all goldens were.
const N_CTX: usize = 64;

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
        let output_bias = source.optional_vector("output.bias", n_vocab)?;
        let mut rope_factors = vec![1.0; n_rot / 2];
        if let Some(factors) = source.optional_vector("rope_freqs.weight", n_rot / 2)? {
            rope_factors = factors;
        }
        let short = source.optional_vector("rope_factors_short.weight", n_rot / 2)?;
        let long = source.optional_vector("rope_factors_long.weight", n_rot / 2)?;
        if let (Some(short), Some(long)) = (short, long) {
            let is_long = N_CTX > config.n_ctx_orig;
            rope_factors = if is_long { long } else { short };
        }
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
            output_bias,
            rope_factors,
        })
    }

    /// The logits after each prefix of `ids`: row i, of `n_vocab`, belongs to tokens 0..=i.
    ///
    /// # Panics
    /// When an id is not below [`n_vocab`](Self::n_vocab).
    #[must_use]
    pub fn logits(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let scale = self.config.embedding_scale;
        let embedding = |&id: &u32| {
            let row = self.token_embd.row(id as usize).iter();
            row.map(|x| x * scale).collect()
        };
        // The residual stream: (n_tokens, n_embd).
        let mut x: Vec<Vec<f64>> = ids.iter().map(embedding).collect();
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention(index, layer, &mut x);
            self.feed_forward(layer, &mut x);
        }
        let output = self.output.as_ref().unwrap_or(&self.token_embd);
        let logits = |x: &Vec<f64>| {
            let mut logits = output.times(&self.rms_norm(x, &self.output_norm));
            if let Some(bias) = &self.output_bias {
                add(&mut logits, bias);
            }
            let capped = |x| soft_cap(x, self.config.logit_cap);
            logits.into_iter().map(capped).collect()
        };
        x.iter().map(logits).collect()
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.token_embd.rows
    }

    /// x += post(wo · attention(norm(x))), for every token over itself and those before it that
    /// are in its window.
    fn attention(&self, index: usize, layer: &Layer, x: &mut [Vec<f64>]) {
        let Config {
            n_head,
            n_head_kv,
            head_len,
            value_len,
            ..
        } = self.config;
        let is_local = self.config.is_local(index);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in x.iter_mut().enumerate() {
            let normed = self.rms_norm(x, &layer.attn_norm);
            let [mut query, mut key, value] = layer.qkv(&normed);
            for (heads, norm) in [
                (&mut query, &layer.attn_q_norm),
                (&mut key, &layer.attn_k_norm),
            ] {
                if let Some(norm) = norm {
                    // One head, or all of them (olmoe).
                    for head in heads.chunks_exact_mut(norm.len()) {
                        head.copy_from_slice(&self.rms_norm(head, norm));
                    }
                }
                self.rope(heads, position, is_local);
            }
            keys.push(key);
            values.push(value);
            let window = if is_local {
                self.config.window
            } else {
                position + 1
            };
            let first = (position + 1).saturating_sub(window);

            let mut attended = vec![0.0; n_head * value_len];
            for head in 0..n_head {
                // n_head / n_head_kv neighbouring query heads share one key and value head.
                let head_kv = head / (n_head / n_head_kv);
                let query = &query[head * head_len..][..head_len];
                let key_of = |key: &Vec<f64>| dot(query, &key[head_kv * head_len..][..head_len]);
                let (scale, cap) = (self.config.attention_scale, self.config.attention_cap);
                let scores = keys[first..].iter().map(key_of);
                let mut weights: Vec<f64> = scores.map(|x| soft_cap(x * scale, cap)).collect();
                softmax(&mut weights);
                let attended = &mut attended[head * value_len..][..value_len];
                for (weight, value) in weights.iter().zip(&values[first..]) {
                    let value = &value[head_kv * value_len..][..value_len];
                    for (sum, value) in attended.iter_mut().zip(value) {
                        *sum += weight * value;
                    }
                }
            }
            let added = layer.attn_output.times(&attended);
            add(x, &self.post_norm(added, layer.attn_post_norm.as_deref()));
        }
    }

    /// x += post(down · (act(gate · norm(x)) ⊙ (up · norm(x)))), for every token by itself.
    fn feed_forward(&self, layer: &Layer, x: &mut [Vec<f64>]) {
        for x in x {
            let normed = self.rms_norm(x, &layer.ffn_norm);
            if let Ffn::Experts(experts) = &layer.ffn {
                add(x, &experts.of_row(&normed));
                continue;
            }
            let (mut hidden, up) = layer.gate_up(&normed);
            for (gate, up) in hidden.iter_mut().zip(up) {
                let x = *gate;
                let activated = if self.config.is_gelu {
                    let u = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                    0.5 * x * (1.0 + u.tanh())
                } else {
                    x / (1.0 + (-x).exp())
                };
                *gate = activated * up;
            }
            let down = layer.ffn_down.as_ref().expect("no experts");
            let added = down.times(&hidden);
            add(x, &self.post_norm(added, layer.ffn_post_norm.as_deref()));
        }
    }

    fn post_norm(&self, x: Vec<f64>, weight: Option<&[f64]>) -> Vec<f64> {
        weight.map_or(x.clone(), |weight| self.rms_norm(&x, weight))
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
    fn rope(&self, heads: &mut [f64], position: usize, is_local: bool) {
        let Config { head_len, rope, .. } = self.config;
        for head in heads.chunks_exact_mut(head_len) {
            for (pair, divisor) in self.rope_factors.iter().enumerate() {
                let (frequency, scale) = self.config.frequency(pair, *divisor, is_local);
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (i, j) = match rope.is_neighbours {
                    true => (2 * pair, 2 * pair + 1),
                    false => (pair, pair + self.config.n_rot / 2),
                };
                let (a, b) = (head[i] * scale, head[j] * scale);
                head[i] = a * cos - b * sin;
                head[j] = a * sin + b * cos;
            }
        }
    }
}

/// cap · tanh(x / cap); a cap of 0 is none.
fn soft_cap(x: f64, cap: f64) -> f64 {
    if cap == 0.0 {
        return x;
    }
    cap * (x / cap).tanh()
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
    n_ctx_orig: usize,
    rope: Rope,
    rms_eps: f64,
    has_head_norms: bool,
    /// Whether those norms span all heads.
    has_row_norms: bool,
    experts: ExpertConfig,
    has_post_norms: bool,
    is_fused: bool,
    is_gelu: bool,
    embedding_scale: f64,
    attention_scale: f64,
    attention_cap: f64,
    logit_cap: f64,
    /// Keys that a token of a local layer sees; 0 where there are no such layers.
    window: usize,
    /// Bit i: layer i is local.
    local_layers: u128,
}

/// How heads rotate.
#[derive(Clone, Copy, Debug)]
struct Rope {
    /// Whether (2i, 2i + 1) rotate together, otherwise (i, i + n_rot / 2).
    is_neighbours: bool,
    freq_base: f64,
    local_freq_base: f64,
    /// Local layers are not scaled in gemma3.
    scales_local: bool,
    scaling: Scaling,
    factor: f64,
    attn_factor: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Also longrope, whose factor is mostly 1.
    Linear,
    Yarn,
}

impl Config {
    #[expect(clippy::too_many_lines, reason = "a list of all keys, each once")]
    fn load(file: &File) -> Result<Self, Unreadable> {
        let Some(Value::Text(arch)) = file.value("general.architecture") else {
            return Err(Unreadable::new("no architecture"));
        };
        let arch = arch.as_str();
        const KNOWN: [&str; 8] = [
            "llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "olmoe", "qwen3moe",
        ];
        if !KNOWN.contains(&arch) {
            return Err(Unreadable::new(format!("architecture {arch}")));
        }
        let key = |key: &str| format!("{arch}.{key}");
        let length = |name: &str| file.length(&key(name));
        let optional = |name: &str, default| match file.value(&key(name)) {
            Some(_) => length(name),
            None => Ok(default),
        };
        let number = |name: &str, default| file.number(&key(name)).unwrap_or(default);
        let n_embd = length("embedding_length")?;
        let n_head = length("attention.head_count")?;
        let n_head_kv = optional("attention.head_count_kv", n_head)?;
        if n_head == 0 || n_head_kv == 0 || !n_head.is_multiple_of(n_head_kv) {
            return Err(Unreadable::new(format!("{n_head} heads share {n_head_kv}")));
        }
        let head_len = optional("attention.key_length", n_embd / n_head)?;
        let n_rot = optional("rope.dimension_count", head_len)?;
        if n_rot > head_len || !n_rot.is_multiple_of(2) {
            return Err(Unreadable::new(format!(
                "RoPE turns {n_rot} of {head_len} elements"
            )));
        }
        let eps_key = key("attention.layer_norm_rms_epsilon");
        let rms_eps = file.number(&eps_key);
        let n_layer = length("block_count")?;
        let is_gemma = arch.starts_with("gemma");
        // The 27B models, known by their depth, scale by the width per head.
        let is_27b = (arch, n_layer) == ("gemma2", 46) || (arch, n_layer) == ("gemma3", 62);
        let scaled_len = if is_27b { n_embd / n_head } else { head_len };
        let (attention_cap, logit_cap) = match arch {
            "gemma2" => (50.0, 30.0),
            _ => (0.0, 0.0),
        };
        let mut config = Self {
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            n_ff: length("feed_forward_length")?,
            head_len,
            value_len: optional("attention.value_length", n_embd / n_head)?,
            n_rot,
            n_ctx_orig: optional(
                "rope.scaling.original_context_length",
                length("context_length")?,
            )?,
            rope: Rope::load(file, arch)?,
            rms_eps: rms_eps.ok_or_else(|| Unreadable::new(format!("{eps_key} is missing")))?,
            has_head_norms: matches!(arch, "qwen3" | "gemma3" | "olmoe" | "qwen3moe"),
            has_row_norms: arch == "olmoe",
            experts: ExpertConfig::load(file, arch)?,
            has_post_norms: is_gemma,
            is_fused: arch == "phi3",
            is_gelu: is_gemma,
            embedding_scale: if is_gemma {
                (n_embd as f64).sqrt()
            } else {
                1.0
            },
            attention_scale: 1.0 / (scaled_len as f64).sqrt(),
            attention_cap: number("attn_logit_softcapping", attention_cap),
            logit_cap: number("final_logit_softcapping", logit_cap),
            window: 0,
            local_layers: 0,
        };
        if is_gemma {
            let window = if arch == "gemma2" { 4096 } else { 0 };
            config.window = optional("attention.sliding_window", window)?;
            config.local_layers = local_layers(file, arch, n_layer)?;
        }
        Ok(config)
    }

    fn is_local(&self, layer: usize) -> bool {
        self.window > 0 && self.local_layers >> layer & 1 == 1
    }

    /// The frequency of a pair, and the factor on what is rotated.
    fn frequency(&self, pair: usize, divisor: f64, is_local: bool) -> (f64, f64) {
        let rope = &self.rope;
        let base = if is_local {
            rope.local_freq_base
        } else {
            rope.freq_base
        };
        let factor = if is_local && !rope.scales_local {
            1.0
        } else {
            rope.factor
        };
        let exponent = -2.0 * pair as f64 / self.n_rot as f64;
        let kept = base.powf(exponent) / divisor;
        let divided = kept / factor;
        match rope.scaling {
            Scaling::Linear => (divided, rope.attn_factor),
            Scaling::Yarn => {
                // The dimension that turns so often within the original context.
                let dimension = |turns: f64| {
                    let wavelengths = self.n_ctx_orig as f64 / (turns * core::f64::consts::TAU);
                    self.n_rot as f64 * wavelengths.ln() / (2.0 * base.ln())
                };
                let low = dimension(32.0).floor().max(0.0);
                let high = dimension(1.0).ceil().min(self.n_rot as f64 - 1.0);
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let stretch = if factor > 1.0 {
                    0.1 * factor.ln() + 1.0
                } else {
                    1.0
                };
                (
                    divided * ramp + kept * (1.0 - ramp),
                    rope.attn_factor * stretch,
                )
            }
        }
    }
}

impl Rope {
    fn load(file: &File, arch: &str) -> Result<Self, Unreadable> {
        let number = |name: &str| file.number(&format!("{arch}.{name}"));
        let factor = number("rope.scaling.factor").unwrap_or(1.0);
        let (scaling, factor) = match file.value(&format!("{arch}.rope.scaling.type")) {
            None => (Scaling::Linear, factor),
            Some(Value::Text(name)) => match name.as_str() {
                "none" => (Scaling::Linear, 1.0),
                "linear" | "longrope" => (Scaling::Linear, factor),
                "yarn" => (Scaling::Yarn, factor),
                _ => return Err(Unreadable::new(format!("RoPE scaling {name}"))),
            },
            Some(other) => return Err(Unreadable::new(format!("RoPE scaling {other:?}"))),
        };
        let freq_base = number("rope.freq_base").unwrap_or(10_000.0);
        let local = if arch == "gemma3" {
            10_000.0
        } else {
            freq_base
        };
        Ok(Self {
            is_neighbours: arch == "llama",
            freq_base,
            local_freq_base: number("rope.freq_base_swa").unwrap_or(local),
            scales_local: arch != "gemma3",
            scaling,
            factor,
            attn_factor: number("rope.scaling.attn_factor").unwrap_or(1.0),
        })
    }
}

/// Gemma's local layers as bits: listed, or all but the last of each period.
fn local_layers(file: &File, arch: &str, n_layer: usize) -> Result<u128, Unreadable> {
    let key = format!("{arch}.attention.sliding_window_pattern");
    let period = if arch == "gemma2" { 2 } else { 6 };
    let is_local: Vec<bool> = match file.value(&key) {
        Some(Value::Array(listed)) => listed.iter().map(|x| *x == Value::Bool(true)).collect(),
        Some(_) => {
            let period = file.length(&key)?;
            (0..n_layer).map(|i| i % period < period - 1).collect()
        }
        None => (0..n_layer).map(|i| i % period < period - 1).collect(),
    };
    if is_local.len() != n_layer || n_layer > 128 {
        return Err(Unreadable::new(format!("{key} for {n_layer} layers")));
    }
    let bits = is_local.iter().enumerate();
    Ok(bits.map(|(i, &is_local)| u128::from(is_local) << i).sum())
}

/// One decoder layer. Matrix shapes are (rows, columns); every row is one output.
#[derive(Debug)]
struct Layer {
    attn_norm: Vec<f64>,
    attn: Attn,
    /// (`head_len`)
    attn_q_norm: Option<Vec<f64>>,
    /// (`head_len`)
    attn_k_norm: Option<Vec<f64>>,
    /// (`n_embd`, `n_head` * `value_len`)
    attn_output: Matrix,
    attn_post_norm: Option<Vec<f64>>,
    ffn_norm: Vec<f64>,
    ffn: Ffn,
    /// (`n_embd`, `n_ff`)
    ffn_down: Option<Matrix>,
    ffn_post_norm: Option<Vec<f64>>,
}

/// Projections of attention: `n_head` * `head_len` queries, `n_head_kv` * `head_len` keys and
/// `n_head_kv` * `value_len` values, from `n_embd`.
#[derive(Debug)]
enum Attn {
    Separate([Matrix; 3]),
    /// All rows in one matrix, and how many are whose.
    Fused(Matrix, [usize; 3]),
}

/// Gate and up, each (`n_ff`, `n_embd`), or one matrix of both.
#[derive(Debug)]
enum Ffn {
    Separate([Matrix; 2]),
    Fused(Matrix),
    /// With down projections of their own.
    Experts(Experts),
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
        let rows = [
            n_head * head_len,
            n_head_kv * head_len,
            n_head_kv * value_len,
        ];
        let (attn, ffn) = if config.is_fused {
            let all = rows.iter().sum();
            (
                Attn::Fused(source.matrix(&name("attn_qkv"), all, n_embd)?, rows),
                Ffn::Fused(source.matrix(&name("ffn_up"), 2 * n_ff, n_embd)?),
            )
        } else {
            (
                Attn::Separate([
                    source.matrix(&name("attn_q"), rows[0], n_embd)?,
                    source.matrix(&name("attn_k"), rows[1], n_embd)?,
                    source.matrix(&name("attn_v"), rows[2], n_embd)?,
                ]),
                if config.experts.n_expert > 0 {
                    Ffn::Experts(Experts::load(source, config.experts, index)?)
                } else {
                    Ffn::Separate([
                        source.matrix(&name("ffn_gate"), n_ff, n_embd)?,
                        source.matrix(&name("ffn_up"), n_ff, n_embd)?,
                    ])
                },
            )
        };
        let [q_norm, k_norm] = match config.has_row_norms {
            true => [rows[0], rows[1]],
            false => [head_len; 2],
        };
        let mut norm_if = |there: bool, tensor: &str, len: usize| {
            let name = name(tensor);
            there.then(|| source.vector(&name, len)).transpose()
        };
        Ok(Self {
            attn_q_norm: norm_if(config.has_head_norms, "attn_q_norm", q_norm)?,
            attn_k_norm: norm_if(config.has_head_norms, "attn_k_norm", k_norm)?,
            attn_post_norm: norm_if(config.has_post_norms, "post_attention_norm", n_embd)?,
            ffn_post_norm: norm_if(config.has_post_norms, "post_ffw_norm", n_embd)?,
            attn_norm: source.vector(&name("attn_norm"), n_embd)?,
            attn,
            attn_output: source.matrix(&name("attn_output"), n_embd, n_head * value_len)?,
            ffn_norm: source.vector(&name("ffn_norm"), n_embd)?,
            ffn,
            ffn_down: match config.experts.n_expert {
                0 => Some(source.matrix(&name("ffn_down"), n_embd, n_ff)?),
                _ => None,
            },
        })
    }

    /// Queries, keys and values of a token.
    fn qkv(&self, x: &[f64]) -> [Vec<f64>; 3] {
        match &self.attn {
            Attn::Separate(parts) => parts.each_ref().map(|part| part.times(x)),
            Attn::Fused(all, [q, k, _]) => {
                let mut queries = all.times(x);
                let mut keys = queries.split_off(*q);
                let values = keys.split_off(*k);
                [queries, keys, values]
            }
        }
    }

    /// Gate and up of a token.
    fn gate_up(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        match &self.ffn {
            Ffn::Separate([gate, up]) => (gate.times(x), up.times(x)),
            Ffn::Experts(_) => unreachable!("experts have gates of their own"),
            Ffn::Fused(both) => {
                let mut gate = both.times(x);
                let up = gate.split_off(gate.len() / 2);
                (gate, up)
            }
        }
    }
}

/// Row-major weights.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    columns: usize,
    weights: Vec<f64>,
    /// Added to the outputs, where the file has one.
    bias: Option<Vec<f64>>,
}

impl Matrix {
    /// Without biases.
    pub(super) const fn new(rows: usize, columns: usize, weights: Vec<f64>) -> Self {
        Self {
            rows,
            columns,
            weights,
            bias: None,
        }
    }

    pub(super) fn row(&self, index: usize) -> &[f64] {
        &self.weights[index * self.columns..][..self.columns]
    }

    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.columns);
        let rows = self.weights.chunks_exact(self.columns);
        let mut out: Vec<f64> = rows.map(|row| dot(row, x)).collect();
        if let Some(bias) = &self.bias {
            add(&mut out, bias);
        }
        out
    }
}

/// The tensors of a file, checked for shape; remembers which were taken.
pub(super) struct Source<'f> {
    pub(super) file: &'f File,
    pub(super) used: BTreeSet<String>,
}

impl Source<'_> {
    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f64>, Unreadable> {
        self.elements(name, &[len])
    }

    fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f64>>, Unreadable> {
        let there = self.file.tensor_info(name).is_some();
        there.then(|| self.vector(name, len)).transpose()
    }

    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<Matrix, Unreadable> {
        let weights = self.elements(name, &[columns, rows])?;
        let bias = name
            .strip_suffix(".weight")
            .map(|stem| format!("{stem}.bias"));
        let bias = match bias.filter(|_| name.starts_with("blk.")) {
            Some(bias) => self.optional_vector(&bias, rows)?,
            None => None,
        };
        Ok(Matrix {
            rows,
            columns,
            weights,
            bias,
        })
    }

    /// A matrix of as many rows as the file has.
    pub(super) fn matrix_of_columns(
        &mut self,
        name: &str,
        columns: usize,
    ) -> Result<Matrix, Unreadable> {
        let dims = self.file.tensor_info(name).map(|info| info.dims.as_slice());
        let rows = dims.and_then(|dims| dims.get(1).copied()).unwrap_or(0);
        self.matrix(name, rows, columns)
    }

    pub(super) fn elements(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f64>, Unreadable> {
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

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(super) fn add(x: &mut [f64], y: &[f64]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

pub(super) fn softmax(x: &mut [f64]) {
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
