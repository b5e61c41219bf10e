//! What an engine guarantees about batches, outputs, adapters, masks, stops and failures.
//!
//! Models are random and small; engines start in memory full of NaN. Where two runs must agree,
//! they agree bit for bit.

use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EngineLimits, EnginePlan, Observer, Selector, SiteInput,
    StepOptions, Wants,
};
use sluice_core::kernels::{GgmlType, KvType, PanelLayout};
use sluice_core::memory::MemoryError;
use sluice_core::model::{Attention, Mixer};
use sluice_core::state::{State, StateConfig, StateError, StateLimits};
use sluice_core::team::{Deadline, Shares, Stop, StopFlag, WORKERS_MAX};
use sluice_core::trace::{EventRing, Phase, TraceEvent};
use sluice_tests::build::{Random, Shape, encode};
use sluice_tests::drive::{Bench, Rows, bits, drive, prompt, step_with, within_a_minute};
use sluice_tests::run::{self, Aligned, YieldWait, entries};
use std::panic::catch_unwind;

mod adapter_mixes;
mod adapters;
mod selectors;

use selectors::Mask;

const F32: Shape = Shape {
    ty: GgmlType::F32,
    ..Shape::SMALL
};
const Q8_0: Shape = Shape {
    ty: GgmlType::Q8_0,
    ..Shape::SMALL
};

fn limits(n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 40,
        n_outputs: 40,
        n_seq: 4,
        ..EngineLimits::single(256, n_workers)
    }
}

/// Random tokens of [`Shape::SMALL`]'s vocabulary.
fn ids(n: usize) -> Vec<u32> {
    let mut random = Random(7);
    (0..n).map(|_| random.below(300)).collect()
}

fn logits(rows: &Rows) -> Vec<Vec<u32>> {
    rows.logits.iter().flatten().map(|row| bits(row)).collect()
}

fn plain(engine: &mut Engine<'_>, batch: &[BatchEntry]) -> Vec<Vec<u32>> {
    logits(&step_with(engine, batch, |_| ()))
}

fn refusal(engine: &mut Engine<'_>, batch: &[BatchEntry]) -> EngineError {
    let stop = StopFlag::new();
    drive(engine, batch, StepOptions::new(&YieldWait, &stop)).expect_err("a bad batch")
}

/// Where sequence 0 has 2 tokens and the engine takes 4 entries, 2 outputs and 2 sequences.
fn bad_batches() -> Vec<(Vec<BatchEntry>, EngineError)> {
    let entry =
        |token, sequence, position| BatchEntry::new(token, sequence, position, Wants::Nothing);
    let wrong = |entry, sequence, position, expected| EngineError::WrongPosition {
        entry,
        sequence,
        position,
        expected,
    };
    let adapted = BatchEntry {
        adapter: Some(0),
        ..entry(1, 0, 2)
    };
    let all_want = entries(&[1, 2, 3], 0, 2);
    vec![
        (vec![], EngineError::EmptyBatch),
        (
            vec![entry(1, 0, 2); 5],
            EngineError::BatchTooLong {
                n_entries: 5,
                n_batch: 4,
            },
        ),
        (
            all_want,
            EngineError::TooManyOutputs {
                wanted: 3,
                n_outputs: 2,
            },
        ),
        (
            vec![entry(299, 0, 2), entry(300, 0, 3)],
            EngineError::UnknownToken {
                entry: 1,
                token: 300,
                n_vocab: 300,
            },
        ),
        (vec![entry(1, 0, 3)], wrong(0, 0, 3, 2)),
        (vec![entry(1, 0, 1)], wrong(0, 0, 1, 2)),
        (vec![entry(1, 0, 2), entry(1, 0, 2)], wrong(1, 0, 2, 3)),
        (vec![entry(1, 1, u32::MAX)], wrong(0, 1, u32::MAX, 0)),
        (
            vec![entry(1, 2, 0)],
            EngineError::State(StateError::UnknownSequence {
                sequence: 2,
                n_seq: 2,
            }),
        ),
        (
            vec![adapted],
            EngineError::UnknownAdapter {
                entry: 0,
                adapter: 0,
            },
        ),
    ]
}

