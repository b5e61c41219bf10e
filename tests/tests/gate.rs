//! The gate from end to end: nothing that holds a signal is lost, whatever the schedule.

#![expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "exact values, and whole numbers as samples"
)]

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use sluice_core::gate::{Decision, Gate, GateConfig, Measure, Policy};
use sluice_core::kernels::{CpuFeatures, FrameKernels};
use sluice_gate::isolation::{IsolationRequest, RingMemory};
use sluice_gate::{Backpressure, FrameObserver, IntakeClosed, ObserverConfig, Sink, channel};
use sluice_tests::gate::{speech, uniform};
use std::sync::{Arc, Mutex};
use std::time::Instant;

fn all() -> Vec<&'static FrameKernels> {
    FrameKernels::available(CpuFeatures::detect()).collect()
}

fn best() -> &'static FrameKernels {
    FrameKernels::best(CpuFeatures::detect())
}

/// One sample at the threshold, at every position of every length to 4100, at every alignment of a
/// cache line: the scan of every table finds it.
#[test]
fn one_sample_at_the_threshold_always_passes() {
    const THRESHOLD: f32 = 1e-5;
    let alignments = |kernels: &FrameKernels| if kernels.name() == "scalar" { 1 } else { 16 };
    std::thread::scope(|scope| {
        for kernels in all() {
            for half in 0..2 {
                scope.spawn(move || {
                    let mut line = vec![0.0f32; 4100 + 64];
                    let start = line.as_ptr().align_offset(64);
                    for alignment in 0..alignments(kernels) {
                        let samples = &mut line[start + alignment..];
                        for len in (1 + half..=4100).step_by(2) {
                            // The long lengths take one alignment's positions each in turn: all
                            // positions of a length are seen at every alignment below 400.
                            let step = if len < 400 || alignments(kernels) == 1 {
                                1
                            } else {
                                7
                            };
                            let first = if step == 1 {
                                0
                            } else {
                                (len + alignment) % step
                            };
                            for at in (first..len).step_by(step) {
                                samples[at] = -THRESHOLD;
                                let found = kernels.max_abs(&samples[..len]);
                                assert!(found >= THRESHOLD, "{} {len} {at}", kernels.name());
                                samples[at] = 0.0;
                            }
                            assert_eq!(kernels.max_abs(&samples[..len]), 0.0);
                        }
                    }
                });
            }
        }
    });
}

/// NaN and infinity alone, before and after a spike; samples around a frame do not count.
#[test]
fn holes_pass_and_neighbours_do_not_count() {
    for kernels in all() {
        let mut gate = Gate::new(GateConfig::default(), kernels).unwrap();
        for len in (1..80).chain([1023, 1024, 1025]) {
            let mut samples = vec![f32::NAN; len + 40];
            for offset in [0, 1, 7, 16] {
                let frame = offset..offset + len;
                samples[frame.clone()].fill(0.0);
                assert!(
                    !gate.process(&samples[frame.clone()]).verdict.passes(),
                    "{len}"
                );
                for at in 0..len {
                    for hole in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        samples[offset + at] = hole;
                        assert!(gate.process(&samples[frame.clone()]).verdict.passes());
                        for spike in [at.saturating_sub(1), (at + 1).min(len - 1)] {
                            samples[offset + spike] = if spike == at { hole } else { 0.5 };
                            assert!(gate.process(&samples[frame.clone()]).verdict.passes());
                            samples[offset + spike] = 0.0;
                        }
                        samples[offset + at] = 0.0;
                    }
                }
                samples.fill(f32::NAN);
            }
        }
    }
}

/// Frames against the end and the start of mapped memory: a read outside them would be a fault.
#[test]
fn nothing_outside_a_frame_is_read() {
    let memory = RingMemory::new(20_000).unwrap();
    let n = memory.len_bytes() / 4;
    // SAFETY: the memory is ours alone, zeroed and of that many floats.
    let samples = unsafe { core::slice::from_raw_parts_mut(memory.start().cast::<f32>(), n) };
    let noise = uniform(3, n);
    samples.copy_from_slice(&noise);
    for kernels in all() {
        for len in 0..=4100 {
            for frame in [&samples[n - len..], &samples[..len]] {
                let expected = frame.iter().fold(0f32, |max, x| max.max(x.abs()));
                assert_eq!(kernels.max_abs(frame), expected);
                if len % 5 == 0 || len < 100 {
                    assert_eq!(kernels.stats(frame).len, len);
                    assert_eq!(kernels.stats(frame).max_abs, expected);
                }
            }
        }
    }
}

