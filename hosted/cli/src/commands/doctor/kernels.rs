//! The kernel tables, and which of them run here.

use super::report::{Finding, Section};
use sluice::core::kernels::{CpuFeatures, KernelTable};
use sluice::host::isa;

pub(super) fn section() -> Section {
    let (cpu, found) = (isa::features(), CpuFeatures::detect());
    let best = KernelTable::best(cpu).name();
    let mut findings = Vec::new();
    for name in KernelTable::names() {
        let text = match KernelTable::by_name(name, cpu) {
            Some(_) if name == best => "supported, and selected",
            Some(_) => "supported (select it with --isa)",
            None => "not supported by this CPU",
        };
        findings.push(Finding::new(name, text));
    }
    let names = |features: CpuFeatures| {
        let names: Vec<_> = features.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(" ").to_lowercase()
        }
    };
    findings.push(Finding::new("the CPU has", names(cpu)));
    findings.push(Finding::new(
        "the CPU lacks",
        names(CpuFeatures::all() - (found | cpu)),
    ));
    let withheld = found - cpu;
    if !withheld.is_empty() {
        findings.push(
            Finding::new("withheld by the kernel", names(withheld))
                .problem("the CPU has AMX tiles, but this process may not use them"),
        );
    }
    if let Some(asked) = std::env::var("SLUICE_ISA")
        .ok()
        .filter(|name| !name.is_empty())
    {
        let finding = Finding::new("SLUICE_ISA", &asked);
        findings.push(if asked == best {
            finding
        } else {
            finding
                .problem(format!("commands use these kernels instead of {best}"))
                .remedy("unset SLUICE_ISA")
        });
    }
    Section {
        title: "Kernels",
        findings,
    }
}
