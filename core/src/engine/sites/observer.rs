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

/// Some outputs of a linear layer for a row, with adapters and bias, before norms, rotations and activations.
#[derive(Clone, Copy, Debug)]
pub struct SiteProduct<'a> {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The matrix.
    pub site: Site,
    /// The expert, where the matrix is one of experts.
    pub expert: Option<u32>,
    /// The entry of the batch.
    pub entry: usize,
    /// The first of the outputs.
    pub first: usize,
    /// The outputs from the first on.
    pub values: &'a [f32],
}

/// Some neurons of a row of a network, and which of them are computed.
#[derive(Clone, Copy, Debug)]
pub struct NeuronChoice<'a> {
    /// The layer.
    pub layer: usize,
    /// The first of them, among all neurons of the layer (of experts, one after the other).
    pub first: usize,
    /// What they are if all are computed.
    pub values: &'a [f32],
    /// Those that a predictor or a selector chose.
    pub is_chosen: &'a [bool],
}

/// Looks at every row that linear layers read: for importance matrices, calibration, training.
pub trait Observer: Sync {
    /// Called once for each row, from any worker, in any order.
    fn sees(&self, seen: SiteInput<'_>);

    /// Called with the outputs of each matrix for each row, in pieces, from any worker, in any order, if
    /// [`Self::sees_products`].
    fn sees_product(&self, _product: SiteProduct<'_>) {}

    /// Whether it is shown what linear layers compute; asked once a step.
    fn sees_products(&self) -> bool {
        false
    }

    /// Called with the signals of some neurons of a row ([`NeuronSignal`](super::NeuronSignal)), from any worker, in any
    /// order, in steps that leave out neurons by a rule ([`Sparse::Approximate`](super::Sparse)).
    fn sees_signals(&self, _layer: usize, _signals: &[f32]) {}

    /// Called with what a predictor or a selector chose of some neurons of a row, from any worker, in any order, if
    /// [`Self::sees_choices`].
    fn sees_choice(&self, _choice: NeuronChoice<'_>) {}

    /// Whether it is shown the choices of predictors and selectors; asked once a step. Neurons that are not chosen are
    /// then computed as well, and set to 0 afterwards.
    fn sees_choices(&self) -> bool {
        false
    }

    /// Whether it wants all entries in the last layer, too; asked once a step. Otherwise, entries without outputs are
    /// skipped there, except for keys and values: nothing depends on them.
    fn sees_all(&self) -> bool {
        false
    }
}
