//! Who shares the engine: places among shares, readers that do not read, queues, waiting.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::ask::{Answer, Ask, Setup, collect, lfm2, tale};
use core::time::Duration;
use sluice_serve::engine::{Event, JobError, Why};
use std::time::Instant;
use tokio::sync::mpsc::Receiver;

/// Waits for the first token of a text, and returns the events before the others.
fn first(events: &mut Receiver<Vec<Event>>) -> Vec<Event> {
    let mut all = Vec::new();
    while !all.iter().any(|event| matches!(event, Event::Token { .. })) {
        all.extend(events.blocking_recv().unwrap());
    }
    all
}

fn of(share: &str, ask: Ask) -> Ask {
    Ask {
        share: share.to_owned(),
        ..ask
    }
}

#[test]
fn a_share_that_has_nothing_gets_the_next_place_and_others_lose_no_bit() {
    for model in [tale(), lfm2()] {
        for cache_ram in [0, 64 << 20] {
            let setup = Setup {
                n_seq: 2,
                cache_ram,
                ..Setup::new(&model)
            };
            let engine = setup.engine();
            let asks: Vec<_> = (0..4)
                .map(|i| of("flood", Ask::tokens(&setup, 20 + i, 70, 150)))
                .collect();
            let mut flood: Vec<_> = asks
                .iter()
                .map(|ask| setup.submit(&engine, ask).unwrap())
                .collect();
            let begun = first(&mut flood[1]);
            assert!(begun.len() < 100, "the flood writes");
            for i in 0..3 {
                let small = of("polite", Ask::tokens(&setup, 30 + i, 20, 3));
                let answer = collect(setup.submit(&engine, &small).unwrap()).remove(0);
                assert_eq!(answer.tokens.len(), 3);
                let view = engine.0.view(engine.1).unwrap();
                assert!(view.n_waiting >= 2, "the flood still waits: {view:?}");
            }
            // The one whose first events were taken above is not compared.
            let mut parked = 0;
            for (i, events) in flood.into_iter().enumerate() {
                let answer: Answer = collect(events).remove(0);
                parked += answer.n_preempted;
                if i != 1 {
                    let alone = setup.answer(&asks[i]);
                    assert_eq!(answer.bits(), alone.bits(), "{i} of {}", model.name());
                }
            }
            assert!(parked >= 1, "none gave up its place");
            engine.0.stop(Duration::from_secs(5));
        }
    }
}

#[test]
fn a_reader_that_does_not_read_costs_only_itself() {
    for model in [tale(), lfm2()] {
        let setup = Setup {
            n_seq: 2,
            channel: 1,
            reader_buffer: 32 << 10,
            ..Setup::new(&model)
        };
        let engine = setup.engine();
        let asks = [40, 41].map(|seed| Ask::tokens(&setup, seed, 20, 400));
        let stopped = asks
            .each_ref()
            .map(|ask| setup.submit(&engine, ask).unwrap());
        // It comes from the same client, so only a full buffer frees a place.
        let small = Ask::tokens(&setup, 42, 20, 3);
        let answer = collect(setup.submit(&engine, &small).unwrap()).remove(0);
        assert_eq!(answer.tokens.len(), 3);
        let begun = Instant::now();
        while engine.0.view(engine.1).unwrap().n_running > 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "they hold their places"
            );
            std::thread::yield_now();
        }
        let view = engine.0.view(engine.1).unwrap();
        assert!(
            view.slots.iter().all(|slot| !slot.is_processing),
            "{view:?}"
        );
        for (ask, events) in asks.iter().zip(stopped) {
            let answer = collect(events).remove(0);
            assert!(answer.n_preempted > 0, "its buffer has a limit");
            assert_eq!(answer.bits(), setup.answer(ask).bits(), "{}", model.name());
        }
        engine.0.stop(Duration::from_secs(5));
    }
}

