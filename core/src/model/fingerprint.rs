//! A model's fingerprint: its header, and a sample of every tensor except the experts', which may not be in memory.

use crate::gguf::Gguf;
use crate::hash::Hash64;

/// The inputs of a model's fingerprint, in the order of placing.
#[derive(Debug)]
pub(super) struct Fingerprint(Hash64);

impl Fingerprint {
    pub(super) fn new(gguf: &Gguf<'_>) -> Self {
        let mut hash = Hash64::new();
        hash.write(gguf.header_bytes());
        Self(hash)
    }

    /// Adds a sample of a tensor: its first and last bytes.
    pub(super) fn add(&mut self, tensor: &[u8]) {
        let sample = tensor.len().min(256);
        self.0.write(&tensor[..sample]);
        self.0.write(&tensor[tensor.len() - sample..]);
    }

    pub(super) const fn finish(&self) -> u64 {
        self.0.finish()
    }
}
