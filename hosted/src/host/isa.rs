//! The choice of kernels: the best this CPU and kernel offer, or the requested ones.

use sluice_core::kernels::{CpuFeatures, KernelTable};

/// A requested kernel table is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum IsaError {
    /// This build does not have a table of that name.
    #[error("unknown instruction set {name:?}: this build has {}", .names.join(", "))]
    Unknown {
        name: String,
        names: Vec<&'static str>,
    },
    /// The CPU lacks features that the table needs.
    #[error("this CPU does not support {name:?}, only {}", .available.join(", "))]
    NotAvailable {
        name: String,
        available: Vec<&'static str>,
    },
}

/// The kernel table called `name`; the fastest one for `None`.
///
/// # Errors
/// No table has that name, or this CPU does not run it.
pub fn kernel_table(name: Option<&str>) -> Result<&'static KernelTable, IsaError> {
    let cpu = features();
    let Some(name) = name else {
        return Ok(KernelTable::best(cpu));
    };
    if let Some(table) = KernelTable::by_name(name, cpu) {
        return Ok(table);
    }
    if KernelTable::names().any(|other| other == name) {
        return Err(IsaError::NotAvailable {
            name: name.into(),
            available: KernelTable::available(cpu).map(KernelTable::name).collect(),
        });
    }
    Err(IsaError::Unknown {
        name: name.into(),
        names: KernelTable::names().collect(),
    })
}

/// The CPU's features that this process may use. Tile registers have to be requested, once per
/// process and before its threads first use them.
pub fn features() -> CpuFeatures {
    match tiles_granted() {
        // SAFETY: Linux has just given all threads of the process the permission.
        true => unsafe { CpuFeatures::detect_with_tiles() },
        false => CpuFeatures::detect(),
    }
}

#[cfg(target_arch = "x86_64")]
fn tiles_granted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    /// The tile data's component in XCR0.
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn tiles_granted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_by_name() {
        assert_eq!(kernel_table(Some("scalar")).unwrap().name(), "scalar");
        let best = kernel_table(None).unwrap().name();
        assert_eq!(kernel_table(Some(best)).unwrap().name(), best);
        let message = kernel_table(Some("mmx")).unwrap_err().to_string();
        assert!(
            message.contains("\"mmx\"") && message.contains("scalar"),
            "{message}"
        );
    }
}
