//! From files to examples: read, tokenized, labelled, cut, without duplicates, and split.

use super::error::{DataError, RowPlace};
use super::form::{Form, Row};
use super::paths;
use super::report::{DataReport, Drop, FileReport, SetReport};
use super::rows::{self, RawRow};
use crate::config::{DataFile, SftConfig};
use crate::labels::{LabelSpans, Labelled, Labeller, RowProblem};
use crate::order::{EpochOrder, RowGroup, split_off};
use crate::template;
use core::fmt::Write as _;
use sha2::{Digest as _, Sha256};
use sluice::vocabulary::VocabularyFile;
use sluice_core::tokenizer::{Detokenizer, Tokenizer};
use std::collections::{BTreeMap, BTreeSet};

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

/// All rows that are ready to be learned.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Rows to train on, in the files' order.
    pub train: Vec<Example>,
    /// Rows to evaluate on, in the files' order.
    pub eval: Vec<Example>,
    /// The rows to train on by file, for [`EpochOrder`](crate::order::EpochOrder).
    pub groups: Vec<RowGroup>,
    /// What was read, dropped and cut.
    pub report: DataReport,
    /// The SHA-256 of all examples, their weights and labels: what a checkpoint compares.
    pub sha256: [u8; 32],
}

/// Reads the rows that a configuration names.
///
/// # Errors
/// [`DataError`]: a file or row is wrong, or a fifth of the rows have nothing to learn.
pub fn prepare(config: &SftConfig, vocabulary: &VocabularyFile) -> Result<Dataset, DataError> {
    let settings = &config.data;
    let paths = paths::of(settings)?;
    if let Some(file) = paths.eval.first().filter(|_| !settings.val_size.is_zero()) {
        let path = file.path.clone();
        return Err(DataError::TwoEvals { path });
    }
    let maker = template::maker(&config.model, vocabulary)?;
    let report = DataReport {
        template_marks: maker
            .as_ref()
            .map(|maker| maker.template().marks_generated()),
        unused_files: paths.unused,
        ..DataReport::default()
    };
    let mut reader = Reader {
        labeller: Labeller {
            tokenizer: vocabulary.tokenizer(),
            maker,
            kwargs: config.model.chat_template_kwargs.clone(),
            completion_only: settings.completion_only,
            assistant_only: settings.assistant_only,
        },
        max_length: settings.max_length,
        deduplicate: settings.deduplicate,
        seen: BTreeSet::new(),
        next_id: 0,
    };
    let mut train = reader.set(&paths.train, Drop::Duplicate)?;
    if paths.train.is_empty() {
        if settings.prompts.is_empty() {
            return Err(DataError::NoFiles);
        }
        train = reader.prompts(&settings.prompts)?;
    }
    let mut eval = reader.set(&paths.eval, Drop::Trained)?;
    let mut n_split_off = 0;
    if eval.examples.is_empty() {
        let n = u32::try_from(train.examples.len()).unwrap_or(u32::MAX);
        let count = settings
            .val_size
            .of_all(u64::from(n))
            .min(u64::from(n.saturating_sub(1)));
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        eval.examples = train.split_off(&split_off(settings.seed, n, count));
        n_split_off = count;
    }
    train.count();
    eval.count();
    let mut dataset = Dataset {
        groups: train.groups(),
        sha256: [0; 32],
        train: train.examples,
        eval: eval.examples,
        report: DataReport {
            train: train.report,
            eval: eval.report,
            n_split_off,
            ..report
        },
    };
    dataset.sha256 = dataset.hash();
    Ok(dataset)
}

impl Dataset {
    /// The order in which the rows are visited.
    #[must_use]
    pub fn order(&self, config: &SftConfig) -> EpochOrder {
        let data = &config.data;
        EpochOrder::new(data.seed, data.shuffle, self.groups.clone())
    }

    fn hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for group in &self.groups {
            hash.update(group.rows.end.to_le_bytes());
            hash.update(group.weight.to_le_bytes());
        }
        for (set, examples) in [(0_u8, &self.train), (1, &self.eval)] {
            hash.update([set]);
            for example in examples {
                hash.update(example.id.to_le_bytes());
                hash.update((example.tokens.len() as u64).to_le_bytes());
                example
                    .tokens
                    .iter()
                    .for_each(|id| hash.update(id.to_le_bytes()));
                hash.update((example.labels.ranges().len() as u64).to_le_bytes());
                for range in example.labels.ranges() {
                    hash.update(range.start.to_le_bytes());
                    hash.update(range.end.to_le_bytes());
                }
            }
        }
        hash.finalize().into()
    }
}

