//! Selectors: which neurons of feed-forward networks are computed.

/// The neurons that a bit of a selection selects; part of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A neuron.
    Neuron,
    /// A panel of 16 neurons.
    Panel,
}

impl Unit {
    /// Neurons in it.
    pub const fn n_neurons(self) -> usize {
        match self {
            Self::Neuron => 1,
            Self::Panel => 16,
        }
    }
}

/// Which neurons of feed-forward networks are computed for which row; the others count as zero, whatever
/// their weights, biases and adapters. Experts are computed whole.
pub trait Selector: Sync {
    /// The unit of a bit; asked once a step.
    fn unit(&self) -> Unit {
        Unit::Panel
    }

    /// Sets the bits of units that entry `entry` of the batch needs in `layer`, lowest first; all are off
    /// before. `false` computes all. `input` is what the network reads, (n_embd), where the engine keeps it
    /// in f32 ([`super::super::EngineLimits::observes`]).
    fn select(&self, layer: usize, entry: usize, input: Option<&[f32]>, units: &mut [u64]) -> bool;
}
