//! What the KV cache guarantees: pages shared and copied, rollback, snapshots, context shift.

use sluice_core::engine::{Engine, EngineError, EngineLimits};
use sluice_core::hash::Hash64;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::state::{Identity, SnapshotError, StateError};
use sluice_tests::build::{Random, Shape};
use sluice_tests::drive::{Bench, bits, prompt, step_with};

/// Two layers of the tiny model's width.
const SHAPE: Shape = Shape {
    n_layer: 2,
    ty: GgmlType::F32,
    ..Shape::TINY
};

fn limits(kv_type: KvType) -> EngineLimits {
    EngineLimits {
        n_batch: 200,
        n_seq: 4,
        type_k: kv_type,
        type_v: kv_type,
        ..EngineLimits::single(512, 2)
    }
}

fn ids(n: usize) -> Vec<u32> {
    let mut random = Random(5);
    (0..n).map(|_| random.below(16)).collect()
}

/// Adds tokens to a sequence; the bits of the last one's logits.
fn feed(engine: &mut Engine<'_>, ids: &[u32], sequence: u32) -> Vec<u32> {
    bits(&floats(engine, ids, sequence))
}

fn floats(engine: &mut Engine<'_>, ids: &[u32], sequence: u32) -> Vec<f32> {
    let batch = prompt(engine, ids, sequence);
    let mut rows = step_with(engine, &batch, |_| ()).logits;
    rows.pop().flatten().expect("the last entry wants logits")
}

/// Stands for the weights of all models here.
const IDENTITY: Identity = Identity([7; 32]);

fn save(engine: &Engine<'_>, sequence: u32) -> Vec<u8> {
    save_with(engine, sequence, &IDENTITY)
}

fn save_with(engine: &Engine<'_>, sequence: u32, identity: &Identity) -> Vec<u8> {
    let mut bytes = vec![0; engine.state().saved_bytes(sequence)];
    let saved = engine.state().save(sequence, identity, &mut bytes);
    assert_eq!(saved, Ok(bytes.len()));
    bytes
}

#[test]
fn forks_share_pages_until_one_of_them_grows() {
    let ids = ids(200);
    Bench::new(&SHAPE).with(&limits(KvType::F16), |engine| {
        let all = engine.state().free_pages();
        assert_eq!(all, 512 / 64 + 3);
        feed(engine, &ids[..100], 0);
        assert_eq!(engine.state().free_pages(), all - 2);
        let before = save(engine, 0);
        engine.state_mut().fork(0, 1).unwrap();
        engine.state_mut().fork(1, 2).unwrap();
        assert_eq!(engine.state().free_pages(), all - 2);
        assert_eq!(engine.state().len(2), 100);
        // The partly filled page is copied for each that grows, the full one never.
        feed(engine, &[1, 2, 3], 1);
        assert_eq!(engine.state().free_pages(), all - 3);
        feed(engine, &[4], 2);
        assert_eq!(engine.state().free_pages(), all - 4);
        assert_eq!(save(engine, 0), before);
        // The origin is the last holder of its page and keeps it.
        let continued = feed(engine, &ids[100..], 0);
        assert_eq!(engine.state().free_pages(), all - 4 - 2);
        engine.state_mut().clear(1).unwrap();
        engine.state_mut().clear(2).unwrap();
        assert_eq!(engine.state().free_pages(), all - 4);
        engine.state_mut().clear(0).unwrap();
        assert_eq!(engine.state().free_pages(), all);
        assert_eq!(feed(engine, &ids, 3), continued);
        assert_eq!(
            engine.state_mut().fork(3, 3),
            Err(StateError::NotEmpty { sequence: 3 })
        );
        let unknown = StateError::UnknownSequence {
            sequence: 4,
            n_seq: 4,
        };
        assert_eq!(engine.state_mut().fork(3, 4), Err(unknown));
        assert_eq!(engine.state_mut().fork(4, 0), Err(unknown));
        // An empty sequence forks into an empty one.
        engine.state_mut().fork(0, 1).unwrap();
        assert!(engine.state().is_empty(1));
    });
}

