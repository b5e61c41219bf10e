//! The engine's thread: the same answer whatever else runs and whatever was computed before.

mod ask;
mod mixes;
mod places;
mod shares;

use ask::{Answer, Ask, Setup, lfm2, tale};
use core::time::Duration;
use sluice_serve::engine::{JobError, SlotAction, Why};
use std::time::Instant;

#[test]
fn a_text_comes_token_by_token() {
    let setup = Setup::new(&tale());
    let answer = setup.answer(&Ask::text(&setup, "Once upon a time", 20));
    assert_eq!(answer.tokens.len(), 20);
    assert!(answer.text.len() > 20, "{}", answer.text);
    assert!(
        matches!(answer.why, Some(Why::Ended(_))),
        "{:?}",
        answer.why
    );
    assert_eq!(answer.cached, 0);
}

#[test]
fn what_was_read_once_is_found_again() {
    for model in [tale(), lfm2()] {
        let setup = Setup::new(&model);
        let ask = Ask::tokens(&setup, 1, 150, 8);
        let first = setup.answer(&ask);
        assert_eq!(first.cached, 0);
        let again = setup.answer(&ask);
        // A recurrent state cannot be rolled back from the end of the answer, but there is one at the last full page.
        let expected = if setup.is_recurrent() { 128 } else { 149 };
        assert_eq!(again.cached, expected);
        assert_eq!(again.bits(), first.bits());
        // With another salt nothing is found, and the answer is the same.
        let salted = Ask {
            salt: "other".into(),
            ..ask.clone()
        };
        let other = setup.answer(&salted);
        assert_eq!((other.cached, other.bits()), (0, first.bits()));
        // So it is for a request that does not use the cache.
        let alone = Ask {
            uses_cache: false,
            ..ask
        };
        let alone = setup.answer(&alone);
        assert_eq!((alone.cached, alone.bits()), (0, first.bits()));
    }
}

#[test]
fn a_conversation_goes_on_where_it_ended() {
    for model in [tale(), lfm2()] {
        let setup = Setup::new(&model);
        let ask = Ask::tokens(&setup, 2, 70, 10);
        let first = setup.answer(&ask);
        let mut longer = ask.clone();
        longer.prompt.extend(&first.tokens);
        longer.prompt.extend([5, 6, 7]);
        let second = setup.answer(&longer);
        // All but the last sampled token, which was not read.
        assert_eq!(second.cached, 79);
        let fresh = Setup::new(&model).answer(&longer);
        assert_eq!((fresh.cached, fresh.bits()), (0, second.bits()));
    }
}

#[test]
fn choices_are_texts_of_their_own() {
    for model in [tale(), lfm2()] {
        let setup = Setup {
            n_seq: 3,
            ..Setup::new(&model)
        };
        let ask = Ask {
            n: 5,
            temperature: 1.0,
            ..Ask::tokens(&setup, 3, 100, 12)
        };
        let together = setup.answers(&ask);
        assert_eq!(together.len(), 5);
        for (number, answer) in (0..).zip(&together) {
            let one = Ask {
                n: 1,
                number,
                ..ask.clone()
            };
            let alone = Setup::new(&model).answer(&one);
            assert_eq!(alone.bits(), answer.bits(), "choice {number}");
        }
        assert_ne!(together[0].tokens, together[1].tokens);
    }
}