/// Rows of a set, with the number of rows of each file.
#[derive(Default)]
struct Set {
    examples: Vec<Example>,
    report: SetReport,
    /// For each file, the number of examples and their weight.
    counts: Vec<(usize, f64)>,
}

impl Set {
    /// Takes out rows by their ascending indices.
    fn split_off(&mut self, rows: &[u32]) -> Vec<Example> {
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

    fn groups(&self) -> Vec<RowGroup> {
        let mut start = 0;
        let groups = self.counts.iter().map(|&(count, weight)| {
            let end = start + u32::try_from(count).unwrap_or(u32::MAX);
            let rows = start..end;
            start = end;
            RowGroup { rows, weight }
        });
        groups.collect()
    }

    fn count(&mut self) {
        let report = &mut self.report;
        for example in &self.examples {
            report.n_tokens += example.tokens.len() as u64;
            report.n_labels += example.labels.count() as u64;
            report.longest = report.longest.max(example.tokens.len());
        }
    }
}

/// The first row without a label.
struct FirstFault {
    place: RowPlace,
    tokens: Vec<u32>,
}

struct Reader<'m> {
    labeller: Labeller<'m>,
    max_length: usize,
    deduplicate: bool,
    /// The beginnings of the SHA-256 of tokens.
    seen: BTreeSet<[u8; 16]>,
    next_id: u64,
}

