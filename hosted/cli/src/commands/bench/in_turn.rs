//! `--in-turn`: the cost of adapters, from alternating steps with and without them.

/// A step with adapters, compared with the steps before and after it, which have none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turn {
    /// Mean time of the steps without adapters, in ns.
    pub(super) bare_ns: f64,
    /// How much longer the step with adapters took, in percent.
    pub(super) tax_percent: f64,
}

/// Compares the steps of a repetition, the first of which is without adapters.
pub(super) fn turns(ns: &[u64]) -> impl Iterator<Item = Turn> {
    let threes = ns.windows(3).step_by(2);
    threes.map(|three| {
        let [before, with, after] = [three[0], three[1], three[2]].map(|ns| ns.max(1) as f64);
        let bare_ns = f64::midpoint(before, after);
        Turn {
            bare_ns,
            tax_percent: 100.0 * (with / bare_ns - 1.0),
        }
    })
}

/// The given percentile of the values; 0 without values.
pub(super) fn percentile(values: impl Iterator<Item = f64>, percent: usize) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = sorted.len() * percent / 100;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The line after the results; `None` if no steps were compared.
pub(super) fn report(test: &str, turns: &[Turn]) -> Option<String> {
    let taxes = || turns.iter().map(|turn| turn.tax_percent);
    let [low, middle, high] = [25, 50, 75].map(|percent| percentile(taxes(), percent));
    (!turns.is_empty()).then(|| {
        format!(
            "{test}: adapters add {middle:.1}% to a step (median of {}; interquartile range {low:.1} to {high:.1}%)",
            turns.len(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_compared_with_those_beside_it() {
        let taxes = |ns: &[u64]| -> Vec<f64> {
            let taxes = turns(ns).map(|turn| turn.tax_percent.round());
            taxes.collect()
        };
        assert_eq!(taxes(&[100, 110, 100, 260, 300]), [10.0, 30.0]);
        assert_eq!(taxes(&[100, 110, 100, 500]), [10.0]);
        assert!(taxes(&[100, 110]).is_empty());
        let all: Vec<_> = turns(&[100, 110, 100, 260, 300]).collect();
        assert_eq!(all[1].bare_ns.to_bits(), 200f64.to_bits());
        let bare = |percent| percentile(all.iter().map(|turn| turn.bare_ns), percent);
        let bare = [0, 50].map(|percent| format!("{}", bare(percent)));
        assert_eq!(bare, ["100", "200"]);
    }
}