/// Keeps every decision, as bits that can be compared.
#[derive(Debug, Default)]
struct Keep(Vec<(u64, u32, u32, Option<[u32; 7]>)>);

impl Keep {
    fn add(&mut self, index: u64, decision: &Decision) {
        let features = decision
            .features
            .map(|features| features.0.map(f32::to_bits));
        let verdict = decision.verdict as u32;
        self.0
            .push((index, verdict, decision.scaling.to_bits(), features));
    }
}

impl Sink for Keep {
    fn passed(&mut self, index: u64, _: &[f32], decision: &Decision) -> ControlFlow<()> {
        self.add(index, decision);
        ControlFlow::Continue(())
    }

    fn silent(&mut self, index: u64, _: &[f32], decision: &Decision) -> ControlFlow<()> {
        self.add(index, decision);
        ControlFlow::Continue(())
    }
}

/// Noise with silent stretches.
fn signal(n: usize) -> Vec<f32> {
    let mut samples = uniform(11, n);
    for (i, part) in samples.chunks_mut(700).enumerate() {
        if i % 3 != 0 {
            part.fill(0.0);
        }
    }
    samples
}

#[test]
fn a_stream_in_random_pushes_is_the_offline_batch() {
    const FRAME: usize = 96;
    let samples = signal(2_000_003);
    let config = GateConfig {
        policy: Policy {
            threshold: 0.5,
            hysteresis: 0.5,
            hang_over_frames: 2,
            ..Policy::default()
        },
        ..GateConfig::default()
    };
    let mut expected = Keep::default();
    let mut gate = Gate::new(config, best()).unwrap();
    gate.process_all(&samples, FRAME, |i, _, decision| {
        expected.add(i as u64, &decision)
    });
    for backpressure in [Backpressure::Block, Backpressure::Return] {
        let settings = ObserverConfig {
            gate: config,
            frame_len: FRAME,
            capacity_frames: 7,
            backpressure,
            ..ObserverConfig::default()
        };
        let (observer, mut intake) =
            FrameObserver::start(&settings, best(), Keep::default()).unwrap();
        let (mut at, mut seed) = (0, 5u64);
        while at < samples.len() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = ((seed >> 40) as usize % 1500).min(samples.len() - at);
            at += intake.push(&samples[at..at + n]).unwrap();
            assert!(observer.snapshot().counts.adds_up());
        }
        let finished = observer.finish();
        assert!(finished.counts.adds_up(), "{:?}", finished.counts);
        assert_eq!(finished.counts.queued_samples, samples.len() % FRAME);
        assert_eq!((finished.counts.dropped, finished.counts.queued), (0, 1));
        assert!(finished.sink.unwrap().0 == expected.0, "{backpressure:?}");
        assert_eq!(intake.push(&[0.0]), Err(IntakeClosed { taken: 0 }));
    }
}

/// Whatever is dropped is counted, frames stay whole and in place, and the counters add up for
/// two threads that look all the time.
#[test]
fn the_law_holds_at_every_look() {
    const FRAME: usize = 16;
    const PUSHES: usize = 3000;
    for backpressure in [
        Backpressure::Block,
        Backpressure::Return,
        Backpressure::DropNewest,
        Backpressure::DropOldest,
    ] {
        let settings = ObserverConfig {
            frame_len: FRAME,
            capacity_frames: 8,
            backpressure,
            ..ObserverConfig::default()
        };
        // The first sample of a frame holds its position in the stream.
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, slow) = (Arc::clone(&seen), AtomicU64::new(0));
        let sink = move |_: u64, frame: &[f32], _: &Decision| {
            let first = frame[0] as usize;
            assert_eq!(first % FRAME, 1, "a frame out of place");
            for (i, &x) in frame.iter().enumerate() {
                assert_eq!(x as usize, first + i);
            }
            kept.lock().unwrap().push(first / FRAME);
            if slow.fetch_add(1, Ordering::Relaxed) % 64 == 0 {
                let until = Instant::now() + Duration::from_micros(200);
                while Instant::now() < until {
                    core::hint::spin_loop();
                }
            }
            ControlFlow::Continue(())
        };
        let (observer, mut intake) = FrameObserver::start(&settings, best(), sink).unwrap();
        let done = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut before = observer.snapshot().counts;
                    while !done.load(Ordering::Relaxed) {
                        let now = observer.snapshot().counts;
                        assert!(now.adds_up(), "{backpressure:?} {now:?}");
                        assert!(now.pushed >= before.pushed && now.processed >= before.processed);
                        before = now;
                    }
                });
            }
            let mut at = 0;
            for i in 0..PUSHES {
                let n = 1 + i * 37 % 90;
                let samples: Vec<f32> = (at..at + n).map(|i| (i + 1) as f32).collect();
                at += intake.push(&samples).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            at
        });
        let counts = observer.finish().counts;
        assert!(counts.adds_up(), "{counts:?}");
        assert_eq!(counts.pushed as usize, taken.div_ceil(FRAME));
        let seen = seen.lock().unwrap();
        assert_eq!(counts.processed as usize, seen.len());
        assert!(seen.is_sorted());
        let drops = matches!(
            backpressure,
            Backpressure::DropNewest | Backpressure::DropOldest
        );
        assert_eq!(counts.dropped > 0, drops, "{backpressure:?} {counts:?}");
        assert_eq!(
            seen.len() as u64 + counts.dropped + counts.queued,
            counts.pushed
        );
    }
}

