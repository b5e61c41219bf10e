//! The isolation that a gate's thread would get.

use super::report::{Finding, Section};
use sluice_gate::isolation::{IsolationRequest, probe};

pub(super) fn section() -> Section {
    const RING_BYTES: usize = 8 << 20;
    let findings = match probe(&IsolationRequest::all(), RING_BYTES) {
        Ok(report) => report.measures.iter().map(Finding::of).collect(),
        Err(error) => vec![Finding::new("probe", "not tested").problem(error.to_string())],
    };
    Section {
        title: "isolation of a gate's thread (requested, verified, undone)",
        findings,
    }
}
