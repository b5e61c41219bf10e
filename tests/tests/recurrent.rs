//! Recurrent models: forks, rewinding, saved sequences, cancelled steps and mixed batches keep every bit,
//! however a text is cut.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::sync::atomic::{AtomicU64, Ordering};
use sluice_core::engine::{BatchEntry, Engine, EngineError, EngineLimits, StepOptions, Wants};
use sluice_core::state::{Identity, PAGE_TOKENS, StateError};
use sluice_core::team::{Deadline, Stop, StopFlag};
use sluice_tests::drive::drive;
use sluice_tests::goldens::{HYBRIDS, OURS};
use sluice_tests::run::{self, Room, Weights, YieldWait, entries, step};
use std::path::Path;

/// Convolutions first and last, and around attention, taps of 3 and of 4; delta nets and Mamba 2 in the same
/// places, and a network alone in the last layer.
const MODELS: [&str; 8] = [
    "lfm2",
    "lfm2-Q4_K_M",
    "qwen35",
    "qwen35-mtp",
    "qwen3next",
    "granitehybrid",
    "nemotron_h",
    "nemotron_h_moe-latent",
];

fn ids(n: usize) -> Vec<u32> {
    let n = u32::try_from(n).unwrap();
    (0..n).map(|i| 3 + (7 * i * i + 11 * i + 5) % 256).collect()
}

fn limits(n_workers: usize) -> EngineLimits {
    EngineLimits {
        n_batch: 200,
        n_outputs: 200,
        n_seq: 4,
        n_behind: 3,
        n_checkpoints: 2,
        ..EngineLimits::single(4 * 256, n_workers)
    }
}

fn with<R>(name: &str, limits: &EngineLimits, act: impl FnOnce(&mut Engine<'_>) -> R) -> R {
    let mut goldens = OURS.iter().chain(HYBRIDS);
    let golden = goldens.find(|golden| golden.name == name).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden.model);
    let file = std::fs::read(path).unwrap();
    let mut weights = Weights::plan(&file).unwrap();
    let model = weights.load(&file, 1).unwrap();
    assert!(model.config().is_recurrent());
    let mut room = Room::plan(model.config(), limits).unwrap();
    act(&mut room.engine(model, run::table(), limits).unwrap())
}

/// The logits after each of `ids` at the end of a sequence.
fn feed(engine: &mut Engine<'_>, sequence: u32, ids: &[u32]) -> Vec<Vec<f32>> {
    let start = engine.state().len(sequence);
    step(engine, &entries(ids, sequence, start)).unwrap()
}

#[test]
fn prompts_in_any_cut_without_outputs_leave_the_same_state() {
    for name in MODELS {
        let (ids, next) = (ids(70), [9, 8, 7]);
        let expected = with(name, &limits(1), |engine| {
            feed(engine, 0, &ids);
            feed(engine, 0, &next)
        });
        for (n_workers, chunk) in [(1, 70), (2, 70), (3, 33), (2, 9), (2, 8), (1, 2), (2, 1)] {
            let found = with(name, &limits(n_workers), |engine| {
                for (i, part) in ids.chunks(chunk).enumerate() {
                    // The last layer, a convolution, leaves out all rows.
                    let mut batch = entries(part, 0, i * chunk);
                    batch
                        .iter_mut()
                        .for_each(|entry| entry.wants = Wants::Nothing);
                    assert!(step(engine, &batch).unwrap().is_empty());
                }
                feed(engine, 0, &next)
            });
            assert_eq!(found, expected, "{name}: {n_workers} {chunk}");
        }
    }
}

#[test]
fn the_rest_of_a_batch_changes_no_bit() {
    for name in MODELS {
        let texts = [ids(30), ids(41).split_off(11), ids(50).split_off(20)];
        let alone: Vec<_> = (texts.iter())
            .map(|ids| with(name, &limits(2), |engine| feed(engine, 0, ids)))
            .collect();
        let mixed = with(name, &limits(3), |engine| {
            // Interleaved: neighbours in the batch belong to other sequences.
            let batch: Vec<BatchEntry> = (0..30)
                .flat_map(|i| {
                    let position = u32::try_from(i).unwrap();
                    (0u32..).zip(&texts).map(move |(sequence, ids)| {
                        BatchEntry::new(ids[i], sequence, position, Wants::Logits)
                    })
                })
                .collect();
            step(engine, &batch).unwrap()
        });
        for (i, row) in mixed.iter().enumerate() {
            assert_eq!(*row, alone[i % 3][i / 3], "{name}: {i}");
        }
    }
}