#[test]
fn truncated_sequences_go_on_like_fresh_ones() {
    let ids = ids(150);
    for kv_type in KvType::ALL {
        Bench::new(&SHAPE).with(&limits(kv_type), |engine| {
            let all = engine.state().free_pages();
            let expected = feed(engine, &ids, 1);
            // To the middle of a page, to its end, to its start, to nothing.
            for len in [149, 129, 128, 127, 65, 64, 63, 1, 0] {
                feed(engine, &[7; 150], 0);
                engine.state_mut().rewind(0, 0).unwrap();
                feed(engine, &ids[..130.min(len + 20)], 0);
                feed(engine, &[9; 30], 0);
                engine.state_mut().rewind(0, len.min(130)).unwrap();
                let end = engine.state().len(0);
                assert_eq!(feed(engine, &ids[end..], 0), expected, "{len}");
                engine.state_mut().clear(0).unwrap();
            }
            assert_eq!(
                engine.state_mut().rewind(1, 151),
                Err(StateError::OutOfRange { end: 151, len: 150 })
            );
            engine.state_mut().clear(1).unwrap();
            assert_eq!(engine.state().free_pages(), all);
        });
    }
}

#[test]
fn a_full_cache_leaves_everything_as_before() {
    let limits = EngineLimits {
        n_ctx: 128,
        n_seq: 2,
        ..limits(KvType::F16)
    };
    Bench::new(&SHAPE).with(&limits, |engine| {
        // Three pages; the fork shares both of the origin's.
        feed(engine, &ids(100), 0);
        engine.state_mut().fork(0, 1).unwrap();
        let before = (save(engine, 0), save(engine, 1));
        let batch = prompt(engine, &[1; 29], 1);
        let stop = sluice_core::team::StopFlag::new();
        let options = sluice_core::engine::StepOptions::new(&sluice_tests::run::YieldWait, &stop);
        // One page is copied, one is new: two, where one is free.
        let full = StateError::Full { needed: 2, free: 1 };
        let error = engine.step(&batch, options).map(drop).unwrap_err();
        assert_eq!(error, EngineError::State(full));
        assert_eq!(
            error.to_string(),
            "the KV cache is full: 2 pages of 64 tokens needed, 1 free"
        );
        assert_eq!(engine.state().free_pages(), 1);
        assert_eq!((save(engine, 0), save(engine, 1)), before);
        // A sequence longer than the whole cache.
        engine.state_mut().clear(1).unwrap();
        let batch = prompt(engine, &[1; 93], 0);
        let full = StateError::Full { needed: 2, free: 1 };
        let error = engine.step(&batch, options).map(drop).unwrap_err();
        assert_eq!(error, EngineError::State(full));
        feed(engine, &[1; 92], 0);
        assert_eq!(engine.state().free_pages(), 0);
        assert_eq!(engine.state().len(0), 192);
    });
}

/// Many operations at random, against a list of tokens for each sequence.
#[test]
fn random_histories_end_in_the_same_bits_as_fresh_sequences() {
    for (seed, kv_type) in (1..).zip(KvType::ALL) {
        let (mut one, mut two) = (Bench::new(&SHAPE), Bench::new(&SHAPE));
        let limits = EngineLimits {
            n_batch: 256,
            ..limits(kv_type)
        };
        one.with(&limits, |engine| {
            two.with(&limits, |fresh| random_history(seed, engine, fresh));
        });
    }
}

