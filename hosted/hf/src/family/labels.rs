//! The labels of a scoring head.

use super::parts::Parts;
use super::shape::{Shape, labels};
use crate::HfError;
use sluice::file::{GgufHeader, MetaValue};

/// The number of labels.
pub(super) fn n_labels(shape: &Shape) -> u64 {
    shape.n_labels.into()
}

/// Writes the labels, unless they are transformers' defaults for models without labels.
pub(super) fn write(header: &mut GgufHeader, parts: &Parts<'_>) -> Result<(), HfError> {
    let labels = labels(parts.config);
    let says_nothing = labels.len() == 2 && labels[0] == "LABEL_0";
    if !says_nothing && !labels.is_empty() {
        let key = format!("{}.classifier.output_labels", parts.family.architecture);
        header.set(&key, MetaValue::strings(&labels));
    }
    Ok(())
}
