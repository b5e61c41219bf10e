//! How many neurons a step left out, and how many bytes unread.

use core::ops::AddAssign;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Numbers of neurons, and bytes of their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Neurons {
    /// All that could be left out.
    pub n: usize,
    /// Those that were: their up row was not read, or they count as 0.
    pub n_skipped: usize,
    /// Bytes of matrices by neuron, in products that may leave some unread.
    pub bytes: usize,
    /// Those that were left unread.
    pub bytes_skipped: usize,
}

impl AddAssign for Neurons {
    fn add_assign(&mut self, other: Self) {
        self.n += other.n;
        self.n_skipped += other.n_skipped;
        self.bytes += other.bytes;
        self.bytes_skipped += other.bytes_skipped;
    }
}

/// [`Neurons`] that the ranks of a step count together.
#[derive(Debug, Default)]
pub struct NeuronCounts([AtomicUsize; 4]);

/// Where a step counts neurons: all of them, and each layer's where the caller asks for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting<'s> {
    pub(super) all: &'s NeuronCounts,
    pub(super) layers: &'s [NeuronCounts],
}

impl Counting<'_> {
    pub(super) fn add(&self, layer: usize, n: usize, n_skipped: usize) {
        self.add_at(layer, 0, [n, n_skipped]);
    }

    pub(super) fn add_bytes(&self, layer: usize, bytes: usize, bytes_skipped: usize) {
        self.add_at(layer, 2, [bytes, bytes_skipped]);
    }

    fn add_at(&self, layer: usize, first: usize, values: [usize; 2]) {
        let counts = core::iter::once(self.all).chain(self.layers.get(layer));
        counts.for_each(|counts| counts.add_at(first, values));
    }
}

impl NeuronCounts {
    fn add_at(&self, first: usize, values: [usize; 2]) {
        for (count, value) in self.0[first..].iter().zip(values) {
            count.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// The numbers so far.
    pub fn get(&self) -> Neurons {
        let [n, n_skipped, bytes, bytes_skipped] =
            [0, 1, 2, 3].map(|i| self.0[i].load(Ordering::Relaxed));
        Neurons {
            n,
            n_skipped,
            bytes,
            bytes_skipped,
        }
    }
}
