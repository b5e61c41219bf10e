//! Leaving QEMU.
//!
//! The device isa-debug-exit ends QEMU with status `code * 2 + 1`. That is always odd, so
//! success is not 0, and it never equals `timeout`'s 124. Code 0 stays unused: status 1 is QEMU's
//! own failure.

use static_assertions::const_assert;
use x86::io::outl;

/// Status 33.
pub(super) const SUCCESS: u32 = 0x10;
/// Status 35: a line `ERROR: …` gives the reason.
pub(super) const FAILURE: u32 = 0x11;
/// Status 65 and up: this plus the vector of a CPU exception, 0..32.
pub(super) const TRAP: u32 = 0x20;
/// Status 255.
pub(super) const PANIC: u32 = 0x7F;

/// Leaves QEMU; on a machine without the device, loops here.
pub(super) fn leave(code: u32) -> ! {
    // SAFETY: nothing else answers at this port on the machines that this runs on.
    unsafe { outl(ISA_DEBUG_EXIT, code) };
    loop {
        core::hint::spin_loop(); // `hlt` is not allowed in ring 3
    }
}

const ISA_DEBUG_EXIT: u16 = 0xF4;
const_assert!(SUCCESS != TRAP);
const_assert!(TRAP + 31 < PANIC); // no trap reads as a panic
const_assert!(PANIC * 2 < 256); // an exit status has eight bits
