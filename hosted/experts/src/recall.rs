//! How often the predictions recorded in a trace came true.

use super::steps::Steps;

/// How many of the used experts were predicted, for each of the lengths [`cuts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall {
    /// Experts that were used.
    pub n_used: u64,
    /// How many used experts were among the first predictions.
    pub n_found: [u64; CUTS],
    /// The number of predictions.
    pub n_predicted: [u64; CUTS],
}

/// The number of prediction lengths.
pub const CUTS: usize = 4;

/// The prediction lengths: k, the number of experts the router chooses, k + 2, k + 4, and 2k.
#[must_use]
pub const fn cuts(top_k: usize) -> [usize; CUTS] {
    [top_k, top_k + 2, top_k + 4, 2 * top_k]
}

impl Recall {
    /// The share of used experts that were predicted, 0 to 1.
    #[must_use]
    pub fn recall(&self, cut: usize) -> f64 {
        share(self.n_found[cut], self.n_used)
    }

    /// The share of predictions that were used, 0 to 1; 0 without predictions.
    #[must_use]
    pub fn precision(&self, cut: usize) -> f64 {
        share(self.n_found[cut], self.n_predicted[cut])
    }

    fn add(&mut self, other: &Self) {
        self.n_used += other.n_used;
        for cut in 0..CUTS {
            self.n_found[cut] += other.n_found[cut];
            self.n_predicted[cut] += other.n_predicted[cut];
        }
    }

    /// The sum over all layers.
    #[must_use]
    pub fn total(layers: &[Self]) -> Self {
        let mut total = Self::default();
        layers.iter().for_each(|layer| total.add(layer));
        total
    }

    /// Counts a step: the experts it used, and the predicted ones, likeliest first.
    fn count(&mut self, used: &[u32], predicted: &[u32], cuts: [usize; CUTS]) {
        self.n_used += used.len() as u64;
        for (rank, id) in predicted.iter().enumerate() {
            let is_found = used.contains(id);
            for (cut, _) in cuts.iter().enumerate().filter(|(_, cut)| rank < **cut) {
                self.n_predicted[cut] += 1;
                self.n_found[cut] += u64::from(is_found);
            }
        }
    }
}

/// The recall of each layer, in the order of [`Steps::layers`]; `None` if the trace has no predictions.
#[must_use]
pub fn recalls(steps: &Steps) -> Option<Vec<Recall>> {
    let cuts = cuts(steps.top_k());
    let mut layers = vec![Recall::default(); steps.layers().len()];
    for step in steps.iter() {
        layers[steps.layer_index(step.layer)].count(step.experts, step.predicted, cuts);
    }
    let has_any = layers.iter().any(|layer| layer.n_predicted != [0; CUTS]);
    has_any.then_some(layers)
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
fn share(n: u64, of: u64) -> f64 {
    n as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::read;
    use super::*;

    #[test]
    fn recall_and_precision_by_hand() {
        let text = "{\"token\":0,\"layer\":0,\"experts\":[1,2],\"predicted\":[2,0,3,1]}\n\
            {\"token\":1,\"layer\":0,\"experts\":[1,2],\"predicted\":[3]}\n\
            {\"token\":1,\"layer\":1,\"experts\":[0,3],\"predicted\":[0]}\n";
        let steps = read(text, None).unwrap();
        assert_eq!(cuts(steps.top_k()), [2, 4, 6, 4]);
        let layers = recalls(&steps).unwrap();
        let first = Recall {
            n_used: 4,
            n_found: [1, 2, 2, 2],
            n_predicted: [3, 5, 5, 5],
        };
        assert_eq!(layers[0], first);
        let total = Recall::total(&layers);
        assert!((total.recall(0) - 2.0 / 6.0).abs() < 1e-12);
        assert!((total.precision(1) - 3.0 / 6.0).abs() < 1e-12);
        let none = read("{\"token\":0,\"layer\":0,\"experts\":[1,2]}", None).unwrap();
        assert_eq!(recalls(&none), None);
    }
}