#[test]
fn bad_batches_are_refused_and_change_nothing() {
    let limits = EngineLimits {
        n_batch: 4,
        n_outputs: 2,
        n_seq: 2,
        n_ctx: 64,
        ..limits(2)
    };
    Bench::new(&F32).with(&limits, |engine| {
        plain(engine, &entries(&ids(2), 0, 0));
        let next = entries(&[9], 0, 2);
        let expected = plain(engine, &next);
        engine.state_mut().rewind(0, 2).unwrap();
        let free = engine.state().free_pages();
        for (batch, error) in bad_batches() {
            assert_eq!(refusal(engine, &batch), error);
            assert!(!error.to_string().is_empty());
            assert_eq!((engine.state().len(0), engine.state().len(1)), (2, 0));
            assert_eq!(engine.state().free_pages(), free);
        }
        assert_eq!(plain(engine, &next), expected);
    });
}

/// Two sequences in one batch, of which the second finds no page.
#[test]
fn a_full_cache_refuses_the_whole_batch() {
    let limits = EngineLimits {
        n_ctx: 64,
        n_seq: 3,
        n_batch: 70,
        ..limits(1)
    };
    // 1 page for the context and 2 for further sequences.
    Bench::new(&Shape::TINY).with(&limits, |engine| {
        let mut batch = entries(&[1; 65], 0, 0);
        batch.truncate(65);
        batch
            .iter_mut()
            .for_each(|entry| entry.wants = Wants::Nothing);
        batch.push(BatchEntry::new(2, 1, 0, Wants::Nothing));
        batch.push(BatchEntry::new(2, 2, 0, Wants::Nothing));
        let full = StateError::Full { needed: 1, free: 0 };
        assert_eq!(refusal(engine, &batch), EngineError::State(full));
        assert_eq!(engine.state().free_pages(), 3);
        batch.pop();
        plain(engine, &batch);
        assert_eq!((engine.state().len(0), engine.state().len(1)), (65, 1));
        assert_eq!(engine.state().free_pages(), 0);
    });
}

#[test]
fn limits_and_memory_are_checked() {
    let limits = limits(1);
    let bad = [
        (
            "n_batch",
            EngineLimits {
                n_batch: 0,
                ..limits
            },
        ),
        (
            "n_outputs",
            EngineLimits {
                n_outputs: 1 << 25,
                ..limits
            },
        ),
        ("n_ctx", EngineLimits { n_ctx: 0, ..limits }),
        ("n_seq", EngineLimits { n_seq: 0, ..limits }),
        (
            "n_workers",
            EngineLimits {
                n_workers: WORKERS_MAX + 1,
                ..limits
            },
        ),
    ];
    let mut bench = Bench::new(&Shape::TINY);
    let config = bench.with(&limits, |engine| engine.model().config().clone());
    for (expected, limits) in bad {
        let Err(EngineError::Limit { name, .. }) = EnginePlan::new(&config, &limits) else {
            panic!("{expected} is accepted");
        };
        assert_eq!(name, expected);
    }
    bench.with(&limits, |engine| {
        let (model, table) = (engine.model().clone(), engine.table());
        let plan = EnginePlan::new(&config, &limits).unwrap();
        let mut kv = Aligned::new(plan.kv_bytes + 64);
        let mut scratch = Aligned::new(plan.scratch_bytes);
        let mut make = |kv: &mut [u8], less: usize| {
            let scratch = scratch.bytes_mut();
            let len = scratch.len() - less;
            let engine = Engine::new(model.clone(), table, &limits, kv, &mut scratch[..len]);
            engine.map(|_| ()).unwrap_err()
        };
        let kv = kv.bytes_mut();
        assert_eq!(
            make(&mut kv[1..], 0),
            EngineError::Memory(MemoryError::Misaligned)
        );
        let small = MemoryError::TooSmall { missing_bytes: 64 };
        assert_eq!(
            make(&mut kv[..plan.kv_bytes - 64], 0),
            EngineError::Memory(small)
        );
        assert_eq!(make(kv, 64), EngineError::Memory(small));
    });
}