fn random_history(seed: u64, engine: &mut Engine<'_>, fresh: &mut Engine<'_>) {
    let mut random = Random(seed);
    let mut texts: Vec<Vec<u32>> = vec![Vec::new(); 4];
    let all = engine.state().free_pages();
    for _ in 0..300 {
        let (s, t) = (random.below(4), random.below(4));
        let (from, to) = (s as usize, t as usize);
        match random.below(6) {
            0 | 1 => {
                let n = 1 + random.below(90);
                let ids: Vec<_> = (0..n).map(|_| random.below(16)).collect();
                // At most half of the cache for each of four: some steps are refused.
                if texts[from].len() + ids.len() < 256 && fits(engine, &texts, from, ids.len()) {
                    texts[from].extend(&ids);
                    let found = feed(engine, &ids, s);
                    assert_eq!(found, feed(fresh, &texts[from], 0));
                    fresh.state_mut().clear(0).expect("a sequence");
                }
            }
            2 if texts[to].is_empty() => {
                engine.state_mut().fork(s, t).expect("an empty target");
                texts[to] = texts[from].clone();
            }
            3 => {
                let len = random.below(1 + u32::try_from(texts[from].len()).expect("short"));
                engine.state_mut().rewind(s, len as usize).expect("shorter");
                texts[from].truncate(len as usize);
            }
            4 => {
                // Stops before it begins.
                let batch = prompt(engine, &[1, 2, 3], s);
                let stop = sluice_core::team::StopFlag::new();
                let wait = &sluice_tests::run::YieldWait;
                let options = sluice_core::engine::StepOptions::new(wait, &stop);
                let _dropped = engine.step(&batch, options);
            }
            _ => {
                let saved = save(engine, s);
                engine.state_mut().clear(s).expect("a sequence");
                let restored = engine.state_mut().restore(s, &IDENTITY, &saved);
                if restored.is_err() {
                    // What was shared needs separate pages now.
                    texts[from].clear();
                }
            }
        }
        let lens: Vec<_> = (0..4).map(|s| engine.state().len(s)).collect();
        assert_eq!(lens, texts.iter().map(Vec::len).collect::<Vec<_>>());
    }
    (0..4).for_each(|s| engine.state_mut().clear(s).expect("a sequence"));
    assert_eq!(engine.state().free_pages(), all);
}

/// Whether `n` more tokens fit, whatever is shared.
fn fits(engine: &Engine<'_>, texts: &[Vec<u32>], s: usize, n: usize) -> bool {
    let pages = |len: usize| len.div_ceil(64);
    let new = pages(texts[s].len() + n) - pages(texts[s].len());
    new < engine.state().free_pages()
}

#[test]
fn many_sequences_in_one_batch_are_as_if_alone() {
    let ids = ids(70);
    let limits = EngineLimits {
        n_batch: 280,
        n_outputs: 280,
        ..limits(KvType::BF16)
    };
    Bench::new(&SHAPE).with(&limits, |engine| {
        let texts: Vec<Vec<u32>> = (0..4).map(|s| ids[s..s + 60].to_vec()).collect();
        let alone: Vec<_> = (0..4u32)
            .map(|s| {
                let rows = feed(engine, &texts[s as usize], s);
                let saved = save(engine, s);
                engine.state_mut().clear(s).unwrap();
                (rows, saved)
            })
            .collect();
        // Token i of every sequence, in another order each time.
        let prompts: Vec<_> = (0..4u32)
            .map(|s| prompt(engine, &texts[s as usize], s))
            .collect();
        let batch: Vec<_> = (0..60)
            .flat_map(|i| (0..4).map(move |k| (i, (i * 7 + k * 3) % 4)))
            .map(|(i, s)| prompts[s][i])
            .collect();
        let rows = step_with(engine, &batch, |_| ()).logits;
        for (s, (expected, saved)) in (0..4u32).zip(alone) {
            let last = batch.iter().rposition(|entry| entry.sequence == s).unwrap();
            assert_eq!(bits(rows[last].as_ref().unwrap()), expected);
            assert_eq!(save(engine, s), saved);
        }
    });
}

