//! Adapters as data: pairs of small matrices that add to the outputs of linear layers (LoRA).

use crate::kernels::activation::ActivationKinds;
use crate::kernels::lora::LoraMatrix;
use crate::kernels::panel::PANEL_ROWS;
use crate::model::{LAYERS_MAX, ModelConfig, Site};
use core::fmt;

/// The matrices of an adapter for one matrix of the model: `y += scale · B · (A · x)` (Hu et al. 2021). Added before
/// bias and activation.
#[derive(Clone, Copy, Debug)]
pub struct AdapterPair<'a> {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The matrix in it.
    pub site: Site,
    /// The expert or the head, where the matrix is one of several.
    pub part: Option<u32>,
    /// (rank, columns of the model's matrix)
    pub a: LoraMatrix<'a>,
    /// (rows of the model's matrix, rank)
    pub b: LoraMatrix<'a>,
    /// α / r.
    pub scale: f32,
}

impl AdapterPair<'_> {
    /// The sort key of pairs.
    const fn key(&self) -> (usize, Site, Option<u32>) {
        (self.layer, self.site, self.part)
    }

    /// Rows and columns of the model's matrix; `None` if the model does not have it.
    fn shape(&self, config: &ModelConfig) -> Option<[usize; 2]> {
        if self.site == Site::Output {
            let is_there = self.layer == 0 && self.part.is_none();
            return is_there.then_some([config.n_vocab, config.n_embd]);
        }
        let kind = (self.layer < config.n_layer()).then(|| config.kind(self.layer))?;
        let is_there = match (self.site.n_parts(kind), self.part) {
            (None, None) => true,
            (Some(n), Some(part)) => (part as usize) < n,
            _ => false,
        };
        self.site.shape(kind, config.n_embd).filter(|_| is_there)
    }

    fn fits(&self, [n_rows, n_cols]: [usize; 2]) -> bool {
        let is_rank = self.a.n_rows() == self.b.n_cols();
        is_rank && self.a.n_cols() == n_cols && self.b.n_rows() == n_rows && self.scale.is_finite()
    }
}

/// The addition of an adapter to the embeddings of tokens: `scale · B · A[token]`, before the model scales them.
#[derive(Clone, Copy, Debug)]
pub struct AdapterEmbedding<'a> {
    /// (rank, n_vocab)
    pub a: LoraMatrix<'a>,
    /// (n_embd, rank)
    pub b: LoraMatrix<'a>,
    /// α / r.
    pub scale: f32,
}

/// An adapter, in the caller's memory.
#[derive(Clone, Debug)]
pub struct Adapter<'a> {
    pairs: &'a [AdapterPair<'a>],
    embedding: Option<AdapterEmbedding<'a>>,
    /// Index of the first pair of each layer, then the number of pairs.
    starts: [u32; LAYERS_MAX + 1],
    /// The largest rank.
    rank: usize,
    kinds: ActivationKinds,
}

/// Why pairs do not form an adapter of a model; `index` is the index of the first bad pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterError {
    /// It follows a pair of the same matrix or of a later one.
    NotSorted {
        /// The pair.
        index: usize,
    },
    /// The model has no such matrix.
    NoMatrix {
        /// The pair.
        index: usize,
    },
    /// Its matrices do not have the shapes that [`AdapterPair`] requires, or its scale is not finite.
    Shape {
        /// The pair.
        index: usize,
    },
    /// As [`Self::Shape`], for the embedding's matrices.
    EmbeddingShape,
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSorted { index } => write!(
                f,
                "pair {index} of the adapter does not follow the one before it by layer, site and part"
            ),
            Self::NoMatrix { index } => write!(
                f,
                "pair {index} of the adapter is for a matrix that the model does not have"
            ),
            Self::Shape { index } => {
                write!(
                    f,
                    "pair {index} of the adapter has another shape than its matrix"
                )
            }
            Self::EmbeddingShape => {
                f.write_str("the adapter's embedding has another shape than the model's")
            }
        }
    }
}

