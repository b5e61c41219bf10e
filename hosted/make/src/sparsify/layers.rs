//! The distributions of layers' signals: counts in bins of equal ratio.

use super::SparsifyError;
use sluice_core::engine::{Observer, SiteInput};
use std::sync::{Mutex, PoisonError};

/// Counts signals of layers by their leading bits.
pub(super) struct Counter(Vec<Mutex<Vec<u64>>>);

impl Counter {
    pub(super) fn new(n_layer: usize) -> Self {
        Self((0..n_layer).map(|_| Mutex::default()).collect())
    }

    pub(super) fn layers(self) -> Result<Layers, SparsifyError> {
        let mut layers = Vec::new();
        for (i, bins) in self.0.into_iter().enumerate() {
            let bins = bins.into_inner().unwrap_or_else(PoisonError::into_inner);
            let finite = bin(f32::INFINITY);
            if bins.iter().skip(finite).any(|n| *n > 0) {
                return Err(SparsifyError::NotFinite(i));
            }
            layers.push(Layer::new(bins));
        }
        Ok(Layers(layers))
    }
}

impl Observer for Counter {
    fn sees(&self, _: SiteInput<'_>) {}

    fn sees_signals(&self, layer: usize, signals: &[f32]) {
        let mut bins = self.0[layer].lock().unwrap_or_else(PoisonError::into_inner);
        if bins.is_empty() {
            bins.resize(bin(f32::NAN) + 1, 0);
        }
        for signal in signals {
            bins[bin(*signal)] += 1;
        }
    }

    fn sees_all(&self) -> bool {
        true
    }
}

/// The distributions of all layers.
pub(super) struct Layers(pub(super) Vec<Layer>);

/// The distribution of a layer's signals.
pub(super) struct Layer {
    /// The number of signals from each bin on.
    from_bin: Vec<u64>,
    pub(super) n: u64,
}

impl Layer {
    fn new(bins: Vec<u64>) -> Self {
        let n = bins.iter().sum();
        let mut from_bin = bins;
        for i in (1..from_bin.len()).rev() {
            from_bin[i - 1] += from_bin[i];
        }
        Self { from_bin, n }
    }

    /// The threshold that keeps nearly a share of the signals, or all that are not 0: the last number of a bin.
    fn keeping(&self, share: f64) -> f32 {
        let wanted = share * float(self.n);
        // The first bin from whose end on at most as many are kept, or the one before.
        let kept = |bin: usize| float(self.from_bin.get(bin + 1).copied().unwrap_or(0));
        let bins = self.from_bin.len();
        let (mut low, mut high) = (0, bins);
        while low < high {
            let middle = low.midpoint(high);
            match kept(middle) > wanted {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let before = low.saturating_sub(1);
        let bin = match kept(before) - wanted < wanted - kept(low) {
            true => before,
            false => low,
        };
        match u32::try_from(bin).unwrap_or(0) {
            0 => 0.0,
            bin => f32::from_bits((bin << SHIFT) | ((1 << SHIFT) - 1)).min(f32::MAX),
        }
    }

    /// Share of signals that are not 0.
    pub(super) fn active(&self) -> f64 {
        match self.n {
            0 => 1.0,
            n => float(self.above(0.0)) / float(n),
        }
    }

    /// The number of signals above a threshold.
    fn above(&self, threshold: f32) -> u64 {
        // Of the first bin all are 0, or nearly.
        self.from_bin.get(bin(threshold) + 1).copied().unwrap_or(0)
    }
}

impl Layers {
    /// The thresholds that keep shares of the layers' neurons, or those that are not 0 where these are fewer.
    pub(super) fn thresholds(&self, shares: &[f32]) -> Vec<f32> {
        let layers = self.0.iter().zip(shares);
        layers
            .map(|(layer, share)| layer.keeping(f64::from(*share)))
            .collect()
    }

    /// The share of all neurons that are kept if layers keep shares of theirs, of those that are not 0.
    pub(super) fn kept(&self, shares: &[f32]) -> f64 {
        let (mut kept, mut all) = (0.0, 0.0);
        for (layer, share) in self.0.iter().zip(shares) {
            let n = float(layer.n);
            kept += n * layer.active().min(f64::from(*share));
            all += n;
        }
        kept / f64::max(all, 1.0)
    }

    /// The share that each layer's threshold keeps.
    pub(super) fn densities(&self, thresholds: &[f32]) -> Vec<f64> {
        let layers = self.0.iter().zip(thresholds);
        let density = |(layer, threshold): (&Layer, &f32)| match layer.n {
            0 => 1.0,
            n => float(layer.above(*threshold)) / float(n),
        };
        layers.map(density).collect()
    }
}

/// The bin of a signal, which is not negative.
const fn bin(signal: f32) -> usize {
    (signal.to_bits() >> SHIFT) as usize
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) const fn float(n: u64) -> f64 {
    n as f64
}

/// Bits of a signal below those that tell its bin: 128 bins for each power of two.
const SHIFT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of 10,000 signals: of different sizes, one of them mostly zero, one with an outlier.
    fn layers() -> Layers {
        let layer = |scale: f32, zeros: u16, outlier: f32| {
            let mut bins = vec![0; bin(f32::NAN) + 1];
            (0..10_000u16).for_each(|i| bins[bin(scale * f32::from(i.saturating_sub(zeros)))] += 1);
            bins[bin(outlier)] += 1;
            Layer::new(bins)
        };
        Layers(vec![
            layer(1e-4, 0, 0.0),
            layer(3.0, 0, 1e12),
            layer(1.0, 8_000, 0.0),
        ])
    }

    #[test]
    fn thresholds_keep_the_shares_that_are_asked_for() {
        for share in [0.05, 0.1, 0.2, 0.5, 0.7, 1.0] {
            let layers = layers();
            let thresholds = layers.thresholds(&[share; 3]);
            let found = layers.densities(&thresholds);
            for (found, most) in found.iter().zip([1.0, 1.0, 0.2]) {
                let expected = f64::from(share).min(most);
                assert!((found - expected).abs() < 0.005, "{share}: {found}");
            }
        }
        assert!((layers().0[2].active() - 0.2).abs() < 0.001);
    }
}
