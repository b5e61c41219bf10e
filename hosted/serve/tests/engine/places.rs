//! Places that texts give up: what is counted of them, what is kept, and who waits for which slot.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::ask::{Ask, Setup, collect, tale};
use core::time::Duration;
use sluice::Model;
use sluice_core::pooling::Pooling;
use sluice_serve::engine::{
    EmbedJob, EngineHandle, Event, JobError, ModelId, ModelView, Share, Why,
};
use std::time::Instant;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;

/// Waits until the state of the model is as wanted.
fn wait_until((engine, id): &(EngineHandle, ModelId), wanted: impl Fn(&ModelView) -> bool) {
    let begun = Instant::now();
    while !wanted(&engine.view(*id).unwrap()) {
        let view = engine.view(*id).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{view:?}");
        std::thread::yield_now();
    }
}

/// A setup in which a few unread tokens are too many.
fn impatient() -> Setup {
    Setup {
        n_seq: 1,
        channel: 1,
        reader_buffer: 8 << 10,
        ..Setup::new(&tale())
    }
}

fn of(share: &str, ask: Ask) -> Ask {
    let share = share.to_owned();
    Ask { share, ..ask }
}

/// Whether all tokens of the only text came, and why it ended.
fn end(mut events: Receiver<Vec<Event>>) -> (usize, Why) {
    let all = core::iter::from_fn(|| events.blocking_recv()).flatten();
    let (mut n_tokens, mut end) = (0, None);
    for event in all {
        match event {
            Event::Token { .. } => n_tokens += 1,
            Event::Ended { why, .. } => end = Some(why),
            _ => {}
        }
    }
    (n_tokens, end.unwrap())
}

