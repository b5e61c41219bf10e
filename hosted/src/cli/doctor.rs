//! `sluice doctor`: what this machine gives a model, and what to mend.

use super::Ending;
use super::output::TextOutput;
use clap::Args;
use serde_json::json;
use sluice::doctor::{Finding, System, examine};
use sluice::gate::isolation;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice doctor
  sluice doctor --json";

pub(super) fn doctor(args: &DoctorArgs) -> anyhow::Result<Ending> {
    let mut report = examine(&System::default());
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
