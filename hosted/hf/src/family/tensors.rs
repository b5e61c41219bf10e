//! All tensors of a model.

use super::parts::Model;
use super::wanted::{Map, Wanted};
use super::{Family, Shape};

/// All tensors of a model. The experts of a layer are together, in the order in which llama.cpp's
/// converter writes them. `has` returns whether the folder has a tensor.
#[must_use]
pub fn wanted(family: &Family, shape: &Shape, has: &dyn Fn(&str) -> bool) -> Vec<Wanted> {
    let model = Model { family, shape, has };
    let traits = family.traits;
    let mut all = (traits.first)(&model);
    for layer in 0..shape.n_layer + shape.n_nextn {
        (traits.layer)(&model, layer, &mut all);
    }
    if traits.norms_add_one {
        let norms = all
            .iter_mut()
            // The norm of a recurrent state's output does not get the 1 added.
            .filter(|tensor| {
                tensor.name.ends_with("norm.weight") && !tensor.name.ends_with("ssm_norm.weight")
            });
        norms.for_each(|tensor| tensor.map = Map::AddOne);
    }
    all
}
