//! The tensors of a model, and those of the folder that each is made of.

use super::traits::Model;
use super::{Family, Shape};

/// One tensor to be, and those it is made of.
#[derive(Clone, Debug)]
pub(in crate::convert) struct Wanted {
    /// As GGUF names it.
    pub(in crate::convert) name: String,
    /// Hugging Face's tensors, one after the other; several are experts.
    pub(in crate::convert) parts: Vec<String>,
    /// Of each part as the folder has it.
    pub(in crate::convert) source: Vec<u64>,
    /// Of each part as the GGUF file has it: (rows, columns), one dimension, or (experts, rows,
    /// columns).
    pub(in crate::convert) shape: Vec<u64>,
    pub(in crate::convert) change: Change,
    pub(in crate::convert) is_optional: bool,
}

/// What happens to the numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::convert) enum Change {
    None,
    /// The rows of each of so many heads go from halves to pairs.
    PairRows(u32),
    /// 1 is added to each.
    AddOne,
    /// Rows from this one on, of which every so-manieth is taken.
    Rows {
        start: u64,
        step: u64,
    },
    /// The columns from this one on, of which every so-manieth is taken, become rows.
    Columns {
        start: u64,
        step: u64,
    },
}

/// All tensors of a model. Experts of a layer stand together, in the order in which llama.cpp's
/// converter writes them. `has` says whether the folder has a tensor.
pub(in crate::convert) fn wanted(
    family: &Family,
    shape: &Shape,
    has: &dyn Fn(&str) -> bool,
) -> Vec<Wanted> {
    let model = Model { family, shape, has };
    let traits = family.traits();
    let mut all = (traits.first)(&model);
    for layer in 0..shape.n_layer {
        (traits.layer)(&model, layer, &mut all);
    }
    if traits.norms_add_one {
        let norms = all
            .iter_mut()
            .filter(|tensor| tensor.name.ends_with("norm.weight"));
        norms.for_each(|tensor| tensor.change = Change::AddOne);
    }
    all
}

pub(super) fn one(name: &str, source: &str, shape: &[u64]) -> Wanted {
    Wanted {
        name: name.into(),
        parts: vec![source.into()],
        source: shape.into(),
        shape: shape.into(),
        change: Change::None,
        is_optional: false,
    }
}

/// A matrix and its bias, which has as many numbers as the matrix has rows.
pub(super) fn with_bias(name: &str, source: &str, shape: &[u64]) -> [Wanted; 2] {
    ["weight", "bias"].map(|part| {
        let dims = if part == "bias" { &shape[..1] } else { shape };
        one(&format!("{name}.{part}"), &format!("{source}.{part}"), dims)
    })
}
