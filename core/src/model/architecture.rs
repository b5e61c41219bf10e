//! The family of a model.

/// A supported model architecture: its index in the list of families (`arch/mod.rs`), from which everything
/// else about it follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Architecture(pub(super) usize);
