//! Families whose layers are of several kinds, or whose attention is not the usual, in f64.
//!
//! Written for reading, from publications and what llama.cpp computes: recurrent parts process one token after the
//! other from a state of zeros, and latent attention computes the keys and values of every head. A file with a key or a
//! tensor that no formula here uses is refused, except for the blocks after the trunk that predict one more token.

mod attention;
mod deepseek;
mod delta_net;
mod gemma;
mod granite;
mod keys;
mod latent;
mod layer;
mod mamba;
mod nemotron;
mod network;
mod qwen;
mod rope;

use std::path::Path;

use self::gemma::LayerInputs;
use self::keys::Keys;
use self::layer::{Around, Layer};
use super::Unreadable;
use super::file::File;
use super::source::{Matrix, Source, dot, rms_norm, soft_cap};

/// A model of a family of several kinds of layers.
#[derive(Debug)]
pub struct Hybrid {
    common: Common,
    /// (`n_vocab`, `n_embd`)
    token_embd: Matrix,
    body: Body,
    output_norm: Vec<f64>,
    /// (`n_vocab`, `n_embd`); `None` if the embeddings are used instead.
    output: Option<Matrix>,
}

/// What all families' keys say.
#[derive(Clone, Copy, Debug)]
struct Common {
    n_embd: usize,
    /// Layers of the trunk.
    n_layer: usize,
    /// Layers of the trunk and the blocks after them.
    n_block: usize,
    n_head: usize,
    eps: f64,
}

/// A family's layers, and what it does around them.
#[derive(Debug)]
struct Body {
    layers: Vec<Layer>,
    layer_inputs: Option<LayerInputs>,
    embedding_scale: f64,
    logit_divisor: f64,
    /// Cap of the logits; 0 if they are not capped.
    logit_cap: f64,
}

impl Body {
    const fn new(layers: Vec<Layer>) -> Self {
        Self {
            layers,
            layer_inputs: None,
            embedding_scale: 1.0,
            logit_divisor: 1.0,
            logit_cap: 0.0,
        }
    }
}

impl Hybrid {
    /// Reads the GGUF file at `path`.
    ///
    /// # Errors
    /// [`Unreadable`] for a file that is malformed, of another architecture, or has anything
    /// this evaluation would silently ignore.
    pub fn open(path: &Path) -> Result<Self, Unreadable> {
        Self::load(&File::open(path)?)
    }

    fn load(file: &File) -> Result<Self, Unreadable> {
        let mut keys = Keys::new(file)?;
        let mut source = Source::new(file);
        let common = Common::load(&mut keys)?;
        let family = match keys.arch {
            "qwen3next" | "qwen35" | "qwen35moe" => qwen::load,
            "granitehybrid" => granite::load,
            "nemotron_h" | "nemotron_h_moe" => nemotron::load,
            "deepseek2" => deepseek::load,
            "gemma4" => gemma::load,
            arch => return Err(Unreadable::new(format!("architecture {arch}"))),
        };
        let body = family(&mut keys, &mut source, common)?;
        let n_embd = common.n_embd;
        let token_embd = source.matrix_of_columns("token_embd.weight", n_embd)?;
        let has_output = source.has("output.weight");
        let output = has_output.then(|| source.matrix("output.weight", token_embd.rows, n_embd));
        let output = output.transpose()?;
        let output_norm = source.vector("output_norm.weight", n_embd)?;
        for block in common.n_layer..common.n_block {
            source.pass_over(&format!("blk.{block}."));
        }
        keys.finish()?;
        source.finish()?;
        Ok(Self {
            common,
            token_embd,
            body,
            output_norm,
            output,
        })
    }

    /// The logits after each prefix of `ids`: row i, of all tokens, belongs to tokens 0..=i.
    ///
    /// # Panics
    /// When an id is not in the vocabulary.
    #[must_use]
    pub fn logits(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let embedding = |&id: &u32| {
            let row = self.token_embd.row(id as usize).iter();
            row.map(|x| x * self.body.embedding_scale).collect()
        };
        // The residual stream: (n_tokens, n_embd).
        let mut x: Vec<Vec<f64>> = ids.iter().map(embedding).collect();
        let mut around = Around::default();
        if let Some(inputs) = &self.body.layer_inputs {
            let tokens = ids.iter().zip(&x);
            around.layer_inputs = tokens.map(|(&id, x)| inputs.of(id, x)).collect();
        }
        for layer in &self.body.layers {
            layer.run(self.common.eps, &mut around, &mut x);
        }
        let output = self.output.as_ref().unwrap_or(&self.token_embd);
        let logits = |x: &Vec<f64>| {
            let normed = rms_norm(x, &self.output_norm, self.common.eps);
            let logits = output.times(&normed).into_iter();
            let capped = |x| soft_cap(x / self.body.logit_divisor, self.body.logit_cap);
            logits.map(capped).collect()
        };
        x.iter().map(logits).collect()
    }
}

