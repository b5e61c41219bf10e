//! Encoders in f64, written for reading; and decoders that rank, which differ by a mask.
//!
//! Sources: the architectures as published (Devlin et al. 2018, Warner et al. 2024 and others) and as llama.cpp
//! computes them. In `bert` and similar models a layer norm follows each residual sum; in the others norms precede
//! attention and network. GELU is the one that the file names, without a name
//! the one of the published code. Tensor names and keys are GGUF's.

mod activation;
mod attention;
mod config;
mod head;
mod network;
mod norm;

use std::path::Path;

use super::Unreadable;
use super::file::File;
use super::source::{Matrix, Source, add};
use attention::Attention;
use config::Config;
use head::Head;
use network::Network;
use norm::Norm;

/// An encoder with all weights in f64.
#[derive(Debug)]
pub struct Encoder {
    config: Config,
    token_embd: Matrix,
    position_embd: Option<Matrix>,
    token_types: Option<Matrix>,
    embedding_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Head,
}

/// A missing norm changes nothing.
#[derive(Debug)]
struct Layer {
    attn_norm: Option<Norm>,
    attention: Attention,
    post_attention_norm: Option<Norm>,
    attn_output_norm: Option<Norm>,
    attn_norm_2: Option<Norm>,
    ffn_norm: Option<Norm>,
    network: Network,
    post_ffw_norm: Option<Norm>,
    layer_output_norm: Option<Norm>,
}

impl Layer {
    fn load(source: &mut Source<'_>, config: &Config, index: usize) -> Result<Self, Unreadable> {
        let norm = |source: &mut Source<'_>, part: &str, is_needed: bool| {
            let stem = format!("blk.{index}.{part}");
            match is_needed {
                true => Norm::load(source, config, &stem).map(Some),
                false => Norm::optional(source, config, &stem),
            }
        };
        let (post, is_gemma) = (config.has_post_norms, config.arch == "gemma-embedding");
        let has_attn_norm = !post && (config.arch != "modern-bert" || index > 0);
        Ok(Self {
            attn_norm: norm(source, "attn_norm", has_attn_norm)?,
            attention: Attention::load(source, config, index)?,
            post_attention_norm: norm(source, "post_attention_norm", is_gemma)?,
            attn_output_norm: norm(source, "attn_output_norm", post)?,
            attn_norm_2: norm(source, "attn_norm_2", false)?,
            ffn_norm: norm(source, "ffn_norm", !post)?,
            network: Network::load(source, config, index)?,
            post_ffw_norm: norm(source, "post_ffw_norm", is_gemma)?,
            layer_output_norm: norm(source, "layer_output_norm", post)?,
        })
    }

    /// The tokens of a text after the layer.
    fn of(&self, config: &Config, index: usize, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let normed = x.iter().map(|x| Norm::of(self.attn_norm.as_ref(), x));
        let normed: Vec<_> = normed.collect();
        let attended = self.attention.of(config, index, &normed);
        let finish = |(x, attended): (&Vec<f64>, Vec<f64>)| {
            let mut sum = Norm::of(self.post_attention_norm.as_ref(), &attended);
            add(&mut sum, x);
            let mut sum = Norm::of(self.attn_output_norm.as_ref(), &sum);
            if let Some(second) = &self.attn_norm_2 {
                add(&mut sum, x);
                second.apply(&mut sum);
            }
            let inner = Norm::of(self.ffn_norm.as_ref(), &sum);
            let inner = self.network.of(config, &inner);
            add(&mut sum, &Norm::of(self.post_ffw_norm.as_ref(), &inner));
            Norm::of(self.layer_output_norm.as_ref(), &sum)
        };
        x.iter().zip(attended).map(finish).collect()
    }
}

impl Encoder {
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
        let n_embd = config.n_embd;
        let table = |source: &mut Source<'_>, name: &str, is_needed: bool| {
            let there = is_needed || source.has(name);
            let table = there.then(|| source.matrix_of_columns(name, n_embd));
            table.transpose()
        };
        let has_embedding_norm = config.has_post_norms || config.arch == "modern-bert";
        let norm = |source: &mut Source<'_>, stem: &str, is_needed: bool| {
            let norm = is_needed.then(|| Norm::load(source, &config, stem));
            norm.transpose()
        };
        let encoder = Self {
            token_embd: source.matrix_of_columns("token_embd.weight", n_embd)?,
            position_embd: table(&mut source, "position_embd.weight", config.arch == "bert")?,
            token_types: table(&mut source, "token_types.weight", false)?,
            embedding_norm: norm(&mut source, "token_embd_norm", has_embedding_norm)?,
            layers: (0..config.n_layer)
                .map(|i| Layer::load(&mut source, &config, i))
                .collect::<Result<_, Unreadable>>()?,
            output_norm: norm(&mut source, "output_norm", !config.has_post_norms)?,
            head: Head::load(&mut source, &config, file)?,
            config,
        };
        source.finish()?;
        Ok(encoder)
    }

    /// The final hidden state of every token of a text.
    ///
    /// # Panics
    /// When an id or a position has no embedding.
    #[must_use]
    pub fn hidden(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let embedding = |(position, &id): (usize, &u32)| {
            let scale = self.config.embedding_scale;
            let row = self.token_embd.row(id as usize);
            let mut x: Vec<f64> = row.iter().map(|x| x * scale).collect();
            if let Some(types) = &self.token_types {
                add(&mut x, types.row(0));
            }
            if let Some(positions) = &self.position_embd {
                add(&mut x, positions.row(position));
            }
            Norm::of(self.embedding_norm.as_ref(), &x)
        };
        let mut x: Vec<Vec<f64>> = ids.iter().enumerate().map(embedding).collect();
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.of(&self.config, index, &x);
        }
        let output = |x: &Vec<f64>| Norm::of(self.output_norm.as_ref(), x);
        x.iter().map(output).collect()
    }

    /// The mean of a text's hidden states, through the dense layers that the file may have.
    #[must_use]
    pub fn embedding(&self, ids: &[u32]) -> Vec<f64> {
        self.head.embedding(&self.hidden(ids))
    }

    /// Every hidden state of a text through the dense layers that the file may have.
    #[must_use]
    pub fn tokens(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let hidden = self.hidden(ids);
        let of_one = |row| self.head.embedding(core::slice::from_ref(row));
        hidden.iter().map(of_one).collect()
    }

    /// The score that the head for ranking gives a text.
    ///
    /// # Panics
    /// When the file has no such head.
    #[must_use]
    pub fn score(&self, ids: &[u32]) -> f64 {
        self.head.score(&self.config, &self.hidden(ids))
    }
}
