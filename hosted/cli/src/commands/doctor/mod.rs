//! `sluice doctor`: checks this machine and suggests fixes.
//!
//! A [`Report`] is a list of [`Section`](report::Section)s. Each is made by a function of its own from the
//! kernel's files ([`System`]); to add one, write such a function and call it in [`examine`].

mod container;
mod drives;
mod isolation;
mod kernels;
mod limits;
mod machine;
mod report;
#[cfg(test)]
mod tests;

use crate::outcome::Ending;
use crate::ui::output::TextOutput;
use clap::Args;
use report::{Finding, Report, System};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check the drives of this model or folder of models
    ///
    /// By default the current folder's.
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice doctor
  sluice doctor -m model.gguf
  sluice doctor --json";

pub(super) fn doctor(args: &DoctorArgs) -> anyhow::Result<Ending> {
    let mut report = examine(&System::default());
    let model = args.model.as_deref().unwrap_or(Path::new("."));
    report.sections.push(drives::section(model));
    report.sections.push(isolation::section());
    let mut output = TextOutput::new();
    if !args.json {
        output.write(&report.to_string())?;
        return Ok(Ending::Done);
    }
    let finding = |f: &Finding| json!({"name": f.name, "value": f.value, "problem": f.problem, "remedy": f.remedy});
    let sections: Vec<_> = report
        .sections
        .iter()
        .map(|section| {
            let findings: Vec<_> = section.findings.iter().map(finding).collect();
            json!({"title": section.title, "findings": findings})
        })
        .collect();
    let n_problems = report.problems().count();
    let object =
        json!({"version": env!("CARGO_PKG_VERSION"), "problems": n_problems, "sections": sections});
    output.write(&format!("{object:#}\n"))?;
    Ok(Ending::Done)
}

/// Runs all checks.
fn examine(system: &System) -> Report {
    Report {
        sections: vec![
            kernels::section(),
            machine::processor(system),
            machine::nodes(system),
            machine::memory(system),
            limits::section(system),
            container::section(system),
        ],
    }
}
