//! The files of a run's log.

use super::curves;
use super::error::LogError;
use super::events::EventFile;
use super::line::{LogLine, Metric};
use serde_json::Value;
use sluice::file::OutputFile;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The files of a run's log, which are complete up to the last line.
#[derive(Debug)]
pub struct RunLog {
    curves: PathBuf,
    history: Vec<Value>,
    jsonl: (PathBuf, File),
    csv: (PathBuf, csv::Writer<File>),
    events: Option<EventFile>,
}

impl RunLog {
    /// Begins the logs in the output folder, and in `tensorboard` if it is set. `history` are the lines of the checkpoint
    /// from which the run goes on after `step` steps: what was logged after it is replaced.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn begin(
        folder: &Path,
        tensorboard: Option<&Path>,
        history: Vec<Value>,
        step: u64,
    ) -> Result<Self, LogError> {
        let create = |name: &str| {
            let path = folder.join(name);
            let file = File::create(&path).map_err(LogError::of(&path))?;
            Ok::<_, LogError>((path, file))
        };
        let (csv_path, csv) = create("log.csv")?;
        let goes_on = (step > 0).then_some(step);
        let mut log = Self {
            curves: folder.join("curves.svg"),
            history: Vec::new(),
            jsonl: create("log.jsonl")?,
            csv: (csv_path, csv::Writer::from_writer(csv)),
            events: match tensorboard {
                Some(folder) => Some(EventFile::begin(folder, goes_on)?),
                None => None,
            },
        };
        let names = ["step", "epoch"].into_iter();
        let names = names.chain(Metric::ALL.iter().map(|metric| metric.name()));
        log.row(names.map(str::to_owned).collect())?;
        history.into_iter().try_for_each(|line| log.line(line))?;
        Ok(log)
    }

    /// Adds a line to all files but the curves.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn add(&mut self, line: &LogLine) -> Result<(), LogError> {
        self.line(line.json())?;
        self.events
            .as_mut()
            .map_or(Ok(()), |events| events.add(line))
    }

    /// All lines, for the state of a checkpoint.
    #[must_use]
    pub fn history(&self) -> &[Value] {
        &self.history
    }

    /// Draws the curves again.
    ///
    /// # Errors
    /// [`LogError::Curves`].
    pub fn draw(&self) -> Result<(), LogError> {
        let svg = curves::svg(&self.history);
        let output = OutputFile::create(&self.curves, true)?;
        output.write_at(0, svg.as_bytes())?;
        Ok(output.finish()?)
    }

    fn line(&mut self, line: Value) -> Result<(), LogError> {
        let (path, file) = &mut self.jsonl;
        let written = file.write_all(format!("{line}\n").as_bytes());
        written.map_err(LogError::of(path))?;
        let names = ["step", "epoch"].into_iter();
        let names = names.chain(Metric::ALL.iter().map(|metric| metric.name()));
        let cell = |name| match &line[name] {
            Value::Null => String::new(),
            value => value.to_string(),
        };
        self.row(names.map(cell).collect())?;
        self.history.push(line);
        Ok(())
    }

    fn row(&mut self, cells: Vec<String>) -> Result<(), LogError> {
        let (path, csv) = &mut self.csv;
        let written = csv.write_record(cells).map_err(std::io::Error::from);
        let written = written.and_then(|()| csv.flush());
        written.map_err(LogError::of(path))
    }
}

#[cfg(test)]
mod tests {
    use super::RunLog;
    use crate::logs::{LogLine, Metric};
    use std::fs;
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("sluice-logs-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _gone = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    fn lines() -> [LogLine; 3] {
        let line = |step, epoch, values: &[(Metric, f64)]| LogLine {
            step,
            epoch,
            values: values.to_vec(),
        };
        [
            line(
                10,
                0.5,
                &[(Metric::Loss, 1.25), (Metric::NumTokens, 4096.0)],
            ),
            line(10, 0.5, &[(Metric::EvalLoss, 1.5)]),
            line(
                20,
                1.0,
                &[(Metric::Loss, f64::NAN), (Metric::LearningRate, 1e-4)],
            ),
        ]
    }

    #[test]
    fn lines_have_the_names_of_trl() {
        let folder = Folder::new("names");
        let mut log = RunLog::begin(&folder.0, None, Vec::new(), 0).unwrap();
        lines().iter().for_each(|line| log.add(line).unwrap());
        let expected = "{\"loss\":1.25,\"num_tokens\":4096,\"epoch\":0.5,\"step\":10}\n\
                        {\"eval_loss\":1.5,\"epoch\":0.5,\"step\":10}\n\
                        {\"loss\":null,\"learning_rate\":0.0001,\"epoch\":1.0,\"step\":20}\n";
        assert_eq!(folder.text("log.jsonl"), expected);
        let csv = folder.text("log.csv");
        let rows: Vec<_> = csv.lines().collect();
        let head =
            "step,epoch,loss,grad_norm,learning_rate,num_tokens,mean_token_accuracy,eval_loss,";
        assert!(rows[0].starts_with(head), "{csv}");
        assert!(rows[1].starts_with("10,0.5,1.25,,,4096,,,"), "{csv}");
        assert!(rows[2].starts_with("10,0.5,,,,,,1.5,"), "{csv}");
        assert!(rows[3].starts_with("20,1.0,,,0.0001,,,,"), "{csv}");
    }

    #[test]
    fn a_run_that_goes_on_has_the_logs_of_one_that_was_never_stopped() {
        let (whole, parts) = (Folder::new("whole"), Folder::new("parts"));
        let mut log = RunLog::begin(&whole.0, None, Vec::new(), 0).unwrap();
        lines().iter().for_each(|line| log.add(line).unwrap());
        let mut log = RunLog::begin(&parts.0, None, Vec::new(), 0).unwrap();
        lines()[..2].iter().for_each(|line| log.add(line).unwrap());
        let saved = log.history().to_vec();
        // A line after the checkpoint, and a part of another one.
        log.add(&lines()[0]).unwrap();
        drop(log);
        let mut text = folder_text(&parts);
        text.push_str("{\"lo");
        fs::write(parts.0.join("log.jsonl"), text).unwrap();
        let mut log = RunLog::begin(&parts.0, None, saved, 10).unwrap();
        log.add(&lines()[2]).unwrap();
        for name in ["log.jsonl", "log.csv"] {
            assert_eq!(parts.text(name), whole.text(name));
        }
    }

    fn folder_text(folder: &Folder) -> String {
        folder.text("log.jsonl")
    }

    #[test]
    fn a_log_that_cannot_be_written_is_named() {
        let folder = Folder::new("no");
        let error = RunLog::begin(&folder.0.join("no"), None, Vec::new(), 0).unwrap_err();
        assert!(error.to_string().contains("log.csv"), "{error}");
    }
}
