//! Adapters of experts that are stored as one parameter.
//!
//! In transformers 5 a layer's experts are parameters of one module: `gate_up_proj` (E, 2 · n_ff, n_embd), gates before
//! ups, and `down_proj` (E, n_embd, n_ff). Some models transpose them, (E, inputs, outputs), or alternate gates and
//! ups. PEFT (`target_parameters`) wraps such a module once for each adapted parameter, so one of two pairs is named
//! `experts.base_layer.lora_A` and the other `experts.lora_A`. Only sizes show which parameter a pair belongs to. For E
//! experts of rank R:
//!
//! ```text
//! A  (E · R, columns)   row e · R + i is row i of expert e
//! B  (rows, R · E)      column i · E + e is column i of expert e
//! ```
//!
//! The factor that takes an expert's inputs is A or B, by PEFT's version:
//!
//! | PEFT | parameters (E, outputs, inputs) | (E, inputs, outputs) |
//! |---|---|---|
//! | up to 0.18 | B | A |
//! | 0.19.0 | B | B; A with transformers 4 |
//! | from 0.19.1 on | A | A; B with transformers 4 |
//!
//! Sizes show this too, unless an expert has as many inputs as outputs and no other parameter is adapted. Then the
//! version decides, and an ambiguous one is refused. Versions before 0.19.1 are ambiguous for the first kind: newer
//! ones keep an older version number in adapters that they convert to parameters.
//!
//! Source: `ParamWrapper` in peft/tuners/lora/layer.py, versions 0.17.0 to 0.21.2.

use super::turn::{Pair, fits, narrow};
use crate::family::{Change, Slice, Wanted};
use sluice::adapter::{AdapterLoadError, Factors, PairOrder};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A pair, preceded by its position.
pub(super) type Placed = (PairOrder, Factors);

/// A parameter that holds a matrix for each expert.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    /// Its name within its module.
    pub(super) name: String,
    n_expert: u64,
    /// Number of outputs and inputs of an expert.
    rows: u64,
    columns: u64,
    /// Whether the parameter is transposed: (E, inputs, outputs).
    pub(super) is_turned: bool,
    /// The tensors that are made from its rows, and which of an expert's rows each one takes.
    parts: Vec<(usize, Slice)>,
}

impl Stack {
    /// The pairs of all experts, with the positions of their tensors. `all` has the rank of a single expert.
    pub(super) fn factors(
        &self,
        all: &Pair,
        a_takes_inputs: bool,
        wanted: &[Wanted],
    ) -> Vec<Placed> {
        let n = fits(self.n_expert);
        let mut found = Vec::with_capacity(n * self.parts.len());
        for expert in 0..n {
            let own = of_expert(all, expert, n);
            let own = if a_takes_inputs { own } else { own.exchanged() };
            for (tensor, rows) in &self.parts {
                let factors = Factors {
                    tensor: wanted[*tensor].name.clone(),
                    part: Some(narrow(expert as u64)),
                    rank: own.rank,
                    a: own.a.clone(),
                    b: own.pick_rows((0..rows.n).map(|i| rows.place(i))),
                    scale: own.scale,
                };
                let order = PairOrder {
                    tensor: *tensor,
                    part: expert,
                };
                found.push((order, factors));
            }
        }
        found
    }

    /// Whether a pair's sizes fit this parameter.
    fn fits(&self, sizes: Sizes, rank: u32, a_takes_inputs: bool) -> bool {
        let of_all = self.rank_of_all(rank);
        let [a, b] = match a_takes_inputs {
            true => [self.columns, self.rows],
            false => [self.rows, self.columns],
        };
        sizes.a == [of_all, a] && sizes.b == [b, of_all]
    }

    fn rank_of_all(&self, rank: u32) -> u64 {
        self.n_expert.saturating_mul(rank.into())
    }

    /// The error for a pair that does not fit this parameter.
    fn misfit(&self, sizes: Sizes, rank: u32, path: &Path, module: &str) -> AdapterLoadError {
        let tensor = format!("{module}.{}", self.name);
        let (of_all, n) = (self.rank_of_all(rank), self.n_expert);
        let Sizes { a, b } = sizes;
        if [a[0], b[1]] == [of_all; 2] {
            return AdapterLoadError::Shape {
                path: path.display().to_string(),
                tensor,
                found: [b[0], a[1]],
                expected: [self.rows, self.columns],
            };
        }
        let what = format!(
            "has {} rows of A and {} columns of B, but {n} experts of rank {rank} have {of_all}",
            a[0], b[1]
        );
        AdapterLoadError::tensor(path, tensor, what)
    }
}

/// The modules of a model that hold experts, with each module's parameters in order.
#[derive(Debug, Default)]
pub(super) struct Stacks(pub(super) HashMap<String, Vec<Stack>>);

impl Stacks {
    /// Collects the parameters of a model with these tensors, whether its experts are separate or, in a few models,
    /// stored as one.
    pub(super) fn new(wanted: &[Wanted]) -> Self {
        let mut stacks = Self::default();
        let names: HashSet<&str> = wanted.iter().map(|own| &*own.name).collect();
        let places = wanted.iter().enumerate();
        for (place, own) in places.filter(|(_, own)| own.name.ends_with("_exps.weight")) {
            match (&own.parts[..], own.is_stack_of_parts()) {
                ([source], false) => stacks.add_stored(source, own, place),
                ([first, ..], true) => stacks.add_apart(first, own, place, &names),
                _ => {}
            }
        }
        for parameters in stacks.0.values_mut() {
            parameters.sort_by_key(|stack| stack.name == "down_proj");
        }
        stacks
    }