#[test]
fn who_leaves_makes_room() {
    let setup = Setup {
        n_seq: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let long = setup
        .submit(&engine, &Ask::tokens(&setup, 4, 20, 400))
        .unwrap();
    let short = setup
        .submit(&engine, &Ask::tokens(&setup, 5, 20, 3))
        .unwrap();
    drop(long);
    let start = Instant::now();
    assert_eq!(ask::collect(short)[0].tokens.len(), 3);
    assert!(start.elapsed() < Duration::from_secs(5));
    engine.0.stop(Duration::from_secs(5));
}

#[test]
fn what_cannot_be_done_is_said() {
    let setup = Setup {
        max_queue: 2,
        n_seq: 1,
        ..Setup::new(&tale())
    };
    let engine = setup.engine();
    let long = Ask::tokens(&setup, 6, setup.n_ctx + 1, 1);
    let refused = setup.submit(&engine, &long).unwrap_err();
    assert!(matches!(refused, JobError::TooLong { .. }), "{refused}");
    let mut kept = Vec::new();
    let busy =
        (0..10).find_map(
            |i| match setup.submit(&engine, &Ask::tokens(&setup, i, 200, 200)) {
                Ok(events) => {
                    kept.push(events);
                    None
                }
                Err(error) => Some(error),
            },
        );
    assert!(matches!(busy, Some(JobError::Busy { .. })), "{busy:?}");
    engine.0.remove(engine.1);
    for events in kept {
        let ends = ask::collect(events);
        assert!(
            ends.iter()
                .all(|answer| !matches!(answer.why, Some(Why::Stop(_))))
        );
    }
    let gone = setup
        .submit(&engine, &Ask::tokens(&setup, 0, 10, 1))
        .unwrap_err();
    assert!(matches!(gone, JobError::Gone), "{gone}");
}

#[test]
fn a_deadline_ends_a_text() {
    let setup = Setup::new(&tale());
    let ask = Ask {
        deadline: Some(Duration::from_millis(60)),
        ..Ask::tokens(&setup, 7, 30, 100_000)
    };
    let answer = setup.answer(&ask);
    assert!(matches!(answer.why, Some(Why::Late)), "{:?}", answer.why);
    let ask = Ask {
        shift: Some(8),
        deadline: Some(Duration::from_secs(100)),
        ..Ask::tokens(&setup, 7, 30, 2 * setup.n_ctx)
    };
    let answer = setup.answer(&ask);
    assert_eq!(answer.tokens.len(), 2 * setup.n_ctx);
}

#[test]
fn the_context_ends_a_text_and_a_shift_does_not() {
    let setup = Setup {
        n_ctx: 128,
        n_seq: 1,
        ..Setup::new(&tale())
    };
    let ask = Ask::tokens(&setup, 8, 100, 1000);
    let answer = setup.answer(&ask);
    assert_eq!(answer.tokens.len(), 29);
    let shifted = Ask {
        shift: Some(10),
        n_predict: 200,
        ..ask.clone()
    };
    let first = setup.answer(&shifted);
    assert_eq!(first.tokens.len(), 200);
    assert_eq!(first.tokens[..29], answer.tokens[..]);
    let engine = setup.engine();
    let both =
        [&shifted, &shifted].map(|ask| ask::collect(setup.submit(&engine, ask).unwrap()).remove(0));
    assert_eq!(
        (both[0].bits(), both[1].bits()),
        (first.bits(), first.bits())
    );
}

#[test]
fn pages_are_found_on_disk_after_a_restart() {
    for model in [tale(), lfm2()] {
        let setup = Setup::new(&model).with_disk("restart");
        let ask = Ask::tokens(&setup, 9, 300, 6);
        let first = setup.answer(&ask);
        let again = setup.answer(&ask);
        assert_eq!(
            (again.cached, again.bits()),
            (256, first.bits()),
            "{}",
            setup.model.name()
        );
        // Neither a damaged page nor those after it are used.
        setup.damage_pages();
        let damaged = setup.answer(&ask);
        assert_eq!((damaged.cached, damaged.bits()), (0, first.bits()));
        setup.remove_disk();
    }
}

#[test]
fn slots_are_saved_and_restored() {
    for model in [tale(), lfm2()] {
        let setup = Setup::new(&model);
        let engine = setup.engine();
        let ask = Ask::tokens(&setup, 10, 90, 5);
        let first = ask::collect(setup.submit(&engine, &ask).unwrap()).remove(0);
        let act = |action| {
            engine
                .0
                .slot(engine.1, first.slot, "".into(), action)
                .blocking_recv()
                .unwrap()
        };
        let saved = act(SlotAction::Save).unwrap();
        assert_eq!(saved.n_tokens, 94);
        assert_eq!(act(SlotAction::Erase).unwrap().n_tokens, 94);
        assert!(act(SlotAction::Save).is_err());
        let other = setup.engine();
        let restored = other
            .0
            .slot(
                other.1,
                1,
                "".into(),
                SlotAction::Restore(saved.saved.unwrap(), None),
            )
            .blocking_recv()
            .unwrap()
            .unwrap();
        assert_eq!(restored.n_tokens, 94);
        let mut longer = ask.clone();
        longer.prompt.extend(&first.tokens);
        let second = ask::collect(setup.submit(&other, &longer).unwrap()).remove(0);
        assert_eq!(second.cached, 94);
        assert_eq!(second.bits(), setup.answer(&longer).bits());
    }
}

#[test]
fn a_slow_reader_stops_its_own_text_alone() {
    for gathers in [false, true] {
        let setup = Setup {
            n_seq: 2,
            channel: 4,
            gathers,
            ..Setup::new(&tale())
        };
        let engine = setup.engine();
        // More events than the channel holds, gathered or not.
        let slow = Ask::tokens(&setup, 11, 20, 200);
        let waiting = setup.submit(&engine, &slow).unwrap();
        let other = Ask::tokens(&setup, 12, 20, 60);
        let other = ask::collect(setup.submit(&engine, &other).unwrap());
        assert_eq!(other[0].tokens.len(), 60);
        let answer: Answer = ask::collect(waiting).remove(0);
        assert_eq!(answer.bits(), setup.answer(&slow).bits());
    }
}
