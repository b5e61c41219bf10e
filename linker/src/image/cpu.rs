//! What CPUID says, in text.
//!
//! Only for the report on the serial port. Which kernels run is decided in `sluice-kernels`,
//! from CPUID and XCR0 together: CPUID alone does not tell whether anybody enabled the vector
//! state.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use core::fmt;

/// Vendor and model name.
pub(super) struct Identity {
    vendor: [u8; 12],
    brand: Option<[u8; 48]>,
}

impl Identity {
    pub(super) fn read() -> Self {
        let leaf = __cpuid(0);
        let mut vendor = [0; 12];
        fill(&mut vendor, &[leaf.ebx, leaf.edx, leaf.ecx]);
        let has_brand = __cpuid(0x8000_0000).eax >= 0x8000_0004;
        let brand = has_brand.then(|| {
            let mut text = [0; 48];
            for (part, leaf) in text.chunks_exact_mut(16).zip(0x8000_0002..) {
                let CpuidResult { eax, ebx, ecx, edx } = __cpuid(leaf);
                fill(part, &[eax, ebx, ecx, edx]);
            }
            text
        });
        Self { vendor, brand }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(text(&self.vendor))?;
        match &self.brand {
            Some(brand) => write!(f, ", {}", text(brand)),
            None => Ok(()),
        }
    }
}

/// The features that kernels care about, as words with a space before each.
pub(super) struct Features;

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaf_max = __cpuid(0).eax;
        for &(name, leaf, subleaf, register, bit) in FEATURES {
            if leaf <= leaf_max && register(&__cpuid_count(leaf, subleaf)) >> bit & 1 == 1 {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

/// Which vector state is enabled: bits 0 to 2 x87, SSE, AVX; 5 to 7 AVX-512; 17 and 18 AMX.
/// 0 where the CPU or `boot.s` has not enabled XSAVE.
pub(super) fn xcr0() -> u64 {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is set, so the instruction exists and register 0 may be read in ring 3.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Whether `boot.s` mapped memory with 1 GiB pages, 511 GiB of it; else it is 64 GiB.
pub(super) fn has_gib_pages() -> bool {
    __cpuid(0x8000_0000).eax >= 0x8000_0001 && __cpuid(0x8000_0001).edx >> 26 & 1 == 1
}

/// The privilege ring that this code runs in.
pub(super) fn ring() -> u16 {
    let cs: u16;
    // SAFETY: reads a register.
    unsafe { asm!("mov {:x}, cs", out(reg) cs, options(nomem, nostack, preserves_flags)) };
    cs & 3
}

fn fill(bytes: &mut [u8], registers: &[u32]) {
    for (part, register) in bytes.chunks_exact_mut(4).zip(registers) {
        part.copy_from_slice(&register.to_le_bytes());
    }
}

/// The text up to the first zero byte, without the padding that some CPUs put around it.
fn text(bytes: &[u8]) -> &str {
    let len_bytes = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..len_bytes])
        .unwrap_or("?")
        .trim()
}

/// Name, CPUID leaf, sub-leaf, register and bit.
type Feature = (&'static str, u32, u32, fn(&CpuidResult) -> u32, u32);

/// Source: Intel's Software Developer's Manual, volume 2A, CPUID.
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
