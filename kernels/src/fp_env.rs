//! The floating-point environment of the numeric contract: round to nearest, no exceptions,
//! denormals kept.
//!
//! A host may have switched on flush-to-zero (audio software does). Every worker therefore
//! sets the environment when it enters the engine and gives the host its own back.

/// Sets the contract's floating-point environment for this thread until dropped.
#[derive(Debug)]
pub struct FpEnv {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    saved: u32,
    /// The environment belongs to one thread.
    _not_send: core::marker::PhantomData<*mut ()>,
}

/// MXCSR of the contract: all exceptions masked, round to nearest even, no FTZ, no DAZ.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
const MXCSR: u32 = 0x1f80;

impl FpEnv {
    /// Enters the contract's environment.
    #[must_use]
    pub fn enter() -> Self {
        Self {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            saved: mxcsr::swap(MXCSR),
            _not_send: core::marker::PhantomData,
        }
    }
}

impl Drop for FpEnv {
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        mxcsr::swap(self.saved);
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod mxcsr {
    use core::arch::asm;

    /// Loads `new` into MXCSR and returns what was there.
    pub(super) fn swap(new: u32) -> u32 {
        let mut old = 0u32;
        // SAFETY: stmxcsr writes the four bytes of `old`; both values loaded below are either
        // the contract's or one that this function read, so no reserved bit is ever set.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut old, options(nostack, preserves_flags)) };
        // SAFETY: as above; ldmxcsr reads the four bytes of `new`.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const new, options(nostack, preserves_flags, readonly));
        }
        old
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use core::hint::black_box;

    #[test]
    fn flush_to_zero_of_the_host_is_undone_and_restored() {
        let before = mxcsr::swap(MXCSR | 0x8040);
        let tiny = black_box(f32::MIN_POSITIVE);
        assert_eq!((tiny * black_box(0.5)).to_bits(), 0);
        {
            let _env = FpEnv::enter();
            assert_ne!((black_box(tiny) * black_box(0.5)).to_bits(), 0);
        }
        assert_eq!((black_box(tiny) * black_box(0.5)).to_bits(), 0);
        mxcsr::swap(before);
    }
}