impl Reader<'_> {
    fn set(&mut self, files: &[DataFile], duplicate: Drop) -> Result<Set, DataError> {
        let mut set = Set::default();
        let mut first_fault = None;
        let (mut n_beyond, mut shortest) = (0, usize::MAX);
        for file in files {
            let before = set.examples.len();
            let (form, recognised) = self.form(file)?;
            let field = file.text_field.as_deref().unwrap_or("text");
            let used = form.columns(field);
            let mut report = FileReport {
                path: file.path.clone(),
                form,
                recognised,
                n_rows: 0,
                weight: file.weight,
                unused_columns: BTreeSet::new(),
            };
            let limit = file
                .max_samples
                .map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
            for raw in rows::open(&file.path)?.take(limit) {
                let raw = raw?;
                report.n_rows += 1;
                for name in raw.columns.keys() {
                    if !used.contains(&&**name) && !report.unused_columns.contains(name) {
                        report.unused_columns.insert(name.clone());
                    }
                }
                let row = form.parse(&raw, field).map_err(|reason| DataError::Row {
                    place: raw.place.clone(),
                    reason,
                })?;
                let labelled = self.labelled(&row, &raw.place)?;
                let prompt = labelled
                    .labels
                    .ranges()
                    .first()
                    .map_or(0, |range| range.start as usize);
                let tokens = labelled.tokens.clone();
                let fault = self.add(labelled, duplicate, &mut set);
                if fault == Some(Drop::Beyond) {
                    n_beyond += 1;
                    shortest = shortest.min(prompt);
                }
                if fault.is_some() && first_fault.is_none() {
                    let place = raw.place;
                    first_fault = Some(FirstFault { place, tokens });
                }
            }
            if report.n_rows == 0 {
                let path = file.path.clone();
                return Err(DataError::Empty { path });
            }
            set.counts.push((set.examples.len() - before, file.weight));
            set.report.files.push(report);
        }
        if set.examples.is_empty() && n_beyond > 0 && n_beyond == faults(&set.report) {
            let max_length = self.max_length;
            return Err(DataError::TooShort {
                max_length,
                shortest,
            });
        }
        self.check(&set.report, first_fault)?;
        Ok(set)
    }

    /// Texts of the configuration.
    fn prompts(&mut self, prompts: &[String]) -> Result<Set, DataError> {
        let mut set = Set::default();
        for (prompt, number) in prompts.iter().zip(1..) {
            let place = RowPlace {
                path: "prompts".into(),
                unit: "text",
                number,
            };
            let labelled = self.labelled(&Row::Text(prompt.clone()), &place)?;
            self.add(labelled, Drop::Duplicate, &mut set);
        }
        set.counts.push((set.examples.len(), 1.0));
        set.report.files.push(FileReport {
            path: "prompts".into(),
            form: Form::Text,
            recognised: false,
            n_rows: prompts.len(),
            weight: 1.0,
            unused_columns: BTreeSet::new(),
        });
        match set.examples.is_empty() {
            true => Err(DataError::Empty {
                path: "prompts".into(),
            }),
            false => Ok(set),
        }
    }

    /// The form of a file's rows: the one that is set, or the first row's.
    fn form(&self, file: &DataFile) -> Result<(Form, bool), DataError> {
        if let Some(form) = Form::of_name(&file.dataset_type) {
            return Ok((form, false));
        }
        let empty = || DataError::Empty {
            path: file.path.clone(),
        };
        let first: RawRow = rows::open(&file.path)?.next().ok_or_else(empty)??;
        let form = Form::of_columns(&first.columns, file.text_field.as_deref());
        let form = form.map_err(|reason| DataError::Row {
            place: first.place,
            reason,
        })?;
        Ok((form, true))
    }

    fn labelled(&self, row: &Row, place: &RowPlace) -> Result<Labelled, DataError> {
        let place = || place.clone();
        self.labeller.label(row).map_err(|problem| match problem {
            RowProblem::NoTemplate => DataError::NoTemplate { place: place() },
            RowProblem::Wrong(reason) => DataError::Row {
                place: place(),
                reason,
            },
        })
    }

    /// Adds a row, or counts why it is dropped. The reason is returned if it is a fault.
    fn add(&mut self, mut labelled: Labelled, duplicate: Drop, set: &mut Set) -> Option<Drop> {
        let id = self.next_id;
        self.next_id += 1;
        let had_labels = !labelled.labels.is_empty();
        let is_long = labelled.tokens.len() > self.max_length;
        labelled.tokens.truncate(self.max_length);
        labelled.labels.truncate(self.max_length);
        let reason = match (labelled.labels.is_empty(), had_labels, labelled.turns_lost) {
            (true, true, _) => Some(Drop::Beyond),
            (true, false, 0) => Some(Drop::Unlabelled),
            (true, false, _) => Some(Drop::TurnsLost),
            (false, ..) if self.deduplicate && !self.is_new(&labelled.tokens) => Some(duplicate),
            _ => None,
        };
        if let Some(reason) = reason {
            set.report.drop(reason);
            return Some(reason).filter(|reason| reason.is_fault());
        }
        set.report.n_cut += usize::from(is_long);
        set.report.n_straddling += usize::from(labelled.straddles);
        set.report.n_turns_lost += labelled.turns_lost;
        set.report.n_open += usize::from(labelled.is_open);
        set.examples.push(Example {
            id,
            tokens: labelled.tokens,
            labels: labelled.labels,
        });
        None
    }

    fn is_new(&mut self, tokens: &[u32]) -> bool {
        let mut hash = Sha256::new();
        tokens.iter().for_each(|id| hash.update(id.to_le_bytes()));
        let hash: [u8; 32] = hash.finalize().into();
        let mut beginning = [0; 16];
        beginning.copy_from_slice(&hash[..16]);
        self.seen.insert(beginning)
    }

    /// Stops if a fifth of the rows have nothing to learn: then the settings do not fit the data.
    fn check(&self, report: &SetReport, first: Option<FirstFault>) -> Result<(), DataError> {
        let n_dropped = faults(report);
        let Some(first) = first.filter(|_| n_dropped * 5 >= report.n_rows()) else {
            return Ok(());
        };
        Err(DataError::TooFew {
            n_dropped,
            n_rows: report.n_rows(),
            reasons: reasons(&report.dropped, Drop::is_fault),
            place: first.place,
            example: beginning(self.labeller.tokenizer, &first.tokens),
        })
    }
}

/// Rows that were dropped for a fault.
fn faults(report: &SetReport) -> usize {
    let faults = report
        .dropped
        .iter()
        .filter(|(reason, _)| reason.is_fault());
    faults.map(|(_, count)| count).sum()
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

/// The text of the first tokens.
fn beginning(tokenizer: &Tokenizer<'_>, tokens: &[u32]) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer).showing_special();
    for id in tokens.iter().take(EXAMPLE_TOKENS) {
        // Every id is in the vocabulary.
        let _shown = detokenizer.push(tokenizer, *id, |piece| text.push_str(piece));
    }
    if tokens.len() > EXAMPLE_TOKENS {
        text.push('…');
    }
    text
}

const EXAMPLE_TOKENS: usize = 200;