#[test]
fn counters_start_again_and_rates_decay() {
    let config = ObserverConfig {
        frame_len: 4,
        ..ObserverConfig::default()
    };
    let sink = |_: u64, _: &[f32], _: &Decision| ControlFlow::Continue(());
    let (observer, mut intake) = FrameObserver::start(&config, best(), sink).unwrap();
    let until = Instant::now() + Duration::from_millis(150);
    while Instant::now() < until {
        intake.push(&[1.0; 4]).unwrap();
    }
    assert!(observer.snapshot().frames_per_second > 0.0);
    while observer.snapshot().counts.queued > 0 {
        std::thread::yield_now();
    }
    intake.push(&[1.0; 2]).unwrap();
    observer.reset_telemetry();
    let zero = observer.snapshot().counts;
    assert_eq!((zero.pushed, zero.processed, zero.queued), (1, 0, 1));
    intake.push(&[1.0; 6]).unwrap();
    while observer.snapshot().counts.processed < 2 {
        std::thread::yield_now();
    }
    let counts = observer.snapshot().counts;
    assert!(counts.adds_up() && counts.pushed == 2, "{counts:?}");
    let until = Instant::now() + Duration::from_millis(250);
    while Instant::now() < until {
        std::thread::yield_now();
    }
    observer.snapshot();
    let until = Instant::now() + Duration::from_millis(120);
    while Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(observer.snapshot().frames_per_second, 0.0);
}

#[test]
fn channels_carry_frames_and_their_end_ends_the_observer() {
    let config = ObserverConfig {
        frame_len: 3,
        ..ObserverConfig::default()
    };
    let (sink, frames) = channel(2);
    let (observer, mut intake) = FrameObserver::start(&config, best(), sink).unwrap();
    intake.push(&[0.0, 0.0, 0.0, 1.0, 2.0, 3.0]).unwrap();
    let frame = frames.recv().unwrap();
    assert_eq!(
        (frame.index, frame.samples.as_slice()),
        (1, [1.0, 2.0, 3.0].as_slice())
    );
    drop(frames);
    while intake.push(&[1.0; 3]).is_ok() {}
    assert!(observer.has_ended());
    let finished = observer.finish();
    assert!(finished.counts.adds_up());
}

#[test]
fn a_sink_that_panics_ends_its_observer_alone() {
    let config = ObserverConfig {
        frame_len: 1,
        capacity_frames: 4,
        ..ObserverConfig::default()
    };
    let sink = |_: u64, _: &[f32], _: &Decision| panic!("the sink's own mistake");
    let (observer, mut intake) = FrameObserver::start(&config, best(), sink).unwrap();
    while intake.push(&[1.0]).is_ok() {}
    let finished = observer.finish();
    assert!(finished.sink.is_none() && finished.counts.adds_up());
}