#[test]
fn snapshots_continue_with_the_same_bits_in_another_engine() {
    let ids = ids(150);
    for kv_type in KvType::ALL {
        let mut bench = Bench::new(&SHAPE);
        let (saved, expected) = bench.with(&limits(kv_type), |engine| {
            feed(engine, &ids[..130], 2);
            let saved = save(engine, 2);
            (saved, feed(engine, &ids[130..], 2))
        });
        bench.with(&limits(kv_type), |engine| {
            engine.state_mut().restore(0, &IDENTITY, &saved).unwrap();
            assert_eq!(save(engine, 0), saved);
            assert_eq!(feed(engine, &ids[130..], 0), expected);
            assert_eq!(
                engine.state_mut().restore(0, &IDENTITY, &saved),
                Err(StateError::NotEmpty { sequence: 0 })
            );
        });
    }
}

#[test]
fn every_damaged_snapshot_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(&Shape::TINY);
    let mut saved = bench.with(&limits(KvType::F16), |engine| {
        feed(engine, &ids(5), 0);
        save(engine, 0)
    });
    bench.with(&limits(KvType::F16), |engine| {
        let all = engine.state().free_pages();
        let mut refuse = |bytes: &[u8], identity: &Identity| {
            let Err(StateError::Snapshot(error)) = engine.state_mut().restore(1, identity, bytes)
            else {
                panic!("a damaged snapshot is restored");
            };
            assert!(engine.state().is_empty(1));
            assert_eq!(engine.state().free_pages(), all);
            assert!(!error.to_string().is_empty());
            error
        };
        for at in 0..saved.len() {
            for flip in [0x01, 0x80, 0xff, 0x10] {
                saved[at] ^= flip;
                let error = refuse(&saved, &IDENTITY);
                saved[at] ^= flip;
                match at {
                    0..4 => assert_eq!(error, SnapshotError::NotASnapshot),
                    4..8 => assert!(matches!(error, SnapshotError::Version(_))),
                    8..40 => assert_eq!(error, SnapshotError::OtherModel),
                    40..48 => assert_eq!(error, SnapshotError::OtherShape),
                    48..52 => assert!(matches!(error, SnapshotError::Length { .. })),
                    // No first position but 0: this cache gives no pages back.
                    52..84 => assert_eq!(error, SnapshotError::OtherShape),
                    _ => assert_eq!(error, SnapshotError::Checksum),
                }
            }
        }
        for len in 0..saved.len() {
            refuse(&saved[..len], &IDENTITY);
        }
        saved.push(0);
        let error = refuse(&saved, &IDENTITY);
        assert!(matches!(error, SnapshotError::Length { .. }));
        saved.pop();
        assert_eq!(
            refuse(&saved, &Identity([8; 32])),
            SnapshotError::OtherModel
        );
        // A file that claims to be longer than any memory, with a sound checksum.
        let mut forged = saved[..84].to_vec();
        forged[48..52].fill(0xff);
        let mut hash = Hash64::new();
        hash.write(&forged);
        forged.extend(hash.finish().to_le_bytes());
        let error = refuse(&forged, &IDENTITY);
        assert!(matches!(error, SnapshotError::Length { .. }));
        // A file whose rows begin in the middle of a page, of the right length and with a sound checksum.
        let token_bytes = (saved.len() - 92) / 5;
        let mut forged = saved[..saved.len() - 8 - 5 * token_bytes].to_vec();
        forged[52] = 5;
        let mut hash = Hash64::new();
        hash.write(&forged);
        forged.extend(hash.finish().to_le_bytes());
        assert_eq!(refuse(&forged, &IDENTITY), SnapshotError::OtherShape);
    });
}

