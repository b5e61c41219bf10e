//! What a run is going to do, before it begins: rows, tokens, labels, steps, and the settings that differ from defaults.

use crate::config::{SftConfig, When};
use crate::data::{DataReport, Dataset, Drop, FileReport, SetReport, reasons};
use core::fmt;
use sluice::vocabulary::VocabularyFile;
use std::path::PathBuf;

/// A run before it begins. It is shown as lines of text.
#[derive(Clone, Debug)]
pub struct DataPlan {
    /// The model's file.
    pub model: PathBuf,
    /// Number of tokens of the vocabulary.
    pub n_vocab: u32,
    /// What was read, dropped and cut.
    pub data: DataReport,
    /// Number of rows to train on.
    pub n_train: usize,
    /// Number of rows to evaluate on.
    pub n_eval: usize,
    /// Visits of rows in an epoch.
    pub n_visits: usize,
    /// Steps of the run.
    pub n_steps: u64,
    /// Steps of an epoch.
    pub n_steps_per_epoch: u64,
    /// Steps of warm-up.
    pub n_warmup: u64,
    /// Rows per micro-batch, and micro-batches per step.
    pub batch: [usize; 2],
    /// Passes over the rows.
    pub epochs: f64,
    /// When rows are evaluated.
    pub eval: When,
    /// Whether conversations are learned as wholes.
    pub learns_everything: bool,
    /// Keys that differ from their defaults, as `key: value`.
    pub changed: Vec<String>,
    /// Names that were accepted without effect, and why.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

impl DataPlan {
    /// The plan of a run over these rows.
    #[must_use]
    pub fn new(config: &SftConfig, vocabulary: &VocabularyFile, dataset: &Dataset) -> Self {
        let optimizer = &config.optimizer;
        let n_visits = dataset.order(config).len();
        let n_steps = optimizer.total_steps(n_visits);
        let changed = config.changed.iter();
        Self {
            model: config.model.path.clone(),
            n_vocab: vocabulary.tokenizer().n_vocab(),
            data: dataset.report.clone(),
            n_train: dataset.train.len(),
            n_eval: dataset.eval.len(),
            n_visits,
            n_steps,
            n_steps_per_epoch: optimizer.steps_per_epoch(n_visits),
            n_warmup: optimizer.warmup(n_steps),
            batch: [optimizer.batch_size, optimizer.accumulation_steps],
            epochs: optimizer.epochs,
            eval: config.eval.when,
            learns_everything: !config.data.assistant_only,
            changed: changed
                .map(|(key, value)| format!("{key}: {value}"))
                .collect(),
            without_effect: config.without_effect.clone(),
        }
    }

    fn labels(&self) -> &'static str {
        match (self.learns_everything, self.data.template_marks) {
            (true, _) => "everything",
            (false, Some(true)) => {
                "completions; the assistant's turns, by the template's {% generation %} marks"
            }
            (false, Some(false)) => {
                "completions; the assistant's turns, by growing renderings of the template"
            }
            (false, None) => "completions; the model has no chat template",
        }
    }
}

impl fmt::Display for DataPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.display();
        writeln!(
            f,
            "model      {model}, {} tokens in the vocabulary",
            grouped(u64::from(self.n_vocab))
        )?;
        write_set(f, "train", &self.data.train, self.n_train)?;
        match (self.n_eval, self.data.n_split_off) {
            (0, _) => writeln!(f, "eval       no rows")?,
            (_, 0) => write_set(f, "eval", &self.data.eval, self.n_eval)?,
            (_, _) => {
                let eval = &self.data.eval;
                writeln!(f, "eval       split off by val_size")?;
                write_counts(f, eval, self.n_eval)?;
            }
        }
        for file in &self.data.unused_files {
            writeln!(f, "           {} is not used", file.display())?;
        }
        writeln!(f, "labels     {}", self.labels())?;
        let [rows, batches] = self.batch;
        let per_step = rows.saturating_mul(batches);
        write!(
            f,
            "steps      {} of {per_step} rows ({rows} × {batches})",
            grouped(self.n_steps)
        )?;
        let per_epoch = grouped(self.n_steps_per_epoch);
        writeln!(
            f,
            ", {per_epoch} per epoch of {} rows; warm-up {}",
            grouped(self.n_visits as u64),
            self.n_warmup
        )?;
        for (n, line) in self.changed.iter().enumerate() {
            let heading = if n == 0 { "settings" } else { "" };
            writeln!(f, "{heading:<10} {line}")?;
        }
        for (name, reason) in &self.without_effect {
            writeln!(f, "no effect  {name}: {reason}")?;
        }
        Ok(())
    }
}

