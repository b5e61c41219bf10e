//! Which tokens of a row are learned.

use core::ops::Range;

/// Positions of tokens that the model learns to predict: ascending ranges that do not touch. The label of position t
/// is the token at t, predicted from those before it; so position 0 never has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSpans(Vec<Range<u32>>);

impl LabelSpans {
    /// The positions for which `learned` is true, except 0.
    pub(crate) fn of(learned: impl IntoIterator<Item = bool>) -> Self {
        let mut spans: Vec<Range<u32>> = Vec::new();
        for (at, is_learned) in (0_u32..).zip(learned) {
            if at == 0 || !is_learned {
                continue;
            }
            match spans.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                _ => spans.push(at..at + 1),
            }
        }
        Self(spans)
    }

    /// The ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }

    /// Number of labels.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|range| range.len()).sum()
    }

    /// Whether no token is learned.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the token at `position` is learned.
    #[must_use]
    pub fn contains(&self, position: u32) -> bool {
        let after = self.0.partition_point(|range| range.end <= position);
        self.0
            .get(after)
            .is_some_and(|range| range.contains(&position))
    }

    /// Positions of learned tokens, ascending.
    pub fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// Removes labels from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        for range in &mut self.0 {
            range.end = range.end.min(len);
        }
        self.0.retain(|range| !range.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::LabelSpans;

    #[test]
    fn spans_are_ascending_and_never_have_position_0() {
        let spans = LabelSpans::of([true, true, false, false, true, true, false, true]);
        assert_eq!(spans.ranges(), [1..2, 4..6, 7..8]);
        assert_eq!(spans.count(), 4);
        let found: Vec<u32> = (0..9).filter(|at| spans.contains(*at)).collect();
        assert_eq!(found, [1, 4, 5, 7]);
        assert_eq!(spans.positions().collect::<Vec<_>>(), found);
        let mut cut = spans;
        cut.truncate(5);
        assert_eq!(cut.ranges(), [1..2, 4..5]);
        cut.truncate(1);
        assert!(cut.is_empty());
        assert!(LabelSpans::of([true]).is_empty());
    }
}
