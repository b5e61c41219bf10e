//! The drives that hold a model: their NUMA nodes, and how they can be read.

use super::report::{Finding, Section};
use sluice::file::{LoadMode, ModelFile};
use sluice::host::cpus::CpuList;
use sluice::host::drives::Drives;
use sluice::host::reads;
use std::path::Path;

/// The section for a model, or for a folder.
pub(super) fn section(path: &Path) -> Section {
    let shown = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut findings = Vec::new();
    // A file that is not a model is checked like any other.
    let model = match path.is_file() {
        true => ModelFile::open(path, LoadMode::Read).ok(),
        false => None,
    };
    let drives = match &model {
        Some(model) => Drives::of_all(model.paths()),
        None => Drives::of(path),
    };
    match drives {
        Ok(drives) => {
            findings.push(Finding::new("of", shown.display().to_string()));
            if let Some(n) = model.map(|model| model.n_parts()).filter(|&n| n > 1) {
                findings.push(Finding::new("files", n.to_string()));
            }
            findings.extend(described(&drives, &drives.cpus()));
            let tried = reads::direct_reads(&shown);
            findings.push(tried.as_ref().map_or_else(
                || {
                    Finding::new(
                        "direct reads (O_DIRECT)",
                        "not tested: no file with contents there",
                    )
                },
                Finding::of,
            ));
        }
        Err(error) => {
            let finding = Finding::new("of", shown.display().to_string());
            findings.push(finding.problem(error.to_string()));
        }
    }
    findings.push(Finding::of(&reads::io_uring()));
    Section {
        title: "Drives",
        findings,
    }
}

/// Names and nodes of drives; `cpus` are the CPUs of those nodes.
pub(super) fn described(drives: &Drives, cpus: &CpuList) -> [Finding; 2] {
    let devices = match drives.devices.as_slice() {
        [] => "unknown: in memory, on a network, or hidden by a container".to_owned(),
        devices => devices.join(" "),
    };
    let nodes = if drives.nodes.is_empty() {
        "unknown: the drive has no NUMA node".to_owned()
    } else {
        let nodes = CpuList(drives.nodes.clone());
        match cpus.0.as_slice() {
            [] => format!("{nodes}, without a CPU that this process may use"),
            _ => format!("{nodes} (CPUs {cpus})"),
        }
    };
    [
        Finding::new("devices", devices),
        Finding::new("NUMA node", nodes),
    ]
}
