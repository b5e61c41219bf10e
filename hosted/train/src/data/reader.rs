//! Reads files of rows: parsed, tokenized and labelled, cut, without duplicates.

use super::error::{DataError, RowPlace};
use super::examples::{Example, Set};
use super::form::RowForm;
use super::report::{Drop, FileReport, SetReport, reasons};
use super::rows::{self, RawRow};
use crate::config::DataFile;
use crate::labels::{Labelled, Labeller, RowProblem};
use crate::row::Row;
use sha2::{Digest as _, Sha256};
use sluice_core::tokenizer::{Detokenizer, Tokenizer};
use std::collections::BTreeSet;
use std::thread;

/// Rows without a label.
struct Faults {
    n: usize,
    /// How many of them have their labels beyond the maximum length.
    n_beyond: usize,
    /// The fewest tokens before the first label of these.
    shortest: usize,
    /// The first of all, and its first tokens.
    first: Option<(RowPlace, Vec<u32>)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            n: 0,
            n_beyond: 0,
            shortest: usize::MAX,
            first: None,
        }
    }
}

impl Faults {
    fn count(&mut self, reason: Drop, prompt: usize, place: RowPlace, head: Vec<u32>) {
        self.n += 1;
        if reason == Drop::Beyond {
            self.n_beyond += 1;
            self.shortest = self.shortest.min(prompt);
        }
        self.first.get_or_insert((place, head));
    }
}

/// Reads the rows of sets.
pub(super) struct Reader<'m> {
    pub(super) labeller: Labeller<'m>,
    pub(super) max_length: usize,
    pub(super) deduplicate: bool,
    /// The beginnings of the SHA-256 of tokens.
    pub(super) seen: BTreeSet<[u8; 16]>,
    pub(super) next_id: u64,
    pub(super) n_threads: usize,
}

