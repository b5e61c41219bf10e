//! Modules with adapted parameters: PEFT wraps them once per parameter, and names tensors after the wrapping.

use super::super::config::AdapterConfig;
use super::super::experts::{Placed, Sizes, Stack, assign, of_expert};
use super::super::turn::fits;
use super::places::Places;
use super::weights::{Module, Weights};
use core::cmp::Reverse;
use sluice::adapter::AdapterLoadError;
use sluice::adapter::Factors;
use std::collections::HashMap;

/// The pairs of one module; several pairs belong to its parameters, the innermost first.
pub(super) struct Nest<'w> {
    pub(super) name: &'w str,
    pub(super) pairs: Vec<&'w Module>,
}

impl Weights {
    /// The adapted modules, in file order.
    pub(super) fn nests(&self) -> Vec<Nest<'_>> {
        let mut nests: Vec<Nest<'_>> = Vec::new();
        let mut places = HashMap::new();
        for module in &self.modules {
            let (name, _) = module.inner();
            let place = *places
                .entry((name, module.is_embedding))
                .or_insert_with(|| {
                    let pairs = Vec::new();
                    nests.push(Nest { name, pairs });
                    nests.len() - 1
                });
            nests[place].pairs.push(module);
        }
        for nest in &mut nests {
            nest.pairs.sort_by_key(|module| Reverse(module.inner().1));
        }
        nests
    }

    /// The pair of a module that is adapted as a whole.
    pub(super) fn only<'w>(&self, nest: &Nest<'w>) -> Result<&'w Module, AdapterLoadError> {
        match nest.pairs[..] {
            [module] if module.inner().1 == 0 => Ok(module),
            _ => {
                let what =
                    "has matrices of several parameters: only experts and weights are supported";
                Err(AdapterLoadError::tensor(&self.path, nest.name, what))
            }
        }
    }

    /// The pairs of experts that are parameters of one module, with the positions of their tensors.
    pub(super) fn of_experts(
        &self,
        config: &AdapterConfig,
        places: &Places<'_>,
        nest: &Nest<'_>,
        stacks: &[Stack],
    ) -> Result<Vec<Placed>, AdapterLoadError> {
        let named = |stack: &Stack| format!("{}.{}", nest.name, stack.name);
        let adapted = stacks.iter().filter(|stack| config.adapts(&named(stack)));
        let adapted: Vec<_> = adapted
            .map(|stack| (stack, config.rank(&named(stack))))
            .collect();
        let names = adapted.iter().map(|(stack, _)| &*stack.name);
        self.check_nest(nest, &names.collect::<Vec<_>>())?;
        let halves = nest.pairs.iter().map(|module| self.halves(module));
        let halves = halves.collect::<Result<Vec<_>, _>>()?;
        let sizes = halves.iter().map(|halves| self.sizes(*halves));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        let is_known = adapted
            .iter()
            .all(|(stack, _)| config.a_takes_inputs(stack.is_turned));
        let (order, a_takes_inputs) = assign(&self.path, nest.name, &sizes, &adapted, is_known)?;
        let mut found = Vec::new();
        for (own, halves) in order.into_iter().zip(halves) {
            let (stack, rank) = adapted[own];
            let all = self.read_pair(config, &named(stack), rank, halves)?;
            found.extend(stack.factors(&all, a_takes_inputs, &places.wanted));
        }
        Ok(found)
    }

    /// Checks that a module has a pair for each of these parameters, which are the expert parameters in the
    /// configuration.
    fn check_nest(&self, nest: &Nest<'_>, names: &[&str]) -> Result<(), AdapterLoadError> {
        let n = nest.pairs.len();
        let depths = nest.pairs.iter().rev().map(|module| module.inner().1);
        if n == names.len() && depths.eq(0..n) {
            return Ok(());
        }
        let named = match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let what = format!(
            "has matrices of {n} parameters, but target_parameters names these of experts: {named}"
        );
        Err(AdapterLoadError::tensor(&self.path, nest.name, what))
    }

    /// The pairs of a module by Hugging Face's names. Without the model, parameters of experts are recognised by their
    /// usual names, and the number of experts follows from the rank.
    pub(super) fn as_named(
        &self,
        config: &AdapterConfig,
        nest: &Nest<'_>,
    ) -> Result<Vec<Factors>, AdapterLoadError> {
        if nest.name.rsplit('.').next() != Some("experts") {
            let module = self.only(nest)?;
            return Ok(vec![self.pair(config, module)?.into_factors(nest.name)]);
        }
        let is_adapted = |name: &&&str| config.adapts(&format!("{}.{name}", nest.name));
        let names: Vec<_> = PARAMETERS.iter().filter(is_adapted).copied().collect();
        self.check_nest(nest, &names)?;
        let mut found = Vec::new();
        for (name, module) in names.iter().zip(&nest.pairs) {
            let parameter = format!("{}.{name}", nest.name);
            let (rank, halves) = (config.rank(&parameter), self.halves(module)?);
            let Sizes { a, b } = self.sizes(halves)?;
            let n = a[0] / u64::from(rank);
            if a[0] != b[1] || a[0] % u64::from(rank) != 0 {
                let what = format!(
                    "has {} rows of A and {} columns of B, but experts have rank {rank}",
                    a[0], b[1]
                );
                return Err(AdapterLoadError::tensor(&self.path, parameter, what));
            }
            let all = self.read_pair(config, &parameter, rank, halves)?;
            found.extend((0..fits(n)).map(|expert| Factors {
                part: u32::try_from(expert).ok(),
                ..of_expert(&all, expert, fits(n)).into_factors(&parameter)
            }));
        }
        Ok(found)
    }
}

/// Expert parameters in module order.
const PARAMETERS: [&str; 3] = ["gate_up_proj", "up_proj", "down_proj"];
