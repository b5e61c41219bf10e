//! From a configuration to examples: files are read, and rows split off for evaluation.

use super::error::DataError;
use super::examples::Example;
use super::paths;
use super::reader::Reader;
use super::report::{DataReport, Drop};
use super::template;
use crate::config::SftConfig;
use crate::labels::Labeller;
use crate::order::{EpochOrder, RowGroup, split_off};
use sha2::{Digest as _, Sha256};
use sluice::vocabulary::VocabularyFile;
use std::collections::BTreeSet;
use std::thread;

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
        n_threads: config
            .engine
            .threads
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, core::num::NonZero::get)),
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