#[test]
fn only_entries_that_want_rows_have_them() {
    for n in [5, 20] {
        let ids = ids(n);
        const WANTS: [Wants; 4] = [
            Wants::Logits,
            Wants::Nothing,
            Wants::Hidden,
            Wants::LogitsAndHidden,
        ];
        let wants = |i: usize| WANTS[i % 4];
        Bench::new(&Q8_0).with(&limits(2), |engine| {
            let mut all = entries(&ids, 0, 0);
            let logits = step_with(engine, &all, |_| ()).logits;
            engine.state_mut().clear(0).unwrap();
            all.iter_mut().for_each(|entry| entry.wants = Wants::Hidden);
            let hidden = step_with(engine, &all, |_| ());
            assert!(hidden.logits.iter().all(Option::is_none));
            engine.state_mut().clear(0).unwrap();
            for (i, entry) in all.iter_mut().enumerate() {
                entry.wants = wants(i);
            }
            let mixed = step_with(engine, &all, |_| ());
            let only = |rows: &[Option<Vec<f32>>], want| -> Vec<_> {
                let is_wanted = |i| wants(i) == want || wants(i) == Wants::LogitsAndHidden;
                let wanted =
                    |(i, row): (usize, &Option<Vec<f32>>)| row.clone().filter(|_| is_wanted(i));
                rows.iter().enumerate().map(wanted).collect()
            };
            assert_eq!(mixed.logits, only(&logits, Wants::Logits));
            assert_eq!(mixed.hidden, only(&hidden.hidden, Wants::Hidden));
        });
    }
}

/// The output layer is a plain product with the hidden state.
#[test]
fn logits_are_the_output_matrix_times_the_hidden_state() {
    let mut file = F32.file();
    let matrix: Vec<f32> = file
        .tensor("output.weight")
        .data
        .chunks_exact(4)
        .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
        .collect();
    Bench::of(&file).with(&limits(3), |engine| {
        let mut batch = entries(&ids(11), 0, 0);
        let logits = step_with(engine, &batch, |_| ()).logits;
        engine.state_mut().clear(0).unwrap();
        batch
            .iter_mut()
            .for_each(|entry| entry.wants = Wants::Hidden);
        let hidden = step_with(engine, &batch, |_| ()).hidden;
        for (logits, hidden) in logits.iter().zip(&hidden) {
            let (logits, hidden) = (logits.as_ref().unwrap(), hidden.as_ref().unwrap());
            for (logit, row) in logits.iter().zip(matrix.chunks_exact(256)) {
                let products = row
                    .iter()
                    .zip(hidden)
                    .map(|(&w, &x)| f64::from(w) * f64::from(x));
                let expected: f64 = products.sum();
                assert!(
                    (f64::from(*logit) - expected).abs() < 1e-4,
                    "{logit} {expected}"
                );
            }
        }
    });
}

/// With few tokens a worker computes several strips of a layer at once, as many as its memory
/// holds: where that is for one token only, one.
#[test]
fn strips_at_once_or_one_by_one_have_the_same_bits() {
    for (ty, n_ff) in [(GgmlType::Q8_0, 1312), (GgmlType::Q4_K, 1280)] {
        let shape = Shape {
            n_embd: 768,
            n_ff,
            ty,
            ..Shape::SMALL
        };
        let mut bench = Bench::new(&shape);
        let tokens = ids(5);
        let mut run = |n_batch: usize, n_workers: usize, step: usize, masked: bool| {
            let limits = EngineLimits {
                n_batch,
                n_outputs: n_batch,
                selects: masked,
                ..limits(n_workers)
            };
            bench.with(&limits, |engine| {
                // Bits of both kinds in every strip, the last one's among them.
                let bits = vec![0x0f3c_5a5a_0ff0_1234, 0xffff_0000_1248_8421];
                let mask = masked.then(|| Mask(vec![Some(bits), None]));
                let mut last = Vec::new();
                for (i, part) in tokens.chunks(step).enumerate() {
                    let rows = step_with(engine, &entries(part, 0, i * step), |options| {
                        options.selector = mask.as_ref().map(|mask| mask as &dyn Selector);
                    });
                    last = logits(&rows).pop().unwrap();
                }
                last
            })
        };
        for masked in [false, true] {
            let expected = run(1, 1, 1, masked);
            for (n_batch, n_workers, step) in
                [(40, 1, 1), (40, 1, 2), (40, 2, 1), (40, 3, 5), (3, 1, 1)]
            {
                let found = run(n_batch, n_workers, step, masked);
                assert_eq!(
                    found, expected,
                    "{ty:?}: {n_batch} {n_workers} {step} {masked}"
                );
            }
        }
        assert_ne!(run(1, 1, 1, true), run(1, 1, 1, false));
    }
}

