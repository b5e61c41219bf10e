//! How many neurons a step left unread.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Numbers of neurons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neurons {
    /// All that could be left unread.
    pub n: usize,
    /// Those whose up row was not read.
    pub n_skipped: usize,
}

/// [`Neurons`] that the ranks of a step count together.
#[derive(Debug, Default)]
pub(super) struct NeuronCounts {
    n: AtomicUsize,
    n_skipped: AtomicUsize,
}

impl NeuronCounts {
    pub(super) fn add(&self, n: usize, n_skipped: usize) {
        self.n.fetch_add(n, Ordering::Relaxed);
        self.n_skipped.fetch_add(n_skipped, Ordering::Relaxed);
    }

    /// The numbers so far.
    pub(super) fn get(&self) -> Neurons {
        Neurons {
            n: self.n.load(Ordering::Relaxed),
            n_skipped: self.n_skipped.load(Ordering::Relaxed),
        }
    }
}
