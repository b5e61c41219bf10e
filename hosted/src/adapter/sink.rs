//! What takes the pairs of an adapter as they are read.

use super::error::AdapterLoadError;
use super::factors::Factors;

/// What a file says about an adapter as a whole.
#[derive(Clone, Debug, Default)]
pub struct AdapterOrigin {
    /// `general.architecture` of the models that it is for; empty if unknown.
    pub architecture: String,
    /// The model that it was made for: a name or a path.
    pub base_model: Option<String>,
}

/// The position of a pair among those of its adapter, by the model's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairOrder {
    /// The index of the tensor.
    pub tensor: usize,
    /// The index of the matrix in it.
    pub part: usize,
}

/// Takes an adapter pair by pair.
pub trait PairSink {
    /// Called before the first pair.
    ///
    /// # Errors
    /// [`AdapterLoadError`]: such adapters are not accepted.
    fn begin(&mut self, origin: AdapterOrigin) -> Result<(), AdapterLoadError>;

    /// Takes a pair. Pairs may arrive in any order.
    ///
    /// # Errors
    /// [`AdapterLoadError`], which names the tensor.
    fn take(&mut self, order: PairOrder, factors: &Factors) -> Result<(), AdapterLoadError>;
}