/// Each has the activations quantised as its own type wants them.
#[test]
fn layers_and_output_may_be_of_different_types() {
    for (of_layers, ty) in [
        (GgmlType::Q4_K, GgmlType::Q8_0),
        (GgmlType::Q4_0, GgmlType::F16),
        (GgmlType::Q8_0, GgmlType::BF16),
        (GgmlType::Q6_K, GgmlType::F32),
    ] {
        let shape = Shape {
            ty: of_layers,
            ..Shape::SMALL
        };
        let mut file = shape.file();
        let mut random = Random(5);
        let output = file.tensor("output.weight");
        let n = output.dims.iter().product::<u64>();
        let values: Vec<f32> = (0..n).map(|_| random.signed()).collect();
        (output.ty, output.data) = (ty, encode(ty, &values));
        let one_by_one = |n_workers| {
            Bench::of(&file).with(&limits(n_workers), |engine| {
                let steps = ids(9).into_iter().zip(0usize..);
                let step = |(id, at)| plain(engine, &entries(&[id], 0, at)).pop().unwrap();
                steps.map(step).last().unwrap()
            })
        };
        let together =
            Bench::of(&file).with(&limits(2), |engine| plain(engine, &entries(&ids(9), 0, 0)));
        assert_eq!(together.last().unwrap(), &one_by_one(1), "{ty:?}");
        assert!(
            together
                .iter()
                .flatten()
                .all(|bits| f32::from_bits(*bits).is_finite())
        );
    }
}

/// A clock that counts its readings and does something at one of them. Rank 0 reads it once at
/// every barrier.
fn clock(reads: &AtomicU64, at: u64, act: impl Fn() + Sync) -> impl Fn() -> u64 + Sync {
    move || {
        let read = reads.fetch_add(1, Ordering::Relaxed);
        if read == at {
            act();
        }
        read
    }
}

/// What is done at a barrier to stop the step there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Interruption {
    Flag,
    Deadline,
    Panic,
}

/// Interrupts a step at every barrier in turn. All ranks leave for the same reason, the cache is
/// as before, and the next step has the bits that it would have had.
fn interrupt_everywhere(interruption: Interruption, n_workers: usize) {
    let limits = EngineLimits {
        n_ctx: 64,
        n_seq: 2,
        ..limits(n_workers)
    };
    Bench::new(&Shape {
        n_layer: 2,
        ..Shape::TINY
    })
    .with(&limits, |engine| {
        plain(engine, &entries(&[1, 2, 3], 0, 0));
        let batch = entries(&[4; 9], 0, 3);
        let expected = plain(engine, &batch);
        let back = |engine: &mut Engine<'_>| engine.state_mut().rewind(0, 3).expect("longer");
        back(engine);
        let free = engine.state().free_pages();
        let mut at = 0;
        loop {
            let (stop, reads) = (StopFlag::new(), AtomicU64::new(0));
            let now = clock(&reads, at, || match interruption {
                Interruption::Flag => stop.stop(),
                Interruption::Deadline => {}
                Interruption::Panic => panic!("as the test asks"),
            });
            let never = interruption != Interruption::Deadline;
            let mut options = StepOptions::new(&YieldWait, &stop);
            options.deadline = Some(Deadline {
                clock: &now,
                ticks: if never { u64::MAX } else { at },
            });
            let ended = drive(engine, &batch, options).expect("a sound batch");
            // Past the last barrier; a flag may be set too late at the last one already.
            if let Ok(rows) = &ended.result {
                assert!(at > 10);
                let late = interruption == Interruption::Flag;
                assert!(reads.load(Ordering::Relaxed) <= at + u64::from(late));
                assert_eq!(logits(rows), expected);
                break;
            }
            let reason = match interruption {
                Interruption::Flag => Stop::Cancelled,
                Interruption::Deadline => Stop::DeadlinePassed,
                Interruption::Panic => Stop::WorkerFailed { rank: 0 },
            };
            assert_eq!(ended.result, Err(EngineError::Stopped(reason)));
            for (rank, end) in ended.ranks.into_iter().enumerate() {
                let panicked = interruption == Interruption::Panic && rank == 0;
                assert_eq!(end, (!panicked).then_some(Err(reason)));
            }
            assert_eq!(engine.state().len(0), 3);
            assert_eq!(engine.state().free_pages(), free);
            assert_eq!(plain(engine, &batch), expected);
            back(engine);
            at += 1;
        }
    });
}