#[test]
fn no_share_fills_the_queue_for_others() {
    let setup = Setup {
        max_queue: 2,
        n_seq: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let mut kept = Vec::new();
    let busy = (0..10).find_map(|i| {
        let ask = of("flood", Ask::tokens(&setup, i, 200, 200));
        let submitted = setup.submit(&engine, &ask);
        submitted.map(|events| kept.push(events)).err()
    });
    assert!(matches!(busy, Some(JobError::Busy { .. })), "{busy:?}");
    let other = of("polite", Ask::tokens(&setup, 50, 20, 3));
    let begun = Instant::now();
    let answer = collect(setup.submit(&engine, &other).unwrap()).remove(0);
    assert_eq!(answer.tokens.len(), 3);
    assert!(begun.elapsed() < Duration::from_secs(20));
    engine.0.stop(Duration::ZERO);
}

#[test]
fn every_priority_is_reached_after_as_many_seconds() {
    let setup = Setup {
        n_seq: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let urgent = |seed| Ask {
        priority: -2,
        ..Ask::tokens(&setup, seed, 30, 60)
    };
    // There is always an urgent one waiting.
    let mut ahead: Vec<_> = (0..2)
        .map(|seed| setup.submit(&engine, &urgent(seed)).unwrap())
        .collect();
    let patient = Ask::tokens(&setup, 60, 20, 3);
    let mut patient = setup.submit(&engine, &patient).unwrap();
    let begun = Instant::now();
    let mut seed = 2;
    let waited = loop {
        collect(ahead.remove(0));
        ahead.push(setup.submit(&engine, &urgent(seed)).unwrap());
        seed += 1;
        if patient.try_recv().is_ok() {
            break begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it still waits");
    };
    assert!(
        waited > Duration::from_secs(1),
        "it was not less urgent: {waited:?}"
    );
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn texts_go_on_after_their_model_was_unloaded_and_lose_no_bit() {
    for model in [tale(), lfm2()] {
        let setup = Setup::new(&model);
        let engine = setup.engine();
        let asks = [
            Ask::tokens(&setup, 70, 100, 120),
            Ask {
                n: 3,
                ..Ask::tokens(&setup, 71, 80, 60)
            },
            Ask {
                shift: Some(8),
                ..Ask::tokens(&setup, 72, 30, 2 * setup.n_ctx)
            },
            Ask::tokens(&setup, 73, 300, 5),
            Ask::tokens(&setup, 74, 20, 5),
        ];
        let submit = |ask: &Ask| setup.submit(&engine, ask).unwrap();
        let mut running: Vec<_> = asks[..4].iter().map(submit).collect();
        let mut begun = first(&mut running[0]);
        begun.clear();
        for turn in 0..2 {
            engine.0.suspend(engine.1).blocking_recv().unwrap();
            if turn == 0 {
                running.push(submit(&asks[4]));
            }
            // A client that leaves meanwhile is not waited for.
            drop(submit(&asks[0]));
            std::thread::yield_now();
            assert_eq!(setup.add(&engine.0, Some(engine.1)), engine.1);
        }
        let mut n_parked = 0;
        for (i, (ask, events)) in asks.iter().zip(running).enumerate() {
            let answers = collect(events);
            n_parked += answers[0].n_preempted;
            let alone = setup.answers(ask);
            assert_eq!(answers.len(), alone.len());
            for (answer, alone) in answers.iter().zip(alone).filter(|_| i > 0) {
                assert_eq!(answer.bits(), alone.bits(), "{i} of {}", model.name());
            }
        }
        assert!(n_parked > 0, "none was running");
        let waiting = submit(&asks[0]);
        engine.0.suspend(engine.1).blocking_recv().unwrap();
        engine.0.remove(engine.1);
        let end = collect(waiting).remove(0).why;
        assert!(matches!(end, Some(Why::Failed(JobError::Gone))), "{end:?}");
        engine.0.stop(Duration::from_secs(5));
    }
}
