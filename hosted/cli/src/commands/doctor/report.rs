//! What was found, and where the kernel says it.

use core::fmt;
use sluice::host::measures::HostMeasure;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What.
    pub(crate) name: String,
    /// What the kernel or the CPU says.
    pub(crate) value: String,
    /// What it costs, if it is not as it should be.
    pub(crate) problem: Option<String>,
    /// What to type, where something can be typed.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    /// Something that is as it is.
    pub(crate) fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            problem: None,
            remedy: None,
        }
    }

    /// What was asked of the kernel, and what came of it.
    pub(super) fn of(measure: &HostMeasure) -> Self {
        let value = format!("{}; asked for: {}", measure.found, measure.requested);
        Self {
            name: measure.name.clone(),
            value,
            problem: measure.why_not.clone(),
            remedy: measure.remedy.clone(),
        }
    }

    /// The same with what it costs.
    #[must_use]
    pub(crate) fn problem(self, problem: impl Into<String>) -> Self {
        Self {
            problem: Some(problem.into()),
            ..self
        }
    }

    /// The same with what to type.
    #[must_use]
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// Findings that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Their title.
    pub(crate) title: &'static str,
    /// The findings.
    pub(crate) findings: Vec<Finding>,
}

/// Everything that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The sections, in order.
    pub(crate) sections: Vec<Section>,
}

impl Report {
    /// Findings that cost something.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Finding> {
        let all = self.sections.iter().flat_map(|section| &section.findings);
        all.filter(|finding| finding.problem.is_some())
    }
}

/// A line for each finding, with what it costs and what to type below it.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "{}", section.title)?;
            for finding in &section.findings {
                let mark = if finding.problem.is_some() { '!' } else { ' ' };
                writeln!(f, "{mark} {:<26} {}", finding.name, finding.value)?;
                if let Some(problem) = &finding.problem {
                    writeln!(f, "{:29}{problem}", "")?;
                }
                if let Some(remedy) = &finding.remedy {
                    writeln!(f, "{:29}to fix it: {remedy}", "")?;
                }
            }
            writeln!(f)?;
        }
        match self.problems().count() {
            0 => writeln!(f, "nothing to fix"),
            1 => writeln!(f, "1 thing to fix"),
            n => writeln!(f, "{n} things to fix"),
        }
    }
}

/// Where the kernel's files are.
#[derive(Clone, Debug)]
pub(crate) struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl System {
    /// Of the files below another folder, as if it were `/`.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        let root = root.to_path_buf();
        Self { root }
    }

    /// The text of a file such as `proc/meminfo`, without the newline at its end; `None` if it is
    /// not there or not ours to read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// Names in a folder, in order of the numbers they end with.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path));
        let names = entries.into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let number = |name: &str| {
            let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
            digits.parse::<u64>().unwrap_or(u64::MAX)
        };
        names.sort_by_key(|name| (number(name), name.clone()));
        names
    }
}

/// Bytes for people.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut size = n as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let text = format!("{size:.1}");
    format!(
        "{} {}",
        text.strip_suffix(".0").unwrap_or(&text),
        UNITS[unit]
    )
}
