//! Findings, and the kernel's files that they come from.

use core::fmt;
use sluice::host::measures::HostMeasure;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The name of the check.
    pub(crate) name: String,
    /// The value reported by the kernel or the CPU.
    pub(crate) value: String,
    /// The consequence, if the value is not as it should be.
    pub(crate) problem: Option<String>,
    /// The command that fixes it, if there is one.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    /// A finding without a problem.
    pub(crate) fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            problem: None,
            remedy: None,
        }
    }

    /// The finding of a measure: what was requested, and the result.
    pub(super) fn of(measure: &HostMeasure) -> Self {
        let value = format!("{}; requested: {}", measure.found, measure.requested);
        Self {
            name: measure.name.clone(),
            value,
            problem: measure.why_not.clone(),
            remedy: measure.remedy.clone(),
        }
    }

    /// Adds the consequence.
    #[must_use]
    pub(crate) fn problem(self, problem: impl Into<String>) -> Self {
        Self {
            problem: Some(problem.into()),
            ..self
        }
    }

    /// Adds the command that fixes it.
    #[must_use]
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// Findings of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// The section's title.
    pub(crate) title: &'static str,
    /// The findings.
    pub(crate) findings: Vec<Finding>,
}

/// All findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The sections, in order.
    pub(crate) sections: Vec<Section>,
}

impl Report {
    /// Findings with a problem.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Finding> {
        let all = self.sections.iter().flat_map(|section| &section.findings);
        all.filter(|finding| finding.problem.is_some())
    }
}

/// One line per finding; problem and remedy follow on lines of their own.
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
                    writeln!(f, "{:29}fix: {remedy}", "")?;
                }
            }
            writeln!(f)?;
        }
        match self.problems().count() {
            0 => writeln!(f, "no problems found"),
            1 => writeln!(f, "1 problem found"),
            n => writeln!(f, "{n} problems found"),
        }
    }
}

/// The root folder of the kernel's files.
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
    /// The files below another folder, as if it were `/`.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        let root = root.to_path_buf();
        Self { root }
    }

    /// The text of a file such as `proc/meminfo`, without its final newline; `None` if it does not
    /// exist or cannot be read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join(path)).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// Names in a folder, sorted by the numbers they end with.
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

/// A size in human-readable units.
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