#[test]
fn a_stop_is_acted_on_by_all_ranks_at_every_barrier() {
    within_a_minute(|| {
        [1, 2, 3]
            .into_iter()
            .for_each(|n| interrupt_everywhere(Interruption::Flag, n))
    });
}

#[test]
fn a_deadline_is_acted_on_by_all_ranks_at_every_barrier() {
    within_a_minute(|| {
        [1, 2, 3]
            .into_iter()
            .for_each(|n| interrupt_everywhere(Interruption::Deadline, n));
    });
}

#[test]
fn a_panic_at_any_barrier_takes_all_ranks_along() {
    within_a_minute(|| {
        [1, 2, 3]
            .into_iter()
            .for_each(|n| interrupt_everywhere(Interruption::Panic, n));
    });
}

/// Panics at a call that one of the ranks happens to make.
struct PanicsAt {
    call: usize,
    calls: AtomicUsize,
}

impl Observer for PanicsAt {
    fn sees(&self, _: SiteInput<'_>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != self.call, "as the test asks");
    }
}

#[test]
fn a_panic_within_a_phase_takes_all_ranks_along() {
    within_a_minute(|| {
        let limits = EngineLimits {
            observes: true,
            ..limits(3)
        };
        Bench::new(&Q8_0).with(&limits, |engine| {
            let batch = entries(&ids(12), 0, 0);
            let expected = plain(engine, &batch);
            engine.state_mut().clear(0).unwrap();
            // How many calls there are, and then a panic at some of them.
            let mut calls = vec![usize::MAX];
            while let Some(call) = calls.pop() {
                let stop = StopFlag::new();
                let observer = PanicsAt {
                    call,
                    calls: AtomicUsize::new(0),
                };
                let mut options = StepOptions::new(&YieldWait, &stop);
                options.observer = Some(&observer);
                let ended = drive(engine, &batch, options).unwrap();
                if call == usize::MAX {
                    ended.result.unwrap();
                    let n = observer.calls.into_inner();
                    assert!(n > 100, "{n} calls");
                    calls = vec![0, 1, 17, n / 4, n / 2, n - 1];
                    engine.state_mut().clear(0).unwrap();
                    continue;
                }
                let rank = ended
                    .ranks
                    .iter()
                    .position(Option::is_none)
                    .expect("one panicked");
                let failed = Stop::WorkerFailed { rank };
                assert_eq!(ended.result.unwrap_err(), EngineError::Stopped(failed));
                let others = ended.ranks.into_iter().flatten();
                assert!(others.into_iter().all(|end| end == Err(failed)));
                assert!(engine.state().is_empty(0));
                assert_eq!(plain(engine, &batch), expected);
                engine.state_mut().clear(0).unwrap();
            }
        });
    });
}

