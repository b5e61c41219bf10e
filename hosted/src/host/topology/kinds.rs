//! Which cores of a hybrid processor are the efficient ones, according to sysfs.
//!
//! | source, the first that names some | efficient are |
//! |---|---|
//! | `cpu_atom/cpus`, `cpu_lowpower/cpus` next to `cpu_core/cpus` (Intel's event counters) | the CPUs listed |
//! | `system/cpu/types/intel_atom_*/cpulist` | the CPUs listed |
//! | `cpu_capacity` (device tree) | CPUs below 70% of the largest |
//! | `acpi_cppc/highest_perf` | CPUs below the first gap of 12% |
//! | `cpufreq/cpuinfo_max_freq` | CPUs below the first gap of 12% |
//!
//! Middle cores have 75% or more of the largest capacity, little ones at most 65%. Among cores of one kind, ranks and
//! the clocks of favoured cores differ by steps of up to 9%; between two kinds they differ by 15% or more.
#![forbid(unsafe_code)]

use super::numbers_of_list;
use core::str::FromStr;
use std::path::Path;

/// Which kinds of cores to use, where a processor has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// The fast ones.
    #[default]
    Performance,
    /// The efficient ones.
    Efficiency,
    /// Both, the fast ones first.
    All,
}

impl FromStr for CoreChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "performance" => Ok(Self::Performance),
            "efficiency" => Ok(Self::Efficiency),
            "all" => Ok(Self::All),
            _ => Err("expected performance, efficiency or all"),
        }
    }
}

/// CPUs of efficient cores; empty if all cores are alike or no source is present. `devices` is
/// `/sys/devices`.
pub(super) fn efficient_cpus(devices: &Path) -> Vec<usize> {
    let sources: [fn(&Path) -> Vec<usize>; 5] = [
        by_event_counters,
        by_type,
        by_capacity,
        |devices| below_gap(values(devices, "acpi_cppc/highest_perf")),
        |devices| below_gap(values(devices, "cpufreq/cpuinfo_max_freq")),
    ];
    let mut found = sources.iter().map(|source| source(devices));
    found.find(|cpus| !cpus.is_empty()).unwrap_or_default()
}

fn by_event_counters(devices: &Path) -> Vec<usize> {
    let list = |unit: &str| list_in(&devices.join(unit).join("cpus"));
    if list("cpu_core").is_empty() {
        return Vec::new();
    }
    [list("cpu_atom"), list("cpu_lowpower")].concat()
}

fn by_type(devices: &Path) -> Vec<usize> {
    let types = std::fs::read_dir(devices.join("system/cpu/types"));
    let types = types.into_iter().flatten().flatten();
    let efficient = types.filter(|kind| {
        let name = kind.file_name();
        name.to_string_lossy().starts_with("intel_atom")
    });
    efficient
        .flat_map(|kind| list_in(&kind.path().join("cpulist")))
        .collect()
}

fn by_capacity(devices: &Path) -> Vec<usize> {
    let values = values(devices, "cpu_capacity");
    let largest = values.iter().map(|&(_, value)| value).max().unwrap_or(0);
    let small = values.iter().filter(|(_, value)| value * 10 < largest * 7);
    small.map(|&(cpu, _)| cpu).collect()
}

/// The CPUs below the first gap of more than 12%, counted from the largest value down.
fn below_gap(mut values: Vec<(usize, u64)>) -> Vec<usize> {
    values.sort_by_key(|&(_, value)| core::cmp::Reverse(value));
    let gap = values
        .windows(2)
        .position(|pair| pair[1].1 * 100 < pair[0].1 * 88);
    let first = gap.map_or(values.len(), |before| before + 1);
    values[first..].iter().map(|&(cpu, _)| cpu).collect()
}

/// A number for every online CPU; empty if one lacks it or has a zero.
fn values(devices: &Path, file: &str) -> Vec<(usize, u64)> {
    let cpus = list_in(&devices.join("system/cpu/online"));
    let value = |cpu: &usize| {
        let path = devices.join(format!("system/cpu/cpu{cpu}/{file}"));
        let text = std::fs::read_to_string(path).ok()?;
        let value = text.trim().parse().ok().filter(|&value| value > 0)?;
        Some((*cpu, value))
    };
    let values: Option<Vec<_>> = cpus.iter().map(value).collect();
    values.unwrap_or_default()
}

fn list_in(path: &Path) -> Vec<usize> {
    numbers_of_list(&std::fs::read_to_string(path).unwrap_or_default())
}
