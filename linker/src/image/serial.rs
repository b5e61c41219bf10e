//! The first serial port: polled, in and out, behind a lock.
//!
//! A core's last message (a panic, a trap) must not wait for a core that holds the lock, which may
//! be itself: after a while it is printed without the lock.

use core::fmt;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::{Mutex, Once};
use x86::io::{inb, outb};

/// The port as a text sink. A missing port reads as status 0xFF, so nothing hangs.
struct Serial;

/// Bytes typed before the port was set up, which setting it up would drop.
static EARLY: Mutex<Early> = Mutex::new(Early::new());

type Early = heapless::Deque<u8, FIFO_BYTES>;

/// Set up by the first core that prints.
static CONSOLE: Once<Mutex<Serial>> = Once::new();
/// Set while a core prints its last message, and afterwards.
static SPOKEN: AtomicBool = AtomicBool::new(false);

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

impl Serial {
    /// 115200 baud, 8N1, FIFO on, no interrupts.
    fn init() -> Self {
        let mut early = EARLY.lock();
        for _ in 0..FIFO_BYTES {
            // A missing port has all bits set.
            match line_status() {
                status if status & DATA_READY == 0 || status == 0xFF => break,
                _ => {
                    // The queue is as long as the port's own.
                    let _fits = early.push_back(data());
                }
            }
        }
        drop(early);
        let register_values = [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 0xC7), (4, 3)];
        for (register, value) in register_values {
            // SAFETY: these are the registers of a 16550 at its usual address.
            unsafe { outb(COM1 + register, value) };
        }
        Self
    }
}

fn console() -> &'static Mutex<Serial> {
    CONSOLE.call_once(|| Mutex::new(Serial::init()))
}

/// Prints without a line end.
pub(super) fn print(text: fmt::Arguments<'_>) {
    // The sink never fails; a value's own Display could, and that cannot be reported.
    let _ = fmt::Write::write_fmt(&mut *console().lock(), text);
}

/// Prints a core's message before it stops, even while another core holds the lock. Of several cores only
/// the first prints; the others give it time to.
pub(super) fn print_last(text: fmt::Arguments<'_>) {
    if SPOKEN.swap(true, Ordering::AcqRel) {
        (0..LAST_TRIES).for_each(|_| spin_loop());
        return;
    }
    let lock = CONSOLE.get();
    let guard = lock.and_then(|lock| {
        let mut tries = 0..LAST_TRIES;
        tries.find_map(|_| {
            spin_loop();
            lock.try_lock()
        })
    });
    // As above. The sink has no state, so a second one is sound; output may interleave.
    let _ = fmt::Write::write_fmt(&mut Serial, text);
    drop(guard);
}

/// Reads a typed line, and echoes it, until return; backspace deletes a byte.
/// Input that does not fit into `line` is dropped. Returns the length without the line end.
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
    if let Some(byte) = EARLY.lock().pop_front() {
        return byte;
    }
    while line_status() & DATA_READY == 0 {
        spin_loop();
    }
    data()
}

fn line_status() -> u8 {
    // SAFETY: reading the line status changes nothing that is used here.
    unsafe { inb(COM1 + LINE_STATUS) }
}

/// The next byte that has been received.
fn data() -> u8 {
    // SAFETY: this removes the byte, or returns any byte where nothing was received.
    unsafe { inb(COM1) }
}

fn write_byte(byte: u8) {
    while line_status() & TRANSMIT_EMPTY == 0 {
        spin_loop();
    }
    // SAFETY: the transmit register is empty, so the byte is sent as it is.
    unsafe { outb(COM1, byte) };
}

/// Prints a line on the serial port.
macro_rules! println {
    ($($arg:tt)*) => {
        $crate::image::serial::print(format_args!("{}\n", format_args!($($arg)*)))
    };
}
pub(super) use println;

/// Prints a line, even while another core prints.
macro_rules! last_words {
    ($($arg:tt)*) => {
        $crate::image::serial::print_last(format_args!("{}\n", format_args!($($arg)*)))
    };
}
pub(super) use last_words;

/// A tenth of a second or more: far longer than a line takes to print.
const LAST_TRIES: u32 = 1 << 24;
const COM1: u16 = 0x3F8;
/// Bytes that a 16550 holds.
const FIFO_BYTES: usize = 16;
const LINE_STATUS: u16 = 5;
const DATA_READY: u8 = 0x01;
const TRANSMIT_EMPTY: u8 = 0x20;
