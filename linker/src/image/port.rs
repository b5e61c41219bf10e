//! I/O ports. Ring 3 may use all of them: the TSS that `boot.s` loads has an empty I/O bitmap.
//!
//! No function here says `nomem`: an access may start a transfer that reads or writes memory.

use core::arch::asm;

/// Writes a byte.
///
/// # Safety
/// - The device behind `port` does nothing with `value` that the program does not expect.
pub(super) unsafe fn write_u8(port: u16, value: u8) {
    // SAFETY: the caller knows the device.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) }
}

/// Writes four bytes.
///
/// # Safety
/// - As [`write_u8`].
pub(super) unsafe fn write_u32(port: u16, value: u32) {
    // SAFETY: the caller knows the device.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags));
    }
}

/// Reads a byte.
///
/// # Safety
/// - Reading from the device behind `port` has no effect that the program does not expect.
pub(super) unsafe fn read_u8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller knows the device.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) }
    value
}
