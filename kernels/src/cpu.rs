//! CPU feature detection without std.
//!
//! A feature counts only if the CPU has it (CPUID) *and* the operating system, firmware or
//! boot code has enabled the registers it needs (OSXSAVE, XCR0): CPUID alone says nothing
//! about who enabled the state.

use bitflags::bitflags;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

bitflags! {
    /// Instruction-set extensions that a [`crate::KernelTable`] may require.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CpuFeatures: u32 {
        /// AVX2 and POPCNT, with YMM state enabled. Every CPU with the one has the other.
        const AVX2 = 1 << 0;
        /// FMA3.
        const FMA = 1 << 1;
        /// Half-precision conversion.
        const F16C = 1 << 2;
        /// AVX-VNNI (the 256-bit VEX form of `vpdpbusd`).
        const AVX_VNNI = 1 << 3;
        /// AVX-512 F, BW, VL, DQ, CD, with ZMM and mask state enabled.
        const AVX512 = 1 << 4;
        /// AVX-512 VNNI.
        const AVX512_VNNI = 1 << 5;
        /// The rest of the Ice Lake set: IFMA, VBMI, VBMI2, BITALG, VPOPCNTDQ.
        const AVX512_ICE_LAKE = 1 << 6;
        /// AVX-512 BF16 (`vdpbf16ps`).
        const AVX512_BF16 = 1 << 7;
        /// AMX tiles, with TILECFG and TILEDATA enabled in XCR0. On Linux a process must
        /// also ask for permission before its first tile instruction.
        const AMX_TILE = 1 << 8;
        /// AMX int8.
        const AMX_INT8 = 1 << 9;
        /// AMX bf16.
        const AMX_BF16 = 1 << 10;
    }
}

impl CpuFeatures {
    /// All that work on tiles.
    pub const TILES: Self = Self::AMX_TILE.union(Self::AMX_INT8).union(Self::AMX_BF16);

    /// What this CPU, in the state it was handed over in, can run; tiles apart, which a process
    /// has to ask for on some systems.
    #[must_use]
    pub fn detect() -> Self {
        detect() - Self::TILES
    }

    /// [`Self::detect`] with tiles (AMX), if the CPU has them and their state is enabled. From then on
    /// [`crate::KernelTable::available`] includes their tables.
    ///
    /// # Safety
    /// - From now on every thread of this process may use tiles, unless the CPU lacks them or XCR0
    ///   does not enable them. On bare metal that is so. A process on Linux has been given the
    ///   permission: `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)` returned 0.
    #[must_use]
    pub unsafe fn detect_with_tiles() -> Self {
        TILES_ARE_PERMITTED.store(true, Ordering::Release);
        detect()
    }

    /// The features that tables may require: with tiles after a call of [`Self::detect_with_tiles`].
    pub(crate) fn detect_permitted() -> Self {
        match TILES_ARE_PERMITTED.load(Ordering::Acquire) {
            true => detect(),
            false => Self::detect(),
        }
    }
}

/// Whether this CPU runs AVX2. Asked once.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    expect(dead_code, reason = "there is nothing to choose elsewhere")
)]
pub(crate) fn has_avx2() -> bool {
    /// 0 before the first call, else 1 (no) or 2 (yes).
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            let has = detect().contains(CpuFeatures::AVX2);
            ANSWER.store(1 + u8::from(has), Ordering::Relaxed);
            has
        }
        answer => answer == 2,
    }
}

/// Calls `$f` as it is compiled for AVX2 where the CPU has it: for loops that the compiler makes vectors of.
macro_rules! with_avx2 {
    ($f:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?) => {{
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        {
            #[target_feature(enable = "avx2")]
            fn with_avx2($($arg: $ty),*) $(-> $out)? {
                $f($($arg),*)
            }
            if crate::cpu::has_avx2() {
                // SAFETY: the CPU has AVX2.
                return unsafe { with_avx2($($arg),*) };
            }
        }
        $f($($arg),*)
    }};
}
pub(crate) use with_avx2;

/// Whether [`CpuFeatures::detect_with_tiles`] has been called.
static TILES_ARE_PERMITTED: AtomicBool = AtomicBool::new(false);

fn detect() -> CpuFeatures {
    // Miri interprets neither CPUID nor the instructions that it would report.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return x86::detect();
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    CpuFeatures::empty()
}

/// Who made a CPU, as far as choices of speed depend on it: see `tuning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// AMD, before Zen 5: vectors of 512 bits are multiplied in two halves, and the first-level cache
    /// waits for few lines of memory at once.
    AmdBeforeZen5 = 1,
    /// AMD, Zen 5 and later.
    Amd,
    /// Any other maker.
    Other,
}

