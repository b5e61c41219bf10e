//! Where a model's tensors come from: the modules that an adapter may name.

use super::Module;
use crate::convert::{Base, Wanted};
use crate::lora::experts::{Stack, Stacks};
use std::collections::HashMap;

/// A model's tensors by the names of their sources.
pub(super) struct Places<'b> {
    pub(super) base: &'b Base,
    pub(super) wanted: Vec<Wanted>,
    by_source: HashMap<String, Vec<(usize, usize)>>,
    /// Experts that may be parameters of one module.
    pub(super) stacks: Stacks,
}

impl<'b> Places<'b> {
    /// Of the models that may be meant, the first that has most of the modules.
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
        let mut by_source: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
        for (tensor, wanted) in wanted.iter().enumerate() {
            for (part, source) in wanted.parts.iter().enumerate() {
                let places = by_source.entry(source.clone()).or_default();
                places.push((tensor, part));
            }
        }
        Self {
            base,
            stacks: Stacks::new(&wanted),
            wanted,
            by_source,
        }
    }

    /// Tensors and the number of the source in each.
    pub(super) fn of(&self, source: &str) -> Option<&[(usize, usize)]> {
        as_named_now_or_before(source, |name| self.by_source.get(name)).map(Vec::as_slice)
    }

    /// The parameters of the module whose weight this would be, if it holds experts.
    pub(super) fn stacks(&self, weight: &str) -> Option<&[Stack]> {
        let module = weight.strip_suffix(".weight")?;
        as_named_now_or_before(module, |name| self.stacks.0.get(name)).map(Vec::as_slice)
    }
}

/// Looks for what transformers 5 names so, and then for what it was named before.
fn as_named_now_or_before<T>(name: &str, find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut older = RENAMED.iter().map(|(new, old)| name.replacen(new, old, 1));
    find(name).or_else(|| older.find_map(|name| find(&name)))
}

/// Of Mixtral and MiniMax-M2, of Granite, and of Nemotron-H, by transformers 5 and in the files of models.
const RENAMED: [(&str, &str); 3] = [
    (".mlp.", ".block_sparse_moe."),
    (".router.", ".router.layer."),
    ("model.", "backbone."),
];