#[test]
fn workers_and_steps_that_are_dropped_leave_everything_as_before() {
    within_a_minute(|| {
        Bench::new(&Shape::TINY).with(&limits(2), |engine| {
            let batch = entries(&[1, 2, 3], 0, 0);
            let expected = plain(engine, &batch);
            engine.state_mut().clear(0).unwrap();
            let (stop, free) = (StopFlag::new(), engine.state().free_pages());
            let options = StepOptions::new(&YieldWait, &stop);

            // No rank ran.
            let step = engine.step(&batch, options).unwrap();
            assert_eq!(step.finish().unwrap_err(), EngineError::NotRun);
            // Not even `finish` was called.
            drop(engine.step(&batch, options).unwrap());
            // A rank is lost: the other leaves.
            let step = engine.step(&batch, options).unwrap();
            drop(step.join(1));
            assert!(step.join(1).is_none(), "a rank joins once");
            let failed = Stop::WorkerFailed { rank: 1 };
            assert_eq!(step.join(0).unwrap().run(), Err(failed));
            assert_eq!(step.finish().unwrap_err(), EngineError::Stopped(failed));
            // A rank never starts, and no rank waits for it.
            let step = engine.step(&batch, options).unwrap();
            let lost = ManuallyDrop::new(step.join(0));
            assert!(lost.is_some());
            assert_eq!(step.finish().unwrap_err(), EngineError::NotRun);
            // Rank 2 does not exist.
            let step = engine.step(&batch, options).unwrap();
            let third = catch_unwind(AssertUnwindSafe(|| step.join(2).is_some()));
            assert!(third.is_err());
            drop(step);

            assert_eq!(engine.state().free_pages(), free);
            assert_eq!(plain(engine, &batch), expected);
            engine.state_mut().clear(0).unwrap();
            // A leaked step keeps the pages it reserved, no more.
            let _leaked = ManuallyDrop::new(engine.step(&batch, options).unwrap());
            assert_eq!(plain(engine, &batch), expected);
            assert!(engine.state().free_pages() >= free - 2);
        });
    });
}

#[test]
fn teams_of_every_size_give_the_same_bits() {
    within_a_minute(|| {
        let shape = Shape { n_layer: 1, ..Q8_0 };
        let mut expected = None;
        for n_workers in (1..=64).chain([100, WORKERS_MAX]) {
            let found = Bench::new(&shape).with(&limits(n_workers), |engine| {
                let prompt = prompt(engine, &ids(19), 0);
                let first = plain(engine, &prompt);
                (first, plain(engine, &entries(&[3, 4], 0, 19)))
            });
            assert_eq!(
                &found,
                expected.get_or_insert_with(|| found.clone()),
                "{n_workers}"
            );
        }
    });
}

#[test]
fn shares_by_speed_change_no_bit() {
    within_a_minute(|| {
        for n_workers in [1, 2, 3, 8, 70] {
            Bench::new(&Q8_0).with(&limits(n_workers), |engine| {
                let batches = [entries(&ids(19), 0, 0), entries(&[3], 0, 19)];
                let expected = batches.each_ref().map(|batch| plain(engine, batch));
                engine.state_mut().clear(0).unwrap();
                let speeds: Vec<f32> = (0..n_workers).map(|i| [1.0, 0.4, 0.01][i % 3]).collect();
                let shares = Shares::by_speed(&speeds).unwrap();
                engine.set_shares(Some(&shares)).unwrap();
                let found = batches.each_ref().map(|batch| plain(engine, batch));
                assert_eq!(found, expected, "{n_workers}");
                let foreign = Shares::by_speed(&vec![1.0; n_workers + 1]);
                let refused = engine.set_shares(foreign.as_ref());
                assert!(matches!(
                    refused,
                    Err(EngineError::Limit { name: "shares", .. })
                ));
            });
        }
    });
}

/// What a cache or scratch memory held before does not matter.
#[test]
fn what_memory_held_changes_no_bit() {
    for kv_type in KvType::ALL {
        let limits = EngineLimits {
            type_k: kv_type,
            type_v: kv_type,
            ..limits(2)
        };
        let mut bench = Bench::new(&Q8_0);
        let mut run = |garbage| {
            bench.with_garbage(&limits, garbage, |engine| {
                let first = plain(engine, &entries(&ids(13), 0, 0));
                (first, plain(engine, &entries(&ids(2), 0, 13)))
            })
        };
        assert_eq!(run(0xff), run(0));
        assert_eq!(run(0x7f), run(0));
    }
}

