//! Types by measured error, within a budget of bits.
//!
//! Errors in different tensors cost differently. For every tensor and every type that fits it, the squared error of its
//! weights, weighted by the importance of their columns, estimates the error of its outputs; a sensitivity for each
//! tensor relates that to the model's answers. The types with the lowest total cost within the budget are then chosen:
//! a multiple-choice knapsack, solved along the lower convex hulls of each tensor's (bytes, cost), and improved by
//! single exchanges until none helps.

use super::importance::ImportanceMatrix;
use super::mix::fallback;
use super::plan::{Plan, PlannedTensor};
use super::stream::{QuantizeFileError, importances, read_rows, usize_of};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice::Team;
use sluice::file::ModelFile;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::{Quantizer, can_quantize};
use sluice_core::team::StopFlag;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A candidate type for a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetCandidate {
    /// The type.
    pub ty: GgmlType,
    /// Bytes of the whole tensor.
    pub bytes: u64,
    /// The cost of its error; after [`Budget::measure`] the error's share of the output's energy.
    pub cost: f64,
}

/// The candidates for every tensor that may be quantised.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Tensors by name, with their candidates in order of size.
    pub choices: Vec<(String, Vec<BudgetCandidate>)>,
    /// Bytes of the tensors that are not changed.
    fixed_bytes: u64,
    n_elements: u64,
}

/// The budget is too small for the smallest types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetError {
    /// Bits per weight asked for.
    pub asked: f64,
    /// Bits per weight of the smallest types.
    pub least: f64,
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, least } = self;
        write!(
            f,
            "{asked} bits per weight are too few: the minimum is {least:.3}"
        )
    }
}

impl core::error::Error for BudgetError {}

/// Candidate types: the most accurate ones at each size. The codebook types (IQ2, IQ3) are slow to run.
pub const BUDGET_TYPES: [GgmlType; 12] = [
    GgmlType::IQ2_S,
    GgmlType::Q2_K,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::Q3_K,
    GgmlType::IQ4_XS,
    GgmlType::IQ4_NL,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::F16,
];

/// Further candidates where the file becomes a `.slc` file.
pub const BUDGET_LANES: [GgmlType; 3] = [GgmlType::LANE3, GgmlType::LANE5, GgmlType::LANE7];

impl Budget {
    /// Measures the error of each of `types` (or of the fallback that `quantize` uses, if rows are not a whole number
    /// of blocks) for every weight matrix of `plan`. Make `plan` for [`GgmlType::Q8_0`], so that exactly the weight
    /// matrices change. Large tensors are sampled, with rows from all over.
    ///
    /// # Errors
    /// [`QuantizeFileError`].
    pub fn measure(
        file: &ModelFile,
        plan: &Plan,
        importance: Option<&ImportanceMatrix>,
        types: &[GgmlType],
        team: &Team,
        stop: &StopFlag,
        progress: impl FnMut(u64) + Send,
    ) -> Result<Self, QuantizeFileError> {
        let columns = importances(plan, importance)?;
        let weights: Vec<usize> = (0..plan.tensors.len())
            .filter(|&i| !plan.tensors[i].is_copied())
            .collect();
        let (next, quantizer) = (AtomicUsize::new(0), Quantizer::detect());
        let results = Mutex::new(vec![Vec::new(); weights.len()]);
        let (first_error, progress) = (Mutex::new(None), Mutex::new(progress));
        team.run(|rank| {
            loop {
                let w = next.fetch_add(1, Ordering::Relaxed);
                let Some(&index) = weights.get(w) else { return };
                let tensor = &plan.tensors[index];
                match candidates(file, tensor, types, &columns[index], &quantizer, stop) {
                    Ok(found) => lock(&results)[w] = found,
                    Err(error) => {
                        next.store(weights.len(), Ordering::Relaxed);
                        lock(&first_error).get_or_insert(error);
                        return;
                    }
                }
                if rank == 0 {
                    lock(&progress)(next.load(Ordering::Relaxed).min(weights.len()) as u64);
                }
            }
        })?;
        if let Some(error) = lock(&first_error).take() {
            return Err(error);
        }
        let names = weights.iter().map(|&i| plan.tensors[i].name.clone());
        let fixed = plan.tensors.iter().filter(|tensor| tensor.is_copied());
        Ok(Self {
            choices: names.zip(core::mem::take(&mut *lock(&results))).collect(),
            fixed_bytes: fixed.map(|tensor| tensor.len_bytes).sum(),
            n_elements: plan.n_elements(),
        })
    }

