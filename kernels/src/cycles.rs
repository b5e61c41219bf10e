//! A clock in core cycles: a chain of additions that each wait for the one before.
//!
//! The time-stamp counter ticks at a fixed rate whatever the core does. A dependent addition of two registers takes one
//! cycle on every x86-64 core, so timing a chain of them next to a measurement gives the length of a cycle at that
//! time.

/// Additions in one round of [`add_chain`].
pub const CHAIN: u64 = 64;

/// Runs `rounds` of [`CHAIN`] dependent additions: `rounds · 64` core cycles.
#[cfg(target_arch = "x86_64")]
pub fn add_chain(rounds: u64) {
    if rounds == 0 {
        return;
    }
    // Registers, not constants: some cores take additions of constants together.
    // SAFETY: adds registers and counts one down; touches no memory and no stack.
    unsafe {
        core::arch::asm!(
            "2:",
            ".rept 64",
            "add {sum}, {one}",
            ".endr",
            "dec {rounds}",
            "jnz 2b",
            sum = inout(reg) 0u64 => _,
            one = in(reg) 3u64,
            rounds = inout(reg) rounds => _,
            options(nomem, nostack),
        );
    }
}

/// Runs `rounds` of [`CHAIN`] dependent additions. How many cycles that takes is up to the core.
#[cfg(not(target_arch = "x86_64"))]
pub fn add_chain(rounds: u64) {
    let mut sum = 0u64;
    for _ in 0..rounds * CHAIN {
        sum = core::hint::black_box(sum.wrapping_add(3));
    }
}
