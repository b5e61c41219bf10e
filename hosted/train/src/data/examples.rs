//! Examples, and sets of them.

use super::report::SetReport;
use crate::labels::LabelSpans;
use crate::order::RowGroup;
use sluice_core::tokenizer::{Detokenizer, Tokenizer};

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

impl Example {
    /// The row as text, with the tokens that are learned between ⟦ and ⟧.
    #[must_use]
    pub fn marked(&self, tokenizer: &Tokenizer<'_>) -> String {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(tokenizer).showing_special();
        let mut was_learned = false;
        for (position, id) in (0_u32..).zip(&self.tokens) {
            let is_learned = self.labels.contains(position);
            if is_learned != was_learned {
                text.push(if is_learned { OPEN } else { CLOSE });
                was_learned = is_learned;
            }
            // Every id is in the vocabulary.
            let _shown = detokenizer.push(tokenizer, *id, |piece| text.push_str(piece));
        }
        if was_learned {
            text.push(CLOSE);
        }
        text
    }
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

const OPEN: char = '⟦';
const CLOSE: char = '⟧';