#[test]
fn snapshots_of_other_models_types_and_shapes_are_refused() {
    let save_of = |kv_type, identity: &Identity| {
        Bench::new(&SHAPE).with(&limits(kv_type), |engine| {
            feed(engine, &ids(5), 0);
            save_with(engine, 0, identity)
        })
    };
    let saved = save_of(KvType::F16, &IDENTITY);
    let other_model = save_of(KvType::F16, &Identity([8; 32]));
    let other_type = save_of(KvType::BF16, &IDENTITY);
    Bench::new(&SHAPE).with(&limits(KvType::F16), |engine| {
        let mut restore = |bytes: &[u8]| engine.state_mut().restore(0, &IDENTITY, bytes);
        let refused = |error| Err(StateError::Snapshot(error));
        assert_eq!(restore(&other_model), refused(SnapshotError::OtherModel));
        assert_eq!(restore(&other_type), refused(SnapshotError::OtherShape));
        assert_eq!(restore(&saved), Ok(()));
        // Too small to save into.
        let mut small = vec![0; saved.len() - 1];
        let needed = saved.len();
        assert_eq!(
            engine.state().save(0, &IDENTITY, &mut small),
            Err(StateError::Snapshot(SnapshotError::TooSmall { needed }))
        );
    });
    // A cache with too few pages for it.
    let tiny = EngineLimits {
        n_ctx: 64,
        n_seq: 1,
        ..limits(KvType::F16)
    };
    let saved = Bench::new(&SHAPE).with(&limits(KvType::F16), |engine| {
        feed(engine, &ids(65), 0);
        save(engine, 0)
    });
    Bench::new(&SHAPE).with(&tiny, |engine| {
        let full = StateError::Full { needed: 2, free: 1 };
        assert_eq!(engine.state_mut().restore(0, &IDENTITY, &saved), Err(full));
        assert_eq!(engine.state().free_pages(), 1);
    });
}

/// Elements of a saved f32 sequence of [`SHAPE`]: (token, layer, head, key or value, dimension).
fn elements(saved: &[u8]) -> Vec<f32> {
    let body = &saved[84..saved.len() - 8];
    let words = body
        .chunks_exact(4)
        .map(|x| x.try_into().expect("four bytes"));
    words.map(f32::from_le_bytes).collect()
}

/// `key` of 8 dimensions rotated by `-positions`, in f64: adjacent pairs, base 10,000.
fn rotated_back(key: &[f32], positions: usize) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let angle = |i: usize| -(positions as f64) * 10_000f64.powf(-2.0 * i as f64 / 8.0);
    let pairs = key.chunks_exact(2).enumerate();
    pairs
        .flat_map(|(i, pair)| {
            let (x, y) = (f64::from(pair[0]), f64::from(pair[1]));
            let (sin, cos) = angle(i).sin_cos();
            [x * cos - y * sin, x * sin + y * cos]
        })
        .collect()
}

/// In every layer, keys that move are rotated back by as many positions, values are unchanged, and tokens before the
/// range are untouched.
#[test]
fn removing_a_range_rotates_the_keys_that_move() {
    const TOKEN: usize = 2 * 2 * 16;
    for (len, start, end) in [
        (150, 30, 110),
        (150, 0, 1),
        (70, 63, 64),
        (200, 64, 128),
        (5, 1, 3),
    ] {
        Bench::new(&SHAPE).with(&limits(KvType::F32), |engine| {
            let all = engine.state().free_pages();
            feed(engine, &ids(len), 0);
            let before = elements(&save(engine, 0));
            engine.remove(0, start..end).unwrap();
            let after = elements(&save(engine, 0));
            let n = end - start;
            assert_eq!(after.len(), before.len() - n * TOKEN);
            assert_eq!(after[..start * TOKEN], before[..start * TOKEN]);
            let moved = before[end * TOKEN..].chunks_exact(16);
            for (after, before) in after[start * TOKEN..].chunks_exact(16).zip(moved) {
                assert_eq!(after[8..], before[8..]);
                for (&found, expected) in after[..8].iter().zip(rotated_back(&before[..8], n)) {
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-6,
                        "{found} {expected}"
                    );
                }
            }
            assert_eq!(engine.state().free_pages(), all - (len - n).div_ceil(64));
        });
    }
}

fn relative(found: &[f32], expected: &[f32]) -> f32 {
    let distance = found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b));
    let norm = expected.iter().map(|x| x * x);
    (distance.sum::<f32>() / norm.sum::<f32>()).sqrt()
}

