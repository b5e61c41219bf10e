//! The first serial port: polled, output only.
//!
//! There is no lock, because one core runs and interrupts are off. A second core needs one that
//! a panic in the middle of a line can still get past.

use core::fmt;

use super::port;

/// The port as a text sink. Where there is no port, its status reads 0xFF and nothing hangs.
pub(super) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                write_byte(b'\r'); // terminals on a serial line need both
            }
            write_byte(byte);
        }
        Ok(())
    }
}

/// 115200 baud, 8N1, FIFO on, no interrupts.
pub(super) fn init() {
    let register_values = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 0xC7), (4, 3)];
    for (register, value) in register_values {
        // SAFETY: these are the registers of a 16550 at its usual place.
        unsafe { port::write_u8(COM1 + register, value) };
    }
}

fn write_byte(byte: u8) {
    // SAFETY: reading the line status changes nothing that is used here.
    while unsafe { port::read_u8(COM1 + LINE_STATUS) } & TRANSMIT_EMPTY == 0 {
        core::hint::spin_loop();
    }
    // SAFETY: the transmit register is empty, so the byte goes out as it is.
    unsafe { port::write_u8(COM1, byte) };
}

/// Prints a line on the serial port.
macro_rules! println {
    ($($arg:tt)*) => {{
        use core::fmt::Write;
        // The sink never fails; a value's own Display could, and then there is nobody to tell.
        let _ = writeln!($crate::image::serial::Serial, $($arg)*);
    }};
}
pub(super) use println;

const COM1: u16 = 0x3F8;
const LINE_STATUS: u16 = 5;
const TRANSMIT_EMPTY: u8 = 0x20;