impl core::error::Error for AdapterError {}

impl<'a> Adapter<'a> {
    /// An adapter of these pairs, sorted by layer, site and part, for a model of that shape. A step with an
    /// adapter of another model may panic.
    ///
    /// # Errors
    /// The first pair that does not fit the model or is out of order.
    pub fn new(
        config: &ModelConfig,
        pairs: &'a [AdapterPair<'a>],
        embedding: Option<AdapterEmbedding<'a>>,
    ) -> Result<Self, AdapterError> {
        let mut starts = [0; LAYERS_MAX + 1];
        for (index, pair) in pairs.iter().enumerate() {
            if index > 0 && pairs[index - 1].key() >= pair.key() {
                return Err(AdapterError::NotSorted { index });
            }
            let shape = pair.shape(config).ok_or(AdapterError::NoMatrix { index })?;
            if !pair.fits(shape) {
                return Err(AdapterError::Shape { index });
            }
            starts[pair.layer + 1] += 1;
        }
        if let Some(AdapterEmbedding { a, b, scale }) = embedding {
            let is_whole = a.n_cols() == config.n_vocab && b.n_rows() == config.n_embd;
            if !is_whole || a.n_rows() != b.n_cols() || !scale.is_finite() {
                return Err(AdapterError::EmbeddingShape);
            }
        }
        for layer in 0..LAYERS_MAX {
            starts[layer + 1] += starts[layer];
        }
        let ranks = pairs.iter().map(|pair| pair.a.n_rows());
        let rank = ranks.chain(embedding.map(|pair| pair.a.n_rows())).max();
        Ok(Self {
            pairs,
            embedding,
            starts,
            rank: rank.unwrap_or(0),
            kinds: pairs.iter().map(|pair| pair.a.ty().activations()).collect(),
        })
    }

    /// Its pairs.
    pub const fn pairs(&self) -> &'a [AdapterPair<'a>] {
        self.pairs
    }

    /// Its addition to embeddings.
    pub const fn embedding(&self) -> Option<AdapterEmbedding<'a>> {
        self.embedding
    }

    /// The largest rank of its pairs.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The kinds of rows that its matrices A multiply.
    pub const fn kinds(&self) -> ActivationKinds {
        self.kinds
    }

    /// Index of its pair for a matrix, if there is one.
    pub(in crate::engine) fn find(
        &self,
        layer: usize,
        site: Site,
        part: Option<u32>,
    ) -> Option<usize> {
        let [start, end] = [self.starts[layer], self.starts[layer + 1]].map(|at| at as usize);
        let at = self.pairs[start..end]
            .binary_search_by(|pair| (pair.site, pair.part).cmp(&(site, part)));
        Some(start + at.ok()?)
    }
}

/// An adapter of a [`Blend`].
#[derive(Clone, Copy, Debug)]
pub struct BlendPart<'a> {
    /// The adapter.
    pub adapter: &'a Adapter<'a>,
    /// Factor on its products, in addition to α / r.
    pub scale: f32,
}

/// The adapters that an entry is computed with, whose products are added one after the other. Entries name it by its
/// index in [`crate::engine::StepOptions::adapters`].
#[derive(Clone, Copy, Debug)]
pub struct Blend<'a> {
    /// In the order in which they are added: another order may change bits.
    pub parts: &'a [BlendPart<'a>],
}

impl Blend<'_> {
    /// The rank that [`crate::engine::EngineLimits::adapter_rank`] must have room for: the sum of all, each rounded up to 16.
    pub fn rank(&self) -> usize {
        let ranks = self.parts.iter().map(|part| part.adapter.rank());
        ranks.map(|rank| rank.next_multiple_of(PANEL_ROWS)).sum()
    }

    /// The kinds of rows that [`crate::engine::EngineLimits::adapter_kinds`] must have.
    pub fn kinds(&self) -> ActivationKinds {
        self.parts.iter().map(|part| part.adapter.kinds()).collect()
    }
}