/// In a model of one layer, keys and values depend on their own token and position alone, so
/// that a shortened sequence is a fresh one.
#[test]
fn one_layer_forgets_a_removed_range_entirely() {
    let one_layer = Shape {
        n_layer: 1,
        ..SHAPE
    };
    let ids = ids(180);
    let short: Vec<u32> = ids[..40].iter().chain(&ids[125..]).copied().collect();
    for (kv_type, tolerance) in KvType::ALL
        .into_iter()
        .zip([1e-5, 2e-3, 2e-2, 2e-2, 0.3, 0.15])
    {
        Bench::new(&one_layer).with(&limits(kv_type), |engine| {
            feed(engine, &ids[..179], 0);
            engine.remove(0, 40..125).unwrap();
            let found = floats(engine, &ids[179..], 0);
            let expected = floats(engine, &short, 1);
            let distance = relative(&found, &expected);
            assert!(distance < tolerance, "{kv_type}: {distance}");
            // It is the range that was removed, and not another.
            let other = floats(engine, &ids[..95], 2);
            let far = relative(&other, &expected);
            assert!(far > 2.0 * distance, "{kv_type}: {far} {distance}");
        });
    }
}

#[test]
fn removing_has_exact_edges() {
    let ids = ids(150);
    Bench::new(&SHAPE).with(&limits(KvType::F16), |engine| {
        let all = engine.state().free_pages();
        feed(engine, &ids, 0);
        let whole = save(engine, 0);
        engine.state_mut().fork(0, 1).unwrap();
        // Nothing removed.
        engine.remove(1, 70..70).unwrap();
        assert_eq!(save(engine, 1), whole);
        // The end removed: a truncation, bit for bit, and no page copied.
        engine.remove(1, 70..150).unwrap();
        assert_eq!(engine.state().free_pages(), all - 3);
        engine.state_mut().fork(0, 2).unwrap();
        engine.state_mut().rewind(2, 70).unwrap();
        assert_eq!(save(engine, 1), save(engine, 2));
        // Everything removed.
        engine.remove(1, 0..70).unwrap();
        assert!(engine.state().is_empty(1));
        // The middle of a fork: the origin keeps its bits.
        engine.state_mut().fork(0, 3).unwrap();
        engine.remove(3, 10..20).unwrap();
        assert_eq!(save(engine, 0), whole);
        for range in [140..151, 151..151, usize::MAX - 1..usize::MAX] {
            let end = range.end;
            assert_eq!(
                engine.remove(0, range),
                Err(EngineError::State(StateError::OutOfRange { end, len: 150 }))
            );
        }
        #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
        let reversed = engine.remove(0, 20..10);
        assert_eq!(
            reversed,
            Err(EngineError::State(StateError::OutOfRange {
                end: 20,
                len: 150
            }))
        );
        let unknown = StateError::UnknownSequence {
            sequence: 9,
            n_seq: 4,
        };
        assert_eq!(engine.remove(9, 0..1), Err(EngineError::State(unknown)));
        assert_eq!(save(engine, 0), whole);
    });
}

/// Shared pages have to be copied before keys move in them.
#[test]
fn removing_without_pages_for_copies_changes_nothing() {
    let limits = EngineLimits {
        n_ctx: 128,
        n_seq: 2,
        ..limits(KvType::F16)
    };
    Bench::new(&SHAPE).with(&limits, |engine| {
        feed(engine, &ids(128), 0);
        engine.state_mut().fork(0, 1).unwrap();
        let before = save(engine, 0);
        let full = StateError::Full { needed: 2, free: 1 };
        assert_eq!(engine.remove(1, 10..20), Err(EngineError::State(full)));
        assert_eq!((save(engine, 0), save(engine, 1)), (before.clone(), before));
        assert_eq!(engine.state().free_pages(), 1);
        // Only the second page is written to.
        engine.remove(1, 70..80).unwrap();
        assert_eq!(engine.state().free_pages(), 0);
    });
}
