//! Statistics of a trace: how unevenly experts are used, and how many a run of tokens needs.

use super::cache::Rate;
use super::steps::Steps;
use std::collections::HashMap;

/// Figures of a trace.
#[derive(Clone, Debug)]
pub struct TraceFigures {
    /// Number of distinct tokens.
    pub n_tokens: usize,
    /// Hits of the recorded run, over the steps that record them.
    pub recorded: Rate,
    /// Number of predictions in the recorded run.
    pub n_predicted: u64,
    /// By layer, in order.
    pub layers: Vec<LayerFigures>,
    /// Experts that stretches of tokens use together.
    pub working_sets: Vec<WorkingSet>,
}

/// Figures of a layer.
#[derive(Clone, Debug)]
pub struct LayerFigures {
    /// The layer's number.
    pub layer: u32,
    /// Number of the layer's steps.
    pub n_steps: u64,
    /// Experts and their uses, the most used first; of equals the smaller one. Experts are the layer's own.
    pub uses: Vec<(u32, u64)>,
    /// Hits that were recorded.
    pub recorded: Rate,
    /// Bits that the choice of an expert carries: log2 of the number of experts where all are used alike.
    pub entropy_bits: f64,
    /// The share of uses that falls on the most used tenth of all experts.
    pub top_tenth: f64,
}

/// Number of experts that a stretch of N tokens uses, over all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkingSet {
    /// Tokens in a stretch.
    pub n_tokens: usize,
    /// Mean number of experts.
    pub mean: f64,
    /// Maximum number of experts.
    pub most: usize,
}

impl TraceFigures {
    /// Computes the figures of a trace.
    #[must_use]
    pub fn of(steps: &Steps) -> Self {
        let mut layers: Vec<_> = steps.layers().iter().map(|&n| Counted::new(n)).collect();
        let mut n_predicted = 0;
        // Tokens are numbered as they appear.
        let mut tokens = HashMap::new();
        let mut used = Vec::new();
        for step in steps.iter() {
            let layer = &mut layers[steps.layer_index(step.layer)];
            layer.n_steps += 1;
            if let Some(n_hits) = step.n_hits {
                layer.recorded.add(Rate {
                    n_hits: u64::from(n_hits),
                    n_uses: step.experts.len() as u64,
                });
            }
            let n_tokens = tokens.len();
            let token = *tokens.entry(step.token).or_insert(n_tokens);
            for &id in step.experts {
                *layer.uses.entry(id % steps.n_expert()).or_default() += 1;
                used.push((token, id));
            }
            n_predicted += step.predicted.len() as u64;
        }
        used.sort_unstable();
        let n_tokens = tokens.len();
        let lengths = WINDOWS.into_iter().filter(|&length| length <= n_tokens);
        let layers: Vec<_> = layers
            .into_iter()
            .map(|layer| layer.figures(steps.n_expert()))
            .collect();
        let mut recorded = Rate::default();
        layers.iter().for_each(|layer| recorded.add(layer.recorded));
        Self {
            n_tokens,
            recorded,
            n_predicted,
            layers,
            working_sets: lengths
                .map(|length| WorkingSet::of(length, n_tokens, &used, steps.n_ids()))
                .collect(),
        }
    }

    /// Number of experts that were used at least once.
    #[must_use]
    pub fn n_seen(&self) -> usize {
        self.layers.iter().map(|layer| layer.uses.len()).sum()
    }

    /// The mean of the layers' entropies.
    #[must_use]
    pub fn entropy_bits(&self) -> f64 {
        self.mean(|layer| layer.entropy_bits)
    }

    /// The mean of the layers' [`top_tenth`](LayerFigures::top_tenth).
    #[must_use]
    pub fn top_tenth(&self) -> f64 {
        self.mean(|layer| layer.top_tenth)
    }

    fn mean(&self, value: impl Fn(&LayerFigures) -> f64) -> f64 {
        let sum: f64 = self.layers.iter().map(value).sum();
        sum / float(self.layers.len() as u64)
    }
}

/// A layer while steps are counted.
struct Counted {
    layer: u32,
    n_steps: u64,
    uses: HashMap<u32, u64>,
    recorded: Rate,
}

impl Counted {
    fn new(layer: u32) -> Self {
        Self {
            layer,
            n_steps: 0,
            uses: HashMap::new(),
            recorded: Rate::default(),
        }
    }

