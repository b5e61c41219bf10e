//! Information about the machine, the isolation that it grants, and plots of decisions.

use super::arrays::samples;
use super::judge::frame_length;
use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyFileExistsError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluice::core::gate::{Decision, Verdict};
use sluice::file::OutputError;
use sluice::host::measures::Report;
use sluice_gate::isolation::{IsolationRequest, probe};
use sluice_gate::plot::Plot;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A request to the kernel: name, value requested, value found, why it was not granted, and a command to get it.
pub(super) type Row = (String, String, String, Option<String>, Option<String>);

pub(super) fn rows(report: &Report) -> Vec<Row> {
    let row = |measure: &sluice::host::measures::HostMeasure| {
        (
            measure.name.clone(),
            measure.requested.clone(),
            measure.found.clone(),
            measure.why_not.clone(),
            measure.remedy.clone(),
        )
    };
    report.measures.iter().map(row).collect()
}

/// What a stream's thread would be granted with a ring of `ring_bytes`: requested by a temporary thread, read back,
/// and undone.
#[pyfunction]
pub(super) fn isolation_report(py: Python<'_>, ring_bytes: usize) -> PyResult<Vec<Row>> {
    let report = py.detach(|| probe(&IsolationRequest::all(), ring_bytes));
    Ok(rows(&report?))
}

/// Cache sizes of the first CPU in bytes, and counts. A size that the kernel does not report is taken from the level
/// below, or from what nearly all CPUs have.
#[pyfunction]
pub(super) fn cache_topology(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = Topology::read(Path::new("/sys/devices/system/cpu"));
    let dict = PyDict::new(py);
    dict.set_item("l1d_size", found.l1d)?;
    dict.set_item("l2_size", found.l2)?;
    dict.set_item("l3_size", found.l3)?;
    dict.set_item("cache_line_size", found.line)?;
    dict.set_item("l1d_associativity", found.ways)?;
    dict.set_item("num_physical_cores", found.cores)?;
    dict.set_item("l1d_lines", found.l1d / found.line)?;
    Ok(dict)
}

struct Topology {
    l1d: u64,
    l2: u64,
    l3: u64,
    line: u64,
    ways: u64,
    cores: usize,
}

impl Topology {
    /// Reads the folder `/sys/devices/system/cpu`.
    fn read(cpus: &Path) -> Self {
        let (mut sizes, mut line, mut ways) = ([0; 4], 0, 0);
        for index in 0..8 {
            let cache = cpus.join(format!("cpu0/cache/index{index}"));
            let field = |name: &str| text(&cache.join(name));
            let level = field("level").and_then(|level| level.parse::<usize>().ok());
            let size = field("size").and_then(|size| bytes(&size));
            let (Some(level), Some(size)) = (level.filter(|level| *level < 4), size) else {
                continue;
            };
            if field("type").as_deref() == Some("Instruction") {
                continue;
            }
            sizes[level] = size;
            if level == 1 {
                let number = |name: &str| field(name).and_then(|n| n.parse().ok()).unwrap_or(0);
                line = number("coherency_line_size");
                ways = number("ways_of_associativity");
            }
        }
        let or = |found: u64, usual: u64| if found == 0 { usual } else { found };
        let l1d = or(sizes[1], 32 << 10);
        let l2 = or(sizes[2], l1d);
        Self {
            l1d,
            l2,
            l3: or(sizes[3], l2),
            line: or(line, 64),
            ways: or(ways, 8),
            cores: physical_cores(cpus),
        }
    }
}

/// The number of different pairs of package and core among the online CPUs.
fn physical_cores(cpus: &Path) -> usize {
    let mut cores = BTreeSet::new();
    for entry in fs::read_dir(cpus).into_iter().flatten().flatten() {
        let topology = entry.path().join("topology");
        let package = text(&topology.join("physical_package_id"));
        if let (Some(package), Some(core)) = (package, text(&topology.join("core_id"))) {
            cores.insert((package, core));
        }
    }
    match cores.len() {
        0 => sluice::host::topology::Cores::detect().physical_count(),
        n => n,
    }
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// `512K` in bytes.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Writes an SVG of frames and their decisions: verdict (n), value (n) and level (n). Without samples, the upper half
/// is empty.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "columns of a table")]
pub(super) fn plot(
    py: Python<'_>,
    path: PathBuf,
    frame_size: &Bound<'_, PyAny>,
    array: Option<&Bound<'_, PyAny>>,
    verdict: PyReadonlyArray1<'_, u8>,
    value: PyReadonlyArray1<'_, f32>,
    level: PyReadonlyArray1<'_, f32>,
    measure: &str,
    overwrite: bool,
) -> PyResult<()> {
    let frame_len = frame_length(frame_size)?;
    let array = array.map(samples).transpose()?;
    let array = array.as_ref().map(|array| array.as_slice()).transpose()?;
    let (verdict, value, level) = (verdict.as_slice()?, value.as_slice()?, level.as_slice()?);
    let n = verdict.len();
    if value.len() != n || level.len() != n || array.is_some_and(|a| a.len() / frame_len < n) {
        let message = "verdict, value, level and samples have different numbers of frames";
        return Err(PyValueError::new_err(message));
    }
    let drawn = py.detach(|| {
        let mut plot = Plot::create(
            &path,
            overwrite,
            u32::try_from(frame_len).unwrap_or(u32::MAX),
        )?;
        for (i, (verdict, (value, level))) in
            verdict.iter().zip(value.iter().zip(level)).enumerate()
        {
            let decision = Decision {
                verdict: match verdict {
                    0 => Verdict::Active,
                    1 => Verdict::HangOver,
                    _ => Verdict::Silent,
                },
                max_abs: f32::NAN,
                value: Some(*value),
                level: *level,
                scaling: 1.0,
                features: None,
            };
            let frame = array.map_or(&[][..], |array| &array[i * frame_len..][..frame_len]);
            plot.add(frame, &decision);
        }
        plot.finish(measure)
    });
    drawn.map_err(|error| match error {
        OutputError::Exists { path } => PyFileExistsError::new_err(format!(
            "{} exists already; use overwrite=True to replace it",
            path.display()
        )),
        other => PyOSError::new_err(other.to_string()),
    })
}
