//! Which modules a model's tensors come from, by the names an adapter may use.

use super::super::experts::{Stack, Stacks};
use super::weights::Module;
use crate::base::Base;
use crate::family::Wanted;
use sluice::adapter::PairOrder;
use std::collections::HashMap;

/// A model's tensors by their sources' names.
pub(super) struct Places<'b> {
    pub(super) base: &'b Base,
    pub(super) wanted: Vec<Wanted>,
    by_source: HashMap<String, Vec<PairOrder>>,
    /// Experts that may be parameters of one module.
    pub(super) stacks: Stacks,
}

impl<'b> Places<'b> {
    /// The candidate model that contains the most of the modules; the first one if several do.
    pub(super) fn best(bases: &'b [Base], modules: &[Module]) -> Self {
        let mut best: Option<(usize, Self)> = None;
        for base in bases {
            let places = Self::new(base);
            let is_known = |module: &&Module| {
                let name = base.plain_name(&module.weight());
                name.is_some_and(|name| {
                    places.of(&name).is_some() || places.stacks(&name).is_some()
                })
            };
            let n_known = modules.iter().filter(is_known).count();
            if best.as_ref().is_none_or(|(most, _)| n_known > *most) {
                best = Some((n_known, places));
            }
        }
        best.expect("there is one at least").1
    }

    pub(super) fn new(base: &'b Base) -> Self {
        let wanted = base.wanted();
        let mut by_source: HashMap<String, Vec<PairOrder>> = HashMap::new();
        for (tensor, wanted) in wanted.iter().enumerate() {
            for (part, source) in wanted.parts.iter().enumerate() {
                let places = by_source.entry(source.clone()).or_default();
                places.push(PairOrder { tensor, part });
            }
        }
        Self {
            base,
            stacks: Stacks::new(&wanted),
            wanted,
            by_source,
        }
    }

    /// Tensors, and the index of the source in each.
    pub(super) fn of(&self, source: &str) -> Option<&[PairOrder]> {
        as_named_now_or_before(source, |name| self.by_source.get(name)).map(Vec::as_slice)
    }

    /// The parameters of the module to which this weight would belong, if it holds experts.
    pub(super) fn stacks(&self, weight: &str) -> Option<&[Stack]> {
        let module = weight.strip_suffix(".weight")?;
        as_named_now_or_before(module, |name| self.stacks.0.get(name)).map(Vec::as_slice)
    }
}

/// Looks up a name under transformers 5, then under its older name.
fn as_named_now_or_before<T>(name: &str, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut older = RENAMED.iter().map(|(new, old)| name.replacen(new, old, 1));
    find(name).or_else(|| older.find_map(|name| find(&name)))
}

/// Mixtral and MiniMax-M2, Granite, and Nemotron-H: the names in transformers 5 and in model files.
const RENAMED: [(&str, &str); 3] = [
    (".mlp.", ".block_sparse_moe."),
    (".router.", ".router.layer."),
    ("model.", "backbone."),
];