#[test]
fn sequences_are_forked_rewound_saved_and_restored() {
    for name in MODELS {
        let ids = ids(40);
        let expected = with(name, &limits(1), |engine| feed(engine, 0, &ids));
        with(name, &limits(2), |engine| {
            let identity = Identity([7; 32]);
            feed(engine, 0, &ids[..10]);
            engine.state_mut().checkpoint(0, 5).unwrap();
            feed(engine, 0, &ids[10..20]);
            engine.state_mut().fork(0, 1).unwrap();
            let mut saved = vec![0; engine.state().saved_bytes(0)];
            engine.state().save(0, &identity, &mut saved).unwrap();
            engine.state_mut().restore(2, &identity, &saved).unwrap();
            // Each continues as if alone, and a wrong turn is taken back.
            for sequence in 0..3 {
                feed(engine, sequence, &[1, 2, 3]);
                if sequence == 2 {
                    // A restored sequence keeps what came since.
                    let far = engine.state_mut().rewind(sequence, 19);
                    let refused = StateError::CannotRewind {
                        len: 19,
                        nearest: 0,
                    };
                    assert_eq!(far, Err(refused));
                }
                engine.state_mut().rewind(sequence, 20).unwrap();
                let found = feed(engine, sequence, &ids[20..]);
                assert_eq!(found, expected[20..], "{name}: {sequence}");
            }
            // Further back there is the checkpoint alone.
            let far = engine.state_mut().rewind(0, 15);
            let refused = StateError::CannotRewind {
                len: 15,
                nearest: 10,
            };
            assert_eq!(far, Err(refused));
            engine.state_mut().rewind(0, 10).unwrap();
            assert_eq!(feed(engine, 0, &ids[10..]), expected[10..]);
            // Several tokens at once, of which some are taken back: as speculation does.
            engine.state_mut().rewind(0, 37).unwrap();
            let found = feed(engine, 0, &[ids[37], 99, 100]);
            assert_eq!(found[0], expected[37]);
            engine.state_mut().rewind(0, 38).unwrap();
            assert_eq!(feed(engine, 0, &ids[38..]), expected[38..]);
            // A context shift would need states that no one has.
            let refused = EngineError::State(StateError::CannotRemove);
            assert_eq!(engine.remove(0, 2..5).unwrap_err(), refused);
            assert_eq!(engine.state().len(0), 40);
        });
    }
}

#[test]
fn a_cancelled_step_leaves_no_trace() {
    for name in ["lfm2", "qwen35", "granitehybrid"] {
        cancel(name);
    }
}

fn cancel(name: &str) {
    let ids = ids(30);
    let expected = with(name, &limits(1), |engine| feed(engine, 0, &ids));
    with(name, &limits(2), |engine| {
        feed(engine, 0, &ids[..12]);
        // Stopped at each barrier in turn, until there are no more.
        for ticks in 1.. {
            let now = AtomicU64::new(0);
            let clock = || now.fetch_add(1, Ordering::Relaxed) + 1;
            let stop = StopFlag::new();
            let mut options = StepOptions::new(&YieldWait, &stop);
            options.deadline = Some(Deadline {
                clock: &clock,
                ticks,
            });
            let batch = entries(&[7; 15], 0, 12);
            match drive(engine, &batch, options).unwrap().result {
                Err(error) => assert_eq!(error, EngineError::Stopped(Stop::DeadlinePassed)),
                Ok(_) => break,
            }
            assert_eq!(engine.state().len(0), 12);
        }
        engine.state_mut().rewind(0, 24).unwrap();
        let error = engine.state_mut().rewind(0, 12).unwrap_err();
        let nearest = 0;
        assert_eq!(error, StateError::CannotRewind { len: 12, nearest });
        engine.state_mut().clear(0).unwrap();
        feed(engine, 0, &ids[..12]);
        let stop = StopFlag::new();
        stop.stop();
        let options = StepOptions::new(&YieldWait, &stop);
        let batch = entries(&[7; 15], 0, 12);
        assert!(drive(engine, &batch, options).unwrap().result.is_err());
        assert_eq!(feed(engine, 0, &ids[12..]), expected[12..]);
    });
}

/// What prefix caches depend on: pages without a sequence, and the state at their end.
#[test]
fn another_sequence_goes_on_from_held_pages_and_a_named_state() {
    for name in MODELS {
        let ids = ids(PAGE_TOKENS + 20);
        with(name, &limits(2), |engine| {
            feed(engine, 0, &ids[..PAGE_TOKENS]);
            engine.state_mut().checkpoint(0, 1).unwrap();
            let page = engine.state_mut().retain(0, 0).unwrap();
            let expected = feed(engine, 0, &ids[PAGE_TOKENS..]);
            engine.state_mut().clear(0).unwrap();
            feed(engine, 3, &ids[5..30]);
            let pages = [page];
            engine.state_mut().attach(2, &pages, Some(1)).unwrap();
            assert_eq!(feed(engine, 2, &ids[PAGE_TOKENS..]), expected, "{name}");
            // As bytes, into another sequence: the same.
            let state = engine.state_mut();
            let mut bytes = vec![0; state.state_bytes()];
            state.read_state(1, &Identity([5; 32]), &mut bytes).unwrap();
            assert_eq!(
                state.write_state(1, &Identity([5; 32]), &bytes),
                Err(StateError::NameTaken { name: 1 })
            );
            assert!(state.write_state(2, &Identity([6; 32]), &bytes).is_err());
            assert!(
                state
                    .write_state(2, &Identity([5; 32]), &bytes[1..])
                    .is_err()
            );
            state.forget(1);
            assert_eq!(
                state.write_state(2, &Identity([5; 32]), &bytes),
                Ok(PAGE_TOKENS)
            );
            state.clear(2).unwrap();
            state.attach(2, &pages, Some(2)).unwrap();
            assert_eq!(feed(engine, 2, &ids[PAGE_TOKENS..]), expected, "{name}");
            let [page] = pages;
            engine.state_mut().release(page);
            engine.state_mut().forget(2);
        });
    }
}