    /// Restricts a tensor to `ty`, or to the fallback for its rows. Has no effect on a tensor without candidates.
    ///
    /// # Panics
    /// Never: the fallback for the rows fits them.
    pub fn fix(&mut self, tensor: &PlannedTensor, ty: GgmlType) {
        let ty = fallback(ty, tensor.row_len());
        let choices = self
            .choices
            .iter_mut()
            .find(|(name, _)| *name == tensor.name);
        if let Some((_, choices)) = choices {
            let row_bytes = ty
                .row_bytes(tensor.row_len())
                .expect("the type fits the row");
            *choices = vec![BudgetCandidate {
                ty,
                bytes: row_bytes * tensor.n_rows(),
                cost: 0.0,
            }];
        }
    }

    /// Multiplies a tensor's costs by the effect of its errors on the model.
    pub fn scale(&mut self, name: &str, sensitivity: f64) {
        let choices = self.choices.iter_mut().find(|(other, _)| other == name);
        for candidate in choices.into_iter().flat_map(|(_, choices)| choices) {
            candidate.cost *= sensitivity;
        }
    }

    /// Assumes sensitivities, for use without a text to measure them on, from the share of a tensor's output in what
    /// reads it: the logits and the start of the residual stream come from a single tensor, and layer `l` adds two of
    /// the `2 l + 3` parts that the next layer reads.
    pub fn assume_sensitivities(&mut self) {
        let layer = |name: &str| {
            name.strip_prefix("blk.")?
                .split('.')
                .next()?
                .parse::<u32>()
                .ok()
        };
        let n_layer = self
            .choices
            .iter()
            .filter_map(|(name, _)| layer(name))
            .max();
        let n_layer = f64::from(n_layer.map_or(0, |last| last + 1));
        let is_tied = !self.choices.iter().any(|(name, _)| name == "output.weight");
        for (name, candidates) in &mut self.choices {
            let sensitivity = match (name.as_str(), layer(name)) {
                ("token_embd.weight", _) if is_tied => 4.0 * n_layer,
                ("token_embd.weight" | "output.weight", _) => 2.0 * n_layer,
                (_, Some(layer)) => (n_layer / f64::from(2 * layer + 2)).max(1.0),
                _ => 1.0,
            };
            candidates
                .iter_mut()
                .for_each(|candidate| candidate.cost *= sensitivity);
        }
    }

    /// The types with the lowest cost that keep all tensors together within `bits_per_weight`.
    ///
    /// # Errors
    /// [`BudgetError`]: the smallest types exceed the budget.
    pub fn choose(&self, bits_per_weight: f64) -> Result<HashMap<String, GgmlType>, BudgetError> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
        let (n_elements, fixed) = (self.n_elements as f64, self.fixed_bytes as f64);
        let room = (bits_per_weight / 8.0).mul_add(n_elements, -fixed);
        let choices: Vec<&[BudgetCandidate]> =
            self.choices.iter().map(|(_, c)| c.as_slice()).collect();
        let least: u64 = choices.iter().map(|choices| choices[0].bytes).sum();
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        if room < least as f64 {
            let least = 8.0 * (least as f64 + fixed) / n_elements;
            return Err(BudgetError {
                asked: bits_per_weight,
                least,
            });
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 2^53"
        )]
        let chosen = knapsack(&choices, room as u64);
        let names = self.choices.iter().map(|(name, _)| name.clone());
        let types = chosen
            .iter()
            .zip(&choices)
            .map(|(&i, choices)| choices[i].ty);
        Ok(names.zip(types).collect())
    }
}

