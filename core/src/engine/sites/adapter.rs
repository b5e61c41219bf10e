//! Adapters as data: pairs of small matrices that add to the outputs of linear layers (LoRA).

use crate::kernels::GgmlType;
use crate::model::{ModelConfig, Site, Weight};
use core::fmt;

/// The matrices of an adapter for one matrix of the model: `y += B · (A · x)` (Hu et al. 2021).
///
/// Both are F32 in panels ([`crate::kernels::panel::PanelLayout`]); the factor α / r is part of B. Added before
/// bias and activation.
#[derive(Clone, Copy, Debug)]
pub struct AdapterPair<'a> {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The matrix in it.
    pub site: Site,
    /// The expert, where the matrix is one of experts.
    pub expert: Option<u32>,
    /// (rank, columns of the model's matrix), without a bias.
    pub a: Weight<'a>,
    /// (rows of the model's matrix, rank), without a bias.
    pub b: Weight<'a>,
}

impl AdapterPair<'_> {
    /// What pairs are sorted by.
    const fn key(&self) -> (usize, Site, Option<u32>) {
        (self.layer, self.site, self.expert)
    }

    /// Rows and columns of the model's matrix; `None` if there is none that can be adapted.
    fn shape(&self, config: &ModelConfig) -> Option<[usize; 2]> {
        if self.site == Site::Output {
            let is_there = self.layer == 0 && self.expert.is_none();
            return is_there.then_some([config.n_vocab, config.n_embd]);
        }
        let kind = (self.layer < config.n_layer()).then(|| config.kind(self.layer))?;
        let n_expert = match self.site {
            Site::FfnGateInp => return None,
            Site::FfnGate | Site::FfnUp | Site::FfnDown => {
                kind.experts().map(|shape| shape.n_expert)
            }
            _ => None,
        };
        let is_there = match (n_expert, self.expert) {
            (None, None) => true,
            (Some(n_expert), Some(expert)) => (expert as usize) < n_expert,
            _ => false,
        };
        self.site.shape(kind, config.n_embd).filter(|_| is_there)
    }

    /// Whether both matrices are whole tensors of F32 that go with a matrix of that shape.
    fn fits(&self, [n_rows, n_cols]: [usize; 2]) -> bool {
        let is_whole = |weight: &Weight<'_>, n_rows, n_cols| {
            let layout = &weight.layout;
            layout.ty().ggml() == GgmlType::F32
                && (layout.n_rows(), layout.n_cols()) == (n_rows, n_cols)
                && (weight.n_rows, weight.first_row) == (n_rows, 0)
                && weight.bias.is_none()
                && weight.panels.len() == layout.bytes()
        };
        let rank = self.a.n_rows;
        is_whole(&self.a, rank, n_cols) && is_whole(&self.b, n_rows, rank)
    }
}

/// An adapter, in the caller's memory. Entries name it by its index in [`super::StepOptions::adapters`].
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    pairs: &'a [AdapterPair<'a>],
}

/// Why pairs are no adapter of a model; `index` is that of the first bad one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdapterError {
    /// It stands behind one of a later matrix, or of the same.
    NotSorted {
        /// The pair.
        index: usize,
    },
    /// The model has no such matrix, or it is a router's.
    NoMatrix {
        /// The pair.
        index: usize,
    },
    /// Its matrices are not F32 of the shapes that [`AdapterPair`] says, have rows of a larger tensor, or a bias.
    Shape {
        /// The pair.
        index: usize,
    },
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSorted { index } => write!(
                f,
                "pair {index} of the adapter does not follow the one before it by layer, site and expert"
            ),
            Self::NoMatrix { index } => write!(
                f,
                "pair {index} of the adapter is for a matrix that the model does not have or that is a router's"
            ),
            Self::Shape { index } => {
                write!(
                    f,
                    "pair {index} of the adapter has another shape than its matrix"
                )
            }
        }
    }
}

impl core::error::Error for AdapterError {}

impl<'a> Adapter<'a> {
    /// An adapter of these pairs, sorted by layer, site and expert, for a model of that shape. A step with an
    /// adapter of another model may panic.
    ///
    /// # Errors
    /// The first pair that is not one of the model's, or stands in another place.
    pub fn new(config: &ModelConfig, pairs: &'a [AdapterPair<'a>]) -> Result<Self, AdapterError> {
        for (index, pair) in pairs.iter().enumerate() {
            if index > 0 && pairs[index - 1].key() >= pair.key() {
                return Err(AdapterError::NotSorted { index });
            }
            let shape = pair.shape(config).ok_or(AdapterError::NoMatrix { index })?;
            if !pair.fits(shape) {
                return Err(AdapterError::Shape { index });
            }
        }
        Ok(Self { pairs })
    }

    /// Its pairs.
    pub const fn pairs(&self) -> &'a [AdapterPair<'a>] {
        self.pairs
    }

    /// The pair for a matrix, if there is one.
    pub(in crate::engine) fn find(
        &self,
        layer: usize,
        site: Site,
        expert: Option<u32>,
    ) -> Option<&'a AdapterPair<'a>> {
        let key = (layer, site, expert);
        let at = self.pairs.binary_search_by(|pair| pair.key().cmp(&key));
        Some(&self.pairs[at.ok()?])
    }

    /// The largest rank.
    pub(in crate::engine) fn rank_max(&self) -> usize {
        let ranks = self.pairs.iter().map(|pair| pair.a.n_rows);
        ranks.max().unwrap_or(0)
    }
}
