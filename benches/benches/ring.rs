//! The ring between two threads on two CPUs, against rtrb and heapless.
//!
//! `cargo bench -p sluice-benches --bench ring`. Every run moves a batch from one thread to the
//! other through the ring and checks that all of it has arrived. Two threads of the same core or a
//! machine with other work give other figures.

use core::hint::{black_box, spin_loop};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rtrb::CopyToUninit as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sluice_core::kernels::{CpuFeatures, FrameKernels};
use sluice_core::ring::Ring;
use std::time::Instant;

/// Items in the rings of 8-byte items.
const ITEMS: usize = 4096;
/// Samples in a frame of 4 KiB.
const FRAME: usize = 1024;
/// Frames in the rings of frames: in the second-level cache, as a stream that keeps up is.
const FRAMES: usize = 64;

/// Puts the calling thread on the `n`th of the CPUs that it may use.
fn pin(n: usize, allowed: &CpuSet) {
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let Some(cpu) = cpus.clone().cycle().nth(n) else {
        return;
    };
    let mut set = CpuSet::new();
    set.set(cpu);
    // Where it is refused the figures are noisier.
    let _pinned = sched_setaffinity(None, &set);
}

/// Times `n` operations: `produce` and `consume` are tried until each has succeeded `n` times. Each
/// owns its half, so that the halves are apart in memory also where a crate leaves that to its user.
fn time(
    n: u64,
    mut produce: impl FnMut(u64) -> bool + Send,
    mut consume: impl FnMut(u64) -> bool,
) -> Duration {
    let allowed = sched_getaffinity(None).expect("the kernel reports the allowed CPUs");
    let ready = AtomicU64::new(0);
    let elapsed = std::thread::scope(|scope| {
        let (ready, allowed) = (&ready, &allowed);
        scope.spawn(move || {
            pin(1, allowed);
            ready.store(1, Ordering::Release);
            while ready.load(Ordering::Acquire) != 2 {
                spin_loop();
            }
            let mut done = 0;
            while done < n {
                if produce(done) {
                    done += 1;
                } else {
                    spin_loop();
                }
            }
        });
        pin(0, allowed);
        while ready.load(Ordering::Acquire) != 1 {
            spin_loop();
        }
        let start = Instant::now();
        ready.store(2, Ordering::Release);
        let mut done = 0;
        while done < n {
            if consume(done) {
                done += 1;
            } else {
                spin_loop();
            }
        }
        start.elapsed()
    });
    sched_setaffinity(None, &allowed).expect("these were allowed before");
    elapsed
}

fn items(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring/u64/one by one");
    group.throughput(Throughput::Elements(1));
    group.bench_function("sluice", |bencher| {
        let mut slots = vec![MaybeUninit::<u64>::uninit(); ITEMS];
        let mut ring = Ring::new(&mut slots);
        bencher.iter_custom(|n| {
            let (mut producer, mut consumer) = ring.split();
            let expect = |item: Option<u64>, i| item.inspect(|&item| assert_eq!(item, i)).is_some();
            time(
                n,
                move |i| producer.push(i).is_ok(),
                move |i| expect(consumer.pop(), i),
            )
        });
    });
    group.bench_function("rtrb", |bencher| {
        bencher.iter_custom(|n| {
            let (mut producer, mut consumer) = rtrb::RingBuffer::<u64>::new(ITEMS);
            let expect = |item: Option<u64>, i| item.inspect(|&item| assert_eq!(item, i)).is_some();
            time(
                n,
                move |i| producer.push(i).is_ok(),
                move |i| expect(consumer.pop().ok(), i),
            )
        });
    });
    group.bench_function("heapless", |bencher| {
        let mut queue = Box::new(heapless::spsc::Queue::<u64, ITEMS>::new());
        bencher.iter_custom(|n| {
            let (mut producer, mut consumer) = queue.split();
            let expect = |item: Option<u64>, i| item.inspect(|&item| assert_eq!(item, i)).is_some();
            time(
                n,
                move |i| producer.enqueue(i).is_ok(),
                move |i| expect(consumer.dequeue(), i),
            )
        });
    });
    group.finish();
}

fn frames(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring/f32/frames of 4 KiB");
    group.throughput(Throughput::Bytes(4 * FRAME as u64));
    let frame = [0.5f32; FRAME];
    // Every frame is read completely, as a gate would, at full speed.
    let kernels = FrameKernels::best(CpuFeatures::detect());
    group.bench_function("sluice", |bencher| {
        let mut slots = vec![MaybeUninit::<f32>::uninit(); FRAMES * FRAME];
        let mut ring = Ring::new(&mut slots);
        bencher.iter_custom(|n| {
            let (mut producer, mut consumer) = ring.split();
            // Whole frames, as rtrb's chunks are below.
            let push = move |_| {
                let mut room = producer.room(FRAME);
                if room.len() < FRAME {
                    return false;
                }
                // The ring holds whole frames, so none wraps around.
                let [slots, _] = room.slots();
                slots.write_copy_of_slice(&frame);
                // SAFETY: all of the room is written.
                unsafe { room.commit(FRAME) };
                true
            };
            let pop = move |_| {
                let [first, _] = consumer.items(FRAME);
                if first.len() < FRAME {
                    return false;
                }
                assert!(black_box(kernels.max_abs(first)) >= 0.5);
                consumer.release(FRAME);
                true
            };
            time(n, push, pop)
        });
    });
    group.bench_function("rtrb", |bencher| {
        bencher.iter_custom(|n| {
            let (mut producer, mut consumer) = rtrb::RingBuffer::<f32>::new(FRAMES * FRAME);
            let push = move |_| match producer.write_chunk_uninit(FRAME) {
                Ok(mut chunk) => {
                    let (slots, _) = chunk.as_mut_slices();
                    frame.copy_to_uninit(slots);
                    // SAFETY: all of the chunk is written.
                    unsafe { chunk.commit_all() };
                    true
                }
                Err(_) => false,
            };
            let pop = move |_| {
                let Ok(chunk) = consumer.read_chunk(FRAME) else {
                    return false;
                };
                assert!(black_box(kernels.max_abs(chunk.as_slices().0)) >= 0.5);
                chunk.commit_all();
                true
            };
            time(n, push, pop)
        });
    });
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .without_plots()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = short();
    targets = items, frames
}
criterion_main!(benches);
