//! Modes of leaving neurons unread, by name.

use crate::model::ModelSource;
use sluice_core::engine::Sparse;
use sluice_core::kernels::neuron::Form;

/// Modes that trade quality for time. None of them is available yet.
const APPROXIMATE: [&str; 5] = ["threshold", "target", "top-k", "predictor", "budget"];

/// Why a name is not a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SparseError {
    /// A mode that a later version may have.
    #[error("{0} is not available yet: use exact or off")]
    NotYet(String),
    /// A mode that takes no value has one.
    #[error("{0} takes no value")]
    Value(String),
    /// Not the name of a mode.
    #[error("expected exact or off, found {0:?}")]
    Unknown(String),
}

/// The mode called `text`: `exact` or `off`.
///
/// # Errors
/// [`SparseError`].
pub fn sparse_mode(text: &str) -> Result<Sparse, SparseError> {
    let (name, has_value) = match text.split_once(':') {
        Some((name, _)) => (name, true),
        None => (text, false),
    };
    let mode = match name {
        "exact" => Sparse::Exact,
        "off" => Sparse::Off,
        _ if APPROXIMATE.contains(&name) => return Err(SparseError::NotYet(name.to_owned())),
        _ => return Err(SparseError::Unknown(name.to_owned())),
    };
    match has_value {
        true => Err(SparseError::Value(name.to_owned())),
        false => Ok(mode),
    }
}

/// The name of a mode.
#[must_use]
pub const fn sparse_name(mode: Sparse) -> &'static str {
    match mode {
        Sparse::Exact => "exact",
        Sparse::Off => "off",
    }
}

impl ModelSource {
    /// Whether its file stores tensors of feed-forward networks by neuron: others have none to leave unread.
    #[must_use]
    pub fn is_by_neuron(&self) -> bool {
        let slc = self.file().slc().ok().flatten();
        slc.is_some_and(|slc| slc.tensors().any(|(_, tensor)| tensor.form != Form::Panels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_those_to_come_are_refused_by_name() {
        for mode in [Sparse::Exact, Sparse::Off] {
            assert_eq!(sparse_mode(sparse_name(mode)), Ok(mode));
        }
        let error = |text| sparse_mode(text).err().map(|error| error.to_string());
        let not_yet = error("threshold:0.1").unwrap_or_default();
        assert!(
            not_yet.contains("threshold is not available yet"),
            "{not_yet}"
        );
        assert_eq!(error("off:1").as_deref(), Some("off takes no value"));
        let unknown = error("fast").unwrap_or_default();
        assert_eq!(unknown, "expected exact or off, found \"fast\"");
    }
}
