//! All tensors of a model, from its family's tables.

use super::reranker;
use super::wanted::{Map, Wanted};
use super::{Family, Shape};

/// A model whose tensors are listed.
pub(super) struct Model<'a> {
    pub(super) family: &'a Family,
    pub(super) shape: &'a Shape,
    /// The dimensions of the folder's tensor with this name, if it has one.
    pub(super) dims: &'a dyn Fn(&str) -> Option<Vec<u64>>,
}

/// All tensors of a model. The experts of a layer are together, in the order in which llama.cpp's
/// converter writes them. `dims` returns the dimensions of a tensor of the folder, if it has it.
#[must_use]
pub fn all_tensors(
    family: &Family,
    shape: &Shape,
    dims: &dyn Fn(&str) -> Option<Vec<u64>>,
) -> Vec<Wanted> {
    let model = Model {
        family,
        shape,
        dims,
    };
    let traits = family.traits;
    let mut all = Vec::new();
    if let Some(answers) = shape.answers {
        all.push(reranker::head(shape, answers));
    }
    for row in traits.head.iter().chain(traits.globals) {
        row.add(["", ""], shape, &mut all);
    }
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

/// Adds the tensors of a layer.
pub(super) fn layer(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let traits = model.family.traits;
    let (to, from) = (
        format!("blk.{layer}."),
        format!("{}{layer}.", traits.layers),
    );
    let names = [to.as_str(), from.as_str()];
    for block in traits.blocks {
        if !(block.when)(model.shape, layer) {
            continue;
        }
        for row in block.rows {
            row.add(names, model.shape, all);
        }
        if let Some(experts) = &block.experts {
            experts.add(names, model.shape, model.dims, all);
        }
    }
}