fn write_set(
    f: &mut fmt::Formatter<'_>,
    heading: &str,
    set: &SetReport,
    n_kept: usize,
) -> fmt::Result {
    for (n, file) in set.files.iter().enumerate() {
        let heading = if n == 0 { heading } else { "" };
        write!(f, "{heading:<10} ")?;
        write_file(f, file)?;
    }
    let dropped = reasons(&set.dropped, |_: Drop| true);
    if !dropped.is_empty() {
        writeln!(f, "           dropped: {dropped}")?;
    }
    let notes = [
        (set.n_cut, "rows are cut to max_length"),
        (
            set.n_straddling,
            "rows have a token with the end of the prompt and the beginning of the completion",
        ),
        (
            set.n_turns_lost,
            "turns have no label: as history, the template writes them differently",
        ),
        (
            set.n_open,
            "conversations end without a token that ends an answer: the model will not learn to stop",
        ),
    ];
    for (count, what) in notes.into_iter().filter(|(count, _)| *count > 0) {
        writeln!(f, "           {count} {what}")?;
    }
    write_counts(f, set, n_kept)
}

fn write_file(f: &mut fmt::Formatter<'_>, file: &FileReport) -> fmt::Result {
    let how = match file.recognised {
        true => ", recognised by the columns",
        false => "",
    };
    let rows = grouped(file.n_rows as u64);
    write!(
        f,
        "{}: {rows} rows, {}{how}",
        file.path.display(),
        file.form.name()
    )?;
    if (file.weight - 1.0).abs() > 0.0 {
        write!(f, ", weight {}", file.weight)?;
    }
    if !file.unused_columns.is_empty() {
        let names: Vec<_> = file.unused_columns.iter().map(String::as_str).collect();
        write!(f, "; columns that are not used: {}", names.join(", "))?;
    }
    writeln!(f)
}

fn write_counts(f: &mut fmt::Formatter<'_>, set: &SetReport, n_kept: usize) -> fmt::Result {
    let (rows, tokens, labels) = (
        grouped(n_kept as u64),
        grouped(set.n_tokens),
        grouped(set.n_labels),
    );
    let percent = match set.n_tokens {
        0 => 0,
        tokens => set.n_labels * 100 / tokens,
    };
    writeln!(
        f,
        "           {rows} rows, {tokens} tokens (at most {} in a row), {labels} labels ({percent}%)",
        set.longest
    )
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{DataPlan, grouped};
    use crate::data::prepare;
    use crate::test_vocabulary::TestFolder;

    #[test]
    fn thousands_are_apart() {
        let numbers = [0, 12, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(numbers, ["0", "12", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn the_plan_says_what_is_read_and_how_many_steps_follow() {
        let folder = TestFolder::new("plan");
        let row = |at: usize| {
            format!(
                "{{\"text\": \"Once there was a fox named {}.\"}}\n",
                at % 20
            )
        };
        let rows: String = (0..21).map(row).collect();
        folder.write(
            "a.jsonl",
            rows + "{\"text\": \"Other.\", \"source\": \"web\"}\n",
        );
        let config =
            folder.config("dataset: DIR/a.jsonl\nepochs: 2\nval_size: 1\nlr: 1e-3\nbf16: true\n");
        let vocabulary = folder.vocabulary("vocabulary.gguf");
        let dataset = prepare(&config, &vocabulary).expect("rows");
        let plan = DataPlan::new(&config, &vocabulary, &dataset).to_string();
        for line in [
            "22 rows, text, recognised by the columns; columns that are not used: source",
            "dropped: 1 duplicates",
            "split off by val_size",
            "steps      6 of 8 rows (1 × 8), 3 per epoch of 20 rows; warm-up 0",
            "learning_rate: 0.001",
            "no effect  bf16: adapters are f32",
        ] {
            assert!(plan.contains(line), "{line} is not in:\n{plan}");
        }
        assert_eq!((dataset.train.len(), dataset.eval.len()), (20, 1));
    }
}
