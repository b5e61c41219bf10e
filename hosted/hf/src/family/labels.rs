//! The labels of a scoring head.

use super::description::Description;
use super::shape::{Shape, labels};
use sluice::file::MetaValue;

/// The number of labels.
pub(super) fn n_labels(shape: &Shape) -> u64 {
    shape.n_labels.into()
}

/// Writes the labels, unless they are transformers' defaults for models without labels.
pub(super) fn write(out: &mut Description<'_>) {
    let labels = labels(out.config);
    let says_nothing = labels.len() == 2 && labels[0] == "LABEL_0";
    if !says_nothing && !labels.is_empty() {
        out.set("classifier.output_labels", MetaValue::strings(&labels));
    }
}