    /// Adds a tensor that has a source per expert: gates and ups become one parameter. `first` is the first expert's
    /// source.
    fn add_apart(&mut self, first: &str, own: &Wanted, place: usize, names: &HashSet<&str>) {
        let (Some((module, _)), &[rows, columns]) = (first.rsplit_once(".0."), &*own.shape) else {
            return;
        };
        if own.change != Change::None || own.source != own.shape {
            return;
        }
        let (layer, part) = own.name.rsplit_once("ffn_").unwrap_or_default();
        let has_gate = names.contains(&*format!("{layer}ffn_gate_exps.weight"));
        let (name, n_parts, first) = match part {
            "gate_exps.weight" => ("gate_up_proj", 2, 0),
            "up_exps.weight" if has_gate => ("gate_up_proj", 2, rows),
            "up_exps.weight" => ("up_proj", 1, 0),
            "down_exps.weight" => ("down_proj", 1, 0),
            _ => return,
        };
        let stack = Stack {
            name: name.into(),
            n_expert: own.parts.len() as u64,
            rows: rows.saturating_mul(n_parts),
            columns,
            is_turned: false,
            parts: vec![(place, Slice::run(first, rows))],
        };
        self.add(module, stack);
    }

    /// Adds a tensor with a single source for all experts.
    fn add_stored(&mut self, source: &str, own: &Wanted, place: usize) {
        let (&[n_expert, rows, columns], &[n, first, second]) = (&*own.shape, &*own.source) else {
            return;
        };
        let (is_turned, part) = match &own.change {
            Change::None => (false, Slice::run(0, rows)),
            Change::Rows(slices) => match slices[..] {
                [slice] if slice.len == rows && slice.of == first => {
                    (false, Slice::run(slice.start, rows))
                }
                _ => return,
            },
            &Change::Turned { start, step, of } if of == columns => {
                let (len, of, n) = (1, step, rows);
                (true, Slice { start, len, of, n })
            }
            _ => return,
        };
        let [rows, columns] = match is_turned {
            true => [second, first],
            false => [first, second],
        };
        if n != n_expert || part.n == 0 || part.place(part.n - 1) >= rows {
            return;
        }
        let Some((module, name)) = source.rsplit_once('.') else {
            return;
        };
        let stack = |name: &str| Stack {
            name: name.into(),
            n_expert,
            rows,
            columns,
            is_turned,
            parts: vec![(place, part)],
        };
        self.add(module, stack(name));
        // Granite's names in transformers 5.
        for (older, name) in [
            (".input_linear", "gate_up_proj"),
            (".output_linear", "down_proj"),
        ] {
            if let Some(block) = module.strip_suffix(older) {
                self.add(&format!("{block}.experts"), stack(name));
            }
        }
    }

    fn add(&mut self, module: &str, stack: Stack) {
        let parameters = self.0.entry(module.into()).or_default();
        match parameters.iter_mut().find(|own| own.name == stack.name) {
            Some(own) => own.parts.extend(stack.parts),
            None => parameters.push(stack),
        }
    }
}

/// Rows and columns of a pair's matrices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) a: [u64; 2],
    pub(super) b: [u64; 2],
}

/// Assigns each pair to an adapted parameter, and determines whether A takes inputs. `pairs` and `adapted` (parameters
/// with their ranks) have the same length. `is_known` states that A does, in case sizes do not show it.
pub(super) fn assign(
    path: &Path,
    module: &str,
    pairs: &[Sizes],
    adapted: &[(&Stack, u32)],
    is_known: bool,
) -> Result<(Vec<usize>, bool), AdapterLoadError> {
    debug_assert_eq!(pairs.len(), adapted.len());
    let orders: &[&[usize]] = match adapted.len() {
        1 => &[&[0]],
        2 => &[&[0, 1], &[1, 0]],
        // No module has more parameters.
        _ => &[],
    };
    let fit = |order: &[usize], a_takes_inputs| {
        let mut both = order.iter().zip(pairs);
        both.all(|(&own, sizes)| adapted[own].0.fits(*sizes, adapted[own].1, a_takes_inputs))
    };
    let all = orders
        .iter()
        .flat_map(|order| [true, false].map(|a_takes_inputs| (*order, a_takes_inputs)));
    let mut left: Vec<_> = all
        .filter(|(order, a_takes_inputs)| fit(order, *a_takes_inputs))
        .collect();
    if left.len() > 1 && is_known {
        left.retain(|(_, a_takes_inputs)| *a_takes_inputs);
    }
    if let [(order, a_takes_inputs)] = left[..] {
        return Ok((order.to_vec(), a_takes_inputs));
    }
    if left.is_empty() {
        // The first parameter is wrapped innermost.
        for ((stack, rank), sizes) in adapted.iter().zip(pairs) {
            if !stack.fits(*sizes, *rank, true) && !stack.fits(*sizes, *rank, false) {
                return Err(stack.misfit(*sizes, *rank, path, module));
            }
        }
    }
    let names: Vec<_> = adapted.iter().map(|(stack, _)| &*stack.name).collect();
    let what = format!(
        "has matrices ({}) whose sizes and peft_version leave open whether A or B takes the inputs of an expert",
        names.join(", ")
    );
    Err(AdapterLoadError::tensor(path, module, what))
}

/// The pair of one expert out of `n`.
pub(super) fn of_expert(all: &Pair, expert: usize, n: usize) -> Pair {
    let len = all.a.len() / n;
    Pair {
        rank: all.rank,
        a: all.a[expert * len..][..len].to_vec(),
        b: all.b.iter().skip(expert).step_by(n).copied().collect(),
        scale: all.scale,
    }
}

#[cfg(test)]
mod tests;
