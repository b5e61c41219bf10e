//! The ring and the counters of streams under loom: every interleaving of a producer, a consumer
//! and a reader within small bounds.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p sluice-core --test ring_loom --target-dir target/loom
//! ```
//!
//! `core/src/ring` and `telemetry.rs` are compiled here once more, over a module `sync` of loom's
//! atomics in which each slot has a cell that notes who touches it: a slot that is written and
//! read without an order between the two fails the test, as does a sum that does not add up.
#![allow(
    dead_code,
    unexpected_cfgs,
    unreachable_pub,
    reason = "core's files as they are, of which a part is used; `loom` is set by hand"
)]

#[cfg(loom)]
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering, fence};

    use loom::cell::UnsafeCell;

    /// A cell per slot, touched wherever the slot is.
    #[derive(Debug)]
    pub(crate) struct Accesses(Vec<UnsafeCell<()>>);

    impl Accesses {
        pub(crate) fn new(capacity: usize) -> Self {
            Self((0..capacity).map(|_| UnsafeCell::new(())).collect())
        }

        pub(crate) fn write(&self, slot: usize, n: usize) {
            for i in slot..slot + n {
                self.0[i % self.0.len()].with_mut(|_| ());
            }
        }

        pub(crate) fn read(&self, slot: usize, n: usize) {
            for i in slot..slot + n {
                self.0[i % self.0.len()].with(|_| ());
            }
        }
    }
}

#[cfg(loom)]
#[path = "../src/ring/mod.rs"]
mod ring;

#[cfg(loom)]
#[path = "../src/gate/intake.rs"]
mod intake;
#[cfg(loom)]
#[path = "../src/gate/telemetry.rs"]
mod telemetry;

/// What `intake.rs` takes from its neighbour.
#[cfg(loom)]
mod policy {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GateError {
        FrameLen,
        RingLen,
    }
}

#[cfg(loom)]
mod model {
    use crate::intake::{self, FrameOutcome, Overflow};
    use crate::ring::{self, StaticRing};
    use crate::telemetry;
    use core::mem::MaybeUninit;

    /// Every interleaving with up to three preemptions, or `LOOM_MAX_PREEMPTIONS`.
    fn bounded(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
        builder.check(model);
    }

    fn run<const N: usize>(
        produce: impl Fn(&mut ring::Producer<'static, u32>) + Send + 'static,
        consume: impl Fn(&mut ring::Consumer<'static, u32>),
    ) {
        let memory = Box::into_raw(Box::new(StaticRing::<u32, N>::new()));
        // SAFETY: just made, and freed at the end, after both halves have ended.
        let ring: &'static mut StaticRing<u32, N> = unsafe { &mut *memory };
        let (mut producer, mut consumer) = ring.split();
        let thread = loom::thread::spawn(move || produce(&mut producer));
        consume(&mut consumer);
        thread.join().expect("the producer does not panic");
        // SAFETY: made by `Box::into_raw` above; no longer used.
        drop(unsafe { Box::from_raw(memory) });
    }

    fn pop(consumer: &mut ring::Consumer<'static, u32>) -> u32 {
        loop {
            if let Some(item) = consumer.pop() {
                return item;
            }
            loom::thread::yield_now();
        }
    }

    #[test]
    fn items_one_by_one_are_in_order() {
        bounded(|| {
            run::<2>(
                |producer| {
                    for i in 0..3 {
                        while producer.push(i).is_err() {
                            loom::thread::yield_now();
                        }
                    }
                },
                |consumer| (0..3).for_each(|i| assert_eq!(pop(consumer), i)),
            );
        });
    }

    #[test]
    fn batches_in_place_are_in_order() {
        bounded(|| {
            run::<3>(
                |producer| {
                    let (mut next, mut items) = (0, [0, 1, 2, 3].as_slice());
                    while !items.is_empty() {
                        let n = producer.push_slice(&items[..items.len().min(2)]);
                        items = &items[n..];
                        next += n;
                        if n == 0 {
                            loom::thread::yield_now();
                        }
                    }
                    assert_eq!(next, 4);
                },
                |consumer| {
                    let mut next = 0;
                    while next < 4 {
                        let [first, second] = consumer.items(2);
                        let found = [first, second].concat();
                        for (i, item) in found.iter().enumerate() {
                            assert_eq!(*item as usize, next + i);
                        }
                        consumer.release(found.len());
                        next += found.len();
                        if found.is_empty() {
                            loom::thread::yield_now();
                        }
                    }
                },
            );
        });
    }

    /// Everything a stream is made of, leaked for the length of a model run by the caller.
    struct Stream {
        slots: [MaybeUninit<f32>; 4],
        ring: Option<ring::Ring<'static, f32>>,
        meter: telemetry::Meter,
    }

    #[test]
    fn counters_add_up_at_every_look() {
        const FRAME: usize = 2;
        bounded(|| {
            let stream = Box::into_raw(Box::new(Stream {
                slots: [MaybeUninit::uninit(); 4],
                ring: None,
                meter: telemetry::Meter::new(),
            }));
            // SAFETY: just made, and freed at the end, after every thread has ended.
            let owned: &'static mut Stream = unsafe { &mut *stream };
            let ring = owned.ring.insert(ring::Ring::new(&mut owned.slots));
            let (mut producer, mut consumer) =
                intake::split(ring, &mut owned.meter, FRAME, Overflow::DropNewest).unwrap();
            let (gauge, meter) = (producer.gauge(), producer.meter());
            let pushing = loom::thread::spawn(move || {
                for i in [0u8, 2, 4] {
                    producer.push(&[f32::from(i), f32::from(i) + 1.0]);
                }
            });
            let popping = loom::thread::spawn(move || {
                consumer.process(1, |_| FrameOutcome {
                    passed: false,
                    go_on: true,
                });
            });
            let seen = meter.read(gauge, FRAME);
            assert!(seen.adds_up(), "{seen:?}");
            pushing.join().unwrap();
            popping.join().unwrap();
            let end = meter.read(gauge, FRAME);
            assert!(end.adds_up() && end.pushed == 3, "{end:?}");
            // SAFETY: made by `Box::into_raw` above; no longer used.
            drop(unsafe { Box::from_raw(stream) });
        });
    }
}
