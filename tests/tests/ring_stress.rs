//! The ring between two threads: every item arrives, once and in order.
//!
//! `SLUICE_RING_ITEMS=1000000000 SLUICE_RING_FRAMES=10000000 cargo test --release -p sluice-tests
//! --test ring_stress` is the long run; without it far fewer are sent.

#![expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "exact values, and whole numbers as samples"
)]

use core::mem::MaybeUninit;
use sluice::host::topology::{Cores, pin_current_thread};
use sluice_core::ring::Ring;

/// The number to send: the environment's, or `default` with a printed note.
fn size(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => {
            sluice_tests::skipped(&format!(
                "the long run: {name} is not set, {default} are sent"
            ));
            default
        }
    }
}

fn pin(rank: usize) {
    if let Some(Some(cpu)) = Cores::detect().placement(2).get(rank) {
        // Where it is refused the test is as good on one core.
        let _pinned = pin_current_thread(*cpu);
    }
}

/// Sizes of batches, 1 to `max`.
struct Sizes(u64, usize);

impl Iterator for Sizes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(77);
        Some(1 + (self.0 >> 33) as usize % self.1)
    }
}

#[test]
fn items_in_random_batches() {
    let n = size("SLUICE_RING_ITEMS", 1_000_000);
    let mut slots = vec![MaybeUninit::<u64>::uninit(); 1021];
    let mut ring = Ring::new(&mut slots);
    let (mut producer, mut consumer) = ring.split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let (mut next, mut items) = (0, Vec::new());
            let mut sizes = Sizes(1, 300);
            while next < n {
                // One by one, by slice and in place in turn.
                let len = sizes.next().unwrap_or(1).min((n - next) as usize);
                if len < 20 {
                    next += u64::from(producer.push(next).is_ok());
                } else {
                    items.clear();
                    items.extend(next..next + len as u64);
                    next += producer.push_slice(&items) as u64;
                }
                if producer.free() == 0 {
                    std::thread::yield_now();
                }
            }
        });
        pin(0);
        let mut sizes = Sizes(2, 400);
        let mut expected = 0;
        while expected < n {
            let len = sizes.next().unwrap_or(1);
            if len < 20 {
                if let Some(item) = consumer.pop() {
                    assert_eq!(item, expected);
                    expected += 1;
                }
                continue;
            }
            let mut found = 0;
            for piece in consumer.items(len) {
                for item in piece {
                    assert_eq!(*item, expected);
                    expected += 1;
                }
                found += piece.len();
            }
            consumer.release(found);
            if found == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(consumer.pop(), None);
    });
}

#[test]
fn frames_in_random_batches() {
    const FRAME: usize = 1024;
    let n = size("SLUICE_RING_FRAMES", 100_000);
    let mut slots = vec![MaybeUninit::<f32>::uninit(); 64 * FRAME];
    let mut ring = Ring::new(&mut slots);
    let (mut producer, mut consumer) = ring.split();
    // Frame i is its number in every sample: 24 bits of an f32, and the rest in the second half.
    let sample = |frame: u64, at: usize| {
        let part = if at < FRAME / 2 {
            frame & 0xff_ffff
        } else {
            frame >> 24
        };
        part as f32
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            let mut sizes = Sizes(3, 9);
            let (mut next, mut samples) = (0, Vec::new());
            while next < n {
                let len = sizes.next().unwrap_or(1).min((n - next) as usize);
                samples.clear();
                for frame in next..next + len as u64 {
                    samples.extend((0..FRAME).map(|at| sample(frame, at)));
                }
                let mut rest = samples.as_slice();
                while !rest.is_empty() {
                    let pushed = producer.push_slice(rest);
                    rest = &rest[pushed..];
                    if pushed == 0 {
                        std::thread::yield_now();
                    }
                }
                next += len as u64;
            }
        });
        pin(0);
        let (mut sizes, mut expected) = (Sizes(4, 7), 0);
        while expected < n {
            let whole = consumer.queued() / FRAME;
            let len = sizes.next().unwrap_or(1).min(whole);
            if len == 0 {
                std::thread::yield_now();
                continue;
            }
            // Whole frames of a ring of whole frames never wrap around.
            let [frames, second] = consumer.items(len * FRAME);
            let mut found = 0;
            for piece in [frames, second] {
                for frame in piece.chunks_exact(FRAME) {
                    let low = sample(expected, 0);
                    let high = sample(expected, FRAME - 1);
                    assert!(
                        frame[..FRAME / 2].iter().all(|&x| x == low),
                        "frame {expected}"
                    );
                    assert!(
                        frame[FRAME / 2..].iter().all(|&x| x == high),
                        "frame {expected}"
                    );
                    expected += 1;
                    found += FRAME;
                }
            }
            consumer.release(found);
        }
    });
}
