//! The tensors of families with tables.

use super::parts::Model;
use super::wanted::Wanted;

/// The tensors outside of layers.
pub(super) fn first(model: &Model<'_>) -> Vec<Wanted> {
    let mut all = Vec::new();
    add_head(model, &mut all);
    for row in model.family.traits.globals {
        row.add(["", ""], model.shape, &mut all);
    }
    all
}

/// The head after the pooling.
pub(super) fn add_head(model: &Model<'_>, all: &mut Vec<Wanted>) {
    for row in model.family.traits.head {
        row.add(["", ""], model.shape, all);
    }
}

/// The tensors of a layer.
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
            experts.add(names, model.shape, model.has, all);
        }
    }
}