/// Measures a tensor's error for every type.
fn candidates(
    file: &ModelFile,
    tensor: &PlannedTensor,
    types: &[GgmlType],
    columns: &[Vec<f32>],
    quantizer: &Quantizer,
    stop: &StopFlag,
) -> Result<Vec<BudgetCandidate>, QuantizeFileError> {
    let fits = |ty: &&GgmlType| !ty.is_lane() || ty.row_bytes(tensor.row_len()).is_some();
    let fitting = (types.iter().filter(fits)).map(|&ty| fallback(ty, tensor.row_len()));
    let mut types: Vec<GgmlType> = fitting.filter(|&ty| can_quantize(ty)).collect();
    types.sort_by_key(|&ty| (ty.row_bytes(tensor.row_len()), ty as u32));
    types.dedup();
    let mut errors = vec![0.0; types.len()];
    let mut energy = 0.0;
    let (n_rows, row_len) = (tensor.n_rows(), usize_of(tensor.row_len()));
    let rows_per_matrix = tensor.dims.get(1).copied().unwrap_or(1);
    let samples = (SAMPLE_WEIGHTS / tensor.row_len()).clamp(1, n_rows);
    let (mut row, mut bytes, mut again) = (Vec::new(), Vec::new(), vec![0.0; row_len]);
    for sample in 0..samples {
        if stop.is_set() {
            return Err(QuantizeFileError::Stopped);
        }
        let at = sample * n_rows / samples;
        read_rows(file.source(), tensor, at..at + 1, &mut row)?;
        let columns = columns
            .get(usize_of(at / rows_per_matrix))
            .map(Vec::as_slice);
        let weigh = |i: usize, x: f32| {
            let weight = columns.map_or(1.0, |columns| f64::from(columns[i]));
            weight * f64::from(x) * f64::from(x)
        };
        energy += row
            .iter()
            .enumerate()
            .map(|(i, &x)| weigh(i, x))
            .sum::<f64>();
        for (error, &ty) in errors.iter_mut().zip(&types) {
            let row_bytes = ty
                .row_bytes(tensor.row_len())
                .expect("the type fits the row");
            bytes.resize(usize_of(row_bytes), 0);
            let done = quantizer.quantize_rows(ty, &row, row_len, columns, &mut bytes);
            done.map_err(|error| QuantizeFileError::Values {
                tensor: tensor.name.clone(),
                row: at,
                error,
            })?;
            dequantize_row(ty, &bytes, &mut again);
            let pairs = row.iter().zip(&again).enumerate();
            *error += pairs.map(|(i, (x, y))| weigh(i, x - y)).sum::<f64>();
        }
    }
    let candidate = |(ty, error): (GgmlType, f64)| BudgetCandidate {
        ty,
        bytes: ty
            .row_bytes(tensor.row_len())
            .expect("the type fits the row")
            * n_rows,
        cost: if energy > 0.0 { error / energy } else { 0.0 },
    };
    let mut candidates: Vec<_> = types.into_iter().zip(errors).map(candidate).collect();
    // Of several types of one size the best is first.
    candidates.sort_by(|a, b| (a.bytes.cmp(&b.bytes)).then(a.cost.total_cmp(&b.cost)));
    Ok(candidates)
}

