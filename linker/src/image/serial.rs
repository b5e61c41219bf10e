//! The first serial port: polled, in and out.
//!
//! There is no lock: the first core alone prints, and interrupts are off. What another core
//! prints is its last word (a panic or a trap), which nothing may hold up.

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

/// Prints without a line's end.
pub(super) fn print(text: fmt::Arguments<'_>) {
    // The sink never fails; a value's own Display could, and then there is nobody to tell.
    let _ = fmt::Write::write_fmt(&mut Serial, text);
}

/// Reads a line as somebody types it, showing it, until return; backspace takes back a byte.
/// What does not fit into `line` is not taken. Returns the length without the end.
pub(super) fn read_line(line: &mut [u8]) -> usize {
    let mut len = 0;
    loop {
        match read_byte() {
            b'\r' | b'\n' => {
                print(format_args!("\n"));
                return len;
            }
            8 | 127 if len > 0 => {
                len -= 1;
                print(format_args!("\u{8} \u{8}"));
            }
            byte if byte >= b' ' && byte != 127 && len < line.len() => {
                line[len] = byte;
                len += 1;
                write_byte(byte);
            }
            _ => {}
        }
    }
}

fn read_byte() -> u8 {
    // SAFETY: reading the line status changes nothing that is used here.
    while unsafe { port::read_u8(COM1 + LINE_STATUS) } & DATA_READY == 0 {
        core::hint::spin_loop();
    }
    // SAFETY: a byte is there, and reading it takes it.
    unsafe { port::read_u8(COM1) }
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
    ($($arg:tt)*) => {
        $crate::image::serial::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}
pub(super) use println;

const COM1: u16 = 0x3F8;
const LINE_STATUS: u16 = 5;
const DATA_READY: u8 = 0x01;
const TRANSMIT_EMPTY: u8 = 0x20;
