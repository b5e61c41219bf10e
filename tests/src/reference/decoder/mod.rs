//! Decoders in f64, written for reading; `families.rs` lists them.
//!
//! Sources: the architectures as published (RMSNorm, rotary embedding, grouped-query attention, SwiGLU, and the
//! additions of each), and the conventions of GGUF files: matrices are (columns, rows) with one output per row, and
//! where neighbours (2i, 2i + 1) rotate, the query and key rows are permuted accordingly. Longrope takes
//! its long factors when the context is longer than the original one.

mod attention;
mod config;
mod families;
mod keys;
mod layer;
mod norm;
mod rope;
mod short_conv;

use std::path::Path;

use super::Unreadable;
use super::file::File;
use super::source::{Matrix, Source, add, soft_cap};
use config::Config;
use layer::Layer;
use norm::Norm;

/// A model with all weights in f64.
#[derive(Debug)]
pub struct Model {
    config: Config,
    token_embd: Matrix,
    layers: Vec<Layer>,
    output_norm: Norm,
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
        let mut source = Source::new(file);
        let (n_embd, n_rot) = (config.n_embd, config.rope.n_rot);
        let token_embd = source.matrix_of_columns("token_embd.weight", n_embd)?;
        let n_vocab = token_embd.rows;
        let layers = (0..config.n_layer)
            .map(|index| Layer::load(&mut source, &config, index))
            .collect::<Result<_, _>>()?;
        for index in config.n_layer..config.n_layer + config.n_nextn {
            source.pass_over(&format!("blk.{index}."));
        }
        let name = config.family.output_norm;
        let output_norm = Norm::load(&mut source, &config, name, n_embd)?;
        let output = match source.has("output.weight") {
            true => Some(source.matrix("output.weight", n_vocab, n_embd)?),
            false => None,
        };
        let output_bias = source.optional_vector("output.bias", n_vocab)?;
        let mut rope_factors = vec![1.0; n_rot / 2];
        if let Some(factors) = source.optional_vector("rope_freqs.weight", n_rot / 2)? {
            rope_factors = factors;
        }
        let short = source.optional_vector("rope_factors_short.weight", n_rot / 2)?;
        let long = source.optional_vector("rope_factors_long.weight", n_rot / 2)?;
        if let (Some(short), Some(long)) = (short, long) {
            let is_long = N_CTX > config.rope.n_ctx_orig;
            rope_factors = if is_long { long } else { short };
        }
        source.finish()?;
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
        let factors = self.config.factors;
        let embedding = |&id: &u32| {
            let row = self.token_embd.row(id as usize).iter();
            row.map(|x| x * factors.embedding).collect()
        };
        // The residual stream: (n_tokens, n_embd).
        let mut x: Vec<Vec<f64>> = ids.iter().map(embedding).collect();
        for (index, layer) in self.layers.iter().enumerate() {
            layer.apply(&self.config, index, &self.rope_factors, &mut x);
        }
        let output = self.output.as_ref().unwrap_or(&self.token_embd);
        let logits = |x: &Vec<f64>| {
            let mut logits = output.times(&self.output_norm.of(x));
            if let Some(bias) = &self.output_bias {
                add(&mut logits, bias);
            }
            let capped = |x| soft_cap(x * factors.logits, factors.logit_cap);
            logits.into_iter().map(capped).collect()
        };
        x.iter().map(logits).collect()
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.token_embd.rows
    }
}
