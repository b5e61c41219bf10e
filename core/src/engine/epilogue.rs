//! Epilogues: the operations on the product of a linear layer while it is in cache.

use super::keep::Keeping;
use super::rows::{Pairs, Rows};
use super::sites::Unit;
use crate::kernels::activation::ActivationLayout;
use crate::memory::Shared;
use crate::model::{Activation, Norm, QueryTemperature, Weight};
use crate::state::PagesView;

/// Heads of attention that a strip makes, whole.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    /// Rows of a strip: whole heads, whole panels.
    pub(super) strip_rows: usize,
    /// Rows of a head.
    pub(super) head_dim: usize,
    /// Normalises each head.
    pub(super) norm: Option<Norm<'a>>,
    /// The rotation of queries and keys.
    pub(super) rope: Option<usize>,
    /// Whether the norm is applied after the rotation.
    pub(super) norms_rotated: bool,
    /// Growth of queries with their position.
    pub(super) temperature: Option<QueryTemperature>,
    /// Dimensions of queries that are rotated together, like the keys that they meet; 0 for none.
    pub(super) rotation: usize,
    pub(super) target: HeadTarget<'a>,
}

/// Where heads are written.
#[derive(Clone, Copy)]
pub(super) enum HeadTarget<'a> {
    /// Queries, written by row.
    Queries(Rows<'a>),
    /// Queries, each followed by its gate, written by row: the queries, then the gates.
    GatedQueries(Rows<'a>, Rows<'a>),
    /// Keys, into the pages of a layer of its group.
    Keys(PagesView<'a>, usize),
    /// Values, into the pages of a layer of its group.
    Values(PagesView<'a>, usize),
}

/// The neurons that are computed for each row.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    /// (rows, words)
    pub(super) bits: &'a [u64],
    pub(super) words: usize,
    pub(super) unit: Unit,
}

impl Selection<'_> {
    pub(super) fn is_on(&self, row: usize, neuron: usize) -> bool {
        let unit = neuron / self.unit.n_neurons();
        self.bits[row * self.words + unit / 64] >> (unit % 64) & 1 == 1
    }
}

/// Where the bits of scores are written.
#[derive(Clone, Copy)]
pub(super) struct Scores<'a> {
    /// (rows, words)
    pub(super) bits: Shared<'a, u64>,
    pub(super) words: usize,
    pub(super) threshold: f32,
}

impl Scores<'_> {
    /// Writes the bits of a row's scores of whole words of neurons, or up to the last; `first` is the first of them.
    pub(super) fn write(&self, row: usize, first: usize, scores: &[f32]) {
        let (start, n) = (row * self.words + first / 64, scores.len().div_ceil(64));
        // SAFETY: strips of whole words are run by one worker each.
        let bits = unsafe { self.bits.write(start..start + n) };
        for (word, scores) in bits.iter_mut().zip(scores.chunks(64)) {
            *word = 0;
            for (i, score) in scores.iter().enumerate() {
                *word |= u64::from(*score > self.threshold || score.is_nan()) << i;
            }
        }
    }
}

/// What is done with the products of gate and up.
#[derive(Clone, Copy)]
pub(super) struct Gated<'a> {
    pub(super) activation: Activation,
    /// The matrix whose product the activated gate multiplies; `None` where there is only an activation.
    pub(super) up: Option<Weight<'a>>,
    /// Rows of entries that it multiplies instead, from their first column here on.
    pub(super) by: Option<Rows<'a>>,
    /// Quantised rows of neurons.
    pub(super) rows: Shared<'a, u8>,
    pub(super) layout: ActivationLayout,
    /// The neurons that are computed; `None` for all.
    pub(super) selection: Option<Selection<'a>>,
    /// The neurons that are kept; `None` for all.
    pub(super) keeping: Option<Keeping<'a>>,
    /// Gates that were computed before; the matrix is up.
    pub(super) gates: Option<Rows<'a>>,
}

/// How products become logits.
#[derive(Clone, Copy)]
pub(super) struct LogitScale {
    pub(super) scale: f32,
    pub(super) soft_cap: f32,
}

/// What is done with the product.
#[derive(Clone, Copy)]
#[expect(
    clippy::large_enum_variant,
    reason = "a layer makes a few, of which most are gates"
)]
pub(super) enum Epilogue<'a> {
    /// Written as it is.
    Store(Rows<'a>),
    /// Its sigmoid, written.
    Sigmoid(Rows<'a>),
    /// Scores of neurons: bits of those above a threshold, or not a number.
    Select(Scores<'a>),
    /// Written to the row of the entry.
    StoreEntry(Rows<'a>),
    /// Scaled, capped unless the cap is 0, and written.
    Logits(Rows<'a>, LogitScale),
    /// Added to the residual stream, times a factor.
    Add(Rows<'a>, f32),
    /// As [`Self::Add`], with another factor for each row.
    AddRows(Rows<'a>, f32, &'a [f32]),
    /// Normalised, rotated, and written or stored.
    Heads(Heads<'a>),
    /// Added to the residual stream of each row's token, times the weight of the pair.
    AddWeighted(Rows<'a>, Pairs<'a>),
    /// `activation(product) · (input × up)`, quantised into rows.
    Gated(Gated<'a>),
}
