//! Which family a model is of.

/// A model architecture that this build runs: its number in the list of families (`arch/mod.rs`), from which all
/// else about it follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Architecture(pub(super) usize);
