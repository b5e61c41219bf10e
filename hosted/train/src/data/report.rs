//! What was read, dropped and cut, for the plan.

use super::form::RowForm;
use core::fmt::Write as _;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Why a row is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drop {
    /// An earlier row has the same tokens.
    Duplicate,
    /// A row that is trained on has the same tokens.
    Trained,
    /// No token is learned: no turn of the assistant's, or an empty completion.
    Unlabelled,
    /// The turns of the assistant's could not be told from the rest.
    TurnsLost,
    /// All labels are beyond the maximum length.
    Beyond,
}

/// A file.
#[derive(Clone, Debug)]
pub struct FileReport {
    /// Its path.
    pub path: PathBuf,
    /// The form of its rows.
    pub form: RowForm,
    /// Whether the form was recognised by the columns, not set.
    pub recognised: bool,
    /// Rows that were read.
    pub n_rows: usize,
    /// How often rows are visited in an epoch.
    pub weight: f64,
    /// Columns that are not used, by name.
    pub unused_columns: BTreeSet<String>,
}

/// The rows for training, or those for evaluation.
#[derive(Clone, Debug, Default)]
pub struct SetReport {
    /// The files.
    pub files: Vec<FileReport>,
    /// Rows that were dropped, by reason.
    pub dropped: BTreeMap<Drop, usize>,
    /// Rows that were cut to the maximum length.
    pub n_cut: usize,
    /// Rows in which a token has the end of the prompt and the beginning of the completion.
    pub n_straddling: usize,
    /// Turns of the assistant's without labels in rows that have some: as history, the template writes them differently.
    pub n_turns_lost: usize,
    /// Conversations whose last answer has no token that ends it.
    pub n_open: usize,
    /// Tokens of the rows that are left.
    pub n_tokens: u64,
    /// Labels of the rows that are left.
    pub n_labels: u64,
    /// The most tokens of a row that is left.
    pub longest: usize,
}

/// All rows.
#[derive(Clone, Debug, Default)]
pub struct DataReport {
    /// Rows for training.
    pub train: SetReport,
    /// Rows for evaluation.
    pub eval: SetReport,
    /// Files of folders that are not used.
    pub unused_files: Vec<PathBuf>,
    /// Rows for evaluation that were split off those for training.
    pub n_split_off: usize,
    /// Whether the template marks what the model generates; `None` without a template.
    pub template_marks: Option<bool>,
}

impl Drop {
    /// The reason in words.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicates",
            Self::Trained => "duplicates of rows that are trained on",
            Self::Unlabelled => "no label",
            Self::TurnsLost => "turns not found in the rendered conversation",
            Self::Beyond => "labels beyond max_length",
        }
    }

    /// Whether the row is a fault of the data or the settings.
    pub(super) const fn is_fault(self) -> bool {
        !matches!(self, Self::Duplicate | Self::Trained)
    }
}

impl SetReport {
    pub(super) fn drop(&mut self, reason: Drop) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Rows that were read.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.files.iter().map(|file| file.n_rows).sum()
    }
}

/// Reasons with their counts.
pub(crate) fn reasons(dropped: &BTreeMap<Drop, usize>, is_shown: fn(Drop) -> bool) -> String {
    let mut text = String::new();
    for (reason, count) in dropped.iter().filter(|(reason, _)| is_shown(**reason)) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{count} {}", reason.describe());
    }
    text
}
