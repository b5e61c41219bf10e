//! Examples, and sets of them.

use super::report::SetReport;
use crate::labels::LabelSpans;
use crate::order::RowGroup;

/// A row that is ready to be learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The number of the row among all that were read, from 0, those for evaluation after those for training. It stays the
    /// same when other settings drop other rows.
    pub id: u64,
    /// At most `max_length` tokens.
    pub tokens: Vec<u32>,
    /// Which of them are learned; at least one is.
    pub labels: LabelSpans,
}

/// Rows of a set, with the number of rows of each file.
#[derive(Default)]
pub(super) struct Set {
    pub(super) examples: Vec<Example>,
    pub(super) report: SetReport,
    /// For each file, the number of examples and their weight.
    pub(super) counts: Vec<(usize, f64)>,
}

impl Set {
    /// Takes out rows by their ascending indices.
    pub(super) fn split_off(&mut self, rows: &[u32]) -> Vec<Example> {
        let mut file_of = Vec::with_capacity(self.examples.len());
        for (file, (count, _)) in self.counts.iter().enumerate() {
            file_of.extend(core::iter::repeat_n(file, *count));
        }
        let (mut kept, mut taken) = (Vec::new(), Vec::new());
        for (index, example) in (0_u32..).zip(core::mem::take(&mut self.examples)) {
            match rows.binary_search(&index) {
                Ok(_) => {
                    self.counts[file_of[index as usize]].0 -= 1;
                    taken.push(example);
                }
                Err(_) => kept.push(example),
            }
        }
        self.examples = kept;
        taken
    }

    pub(super) fn groups(&self) -> Vec<RowGroup> {
        let mut start = 0;
        let groups = self.counts.iter().map(|&(count, weight)| {
            let end = start + u32::try_from(count).unwrap_or(u32::MAX);
            let rows = start..end;
            start = end;
            RowGroup { rows, weight }
        });
        groups.collect()
    }

    pub(super) fn count(&mut self) {
        let report = &mut self.report;
        for example in &self.examples {
            report.n_tokens += example.tokens.len() as u64;
            report.n_labels += example.labels.count() as u64;
            report.longest = report.longest.max(example.tokens.len());
        }
    }
}
