use super::config::{GroupConfig, KvRotation};
use super::{Identity, PAGE_TOKENS, RUN_PAGES, State, StateConfig, StateError, StateLimits};
use crate::kernels::{KvLayout, KvType};
use crate::memory::{ALIGN, MemoryError};
use crate::model::tests::{ATTENTION, KIND, config_of};
use crate::model::{Attention, LayerKind, Mixer, ShortConv};
extern crate std;
use std::vec;

const IDENTITY: Identity = Identity([5; 32]);

/// Four pages, three sequences.
const LIMITS: StateLimits = StateLimits {
    n_ctx: 2 * PAGE_TOKENS,
    n_held: 0,
    n_batch: 64,
    n_seq: 3,
    type_k: KvType::F16,
    type_v: KvType::F16,
    kv_rotation: true,
    n_behind: 0,
    n_checkpoints: 0,
    windows_give_back: false,
};

const CONV: LayerKind = LayerKind {
    mixer: Mixer::ShortConv(ShortConv { n_taps: 3 }),
    ..KIND
};

/// Memory of exactly the size in a plan, less `less` bytes, filled with bytes that read as NaN.
fn with_memory<R>(config: &StateConfig, less: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
    let bytes = config.plan().unwrap().bytes() - less;
    let mut memory = vec![0xff; bytes + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    act(&mut memory[start..start + bytes])
}

fn with_state<R>(
    kinds: &[LayerKind],
    limits: &StateLimits,
    act: impl FnOnce(&mut State<'_>) -> R,
) -> R {
    let config = StateConfig::new(&config_of(kinds), limits);
    with_memory(&config, 0, |memory| {
        act(&mut State::new(config.clone(), memory).unwrap())
    })
}

#[test]
fn a_plan_is_exactly_what_a_state_takes() {
    for ty in KvType::ALL {
        for (n_ctx, n_seq) in [(64, 1), (200, 3), (1000, 2)] {
            let limits = StateLimits {
                n_ctx,
                n_seq,
                type_k: ty,
                type_v: ty,
                n_behind: 2,
                n_checkpoints: 3,
                ..LIMITS
            };
            for kinds in [&[KIND][..], &[CONV, KIND, CONV]] {
                let config = StateConfig::new(&config_of(kinds), &limits);
                let n_pages = n_ctx.div_ceil(64) + n_seq - 1;
                with_memory(&config, 0, |memory| {
                    let state = State::new(config.clone(), memory).unwrap();
                    assert_eq!(state.free_pages(), n_pages);
                });
                let small = MemoryError::TooSmall { missing_bytes: 64 };
                let error = with_memory(&config, 64, |memory| {
                    State::new(config.clone(), memory).map(drop)
                });
                assert_eq!(error, Err(small));
            }
        }
    }
}

#[test]
fn blocks_of_a_head_in_neighbouring_pages_lie_side_by_side() {
    for n_pages in [1, RUN_PAGES - 1, RUN_PAGES, 2 * RUN_PAGES + 1] {
        let config = GroupConfig {
            layout: KvLayout::uniform(KvType::F16, 16),
            rotation: KvRotation::default(),
            n_layer: 2,
            n_head_kv: 1,
            window: None,
            n_pages,
        };
        let n_blocks = config.n_layer * config.n_head_kv;
        let mut is_taken = vec![false; n_pages * n_blocks];
        for block in 0..n_blocks {
            for page in 0..n_pages {
                let index = config.block_index(page, block);
                assert!(!core::mem::replace(&mut is_taken[index], true));
                if page % RUN_PAGES > 0 {
                    assert_eq!(index, config.block_index(page - 1, block) + 1);
                }
            }
        }
    }
}

#[test]
fn pages_are_taken_again_in_the_order_that_they_lie_in() {
    with_state(&[KIND, KIND], &LIMITS, |cache| {
        let pages = |cache: &State<'_>| {
            let view = cache.view();
            [0, 1, 2].map(|index| view.pages(0).0.pointer(0, index, 0, 0))
        };
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        let first = pages(cache);
        assert!(first.is_sorted());
        cache.release_unused(0, 3 * PAGE_TOKENS);
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        cache.commit(0, 3 * PAGE_TOKENS);
        assert_eq!(pages(cache), first);
        cache.rewind(0, 0).unwrap();
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        assert_eq!(pages(cache), first);
    });
}

/// A failed step may take and give back; a forked page is copied once.
#[test]
fn reserved_tokens_count_once_they_are_committed() {
    with_state(&[KIND, KIND], &LIMITS, |cache| {
        cache.reserve(0, 65).unwrap();
        assert_eq!((cache.len(0), cache.free_pages()), (0, 2));
        cache.release_unused(0, 65);
        assert_eq!((cache.len(0), cache.free_pages()), (0, 4));
        cache.reserve(0, PAGE_TOKENS).unwrap();
        cache.commit(0, PAGE_TOKENS);
        assert_eq!((cache.len(0), cache.free_pages()), (64, 3));
        // The next token starts a page; the full one needs no copy.
        cache.fork(0, 1).unwrap();
        cache.reserve(1, 1).unwrap();
        assert_eq!(cache.free_pages(), 2);
        cache.commit(1, 1);
        // The partly filled page is shared by two now, and copied by the first to write.
        cache.fork(1, 2).unwrap();
        cache.reserve(2, 1).unwrap();
        assert_eq!(cache.free_pages(), 1);
        cache.release_unused(2, 1);
        cache.reserve(1, 1).unwrap();
        assert_eq!(cache.free_pages(), 1);
        let full = StateError::Full { needed: 2, free: 1 };
        assert_eq!(cache.reserve(0, 65), Err(full));
        for sequence in 0..3 {
            cache.clear(sequence).unwrap();
        }
        assert_eq!(cache.free_pages(), 4);
    });
}

/// A recurrence small enough to check by hand: the state is a mix of all tokens so far, `s = s / 2 + token`.
/// Runs one step of it as workers would, over tokens of one sequence.
fn toy_step(state: &mut State<'_>, sequence: u32, tokens: &[f32], commits: bool) -> f32 {
    state.reserve(sequence, tokens.len()).unwrap();
    let mut s = 0.0;
    {
        let view = state.view();
        let (slots, offset) = view.states(0);
        let range = offset..offset + 1;
        let at = sequence as usize;
        s = slots
            .before(at, range.clone())
            .map_or(s, |before| before[0]);
        for (i, token) in tokens.iter().enumerate() {
            s = s / 2.0 + token;
            let behind = tokens.len() - 1 - i;
            if behind < slots.n_kept() {
                // SAFETY: a single thread.
                let after = unsafe { slots.after(at, behind, range.clone()) };
                after[0] = s;
            }
        }
    }
    if commits {
        state.commit(sequence, tokens.len());
    } else {
        state.release_unused(sequence, tokens.len());
    }
    s
}

fn toy(tokens: &[f32]) -> f32 {
    tokens.iter().fold(0.0, |s, token| s / 2.0 + token)
}

const TOKENS: [f32; 12] = [
    3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, 6.0, 5.0, -3.0, 5.0, 8.0,
];

fn recurrent(n_behind: usize, n_checkpoints: usize) -> StateLimits {
    StateLimits {
        n_behind,
        n_checkpoints,
        ..LIMITS
    }
}

#[test]
fn a_recurrent_state_is_the_same_however_a_text_is_cut() {
    for chunk in 1..=TOKENS.len() {
        with_state(&[CONV, KIND], &recurrent(2, 0), |state| {
            let mut last = 0.0;
            for tokens in TOKENS.chunks(chunk) {
                // A step that is cancelled changes nothing.
                toy_step(state, 1, &[100.0; 5], false);
                last = toy_step(state, 1, tokens, true);
            }
            assert_eq!(last.to_bits(), toy(&TOKENS).to_bits());
            assert_eq!(state.len(1), TOKENS.len());
        });
    }
}

#[test]
fn a_recurrent_sequence_is_rewound_to_what_is_kept_or_refuses_with_the_nearest() {
    for n_behind in 0..4 {
        with_state(&[CONV, KIND], &recurrent(n_behind, 1), |state| {
            toy_step(state, 0, &TOKENS[..3], true);
            state.checkpoint(0, 7).unwrap();
            toy_step(state, 0, &TOKENS[3..10], true);
            for token in &TOKENS[10..] {
                toy_step(state, 0, &[*token], true);
            }
            let len = TOKENS.len();
            let kept = len - n_behind;
            let nearest = 3;
            assert_eq!(
                state.rewind(0, kept - 1),
                Err(StateError::CannotRewind {
                    len: kept - 1,
                    nearest
                })
            );
            assert_eq!(state.len(0), len);
            state.rewind(0, kept).unwrap();
            let again = toy_step(state, 0, &TOKENS[kept..], true);
            if kept < len {
                assert_eq!(again.to_bits(), toy(&TOKENS).to_bits());
            }
            state.rewind(0, nearest).unwrap();
            let again = toy_step(state, 0, &TOKENS[nearest..], true);
            assert_eq!(again.to_bits(), toy(&TOKENS).to_bits());
            state.forget(7);
            state.clear(0).unwrap();
            assert_eq!(
                toy_step(state, 0, &TOKENS, true).to_bits(),
                toy(&TOKENS).to_bits()
            );
        });
    }
}

#[test]
fn forks_of_a_recurrent_sequence_go_their_own_way() {
    with_state(&[CONV, KIND], &recurrent(1, 0), |state| {
        toy_step(state, 0, &TOKENS[..5], true);
        state.fork(0, 2).unwrap();
        let origin = toy_step(state, 0, &TOKENS[5..], true);
        let mut other = TOKENS;
        other[7] = -77.0;
        let fork = toy_step(state, 2, &other[5..], true);
        assert_eq!(origin.to_bits(), toy(&TOKENS).to_bits());
        assert_eq!(fork.to_bits(), toy(&other).to_bits());
        // All sequences at once, with all that is kept, over and over: slots never run out.
        for _ in 0..20 {
            for sequence in 0..3 {
                if state.len(sequence) > 60 {
                    state.clear(sequence).unwrap();
                }
                toy_step(state, sequence, &TOKENS[..4], true);
            }
        }
    });
}

#[test]
fn a_saved_recurrent_sequence_goes_on_with_the_same_bits() {
    with_state(&[CONV, KIND, CONV], &recurrent(1, 0), |state| {
        toy_step(state, 0, &TOKENS[..9], true);
        let mut bytes = vec![0; state.saved_bytes(0)];
        assert_eq!(state.save(0, &IDENTITY, &mut bytes), Ok(bytes.len()));
        state.restore(1, &IDENTITY, &bytes).unwrap();
        assert_eq!(state.len(1), 9);
        let restored = toy_step(state, 1, &TOKENS[9..], true);
        assert_eq!(restored.to_bits(), toy(&TOKENS).to_bits());
        // A damaged one is refused, and the state is unchanged.
        bytes[70] ^= 1;
        assert!(state.restore(2, &IDENTITY, &bytes).is_err());
        assert_eq!((state.len(2), state.len(1)), (0, 12));
        assert_eq!(state.check_removable(1), Err(StateError::CannotRemove));
    });
}

/// Full layers of one shape, and windowed ones with heads twice as long.
fn two_shapes() -> [LayerKind; 3] {
    let windowed = Mixer::Attention(Attention {
        head_dim_k: 32,
        head_dim_v: 32,
        n_head_kv: 1,
        window: Some(100),
        ..ATTENTION
    });
    let windowed = LayerKind {
        mixer: windowed,
        ..KIND
    };
    [KIND, windowed, windowed]
}

#[test]
fn layers_of_another_shape_have_pages_of_their_own_and_a_window_gives_them_back() {
    for windows_give_back in [false, true] {
        let limits = StateLimits {
            n_ctx: 16 * PAGE_TOKENS,
            n_seq: 1,
            windows_give_back,
            ..LIMITS
        };
        with_state(&two_shapes(), &limits, |state| {
            let [full, windowed] = state.config().groups() else {
                panic!("two groups");
            };
            assert_eq!((full.n_layer, windowed.n_layer), (1, 2));
            assert_eq!(full.n_pages, 16);
            // The window, a step, and both ends.
            let expected = if windows_give_back { 4 } else { 16 };
            assert_eq!(windowed.n_pages, expected);
            for _ in 0..15 {
                state.reserve(0, PAGE_TOKENS).unwrap();
                state.commit(0, PAGE_TOKENS);
            }
            let len = 15 * PAGE_TOKENS;
            assert_eq!(state.len(0), len);
            state.rewind(0, len - 1).unwrap();
            let far = state.rewind(0, 4 * PAGE_TOKENS);
            if windows_give_back {
                let nearest = StateError::CannotRewind {
                    len: 4 * PAGE_TOKENS,
                    nearest: 0,
                };
                assert_eq!(far, Err(nearest));
                assert_eq!(state.check_removable(0), Err(StateError::CannotRemove));
                // The remaining tokens are saved and restored.
                let mut bytes = vec![0; state.saved_bytes(0)];
                state.save(0, &IDENTITY, &mut bytes).unwrap();
                state.clear(0).unwrap();
                state.restore(0, &IDENTITY, &bytes).unwrap();
                assert_eq!(state.len(0), len - 1);
                let mut again = vec![0; state.saved_bytes(0)];
                state.save(0, &IDENTITY, &mut again).unwrap();
                assert_eq!(again, bytes);
            } else {
                assert_eq!(far, Ok(()));
            }
            state.clear(0).unwrap();
            assert_eq!(state.free_pages(), expected.min(16));
        });
    }
}

#[test]
fn a_layer_that_reads_anothers_keys_has_their_place() {
    let reader = LayerKind {
        mixer: Mixer::Attention(Attention {
            keys_of: Some(0),
            ..ATTENTION
        }),
        ..KIND
    };
    with_state(&[KIND, reader, KIND], &LIMITS, |state| {
        assert_eq!(state.config().groups()[0].n_layer, 2);
        let view = state.view();
        let layers = [0, 1, 2].map(|layer| view.pages(layer).1);
        assert_eq!(layers, [0, 0, 1]);
    });
}

/// One step may hold tokens of every sequence, with all kept states of each.
#[test]
fn slots_suffice_for_all_sequences_in_one_step() {
    with_state(&[CONV, KIND], &recurrent(3, 1), |state| {
        for round in 0..10 {
            for n in [1, 2, 4, 7] {
                (0..3).for_each(|sequence| state.reserve(sequence, n).unwrap());
                (0..3).for_each(|sequence| match round % 2 {
                    0 => state.commit(sequence, n),
                    _ => state.release_unused(sequence, n),
                });
            }
            if round == 0 {
                state.checkpoint(1, 1).unwrap();
            }
            (0..3).for_each(|sequence| state.clear(sequence).unwrap());
        }
    });
}

mod hold;
