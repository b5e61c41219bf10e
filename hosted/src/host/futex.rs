//! Waiting: spin a moment, then sleep in the kernel.

use core::sync::atomic::{AtomicU32, Ordering};
use rustix::thread::futex;
use sluice_core::team::WaitPolicy;

/// Workers wait by spinning for a while and then on a futex.
#[derive(Clone, Copy, Debug)]
pub struct FutexWait {
    spins: u32,
    /// Rounds of spinning, each followed by an offer of the core to others, before sleeping.
    rounds: u32,
}

/// Spins of a round, tenths of a millisecond.
const ROUND_SPINS: u32 = 4000;

impl FutexWait {
    /// For workers with a core each, by llama.cpp's `--poll`: 0 sleeps at once, 100 spins longest;
    /// 50 takes tenths of a second, longer than any step between two barriers.
    ///
    /// So long because a virtual machine's core that sleeps is not given back for milliseconds
    /// where neighbours wait for the processor: of a team that slept after one round, 10 to 30% of
    /// the time was stolen, and up to half the rate lost. After each round the core is offered to other
    /// threads, so that spinning costs them little.
    pub const fn with_poll(poll: u8) -> Self {
        let spins = match poll {
            0 => 0,
            _ => ROUND_SPINS,
        };
        Self {
            spins,
            rounds: 32 * poll as u32,
        }
    }

    /// For more workers than cores: a waiting one should yield its core to another at once.
    pub const YIELDING: Self = Self {
        spins: 20,
        rounds: 0,
    };
}

impl WaitPolicy for FutexWait {
    fn spins(&self) -> u32 {
        self.spins
    }

    fn park(&self, word: &AtomicU32, seen: u32) {
        for _ in 0..self.rounds {
            std::thread::yield_now();
            for _ in 0..ROUND_SPINS {
                if word.load(Ordering::Relaxed) != seen {
                    return;
                }
                core::hint::spin_loop();
            }
        }
        // EAGAIN (the word has changed) and EINTR are reasons to look again, which callers do.
        let _woken = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    fn park_briefly(&self, word: &AtomicU32, seen: u32) {
        let some_ms = futex::Timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        // As above; a timeout is another reason to look again.
        let _woken = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&some_ms));
    }

    fn wake(&self, word: &AtomicU32) {
        let _count = futex::wake(word, futex::Flags::PRIVATE, i32::MAX.unsigned_abs());
    }
}

/// A number that threads wait on to change.
#[derive(Debug)]
pub(crate) struct Signal {
    value: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
    wait: FutexWait,
}

impl Signal {
    pub(crate) const fn new(value: u32, wait: FutexWait) -> Self {
        Self {
            value: AtomicU32::new(value),
            sleepers: AtomicU32::new(0),
            wait,
        }
    }

    /// Changes the value, atomically, and wakes the waiting threads. Earlier writes are visible
    /// to every thread that sees the new value. Returns the new value.
    pub(crate) fn update(&self, change: impl Fn(u32) -> u32) -> u32 {
        // SeqCst here and in `wait_while`: either the sleeper sees the value or we see the
        // sleeper.
        let old = self
            .value
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |value| {
                Some(change(value))
            })
            .unwrap_or_else(|value| value);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wait.wake(&self.value);
        }
        change(old)
    }

    /// Waits while `is_early` holds for the value; returns the first value for which it does not.
    pub(crate) fn wait_while(&self, is_early: impl Fn(u32) -> bool) -> u32 {
        let mut spins = 0;
        loop {
            let seen = self.value.load(Ordering::Acquire);
            if !is_early(seen) {
                return seen;
            }
            if spins < self.wait.spins {
                spins += 1;
                core::hint::spin_loop();
                continue;
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.value.load(Ordering::SeqCst) == seen {
                self.wait.park(&self.value, seen);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An expert that never comes must not keep a worker from its deadline.
    #[test]
    fn a_brief_wait_ends_without_a_change() {
        let word = AtomicU32::new(0);
        for wait in [FutexWait::with_poll(50), FutexWait::YIELDING] {
            (0..3).for_each(|_| wait.park_briefly(&word, 0));
        }
    }

    #[test]
    fn a_change_is_seen_by_sleepers_and_spinners() {
        for wait in [
            FutexWait::with_poll(100),
            FutexWait::YIELDING,
            FutexWait::with_poll(0),
        ] {
            let (there, back) = (Signal::new(0, wait), Signal::new(0, wait));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for i in 0..1000 {
                        assert_eq!(there.wait_while(|value| value == i), i + 1);
                        back.update(|value| value + 1);
                    }
                });
                for i in 0..1000 {
                    assert_eq!(there.update(|value| value + 1), i + 1);
                    assert_eq!(back.wait_while(|value| value == i), i + 1);
                }
            });
        }
    }
}