#[test]
fn events_cover_every_phase_of_every_rank_and_all_weights() {
    for n in [1, 20] {
        for n_workers in [1, 2, 3] {
            let ticks = AtomicU64::new(0);
            let clock = || ticks.fetch_add(1, Ordering::Relaxed);
            let mut memory = vec![TraceEvent::EMPTY; 3 * 200];
            let mut ring = EventRing::new(&mut memory, 3, &clock);
            Bench::new(&Q8_0).with(&limits(n_workers), |engine| {
                let batch = entries(&ids(n), 0, 0);
                step_with(engine, &batch, |options| options.trace = Some(&ring));
            });
            let mut events = Vec::new();
            assert_eq!(ring.drain(|event| events.push(event)), 0);
            check_events(&events, n, n_workers);
        }
    }
}

fn check_events(events: &[TraceEvent], n: usize, n_workers: usize) {
    for rank in 0..n_workers {
        let of_rank: Vec<_> = events
            .iter()
            .filter(|e| usize::from(e.rank) == rank)
            .collect();
        for phase in Phase::ALL {
            let layers: Vec<_> = of_rank
                .iter()
                .filter(|event| event.phase == phase)
                .map(|event| event.layer)
                .collect();
            match phase {
                Phase::Embedding | Phase::OutputNorm | Phase::Output => assert_eq!(layers, [0]),
                Phase::Barrier => assert!(layers.len() >= 2 * 4 + 2, "{}", layers.len()),
                // Only mixtures of experts and recurrent layers have these.
                Phase::FfnRouter | Phase::Recurrence => assert!(layers.is_empty()),
                _ => assert_eq!(
                    layers,
                    [0, 1],
                    "{phase:?} of {rank} in {n_workers}, {n} tokens"
                ),
            }
        }
        assert!(
            of_rank
                .iter()
                .all(|event| event.start_ticks < event.end_ticks)
        );
        assert!(
            of_rank
                .windows(2)
                .all(|pair| pair[0].end_ticks <= pair[1].start_ticks)
        );
    }
    let bytes = |phase| {
        let events = events.iter().filter(|event| event.phase == phase);
        events.map(|event| event.bytes).sum::<u64>()
    };
    let panels = |rows, cols| {
        let layout = PanelLayout::new(GgmlType::Q8_0, rows, cols).expect("whole blocks");
        layout.bytes() as u64
    };
    assert_eq!(
        bytes(Phase::Qkv),
        2 * (panels(256, 256) + 2 * panels(128, 256))
    );
    assert_eq!(bytes(Phase::AttentionOutput), 2 * panels(256, 256));
    assert_eq!(bytes(Phase::FfnGateUp), 2 * 2 * panels(768, 256));
    assert_eq!(bytes(Phase::FfnDown), 2 * panels(256, 768));
    assert_eq!(bytes(Phase::Output), panels(300, 256));
    // The block of 64 positions of 4 KV heads in 2 layers, in f16: once for each tile of entries, and the number of
    // tiles is at most the number of entries.
    let once = 2 * 4 * 64 * (32 + 32) * 2;
    let read = bytes(Phase::Attention);
    assert!(read.is_multiple_of(once), "{read}");
    assert!((once..=n as u64 * once).contains(&read), "{read}");
}