impl Common {
    fn load(keys: &mut Keys<'_>) -> Result<Self, Unreadable> {
        keys.skip(&["context_length", "vocab_size"]);
        let n_block = keys.length("block_count")?;
        let n_behind = keys.optional_length("nextn_predict_layers")?.unwrap_or(0);
        // nemotron_h may have it under the other name only.
        let eps = keys.optional_number("attention.layer_norm_epsilon");
        let rms_eps = keys.optional_number("attention.layer_norm_rms_epsilon");
        Ok(Self {
            n_embd: keys.length("embedding_length")?,
            n_layer: n_block.saturating_sub(n_behind),
            n_block,
            n_head: keys.length("attention.head_count")?,
            eps: rms_eps
                .or(eps)
                .ok_or_else(|| Unreadable::new("no epsilon"))?,
        })
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// ln(1 + exp(x))
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The approximation by a hyperbolic tangent.
fn gelu(x: f64) -> f64 {
    let u = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + u.tanh())
}

/// x / sqrt(mean(x²) + eps)
fn weightless_norm(x: &[f64], eps: f64) -> Vec<f64> {
    let root = (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().map(|x| x / root).collect()
}

/// The SiLU of each channel's convolution over the last tokens; zeros stand before the first.
fn convolved(taps: &Matrix, tokens: &[&[f64]]) -> Vec<Vec<f64>> {
    let of_token = |token: usize| {
        let of_channel = |channel: usize| {
            let n_tap = taps.row(channel).len();
            let before = (0..n_tap).map(|tap| (token + 1 + tap).checked_sub(n_tap));
            let window = before.map(|at| at.map_or(0.0, |at| tokens[at][channel]));
            silu(taps.output(channel, &window.collect::<Vec<_>>()))
        };
        (0..taps.rows).map(of_channel).collect()
    };
    (0..tokens.len()).map(of_token).collect()
}

#[cfg(test)]
mod tests {
    use super::super::file::File;
    use super::Hybrid;

    /// The file with every `from` replaced by `to`, which is as long.
    fn replaced(from: &str, to: &str) -> Result<Hybrid, String> {
        assert_eq!(from.len(), to.len());
        let path = crate::fixture("models/qwen35.gguf");
        let mut bytes = std::fs::read(path).expect("a readable file");
        for at in 0..bytes.len() - from.len() {
            if bytes[at..].starts_with(from.as_bytes()) {
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            }
        }
        let file = File::parse(&bytes).expect("a sound file");
        Hybrid::load(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn what_no_formula_uses_is_refused() {
        assert!(replaced("general.name", "general.name").is_ok());
        let refused = [
            ("general.name", "qwen35.other", "qwen35.other"),
            (
                "qwen35.ssm.state_size",
                "qwen35.ssm.other_size",
                "ssm.state_size",
            ),
            (
                "blk.2.ssm_dt.bias",
                "blk.2.ssm_da.bias",
                "blk.2.ssm_dt.bias",
            ),
        ];
        for (from, to, named) in refused {
            match replaced(from, to) {
                Ok(_) => panic!("{to} is not refused"),
                Err(error) => assert!(error.contains(named), "{error}"),
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_later_tokens() {
        for name in ["qwen35", "nemotron_h", "deepseek2", "gemma4"] {
            let path = crate::fixture(&format!("models/{name}.gguf"));
            let model = Hybrid::open(&path).expect(name);
            let ids = [5, 17, 200, 3, 99, 42, 8, 120];
            let all = model.logits(&ids);
            for len in [0, 1, 5] {
                assert_eq!(model.logits(&ids[..len]), all[..len], "{name}");
            }
        }
    }
}
