//! Time per operator at a depth: `depth MODEL.gguf [DEPTH] [TYPE_K] [TYPE_V] [THREADS]`.
//!
//! The KV cache is filled by restoring a sequence of made-up rows, so that no prompt has to be read first.
//! Then come single tokens, four tokens at once, and a batch of 512.

#![expect(clippy::print_stdout, reason = "what it is for")]

use core::sync::atomic::AtomicU32;
use sluice_core::engine::{BatchEntry, Engine, EngineLimits, StepOptions, Wants};
use sluice_core::hash::Hash64;
use sluice_core::kernels::KvType;
use sluice_core::state::Identity;
use sluice_core::team::{StopFlag, WaitPolicy};
use sluice_core::trace::{EventRing, Phase, TraceEvent};
use sluice_tests::run::{Room, Weights, table};
use std::time::Instant;

/// Spins for a long time: the workers have the cores to themselves.
struct Spin;

impl WaitPolicy for Spin {
    fn spins(&self) -> u32 {
        1_000_000
    }

    fn park(&self, _: &AtomicU32, _: u32) {
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU32) {}
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args
        .first()
        .expect("usage: depth MODEL.gguf [DEPTH] [TYPE_K] [TYPE_V] [THREADS]");
    let number = |i: usize, default: usize| {
        args.get(i)
            .map_or(default, |n| n.parse().expect("a number"))
    };
    let ty = |i: usize| {
        args.get(i)
            .map_or(KvType::F16, |name| KvType::from_name(name).expect("a type"))
    };
    let (depth, n_workers) = (number(1, 8192), number(4, 2));
    let file = std::fs::read(path).expect("a readable file");
    let mut weights = Weights::plan(&file).expect("a model");
    let model = weights.load(&file, 2).expect("a model");
    drop(file);
    let limits = EngineLimits {
        type_k: ty(2),
        type_v: ty(3),
        ..EngineLimits::single(depth + 1024, n_workers)
    };
    let mut room = Room::plan(model.config(), &limits).expect("limits");
    let mut engine = room.engine(model, table(), &limits).expect("an engine");
    fill(&mut engine, depth);
    println!(
        "{path}: depth {depth}, KV {} and {}, {} on {n_workers} workers",
        limits.type_k,
        limits.type_v,
        engine.table().name()
    );
    for (n_tokens, rounds) in [(1, 8), (4, 4), (512, 1)] {
        let mut best = measure(&mut engine, depth, n_tokens);
        for _ in 1..rounds {
            let again = measure(&mut engine, depth, n_tokens);
            if again.0 < best.0 {
                best = again;
            }
        }
        let (total, phases) = best;
        println!(
            "{n_tokens} tokens: {total:.2} ms, {:.2} tokens/s",
            1e3 * n_tokens as f64 / total
        );
        for (phase, ms) in Phase::ALL.iter().zip(phases) {
            if ms > 0.01 * total {
                println!("  {:<14} {ms:>9.2} ms a worker", phase.name());
            }
        }
    }
}

/// Makes sequence 0 as long as `depth`, with equal rows.
fn fill(engine: &mut Engine<'_>, depth: usize) {
    let identity = Identity([7; 32]);
    assert_eq!(
        engine.state().config().groups().len(),
        1,
        "rows of one group"
    );
    assert_eq!(engine.state().config().n_seq(), 1);
    // A saved sequence of one token shows the header.
    step(engine, &[BatchEntry::new(1, 0, 0, Wants::Nothing)], None);
    let mut saved = vec![0; engine.state().saved_bytes(0)];
    engine.state().save(0, &identity, &mut saved).expect("room");
    engine.state_mut().clear(0).expect("sequence 0");
    let row = &saved[60..saved.len() - 8];
    let mut long = saved[..24].to_vec();
    long.extend(u32::try_from(depth).expect("short").to_le_bytes());
    long.extend(&saved[28..60]);
    for _ in 0..depth {
        long.extend(row);
    }
    let mut hash = Hash64::new();
    hash.write(&long);
    long.extend(hash.finish().to_le_bytes());
    engine
        .state_mut()
        .restore(0, &identity, &long)
        .expect("a sound sequence");
}

fn step(engine: &mut Engine<'_>, batch: &[BatchEntry], trace: Option<&EventRing<'_>>) {
    let stop = StopFlag::new();
    let mut options = StepOptions::new(&Spin, &stop);
    options.trace = trace;
    let step = engine.step(batch, options).expect("a sound batch");
    std::thread::scope(|scope| {
        for rank in 1..step.n_workers() {
            let worker = step.join(rank).expect("each rank joins once");
            scope.spawn(|| worker.run());
        }
        let _ended = step.join(0).expect("rank 0 joins once").run();
    });
    step.finish().expect("a whole step");
}

/// Milliseconds of a step, and of each phase per worker.
fn measure(engine: &mut Engine<'_>, depth: usize, n_tokens: usize) -> (f64, Vec<f64>) {
    engine.state_mut().rewind(0, depth).expect("as long");
    let entry = |i: usize| {
        let position = u32::try_from(depth + i).expect("short");
        let wants = if i + 1 == n_tokens {
            Wants::Logits
        } else {
            Wants::Nothing
        };
        BatchEntry::new(
            u32::try_from(i % 100 + 3).expect("small"),
            0,
            position,
            wants,
        )
    };
    let batch: Vec<_> = (0..n_tokens).map(entry).collect();
    let n_workers = engine.limits().n_workers;
    let start = Instant::now();
    let clock = || u64::try_from(start.elapsed().as_nanos()).expect("short");
    let mut memory = vec![TraceEvent::EMPTY; 4096 * n_workers];
    let mut ring = EventRing::new(&mut memory, n_workers, &clock);
    let before = Instant::now();
    step(engine, &batch, Some(&ring));
    let total = before.elapsed().as_secs_f64() * 1e3;
    let mut phases = vec![0.0; Phase::ALL.len()];
    ring.drain(|event| {
        phases[event.phase as usize] +=
            (event.end_ticks - event.start_ticks) as f64 / 1e6 / n_workers as f64;
    });
    (total, phases)
}