#[test]
fn event_rings_serve_one_step_at_a_time() {
    let clock = || 0;
    let mut memory = vec![TraceEvent::EMPTY; 100];
    let ring = EventRing::new(&mut memory, 1, &clock);
    let stop = StopFlag::new();
    let mut options = StepOptions::new(&YieldWait, &stop);
    options.trace = Some(&ring);
    let batch = entries(&[1], 0, 0);
    let (mut one, mut other) = (Bench::new(&Shape::TINY), Bench::new(&Shape::TINY));
    one.with(&limits(1), |one| {
        other.with(&limits(1), |other| {
            let step = one.step(&batch, options).unwrap();
            let in_use = other.step(&batch, options).map(drop);
            assert_eq!(in_use.unwrap_err(), EngineError::TraceInUse);
            drop(step);
            // Given back by the drop, by a batch that is refused, and by a step that ends.
            let wrong = entries(&[1], 0, 1);
            assert!(other.step(&wrong, options).is_err());
            step_with(other, &batch, |options| options.trace = Some(&ring));
            assert!(one.step(&batch, options).is_ok());
        });
    });
    Bench::new(&Shape::TINY).with(&limits(2), |engine| {
        let error = engine.step(&batch, options).map(drop).unwrap_err();
        let expected = EngineError::TraceTooSmall {
            n_workers: 2,
            rings: 1,
        };
        assert_eq!(error, expected);
    });
}

/// A cache of another shape, put in the place of the engine's own, would send workers beyond
/// their blocks.
#[test]
fn a_foreign_cache_is_refused() {
    Bench::new(&Shape::TINY).with(&limits(1), |engine| {
        let own = engine.state().config().clone();
        let limits = state_limits(32);
        let smaller = StateConfig::new(engine.model().config(), &limits);
        // Leaked, because it has to live as long as the engine's own memory.
        let memory = Box::leak(Box::new(Aligned::new(own.plan().unwrap().bytes()))).bytes_mut();
        let batch = entries(&[1], 0, 0);
        *engine.state_mut() = State::new(smaller, memory).unwrap();
        assert_eq!(refusal(engine, &batch), EngineError::ForeignState);
    });
}

const fn state_limits(n_ctx: usize) -> StateLimits {
    StateLimits {
        n_ctx,
        n_held: 0,
        n_batch: 8,
        n_seq: 1,
        type_k: KvType::F16,
        type_v: KvType::F16,
        kv_rotation: true,
        n_behind: 0,
        n_checkpoints: 0,
        windows_give_back: false,
    }
}

#[test]
fn absurd_states_are_refused() {
    let config =
        Bench::new(&Shape::TINY).with(&limits(1), |engine| engine.model().config().clone());
    let mut long = config.clone();
    let mut many = config.clone();
    for (config, change) in [
        (
            &mut long,
            (|shape| shape.head_dim_k = 1025) as fn(&mut Attention),
        ),
        (&mut many, |shape| shape.n_head_kv = usize::MAX),
    ] {
        match &mut config.kinds[0].mixer {
            Mixer::Attention(shape) => change(shape),
            _ => unreachable!(),
        }
    }
    let limits = |n_ctx, n_seq, n_checkpoints| StateLimits {
        n_seq,
        n_checkpoints,
        ..state_limits(n_ctx)
    };
    let absurd = [
        (&config, limits(usize::MAX, 1, 0)),
        (&config, limits(64, usize::MAX, 0)),
        (&config, limits(64, 1, usize::MAX)),
        (&long, limits(64, 1, 0)),
        (&many, limits(64, 1, 0)),
    ];
    for (config, limits) in absurd {
        let config = StateConfig::new(config, &limits);
        assert_eq!(
            config.plan().unwrap_err(),
            MemoryError::TooLarge,
            "{limits:?}"
        );
        let mut memory = Aligned::new(4096);
        assert!(State::new(config, memory.bytes_mut()).is_err());
    }
}

#[test]
fn one_worker_runs_where_there_are_no_threads() {
    let stop = StopFlag::new();
    Bench::new(&Shape::TINY).with(&limits(1), |engine| {
        let batch = entries(&[1, 2], 0, 0);
        let step = engine
            .step(&batch, StepOptions::new(&YieldWait, &stop))
            .unwrap();
        step.join(0).unwrap().run().unwrap();
        let outputs = step.finish().unwrap();
        let rows: Vec<_> = (0..2)
            .map(|i| outputs.logits(i).unwrap().to_vec())
            .collect();
        assert!(outputs.logits(2).is_none());
        assert!(outputs.hidden(0).is_none());
        engine.state_mut().clear(0).unwrap();
        assert_eq!(run::step(engine, &batch).unwrap(), rows);
    });
}
