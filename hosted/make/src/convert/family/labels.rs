//! What the numbers of a head that scores mean.

use super::super::ConvertError;
use super::super::config::Config;
use super::Shape;
use super::traits::Parts;
use serde_json::Value;
use sluice::file::{GgufHeader, MetaValue};

/// The labels by their numbers; transformers' two where none are said.
pub(super) fn read(config: &Config) -> Vec<String> {
    let Some(Value::Object(map)) = config.find(&["id2label"]) else {
        return ["LABEL_0", "LABEL_1"].map(str::to_owned).into();
    };
    let mut labels: Vec<(u64, String)> = Vec::new();
    for (id, label) in map {
        let label = label.as_str().unwrap_or_default();
        labels.push((id.parse().unwrap_or(u64::MAX), label.into()));
    }
    labels.sort();
    labels.into_iter().map(|(_, label)| label).collect()
}

/// How many there are.
pub(super) fn n_labels(shape: &Shape) -> u64 {
    shape.n_labels.into()
}

/// Writes them, unless they are what transformers says of models without labels.
pub(super) fn write(header: &mut GgufHeader, parts: &Parts<'_>) -> Result<(), ConvertError> {
    let labels = read(parts.config);
    let says_nothing = labels.len() == 2 && labels[0] == "LABEL_0";
    if !says_nothing && !labels.is_empty() {
        let key = format!("{}.classifier.output_labels", parts.family.architecture);
        header.set(&key, MetaValue::strings(&labels));
    }
    Ok(())
}