impl Maker {
    /// The maker of this CPU, detected once.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return x86::maker();
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        Self::Other
    }

    /// Whether AMD made it.
    #[must_use]
    pub fn is_amd(self) -> bool {
        self != Self::Other
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::{AtomicU8, Ordering};
    use super::{CpuFeatures, Maker};
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// CPUID.7.0:EBX bits of F, DQ, CD, BW, VL.
    const AVX512_EBX: u32 = 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31;
    /// CPUID.7.0:ECX bits of VBMI, VBMI2, BITALG, VPOPCNTDQ (IFMA is in EBX).
    const ICE_LAKE_ECX: u32 = 1 << 1 | 1 << 6 | 1 << 12 | 1 << 14;

    pub(super) fn maker() -> Maker {
        /// 0 before the first call.
        static MAKER: AtomicU8 = AtomicU8::new(0);
        const AMD_BEFORE_ZEN_5: u8 = Maker::AmdBeforeZen5 as u8;
        const AMD: u8 = Maker::Amd as u8;
        const OTHER: u8 = Maker::Other as u8;
        match MAKER.load(Ordering::Relaxed) {
            AMD_BEFORE_ZEN_5 => Maker::AmdBeforeZen5,
            AMD => Maker::Amd,
            OTHER => Maker::Other,
            _ => {
                let maker = ask_for_maker();
                MAKER.store(maker as u8, Ordering::Relaxed);
                maker
            }
        }
    }

    fn ask_for_maker() -> Maker {
        /// The family that Zen 5 began.
        const ZEN_5: u32 = 0x1a;
        let leaf = __cpuid(0);
        let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
        // The base family is 15 wherever there is an extended one.
        let signature = __cpuid(1).eax;
        let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
        match name.as_flattened() {
            b"AuthenticAMD" if family < ZEN_5 => Maker::AmdBeforeZen5,
            b"AuthenticAMD" => Maker::Amd,
            _ => Maker::Other,
        }
    }

    pub(super) fn detect() -> CpuFeatures {
        let mut found = CpuFeatures::empty();
        if __cpuid(0).eax < 7 {
            return found;
        }
        let leaf1 = __cpuid(1);
        const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
        if leaf1.ecx & OSXSAVE_AND_AVX != OSXSAVE_AND_AVX {
            return found;
        }
        // SAFETY: CPUID.1:ECX.OSXSAVE was just seen set, which is what XGETBV requires.
        let xcr0 = unsafe { xcr0() };
        let (leaf7, leaf7_1) = (__cpuid_count(7, 0), __cpuid_count(7, 1));
        let mut add = |present: bool, feature| {
            if present {
                found |= feature;
            }
        };
        let ymm = xcr0 & 0x6 == 0x6;
        let popcnt = leaf1.ecx & 1 << 23 != 0;
        add(ymm && popcnt && leaf7.ebx & 1 << 5 != 0, CpuFeatures::AVX2);
        add(ymm && leaf1.ecx & 1 << 12 != 0, CpuFeatures::FMA);
        add(ymm && leaf1.ecx & 1 << 29 != 0, CpuFeatures::F16C);
        add(ymm && leaf7_1.eax & 1 << 4 != 0, CpuFeatures::AVX_VNNI);
        let zmm = xcr0 & 0xe6 == 0xe6 && leaf7.ebx & AVX512_EBX == AVX512_EBX;
        add(zmm, CpuFeatures::AVX512);
        add(zmm && leaf7.ecx & 1 << 11 != 0, CpuFeatures::AVX512_VNNI);
        let ice_lake = leaf7.ecx & ICE_LAKE_ECX == ICE_LAKE_ECX && leaf7.ebx & 1 << 21 != 0;
        add(zmm && ice_lake, CpuFeatures::AVX512_ICE_LAKE);
        add(zmm && leaf7_1.eax & 1 << 5 != 0, CpuFeatures::AVX512_BF16);
        let tiles = xcr0 & 0x6_0000 == 0x6_0000 && leaf7.edx & 1 << 24 != 0;
        add(tiles, CpuFeatures::AMX_TILE);
        add(tiles && leaf7.edx & 1 << 25 != 0, CpuFeatures::AMX_INT8);
        add(tiles && leaf7.edx & 1 << 22 != 0, CpuFeatures::AMX_BF16);
        found
    }

    /// Which register state is enabled.
    ///
    /// # Safety
    /// - CPUID.1:ECX.OSXSAVE (bit 27) is set.
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: the caller has seen OSXSAVE, so XGETBV with index 0 does not fault.
        unsafe { _xgetbv(0) }
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn agrees_with_the_standard_library() {
        let cpu = CpuFeatures::detect();
        let has = |f| cpu.contains(f);
        assert_eq!(
            has(CpuFeatures::AVX2),
            std::is_x86_feature_detected!("avx2")
        );
        assert_eq!(has(CpuFeatures::FMA), std::is_x86_feature_detected!("fma"));
        assert_eq!(
            has(CpuFeatures::F16C),
            std::is_x86_feature_detected!("f16c")
        );
        assert_eq!(
            has(CpuFeatures::AVX_VNNI),
            std::is_x86_feature_detected!("avxvnni")
        );
        assert_eq!(
            has(CpuFeatures::AVX512_VNNI),
            std::is_x86_feature_detected!("avx512vnni")
        );
        assert_eq!(
            has(CpuFeatures::AVX512_BF16),
            std::is_x86_feature_detected!("avx512bf16")
        );
        let ice_lake = std::is_x86_feature_detected!("avx512vbmi2")
            && std::is_x86_feature_detected!("avx512bitalg")
            && std::is_x86_feature_detected!("avx512vpopcntdq");
        assert_eq!(has(CpuFeatures::AVX512_ICE_LAKE), ice_lake);
    }
}
