//! CPUID's information, as text.
//!
//! Only for the report on the serial port. Which kernels run is decided in `sluice-kernels`,
//! from CPUID and XCR0 together: CPUID alone does not show whether the vector state is
//! enabled.

use core::arch::x86_64::_xgetbv;
use core::fmt;

use x86::cpuid::native_cpuid::cpuid_count;
use x86::cpuid::{CpuId, CpuIdResult};
use x86::segmentation;

/// Vendor and model name.
pub(super) struct Identity;

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = CpuId::new();
        if let Some(vendor) = id.get_vendor_info() {
            f.write_str(vendor.as_str())?;
        }
        match id.get_processor_brand_string() {
            Some(brand) => write!(f, ", {}", brand.as_str()),
            None => Ok(()),
        }
    }
}

/// The features that kernels use, as words with a space before each.
pub(super) struct Features;

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaf_max = cpuid_count(0, 0).eax;
        for &(name, leaf, subleaf, register, bit) in FEATURES {
            if leaf <= leaf_max && register(&cpuid_count(leaf, subleaf)) >> bit & 1 == 1 {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// Maximum cores in this package: the number that CPUID's numbering has room for.
pub(super) fn cores_hint() -> usize {
    let info = CpuId::new().get_feature_info();
    info.map_or(1, |info| info.max_logical_processor_ids().into())
}

/// Which vector state is enabled: bits 0 to 2 x87, SSE, AVX; 5 to 7 AVX-512; 17 and 18 AMX.
/// 0 if the CPU or `boot.s` has not enabled XSAVE. Not `x86::controlregs::xcr0`, which drops
/// the bits of AMX.
pub(super) fn xcr0() -> u64 {
    let info = CpuId::new().get_feature_info();
    if !info.is_some_and(|info| info.has_oxsave()) {
        return 0;
    }
    // SAFETY: OSXSAVE is set, so the instruction exists and register 0 may be read in ring 3.
    unsafe { _xgetbv(0) }
}

/// Whether `boot.s` mapped memory with 1 GiB pages, 511 GiB of it; otherwise it maps 64 GiB.
pub(super) fn has_gib_pages() -> bool {
    let info = CpuId::new().get_extended_processor_and_feature_identifiers();
    info.is_some_and(|info| info.has_1gib_pages())
}

/// The privilege ring that this code runs in.
pub(super) fn ring() -> u16 {
    segmentation::cs().bits() & 3
}

/// Name, CPUID leaf, sub-leaf, register and bit.
type Feature = (&'static str, u32, u32, fn(&CpuIdResult) -> u32, u32);

/// Source: Intel's Software Developer's Manual, volume 2A, CPUID. By bit, because the crate's
/// accessors end before BF16, AVX-VNNI and AMX.
const FEATURES: &[Feature] = &[
    ("sse3", 1, 0, |r| r.ecx, 0),
    ("ssse3", 1, 0, |r| r.ecx, 9),
    ("fma", 1, 0, |r| r.ecx, 12),
    ("sse4.1", 1, 0, |r| r.ecx, 19),
    ("sse4.2", 1, 0, |r| r.ecx, 20),
    ("osxsave", 1, 0, |r| r.ecx, 27),
    ("avx", 1, 0, |r| r.ecx, 28),
    ("f16c", 1, 0, |r| r.ecx, 29),
    ("avx2", 7, 0, |r| r.ebx, 5),
    ("avx512f", 7, 0, |r| r.ebx, 16),
    ("avx512dq", 7, 0, |r| r.ebx, 17),
    ("avx512bw", 7, 0, |r| r.ebx, 30),
    ("avx512vl", 7, 0, |r| r.ebx, 31),
    ("avx512vbmi", 7, 0, |r| r.ecx, 1),
    ("avx512vnni", 7, 0, |r| r.ecx, 11),
    ("amx-bf16", 7, 0, |r| r.edx, 22),
    ("amx-tile", 7, 0, |r| r.edx, 24),
    ("amx-int8", 7, 0, |r| r.edx, 25),
    ("avxvnni", 7, 1, |r| r.eax, 4),
    ("avx512bf16", 7, 1, |r| r.eax, 5),
];
