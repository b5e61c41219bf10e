//! What a gate's thread would be given.

use super::report::{Finding, Section};
use sluice::host::measures::Measure;
use sluice_gate::isolation::{IsolationRequest, probe};

pub(super) fn section() -> Section {
    const RING_BYTES: usize = 8 << 20;
    let finding = |measure: &Measure| {
        let value = format!("{}; asked for: {}", measure.found, measure.requested);
        let finding = Finding::new(measure.name.as_str(), value);
        match (&measure.why_not, &measure.remedy) {
            (None, _) => finding,
            (Some(why), None) => finding.problem(why),
            (Some(why), Some(remedy)) => finding.problem(why).remedy(remedy),
        }
    };
    let findings = match probe(&IsolationRequest::all(), RING_BYTES) {
        Ok(report) => report.measures.iter().map(finding).collect(),
        Err(error) => vec![Finding::new("probe", "did not run").problem(error.to_string())],
    };
    Section {
        title: "isolation of a gate's thread (asked for, read back, undone)",
        findings,
    }
}