/// Selects a candidate from each group so that the total cost within `room` bytes is the lowest, or close to it. The
/// first candidates of all groups must fit together.
fn knapsack(groups: &[&[BudgetCandidate]], room: u64) -> Vec<usize> {
    let mut chosen = vec![0; groups.len()];
    let mut used: u64 = groups.iter().map(|group| group[0].bytes).sum();
    // Steps along the hulls, the largest saving per byte first. Savings per byte fall along a hull, so a step is never
    // taken before the one below it.
    let mut steps = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let hull = hull(group);
        for pair in hull.windows(2) {
            let (from, to) = (&group[pair[0]], &group[pair[1]]);
            #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
            let bytes = (to.bytes - from.bytes) as f64;
            steps.push(((from.cost - to.cost) / bytes, g, pair[1]));
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut stuck = vec![false; groups.len()];
    for (_, g, to) in steps {
        let more = groups[g][to].bytes - groups[g][chosen[g]].bytes;
        if stuck[g] || used + more > room {
            stuck[g] = true;
            continue;
        }
        chosen[g] = to;
        used += more;
    }
    improve(groups, room, &mut chosen, used);
    chosen
}

/// Indices of the candidates on the lower convex hull of (bytes, cost), in order of size.
fn hull(group: &[BudgetCandidate]) -> Vec<usize> {
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
    let slope = |a: usize, b: usize| {
        (group[b].cost - group[a].cost) / (group[b].bytes - group[a].bytes) as f64
    };
    let mut hull: Vec<usize> = vec![0];
    for i in 1..group.len() {
        if group[i].bytes == group[hull[hull.len() - 1]].bytes {
            continue;
        }
        while hull.len() >= 2
            && slope(hull[hull.len() - 2], i) <= slope(hull[hull.len() - 2], hull[hull.len() - 1])
        {
            hull.pop();
        }
        if group[i].cost < group[hull[hull.len() - 1]].cost {
            hull.push(i);
        }
    }
    hull
}

/// Changes one choice, or two at once, as long as that lowers the cost and fits.
fn improve(groups: &[&[BudgetCandidate]], room: u64, chosen: &mut [usize], mut used: u64) {
    // With the number of tensors in larger models, the hull alone is close to the optimum.
    let pairs = groups.len() <= PAIRS_MAX;
    loop {
        let mut best: Option<(f64, Vec<(usize, usize)>)> = None;
        let mut consider = |changes: Vec<(usize, usize)>| {
            let (mut bytes, mut gain) = (used, 0.0);
            for &(g, to) in &changes {
                let (now, then) = (&groups[g][chosen[g]], &groups[g][to]);
                bytes = bytes - now.bytes + then.bytes;
                gain += now.cost - then.cost;
            }
            if bytes <= room && gain > best.as_ref().map_or(0.0, |(gain, _)| *gain) {
                best = Some((gain, changes));
            }
        };
        for (a, group) in groups.iter().enumerate() {
            for i in 0..group.len() {
                consider(vec![(a, i)]);
                for (b, other) in groups.iter().enumerate().skip(a + 1).filter(|_| pairs) {
                    for j in 0..other.len() {
                        consider(vec![(a, i), (b, j)]);
                    }
                }
            }
        }
        let Some((_, changes)) = best else { return };
        for (g, to) in changes {
            used = used - groups[g][chosen[g]].bytes + groups[g][to].bytes;
            chosen[g] = to;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Weights that are sampled from a tensor.
const SAMPLE_WEIGHTS: u64 = 1 << 20;
/// Maximum number of tensors for which pairs of changes are tried.
const PAIRS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn group(choices: &[(u64, f64)]) -> Vec<BudgetCandidate> {
        let ty = GgmlType::F16;
        let candidate = |&(bytes, cost)| BudgetCandidate { ty, bytes, cost };
        choices.iter().map(candidate).collect()
    }

    /// The lowest cost, by exhaustive search.
    fn best(groups: &[Vec<BudgetCandidate>], room: u64) -> f64 {
        let Some((first, rest)) = groups.split_first() else {
            return 0.0;
        };
        let fits = first.iter().filter(|choice| choice.bytes <= room);
        fits.map(|choice| choice.cost + best(rest, room - choice.bytes))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn close_to_the_best_choice() {
        let mut state = 1u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        let (mut found, mut optimal) = (0.0, 0.0);
        for _ in 0..200 {
            let groups: Vec<_> = (0..5)
                .map(|_| {
                    let (mut bytes, mut cost) = (1 + random(20), 100.0);
                    let mut choices = Vec::new();
                    for _ in 0..5 {
                        choices.push((bytes, cost));
                        bytes += 1 + random(20);
                        cost *= f64::from(u32::try_from(random(100)).unwrap()) / 100.0;
                    }
                    group(&choices)
                })
                .collect();
            let least: u64 = groups.iter().map(|group| group[0].bytes).sum();
            let room = least + random(150);
            let slices: Vec<_> = groups.iter().map(Vec::as_slice).collect();
            let chosen = knapsack(&slices, room);
            let picked = chosen.iter().zip(&groups).map(|(&i, group)| group[i]);
            let (bytes, cost) = picked.fold((0, 0.0), |sum, c| (sum.0 + c.bytes, sum.1 + c.cost));
            assert!(bytes <= room);
            let least_cost = best(&groups, room);
            assert!(cost >= least_cost - 1e-9);
            (found, optimal) = (found + cost, optimal + least_cost);
        }
        assert!(found <= 1.01 * optimal, "{found} against {optimal}");
    }

    #[test]
    fn points_above_the_hull_are_left_out() {
        let choices = group(&[(1, 10.0), (2, 9.0), (3, 2.0), (4, 2.5), (5, 1.0)]);
        assert_eq!(hull(&choices), [0, 2, 4]);
    }
}