impl Reader<'_> {
    /// The rows of files; `duplicate` is why those with the tokens of an earlier row are dropped.
    pub(super) fn set(&mut self, files: &[DataFile], duplicate: Drop) -> Result<Set, DataError> {
        let mut set = Set::default();
        let mut faults = Faults::default();
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
            let max = file.max_samples.map(usize::try_from);
            let limit = max.map_or(usize::MAX, |max| max.unwrap_or(usize::MAX));
            let mut rows = rows::open(&file.path)?.take(limit).peekable();
            while rows.peek().is_some() {
                let batch = parsed(&mut rows, &mut report, &used, |raw| form.parse(raw, field));
                self.add_all(batch, duplicate, &mut set, &mut faults)?;
            }
            if report.n_rows == 0 {
                let path = file.path.clone();
                return Err(DataError::Empty { path });
            }
            set.counts.push((set.examples.len() - before, file.weight));
            set.report.files.push(report);
        }
        if set.examples.is_empty() && faults.n_beyond > 0 && faults.n_beyond == faults.n {
            return Err(DataError::TooShort {
                max_length: self.max_length,
                shortest: faults.shortest,
            });
        }
        self.check(&set.report, faults)?;
        Ok(set)
    }

    /// Labels rows on all threads, and adds them in their order. The first error counts, as if rows came one by one.
    fn add_all(
        &mut self,
        batch: Vec<Result<(RowPlace, Row), DataError>>,
        duplicate: Drop,
        set: &mut Set,
        faults: &mut Faults,
    ) -> Result<(), DataError> {
        let labelled = self.labelled_all(&batch);
        for (row, labelled) in batch.into_iter().zip(labelled) {
            let (place, _) = row?;
            let labelled = labelled.map_err(|problem| problem_at(problem, &place))?;
            let prompt = labelled.labels.ranges().first();
            let prompt = prompt.map_or(0, |range| range.start as usize);
            // Only the beginning is shown.
            let head = labelled
                .tokens
                .iter()
                .take(EXAMPLE_TOKENS + 1)
                .copied()
                .collect();
            if let Some(reason) = self.add(labelled, duplicate, set) {
                faults.count(reason, prompt, place, head);
            }
        }
        Ok(())
    }

    /// The labels of rows, in their order. A row that could not be read stands for itself.
    fn labelled_all(
        &self,
        batch: &[Result<(RowPlace, Row), DataError>],
    ) -> Vec<Result<Labelled, RowProblem>> {
        let label = |row: &Result<(RowPlace, Row), DataError>| match row {
            Ok((_, row)) => self.labeller.label(row),
            Err(_) => Ok(Labelled::default()),
        };
        let n_rows = batch
            .len()
            .div_ceil(self.n_threads)
            .max(ROWS_PER_THREAD_MIN);
        thread::scope(|scope| {
            let label = &label;
            let workers = batch
                .chunks(n_rows)
                .map(|rows| scope.spawn(move || rows.iter().map(label).collect::<Vec<_>>()));
            // All have to be started before one is waited for.
            let workers: Vec<_> = workers.collect();
            let done = workers.into_iter().map(|worker| worker.join());
            done.flat_map(|rows| rows.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// Texts of the configuration.
    pub(super) fn prompts(&mut self, prompts: &[String]) -> Result<Set, DataError> {
        let mut set = Set::default();
        for (prompt, number) in prompts.iter().zip(1..) {
            let place = RowPlace {
                path: "prompts".into(),
                unit: "text",
                number,
            };
            let labelled = self.labeller.label(&Row::Text(prompt.clone()));
            let labelled = labelled.map_err(|problem| problem_at(problem, &place))?;
            self.add(labelled, Drop::Duplicate, &mut set);
        }
        set.counts.push((set.examples.len(), 1.0));
        set.report.files.push(FileReport {
            path: "prompts".into(),
            form: RowForm::Text,
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
    fn form(&self, file: &DataFile) -> Result<(RowForm, bool), DataError> {
        if let Some(form) = RowForm::of_name(&file.dataset_type) {
            return Ok((form, false));
        }
        let empty = || DataError::Empty {
            path: file.path.clone(),
        };
        let first: RawRow = rows::open(&file.path)?.next().ok_or_else(empty)??;
        let form = RowForm::of_columns(&first.columns, file.text_field.as_deref());
        let form = form.map_err(|reason| DataError::Row {
            place: first.place,
            reason,
        })?;
        Ok((form, true))
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
    fn check(&self, report: &SetReport, faults: Faults) -> Result<(), DataError> {
        let Some((place, head)) = faults.first.filter(|_| faults.n * 5 >= report.n_rows()) else {
            return Ok(());
        };
        Err(DataError::TooFew {
            n_dropped: faults.n,
            n_rows: report.n_rows(),
            reasons: reasons(&report.dropped, Drop::is_fault),
            place,
            example: beginning(self.labeller.tokenizer, &head),
        })
    }
}

/// Up to [`BATCH_ROWS`] rows of a file, whose columns are noted. A row that is wrong is the last.
fn parsed(
    rows: &mut dyn Iterator<Item = Result<RawRow, DataError>>,
    report: &mut FileReport,
    used: &[&str],
    parse: impl Fn(&RawRow) -> Result<Row, String>,
) -> Vec<Result<(RowPlace, Row), DataError>> {
    let mut batch = Vec::new();
    for raw in rows.take(BATCH_ROWS) {
        report.n_rows += 1;
        let row = raw.and_then(|raw| {
            for name in raw.columns.keys() {
                if !used.contains(&&**name) && !report.unused_columns.contains(name) {
                    report.unused_columns.insert(name.clone());
                }
            }
            match parse(&raw) {
                Ok(row) => Ok((raw.place, row)),
                Err(reason) => Err(DataError::Row {
                    place: raw.place,
                    reason,
                }),
            }
        });
        let is_wrong = row.is_err();
        batch.push(row);
        if is_wrong {
            break;
        }
    }
    batch
}

fn problem_at(problem: RowProblem, place: &RowPlace) -> DataError {
    let place = place.clone();
    match problem {
        RowProblem::NoTemplate => DataError::NoTemplate { place },
        RowProblem::Wrong(reason) => DataError::Row { place, reason },
    }
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
/// Rows that are labelled at a time, on all threads.
const BATCH_ROWS: usize = 4096;
/// Fewer are not worth a thread.
const ROWS_PER_THREAD_MIN: usize = 16;
