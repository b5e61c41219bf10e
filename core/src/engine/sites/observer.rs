//! Observers: they look at the inputs of linear layers and change nothing.

use crate::model::Site;

/// A row that a linear layer reads.
#[derive(Clone, Copy, Debug)]
pub struct SiteInput<'a> {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The matrix. Where several matrices read the same row (queries, keys and values; gate and up), each of
    /// them is reported.
    pub site: Site,
    /// The expert, where the matrix is one of experts.
    pub expert: Option<u32>,
    /// The entry of the batch.
    pub entry: usize,
    /// The row, (columns of the matrix).
    pub input: &'a [f32],
}

/// Looks at every row that linear layers read: for importance matrices, calibration, training.
pub trait Observer: Sync {
    /// Called once for each row, from any worker, in any order.
    fn sees(&self, seen: SiteInput<'_>);

    /// Called with the signals of some neurons of a row ([`NeuronSignal`](super::NeuronSignal)), from any worker, in any
    /// order, in steps that leave out neurons by a rule ([`Sparse::Approximate`](super::Sparse)).
    fn sees_signals(&self, _layer: usize, _signals: &[f32]) {}

    /// Whether it wants all entries in the last layer, too; asked once a step. Otherwise, entries without outputs are
    /// skipped there, except for keys and values: nothing depends on them.
    fn sees_all(&self) -> bool {
        false
    }
}