    fn figures(self, n_expert: u32) -> LayerFigures {
        let mut uses: Vec<(u32, u64)> = self.uses.into_iter().collect();
        uses.sort_unstable_by_key(|&(id, n)| (core::cmp::Reverse(n), id));
        let total: u64 = uses.iter().map(|&(_, n)| n).sum();
        let of_all = |n: u64| float(n) / float(total.max(1));
        let tenth: u64 = uses
            .iter()
            .take(n_expert.div_ceil(10) as usize)
            .map(|&(_, n)| n)
            .sum();
        LayerFigures {
            layer: self.layer,
            n_steps: self.n_steps,
            recorded: self.recorded,
            entropy_bits: uses
                .iter()
                .map(|&(_, n)| of_all(n) * -of_all(n).log2())
                .sum(),
            top_tenth: of_all(tenth),
            uses,
        }
    }
}

impl WorkingSet {
    /// Computes the working set of consecutive whole stretches of `length` tokens; `used` is (token, id), in order.
    fn of(length: usize, n_tokens: usize, used: &[(usize, u32)], n_ids: usize) -> Self {
        let n_windows = n_tokens / length;
        // The window that saw an expert last, from 1.
        let mut seen = vec![0; n_ids];
        let mut sizes = vec![0; n_windows + 1];
        for &(token, id) in used {
            let window = token / length + 1;
            let last = core::mem::replace(&mut seen[id as usize], window);
            if last != window && window <= n_windows {
                sizes[window] += 1;
            }
        }
        let total: usize = sizes.iter().sum();
        Self {
            n_tokens: length,
            mean: float(total as u64) / float(n_windows as u64),
            most: sizes.into_iter().max().unwrap_or_default(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
const fn float(n: u64) -> f64 {
    n as f64
}

/// Lengths of stretches of tokens.
const WINDOWS: [usize; 5] = [1, 4, 16, 64, 256];

#[cfg(test)]
mod tests {
    use super::super::steps::tests::{read, steps_of};
    use super::*;

    #[test]
    fn figures_by_hand() {
        let lines: Vec<(u64, u32, &[u32])> = vec![
            (10, 0, &[0, 1]),
            (10, 1, &[5, 6]),
            (11, 0, &[0, 2]),
            (11, 1, &[5, 6]),
            (12, 0, &[0, 3]),
            (12, 1, &[6, 7]),
            (13, 0, &[0, 3]),
            (13, 1, &[5, 7]),
            (14, 0, &[9, 8]),
        ];
        let figures = TraceFigures::of(&steps_of(&lines, 20));
        assert_eq!((figures.n_tokens, figures.n_seen()), (5, 6 + 3));
        let [first, second] = &*figures.layers else {
            panic!("two layers")
        };
        assert_eq!((first.n_steps, second.n_steps), (5, 4));
        assert_eq!(first.uses, [(0, 4), (3, 2), (1, 1), (2, 1), (8, 1), (9, 1)]);
        // 4/10, 2/10 and four of 1/10: 0.4 * 1.3219 + 0.2 * 2.3219 + 0.4 * 3.3219.
        assert!(
            (first.entropy_bits - 2.321_928).abs() < 1e-5,
            "{}",
            first.entropy_bits
        );
        assert!((first.top_tenth - 0.6).abs() < 1e-12);
        // Tokens use 4 experts each, but for the last. The only stretch of four: 0, 1, 2, 3 and 5, 6, 7.
        let [one, four] = &*figures.working_sets else {
            panic!("two lengths")
        };
        assert!(
            (one.mean - 18.0 / 5.0).abs() < 1e-12 && one.most == 4,
            "{one:?}"
        );
        assert!(
            (four.mean - 7.0).abs() < 1e-12 && four.most == 7,
            "{four:?}"
        );
    }

    #[test]
    fn what_was_recorded_is_counted() {
        let text = "{\"token\":1,\"layer\":0,\"experts\":[1,2],\"cache_hit\":[true,false],\"predicted\":[2]}\n\
            {\"token\":1,\"layer\":1,\"experts\":[1,2]}\n\
            {\"token\":2,\"layer\":0,\"experts\":[1],\"cache_hit\":[true],\"predicted\":[2,3]}\n";
        let figures = TraceFigures::of(&read(text, None).unwrap());
        assert_eq!(
            figures.recorded,
            Rate {
                n_hits: 2,
                n_uses: 3
            }
        );
        assert_eq!(figures.n_predicted, 3);
        assert_eq!(figures.layers[1].recorded, Rate::default());
    }
}
