//! A busy worker keeps its core. This is a separate program: concurrent tests would keep the pushing thread off its
//! core, and the worker would wait for that.

#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use core::ops::ControlFlow;
use sluice_core::gate::Decision;
use sluice_core::kernels::{CpuFeatures, FrameKernels};
use sluice_gate::{Backpressure, FrameObserver, ObserverConfig};
use sluice_tests::gate::uniform;

/// Times that the observer's thread gave its core up to wait for something.
fn worker_waits() -> u64 {
    for task in std::fs::read_dir("/proc/self/task").expect("Linux lists threads") {
        let path = task.expect("a thread").path();
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        if read("comm").trim() == "gate-busy" {
            let status = read("status");
            let lines = status.lines();
            let mut counts = lines.filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = counts.next().expect("a number after the name");
            return count.trim().parse().expect("a number");
        }
    }
    panic!("the worker lives");
}

/// As long as there are frames a worker makes no system call: it does not wait, and wakes no thread
/// where none sleeps. (`strace` shows the second, see docs/gate.md.)
#[test]
fn a_busy_worker_does_not_wait() {
    const FRAMES: u64 = 40_000;
    let config = ObserverConfig {
        backpressure: Backpressure::DropNewest,
        ..ObserverConfig::default()
    };
    let mut is_named = false;
    let sink = move |_: u64, _: &[f32], _: &Decision| {
        // The name tells this observer's thread from the threads of concurrent tests.
        if !core::mem::replace(&mut is_named, true) {
            rustix::thread::set_name(c"gate-busy").unwrap();
        }
        ControlFlow::Continue(())
    };
    let (observer, mut intake) =
        FrameObserver::start(&config, FrameKernels::best(CpuFeatures::detect()), sink).unwrap();
    let noise = uniform(5, 64 * 1024);
    while observer.snapshot().counts.processed == 0 {
        intake.push(&noise).unwrap();
    }
    let (waits, before) = (worker_waits(), observer.snapshot().counts.processed);
    loop {
        intake.push(&noise).unwrap();
        let processed = observer.snapshot().counts.processed - before;
        if processed >= FRAMES {
            // It does wait where this thread was kept off its core for longer than the ring lasts.
            let waits = worker_waits() - waits;
            println!("{waits} waits in {processed} frames");
            assert!(
                waits < processed / 100,
                "{waits} waits in {processed} frames"
            );
            break;
        }
    }
}
