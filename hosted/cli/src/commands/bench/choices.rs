//! What a predictor chooses, compared with the neurons that are active.

use sluice::core::engine::{NeuronChoice, Observer, SiteInput};
use std::sync::{Mutex, PoisonError};

/// Sums of what a predictor chooses in each layer.
#[derive(Debug)]
pub(super) struct Choices {
    layers: Vec<Mutex<Choice>>,
    /// Norms of neurons' columns of down, (layers, stride); empty if they are not known.
    norms: Vec<f32>,
    /// Whether neurons that are not active are 0.
    has_zeros: bool,
}

/// Sums of a layer.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    n: u64,
    n_chosen: u64,
    n_active: u64,
    n_both: u64,
    /// Sum of the squares of all contributions, and of what chosen neurons add.
    energy: f64,
    energy_chosen: f64,
}

/// What a layer's predictor chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recall {
    /// Share of neurons that are chosen.
    pub(super) chosen: f64,
    /// Share of active neurons that are chosen; `None` where the activation gives no zeros, so that all are active.
    pub(super) recall: Option<f64>,
    /// Share of the sum of squares of what all neurons add that chosen ones have.
    pub(super) energy: Option<f64>,
}

impl Choices {
    pub(super) fn new(n_layer: usize, norms: Vec<f32>, has_zeros: bool) -> Self {
        Self {
            layers: (0..n_layer).map(|_| Mutex::default()).collect(),
            norms,
            has_zeros,
        }
    }

    /// What was chosen in a layer; `None` without a predictor there.
    pub(super) fn of(&self, layer: usize) -> Option<Recall> {
        let sums = self.layers.get(layer)?;
        let sums = *sums.lock().unwrap_or_else(PoisonError::into_inner);
        let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 1.0 };
        let of = |part: u64, all: u64| share(part as f64, all as f64);
        (sums.n > 0).then(|| Recall {
            chosen: of(sums.n_chosen, sums.n),
            recall: self.has_zeros.then(|| of(sums.n_both, sums.n_active)),
            energy: (!self.norms.is_empty()).then(|| share(sums.energy_chosen, sums.energy)),
        })
    }
}

impl Observer for Choices {
    fn sees(&self, _: SiteInput<'_>) {}

    fn sees_choices(&self) -> bool {
        true
    }

    fn sees_choice(&self, choice: NeuronChoice<'_>) {
        let Some(sums) = self.layers.get(choice.layer) else {
            return;
        };
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        let stride = self.norms.len() / self.layers.len();
        let norms = self.norms.iter().skip(choice.layer * stride + choice.first);
        // Without norms energies are not shown.
        let norms = norms.copied().chain(core::iter::repeat(0.0));
        let neurons = choice.values.iter().zip(choice.is_chosen).zip(norms);
        for ((value, is_chosen), norm) in neurons {
            let (is_active, is_chosen) = (u64::from(*value != 0.0), u64::from(*is_chosen));
            sums.n += 1;
            sums.n_active += is_active;
            sums.n_chosen += is_chosen;
            sums.n_both += is_active * is_chosen;
            let square = (f64::from(*value) * f64::from(norm)).powi(2);
            sums.energy += square;
            sums.energy_chosen += square * is_chosen as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_neurons_are_compared_with_active_ones() {
        let see = |choices: &Choices, layer| {
            choices.sees_choice(NeuronChoice {
                layer,
                first: 1,
                values: &[0.0, 2.0, -1.0, 0.0],
                is_chosen: &[true, true, false, false],
            });
        };
        let choices = Choices::new(
            2,
            vec![9.0, 9.0, 9.0, 9.0, 9.0, 7.0, 0.5, 3.0, 1.0, 1.0],
            true,
        );
        see(&choices, 1);
        assert_eq!(choices.of(0), None);
        let expected = Recall {
            chosen: 0.5,
            recall: Some(0.5),
            energy: Some(36.0 / 37.0),
        };
        assert_eq!(choices.of(1), Some(expected));
        let others = Choices::new(2, Vec::new(), false);
        see(&others, 0);
        let expected = Recall {
            chosen: 0.5,
            recall: None,
            energy: None,
        };
        assert_eq!(others.of(0), Some(expected));
    }
}