/// Nothing that an observer asks for touches the thread that starts it.
#[test]
fn the_callers_thread_stays_as_it_is() {
    let state = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let cpus = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list"));
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap().to_owned();
        // Fields 18, 19, 40 and 41 of stat(5): priority, nice, rt_priority, policy.
        let field = |n: usize| after_name.split_whitespace().nth(n - 3).unwrap().to_owned();
        let slack = std::fs::read_to_string("/proc/thread-self/timerslack_ns");
        (
            cpus.unwrap().to_owned(),
            [18, 19, 40, 41].map(field),
            slack.ok(),
        )
    };
    let before = state();
    let config = ObserverConfig {
        isolation: IsolationRequest::all(),
        ..ObserverConfig::default()
    };
    let sink = |_: u64, _: &[f32], _: &Decision| ControlFlow::Continue(());
    let (observer, mut intake) = FrameObserver::start(&config, best(), sink).unwrap();
    assert_eq!(state(), before);
    intake.push(&vec![1.0; 5000]).unwrap();
    assert!(observer.finish().counts.adds_up());
    assert_eq!(state(), before);
}

/// Seconds in which words are spoken: "And so, my fellow Americans / ask / not / what your country can do for you / ask
/// what you can do for your country". From the level over 50 ms, which drops to the room's level (-42 to -38 dB)
/// between them and nowhere else for long.
const SPOKEN: [(f64, f64); 5] = [
    (0.32, 2.08),
    (3.3, 3.65),
    (4.0, 4.28),
    (5.42, 7.55),
    (8.2, 10.4),
];
/// Pauses, without the hang-over after a word.
const SILENT: [(f64, f64); 3] = [(2.4, 3.2), (4.65, 5.3), (7.95, 8.1)];

/// docs/gate.md's policy for speech keeps every word of the recording and skips its pauses.
#[test]
fn speech_passes_and_its_pauses_do_not() {
    const FRAME: usize = 320;
    let Some(samples) = speech() else {
        return;
    };
    let policy = Policy {
        measure: Measure::Std,
        threshold: 0.02,
        hysteresis: 0.6,
        hang_over_frames: 8,
        ..Policy::default()
    };
    let config = GateConfig {
        policy,
        ..GateConfig::default()
    };
    let mut gate = Gate::new(config, best()).unwrap();
    let mut passes = Vec::new();
    gate.process_all(&samples, FRAME, |_, _, decision| {
        passes.push(decision.verdict.passes())
    });
    let at = |seconds: f64| (seconds * 16_000.0 / FRAME as f64) as usize;
    for (from, to) in SPOKEN {
        let kept = passes[at(from)..at(to)]
            .iter()
            .filter(|&&passes| passes)
            .count();
        let share = kept as f64 / (at(to) - at(from)) as f64;
        assert!(share > 0.97, "{from} to {to} s: {share}");
    }
    let skipped = passes.iter().filter(|&&passes| !passes).count();
    assert!(
        skipped as f64 > 0.2 * passes.len() as f64,
        "{skipped} of {}",
        passes.len()
    );
    for (from, to) in SILENT {
        let kept = passes[at(from)..at(to)]
            .iter()
            .filter(|&&passes| passes)
            .count();
        assert!(
            kept as f64 <= 0.3 * (at(to) - at(from)) as f64,
            "{from} to {to} s: {kept}"
        );
    }
}

/// A sink that is slow holds up a push only until there is room again, not until the worker's next
/// look at everything else there is.
#[test]
fn a_blocked_push_goes_on_as_soon_as_a_slow_sink_has_made_room() {
    const LEN: usize = 16;
    let (allow, allowed) = std::sync::mpsc::channel::<()>();
    let config = ObserverConfig {
        frame_len: LEN,
        capacity_frames: 8,
        backpressure: Backpressure::Block,
        ..ObserverConfig::default()
    };
    let sink = move |_: u64, _: &[f32], _: &Decision| {
        // The end of the test lets all the others through.
        let _allowed = allowed.recv();
        ControlFlow::Continue(())
    };
    let (observer, mut intake) = FrameObserver::start(&config, best(), sink).unwrap();
    let (say, done) = std::sync::mpsc::channel();
    let pusher = std::thread::spawn(move || {
        // Fills the ring; the ninth frame waits for room.
        intake.push(&[0.5; 9 * LEN]).unwrap();
        say.send(()).unwrap();
    });
    // By now it sleeps, and the sink has had the first frame for a long time.
    assert!(done.recv_timeout(Duration::from_millis(100)).is_err());
    // Two frames are done, the third is in the sink's hands and stays there.
    allow.send(()).unwrap();
    allow.send(()).unwrap();
    done.recv_timeout(Duration::from_secs(20))
        .expect("there is room, and the push still waits");
    drop(allow);
    pusher.join().unwrap();
    let counts = observer.finish().counts;
    assert!(counts.adds_up());
    assert_eq!(counts.processed, 9);
}
