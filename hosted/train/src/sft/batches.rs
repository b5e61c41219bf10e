//! The rows of a step in passes: what fits into memory together changes no bit of a gradient.

use crate::labels::LabelSpans;
use sluice::training::TrainingText;
use sluice_core::engine::backward::NO_LABEL;

/// A row as passes take it: each token's label is the token after it.
#[derive(Clone, Debug)]
pub(super) struct Row<'d> {
    tokens: &'d [u32],
    labels: Vec<u32>,
}

impl<'d> Row<'d> {
    pub(super) fn new(tokens: &'d [u32], spans: &LabelSpans) -> Self {
        let mut labels = vec![NO_LABEL; tokens.len()];
        for position in spans.positions().filter(|position| *position > 0) {
            let position = position as usize;
            labels[position - 1] = tokens[position];
        }
        Self { tokens, labels }
    }

    pub(super) const fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn text(&self) -> TrainingText<'_> {
        TrainingText {
            tokens: self.tokens,
            labels: &self.labels,
        }
    }
}

/// The largest passes over rows of these lengths: at most `rows` of them, and at most `tokens` tokens unless a row alone has
/// more. They are in the order of the rows.
pub(super) fn passes(
    lengths: &[usize],
    rows: usize,
    tokens: usize,
) -> Vec<core::ops::Range<usize>> {
    let (mut passes, mut start, mut sum) = (Vec::new(), 0, 0);
    for (i, len) in lengths.iter().enumerate() {
        if i > start && (i - start == rows || sum + len > tokens) {
            passes.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += len;
    }
    if start < lengths.len() {
        passes.push(start..lengths.len());
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn passes_hold_rows_in_order() {
        assert!(passes(&[], 2, 10).is_empty());
        assert_eq!(passes(&[3, 3, 3, 3], 2, 100), [0..2, 2..4]);
        assert_eq!(passes(&[3, 3, 3, 3], 8, 7), [0..2, 2..4]);
        assert_eq!(passes(&[30, 3, 9], 8, 10), [0..1, 1..2, 2..3]);
    }
}
