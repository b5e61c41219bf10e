//! The time-stamp counter, and its frequency.

use core::arch::x86_64::_rdtsc;

use x86::io::{inb, outb};

/// Reads the time-stamp counter.
pub(super) fn ticks() -> u64 {
    // SAFETY: every x86_64 CPU has it, and `boot.s` leaves CR4.TSD clear.
    unsafe { _rdtsc() }
}

/// TSC ticks a second, from 20 ms of PIT channel 0. `None` if the PIT does not count.
///
/// Channel 0 is read back by the latch command. The usual way, channel 2 gated by port 0x61,
/// does not work on QEMU's microvm, which has no such port.
pub(super) fn ticks_per_second() -> Option<u64> {
    start_pit(PERIODIC, 0); // 0 means 65536
    let rate = count_ticks();
    // A hypervisor would otherwise keep emulating every wrap, 0.3 ms of this core's time each.
    start_pit(ONCE, 1);
    rate
}

fn count_ticks() -> Option<u64> {
    let (mut last, mut counted) = (pit_counter(), 0);
    let start = ticks();
    for _ in 0..1 << 20 {
        let now = pit_counter();
        counted += u64::from(last.wrapping_sub(now)); // it counts down and wraps
        last = now;
        if counted >= PIT_HZ / 50 {
            return Some((ticks() - start) * PIT_HZ / counted);
        }
    }
    None
}

/// Lets channel 0 count down from `count`.
fn start_pit(mode: u8, count: u16) {
    let [low, high] = count.to_le_bytes();
    for (register, value) in [
        (PIT_COMMAND, mode),
        (PIT_CHANNEL_0, low),
        (PIT_CHANNEL_0, high),
    ] {
        // SAFETY: the PIT's own ports; interrupts are off, so nothing else uses channel 0.
        unsafe { outb(register, value) };
    }
}

fn pit_counter() -> u16 {
    // SAFETY: as above; the latch command freezes the value until both bytes have been read.
    unsafe { outb(PIT_COMMAND, 0) };
    let mut bytes = [0; 2];
    for byte in &mut bytes {
        // SAFETY: as above.
        *byte = unsafe { inb(PIT_CHANNEL_0) };
    }
    u16::from_le_bytes(bytes)
}

const PIT_HZ: u64 = 1_193_182;
const PIT_CHANNEL_0: u16 = 0x40;
const PIT_COMMAND: u16 = 0x43;
/// Channel 0, low byte then high byte: mode 2, repeated.
const PERIODIC: u8 = 0x34;
/// Channel 0, low byte then high byte: mode 0, once.
const ONCE: u8 = 0x30;
