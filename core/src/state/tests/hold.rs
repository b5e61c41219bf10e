//! Pages and states that hosts hold without a sequence.

use super::super::hold::PAGE_VERSION;
use super::{CONV, IDENTITY, LIMITS, TOKENS, recurrent, toy_step, two_shapes, with_state};
use crate::model::tests::KIND;
use crate::state::{PAGE_TOKENS, SnapshotError, State, StateError, StateLimits};
extern crate std;
use std::vec;
use std::vec::Vec;

#[test]
fn checkpoints_are_named_once_counted_and_attached_to_pages() {
    with_state(&[CONV, KIND], &recurrent(0, 1), |state| {
        toy_step(state, 0, &TOKENS, true);
        let more: Vec<f32> = (0..PAGE_TOKENS - TOKENS.len()).map(|i| i as f32).collect();
        toy_step(state, 0, &more, true);
        state.checkpoint(0, 1).unwrap();
        let taken = Err(StateError::NameTaken { name: 1 });
        assert_eq!(state.checkpoint(0, 1), taken);
        let full = Err(StateError::NoCheckpoint { n_checkpoints: 1 });
        assert_eq!(state.checkpoint(0, 2), full);
        let page = state.retain(0, 0).unwrap();
        let expected = toy_step(state, 0, &TOKENS, true);
        state.clear(0).unwrap();
        // Without the state, or with another, a recurrent model cannot continue from pages only.
        let pages = [page];
        for name in [None, Some(9)] {
            let len = PAGE_TOKENS;
            let missing = Err(StateError::NoState { len, name });
            assert_eq!(state.attach(1, &pages, name), missing);
        }
        state.attach(1, &pages, Some(1)).unwrap();
        assert_eq!(state.len(1), PAGE_TOKENS);
        assert_eq!(
            toy_step(state, 1, &TOKENS, true).to_bits(),
            expected.to_bits()
        );
        pages.into_iter().for_each(|page| state.release(page));
        state.forget(1);
        state.clear(1).unwrap();
        assert_eq!(state.free_pages(), 4);
    });
}

#[test]
fn held_pages_outlive_their_sequence_and_travel_as_bytes() {
    with_state(&two_shapes(), &LIMITS, |state| {
        state.reserve(0, 70).unwrap();
        // Something to tell pages apart by.
        for (group, layers) in [(0, 1), (1, 2)] {
            let view = state.view();
            let (pages, _) = view.pages(group);
            for (layer, mark) in (0..layers).zip(7u8..) {
                // SAFETY: a single thread; the block is as long.
                unsafe { pages.pointer(0, 0, layer, 0).write(mark) };
            }
        }
        state.commit(0, 70);
        assert_eq!(state.retain(0, 1), Err(StateError::NoPage { index: 1 }));
        let page = state.retain(0, 0).unwrap();
        state.clear(0).unwrap();
        assert_eq!(state.free_pages(), 3);
        let mut bytes = vec![0; state.page_bytes()];
        state.read_page(&page, &IDENTITY, &mut bytes).unwrap();
        let copy = state.write_page(&IDENTITY, &bytes).unwrap();
        let mut again = vec![0; state.page_bytes()];
        state.read_page(&copy, &IDENTITY, &mut again).unwrap();
        assert_eq!(again, bytes);
        // Another version, model, shape or length is refused.
        for (at, error) in [
            (0, SnapshotError::Version(PAGE_VERSION ^ 1)),
            (8, SnapshotError::OtherModel),
            (39, SnapshotError::OtherModel),
            (40, SnapshotError::OtherShape),
        ] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(
                state.write_page(&IDENTITY, &other),
                Err(StateError::Snapshot(error))
            );
        }
        assert!(state.write_page(&IDENTITY, &bytes[1..]).is_err());
        // Both begin another text; each then has two holders.
        let pages = [page, copy];
        state.attach(1, &pages, None).unwrap();
        assert_eq!((state.len(1), state.free_pages()), (128, 2));
        assert!(state.attach(1, &pages, None).is_err());
        pages.into_iter().for_each(|page| state.release(page));
        assert_eq!(state.free_pages(), 2);
        state.clear(1).unwrap();
        assert_eq!(state.free_pages(), 4);
    });
}

/// Pages held while a window still needed them, then one that it had left: pages before that one are not
/// looked at, and so not taken.
#[test]
fn pages_before_one_that_was_given_back_are_not_taken() {
    let limits = StateLimits {
        n_ctx: 16 * PAGE_TOKENS,
        windows_give_back: true,
        ..LIMITS
    };
    with_state(&two_shapes(), &limits, |state| {
        let grow = |state: &mut State<'_>| {
            state.reserve(0, PAGE_TOKENS).unwrap();
            state.commit(0, PAGE_TOKENS);
        };
        grow(state);
        let first = state.retain(0, 0).unwrap();
        (0..5).for_each(|_| grow(state));
        let others = [1, 2, 3, 4, 5].map(|index| state.retain(0, index).unwrap());
        let pages: Vec<_> = core::iter::once(first).chain(others).collect();
        let free = state.free_pages();
        state.attach(1, &pages, None).unwrap();
        assert_eq!((state.len(1), state.free_pages()), (6 * PAGE_TOKENS, free));
        grow(state);
        state.reserve(1, PAGE_TOKENS).unwrap();
        state.commit(1, PAGE_TOKENS);
        (0..2).for_each(|sequence| state.clear(sequence).unwrap());
        pages.into_iter().for_each(|page| state.release(page));
        let n_pages = state.config().groups().iter().map(|group| group.n_pages);
        assert_eq!(state.free_pages(), n_pages.min().unwrap());
    });
}

#[test]
#[should_panic(expected = "the page is one of this state")]
fn a_page_is_given_back_where_it_was_taken() {
    with_state(&[KIND], &LIMITS, |state| {
        state.reserve(0, PAGE_TOKENS).unwrap();
        state.commit(0, PAGE_TOKENS);
        let page = state.retain(0, 0).unwrap();
        with_state(&[KIND], &LIMITS, |other| {
            let foreign = Err(StateError::ForeignPage);
            assert_eq!(other.attach(0, core::slice::from_ref(&page), None), foreign);
            other.release(page);
        });
    });
}
