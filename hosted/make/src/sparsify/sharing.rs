//! Sharing a density out over layers, so that the divergence is small.
//!
//! Each layer is sparsified alone, to a half and to a quarter of its active neurons. What diverges is taken to grow with a
//! power of the share that is left out, and layers to add up; the best shares follow from that. They are measured against
//! the same share for all layers, and a mean of both, on other chunks: what diverges clearly less is used.

use super::divergence::Reference;
use super::layers::{Layers, float};
use super::{Mode, SparsifyError};
use sluice::Session;

/// How the divergence of a layer grows that alone leaves out a share of its active neurons.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// Share of neurons that are active.
    active: f64,
    /// Number of signals.
    weight: f64,
    /// The divergence if all are left out, by the power.
    size: f64,
    power: f64,
}

/// How densities are shared out.
pub(super) struct Sharing(Vec<Growth>);

/// Shares of active neurons that are kept while a layer is measured alone.
const KEPT: [f64; 2] = [0.5, 0.25];
/// Range of powers: above 1, so that the last neurons of a layer are the dearest.
const POWERS: (f64, f64) = (1.5, 8.0);
/// The smallest share of its active neurons that a layer keeps.
const SHARE_MIN: f64 = 0.02;
/// What diverges less by this factor is clearly better.
const CLEARLY: f64 = 0.95;
/// The smallest divergence that counts.
const DIVERGENCE_MIN: f64 = 1e-12;

impl Sharing {
    /// Measures each layer alone; also returns the divergences, a half and a quarter of its active neurons being kept.
    pub(super) fn measure(
        session: &mut Session,
        reference: &Reference<'_>,
        layers: &Layers,
        mode: Mode<'_>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<(Self, Vec<[f64; 2]>), SparsifyError> {
        let (mut growths, mut all) = (Vec::new(), Vec::new());
        for (i, layer) in layers.0.iter().enumerate() {
            let mut found = [0.0; 2];
            for (kept, found) in KEPT.into_iter().zip(&mut found) {
                if layer.n > 0 {
                    let mut shares = vec![1.0; layers.0.len()];
                    shares[i] = narrow(kept * layer.active());
                    *found = mode.divergence(session, reference, layers, &shares)?;
                }
            }
            growths.push(Growth::new(layer.active(), float(layer.n), found));
            all.push(found);
            progress(i + 1, layers.0.len());
        }
        Ok((Self(growths), all))
    }

    /// Shares of the layers for a density of the whole model.
    pub(super) fn shares(
        &self,
        session: &mut Session,
        reference: &Reference<'_>,
        layers: &Layers,
        mode: Mode<'_>,
        density: f64,
    ) -> Result<Vec<f32>, SparsifyError> {
        let mut best: Option<(f64, Vec<f32>)> = None;
        let of_growths = self.best(density);
        for part in [0.0, 0.5, 1.0] {
            let part_way = |share: &f64| narrow(density + part * (share - density));
            let shares: Vec<f32> = of_growths.iter().map(part_way).collect();
            let kl = mode.divergence(session, reference, layers, &shares)?;
            // The same share for all layers, unless others are clearly better: they hold for other texts as well.
            if best.as_ref().is_none_or(|(least, _)| kl < CLEARLY * least) {
                best = Some((kl, shares));
            }
        }
        Ok(best.map_or_else(Vec::new, |(_, shares)| shares))
    }

    /// The shares of least divergence by the layers' growths, whose mean is the density.
    fn best(&self, density: f64) -> Vec<f64> {
        let mean = |shares: &[f64]| {
            let pairs = self.0.iter().zip(shares);
            let sum: f64 = pairs.map(|(layer, share)| layer.weight * share).sum();
            let n: f64 = self.0.iter().map(|layer| layer.weight).sum();
            sum / n.max(1.0)
        };
        let at = |price: f64| -> Vec<f64> { self.0.iter().map(|it| it.share_at(price)).collect() };
        let all: Vec<f64> = self.0.iter().map(|layer| layer.active).collect();
        let active = mean(&all);
        let shares = if density >= active {
            all
        } else {
            let (mut low, mut high) = (-80.0f64, 80.0f64);
            for _ in 0..100 {
                let middle = low.midpoint(high);
                match mean(&at(middle.exp())) > density {
                    true => low = middle,
                    false => high = middle,
                }
            }
            at(high.exp())
        };
        // Neurons that are zero fill up what is left, or all layers give what is too much.
        let found = mean(&shares);
        let fill = ((density - found) / (1.0 - found).max(f64::MIN_POSITIVE)).max(0.0);
        let scale = (density / found.max(f64::MIN_POSITIVE)).min(1.0);
        shares
            .into_iter()
            .map(|share| (scale * share + fill * (1.0 - share)).clamp(0.0, 1.0))
            .collect()
    }
}

impl Growth {
    fn new(active: f64, weight: f64, found: [f64; 2]) -> Self {
        let [half, quarter] = found.map(|x| x.max(DIVERGENCE_MIN));
        let [less, more] = KEPT.map(|kept| 1.0 - kept);
        let power = (quarter / half).ln() / (more / less).ln();
        let power = power.clamp(POWERS.0, POWERS.1);
        Self {
            active,
            weight,
            size: quarter / more.powf(power),
            power,
        }
    }

    /// The share of neurons that is kept where leaving out one more is worth `price`.
    fn share_at(&self, price: f64) -> f64 {
        let slope = price * self.weight * self.active / (self.size * self.power);
        let left_out = slope.powf(1.0 / (self.power - 1.0)).min(1.0 - SHARE_MIN);
        self.active * (1.0 - left_out)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a share is rounded")]
const fn narrow(x: f64) -> f32 {
    x.clamp(0.0, 1.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sharing() -> Sharing {
        Sharing(vec![
            Growth::new(1.0, 100.0, [0.001, 0.01]),
            Growth::new(1.0, 100.0, [0.1, 0.4]),
            Growth::new(0.2, 100.0, [0.001, 0.002]),
        ])
    }

    fn mean(shares: &[f64]) -> f64 {
        shares.iter().sum::<f64>() / 3.0
    }

    #[test]
    fn shares_have_the_mean_that_is_asked_for_even_among_zeros() {
        for density in [0.01, 0.1, 0.5, 0.73, 0.75, 0.9, 1.0] {
            let shares = sharing().best(density);
            assert!(
                (mean(&shares) - density).abs() < 1e-6,
                "{density}: {shares:?}"
            );
            assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        }
    }

    /// Moving a little from one layer to another makes the sum of what the layers are taken to add no smaller.
    #[test]
    fn no_other_shares_diverge_less() {
        let sharing = sharing();
        let divergence = |shares: &[f64]| -> f64 {
            let pairs = sharing.0.iter().zip(shares);
            pairs
                .map(|(it, share)| it.size * (1.0 - share / it.active).max(0.0).powf(it.power))
                .sum()
        };
        let best = sharing.best(0.4);
        assert!(best[1] > best[0], "{best:?}");
        for from in 0..3 {
            for to in 0..3 {
                let mut other = best.clone();
                other[from] -= 0.01;
                other[to] += 0.01;
                let keeps_least = other[from] < SHARE_MIN * sharing.0[from].active;
                assert!(
                    keeps_least || divergence(&other) >= divergence(&best) - 1e-12,
                    "{from} {to}"
                );
            }
        }
        assert!(divergence(&best) < divergence(&[0.4; 3]));
    }
}