#[test]
fn parked_texts_count_for_the_queue_of_their_share() {
    let setup = Setup {
        max_queue: 2,
        ..impatient()
    };
    let engine = setup.engine();
    let unread = |seed| of("flood", Ask::tokens(&setup, seed, 20, 400));
    let park = |seed, n| {
        let events = setup.submit(&engine, &unread(seed)).unwrap();
        wait_until(&engine, |view| view.n_waiting == n && view.n_running == 0);
        events
    };
    let first = park(80, 1);
    let second = park(81, 2);
    let refused = setup.submit(&engine, &unread(82)).unwrap_err();
    let two = matches!(refused, JobError::Busy { n_waiting: 2, .. });
    assert!(two, "{refused}");
    let other = of("polite", Ask::tokens(&setup, 83, 20, 3));
    let answer = collect(setup.submit(&engine, &other).unwrap()).remove(0);
    assert_eq!(answer.tokens.len(), 3);
    // The place in the queue is free when the text has ended, or its client has left.
    assert_eq!(collect(first).remove(0).tokens.len(), 400);
    let third = park(84, 2);
    drop(second);
    wait_until(&engine, |view| view.n_waiting == 1);
    let fourth = park(85, 2);
    assert!(setup.submit(&engine, &unread(86)).is_err());
    drop((third, fourth));
    wait_until(&engine, |view| view.n_waiting == 0);
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn unread_ends_count_for_the_queue_of_their_share() {
    let setup = Setup {
        max_queue: 2,
        channel: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let mut unread = Vec::new();
    let begun = Instant::now();
    let busy = (0..20).find_map(|seed| {
        let asked = setup.submit(&engine, &Ask::tokens(&setup, seed, 20, 20));
        if let Ok(events) = &asked {
            // The first event comes while it runs.
            wait_until(&engine, |view| events.len() == 1 && view.n_running == 0);
        }
        asked.map(|events| unread.push(events)).err()
    });
    assert!(matches!(busy, Some(JobError::Busy { .. })), "{busy:?}");
    for events in unread {
        assert_eq!(collect(events).remove(0).tokens.len(), 20);
    }
    while let Err(error) = setup.submit(&engine, &Ask::tokens(&setup, 99, 20, 1)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
    }
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn an_answer_that_has_ended_can_be_read_when_its_model_is_gone() {
    let setup = Setup {
        channel: 1,
        ..Setup::new(&tale())
    };
    for is_suspended in [false, true] {
        let engine = setup.engine();
        let events = setup.submit(&engine, &Ask::tokens(&setup, 5, 20, 20));
        let events = events.unwrap();
        wait_until(&engine, |view| events.len() == 1 && view.n_running == 0);
        if is_suspended {
            engine.0.suspend(engine.1).blocking_recv().unwrap();
        }
        engine.0.remove(engine.1);
        let (n_tokens, why) = end(events);
        assert!(n_tokens == 20 && matches!(why, Why::Ended(_)), "{why:?}");
        engine.0.stop(Duration::from_secs(5));
    }
}

#[test]
fn an_end_of_a_model_that_is_gone_keeps_no_engine_from_stopping() {
    let setup = Setup {
        channel: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let unread = setup.submit(&engine, &Ask::tokens(&setup, 5, 20, 20));
    let unread = unread.unwrap();
    wait_until(&engine, |view| unread.len() == 1 && view.n_running == 0);
    engine.0.remove(engine.1);
    let begun = Instant::now();
    engine.0.stop(Duration::from_secs(60));
    assert!(begun.elapsed() < Duration::from_secs(30));
    drop(unread);
}

#[test]
fn a_share_loses_no_place_of_the_queue_to_a_file_that_changed() {
    let setup = Setup {
        max_queue: 1,
        channel: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let path = std::env::temp_dir().join(format!("sluice-engine-other-{}", std::process::id()));
    std::fs::copy(
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../models/tale-5.8m-Q4_K_M.gguf"
        ),
        &path,
    )
    .unwrap();
    let other = Setup::new(&Model::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let unread = setup.submit(&engine, &Ask::tokens(&setup, 5, 20, 20));
    let unread = unread.unwrap();
    wait_until(&engine, |view| unread.len() == 1 && view.n_running == 0);
    engine.0.suspend(engine.1).blocking_recv().unwrap();
    // Waits, and fails when another file takes the model's place.
    let begun = Instant::now();
    assert_eq!(other.add(&engine.0, Some(engine.1)), engine.1);
    let ask = Ask::tokens(&setup, 6, 20, 3);
    let next = loop {
        match setup.submit(&engine, &ask) {
            Ok(events) => break events,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(collect(next).remove(0).tokens.len(), 3);
    assert_eq!(end(unread).0, 20);
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn of_unread_shifted_texts_a_bounded_number_is_kept_and_places_stay_free() {
    let setup = Setup {
        n_ctx: 128,
        ..impatient()
    };
    let engine = setup.engine();
    // Long enough to be shifted before too much is unread.
    let shifted = |share, seed| {
        let ask = Ask::tokens(&setup, seed, 120, 300);
        of(
            share,
            Ask {
                shift: Some(8),
                ..ask
            },
        )
    };
    let asks: Vec<_> = (0..7).map(|seed| shifted("flood", 90 + seed)).collect();
    let flood: Vec<_> = asks
        .iter()
        .map(|ask| setup.submit(&engine, ask).unwrap())
        .collect();
    // Four texts for the only sequence.
    wait_until(&engine, |view| view.n_running == 0 && view.n_waiting == 4);
    let polite = shifted("polite", 100);
    let stopped = setup.submit(&engine, &polite).unwrap();
    let small = of("small", Ask::tokens(&setup, 101, 20, 3));
    let answer = collect(setup.submit(&engine, &small).unwrap()).remove(0);
    assert_eq!(answer.tokens.len(), 3);
    wait_until(&engine, |view| view.n_running == 0 && view.n_waiting == 4);
    let ends: Vec<_> = flood.into_iter().map(end).collect();
    for (i, (n_tokens, why)) in ends.iter().enumerate() {
        let is_kept = i < 3;
        let is_failed =
            matches!(why, Why::Failed(JobError::Failed(what)) if what.contains("not read"));
        assert_eq!(
            (*n_tokens == 300, is_failed),
            (is_kept, !is_kept),
            "{i}: {why:?}"
        );
    }
    let whole = collect(stopped).remove(0);
    assert!(whole.n_preempted > 0);
    let alone = Setup {
        reader_buffer: 1 << 20,
        ..setup.clone()
    };
    assert_eq!(whole.bits(), alone.answer(&polite).bits());
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn a_choice_that_finds_no_place_does_not_wait_for_the_slot_of_the_first() {
    let setup = Setup {
        n_seq: 2,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let other = Ask {
        slot: Some(1),
        ..Ask::tokens(&setup, 110, 20, 40)
    };
    let pinned = Ask {
        slot: Some(0),
        n: 2,
        temperature: 1.0,
        ..Ask::tokens(&setup, 111, 30, 300)
    };
    let other = setup.submit(&engine, &other).unwrap();
    let mut events = setup.submit(&engine, &pinned).unwrap();
    let all = core::iter::from_fn(|| events.blocking_recv()).flatten();
    let (mut n_started, mut order) = (0, Vec::new());
    for event in all {
        match event {
            Event::Started { slot, .. } => {
                assert_eq!(slot, 0);
                n_started += 1;
            }
            Event::Token { choice: 1, .. } if order.is_empty() => order.push("second begins"),
            Event::Ended { choice: 0, .. } => order.push("first ends"),
            _ => {}
        }
    }
    assert_eq!(order, ["second begins", "first ends"]);
    // What it found of the prompt is counted once.
    assert_eq!(n_started, 1);
    assert_eq!(collect(other).remove(0).tokens.len(), 40);
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn what_comes_while_a_model_is_suspended_is_swept() {
    let setup = Setup {
        max_queue: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    engine.0.suspend(engine.1).blocking_recv().unwrap();
    let late = Ask {
        deadline: Some(Duration::from_millis(50)),
        ..Ask::tokens(&setup, 120, 20, 5)
    };
    let (n_tokens, why) = end(setup.submit(&engine, &late).unwrap());
    assert!(n_tokens == 0 && matches!(why, Why::Late), "{why:?}");
    // What a client leaves is not counted any longer.
    let begun = Instant::now();
    let again = |what: &dyn Fn() -> Result<(), JobError>| {
        while let Err(error) = what() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
            std::thread::yield_now();
        }
    };
    let ask = Ask::tokens(&setup, 121, 20, 5);
    again(&|| setup.submit(&engine, &ask).map(drop));
    again(&|| {
        let (answer, _left) = oneshot::channel();
        engine.0.embed(EmbedJob {
            request: "left".into(),
            model: engine.1,
            texts: vec![vec![5; 20]],
            pooling: Pooling::Mean,
            adapter: None,
            share: Share::default(),
            arrived: Instant::now(),
            answer,
        })
    });
    let mut last = None;
    again(&|| setup.submit(&engine, &ask).map(drop));
    while last.is_none() {
        last = setup.submit(&engine, &ask).ok();
    }
    assert_eq!(setup.add(&engine.0, Some(engine.1)), engine.1);
    let answer = collect(last.unwrap()).remove(0);
    assert_eq!(answer.bits(), setup.answer(&ask).bits());
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn a_deadline_before_the_first_token_ends_all_choices_alike() {
    let setup = Setup {
        n_ctx: 4096,
        turn: Duration::from_millis(1),
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let ask = Ask {
        n: 3,
        deadline: Some(Duration::from_millis(20)),
        ..Ask::tokens(&setup, 130, 4000, 5)
    };
    let answers = collect(setup.submit(&engine, &ask).unwrap());
    assert_eq!(answers.len(), 3);
    for answer in answers {
        assert!(matches!(answer.why, Some(Why::Late)), "{:?}", answer.why);
    }
    engine.0.stop(Duration::from_secs(5));
}
