//! How often draft tokens are right.

use super::DraftToken;

/// Draft tokens that are equally sure: where they come from, and how much spoke for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u8);

/// First classes of the sources.
const TEXT: u8 = 0;
const TABLE: u8 = 8;
const FORCED: u8 = 17;
const MODEL: u8 = 18;
const N_MODEL: u8 = 10;
/// Classes in all.
const N: usize = (MODEL + N_MODEL + 1) as usize;

/// How often draft tokens of each class are right before any was seen.
#[rustfmt::skip]
const FIRST: [f32; N] = [
    // By the length of the match: 2, 3, 4, 5 to 6, 7 to 9, 10 to 15, 16 to 31, longer.
    0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9,
    // By the tokens looked at and how often they led there: once, twice or thrice, oftener.
    0.1, 0.2, 0.3, 0.2, 0.35, 0.5, 0.3, 0.5, 0.7,
    // What a grammar leaves no choice about, but for how it is cut into tokens.
    0.8,
    // By the probability that a model gave them, in tenths.
    0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95,
    // Of a model, before it has said how likely.
    0.6,
];

impl Class {
    /// Of what followed a match of so many tokens in the text itself.
    pub const fn text(match_len: usize) -> Self {
        Self(
            TEXT + match match_len {
                0..=2 => 0,
                3 => 1,
                4 => 2,
                5..=6 => 3,
                7..=9 => 4,
                10..=15 => 5,
                16..=31 => 6,
                _ => 7,
            },
        )
    }

    /// Of what a table of n-grams holds at order 0, 1 or 2 (the longest), seen so often.
    pub(super) const fn table(order: u8, count: u32) -> Self {
        let often = match count {
            0..=1 => 0,
            2..=3 => 1,
            _ => 2,
        };
        Self(TABLE + 3 * order + often)
    }

    /// Of what a grammar forces.
    pub const FORCED: Self = Self(FORCED);

    /// Of what a model found likely with this probability.
    pub fn model(probability: f32) -> Self {
        let tenths = (1..N_MODEL).filter(|&tenth| probability * 10.0 >= f32::from(tenth));
        Self(MODEL + tenths.fold(0, |n, _| n + 1))
    }

    /// Of what a model will draft, whatever the probability.
    pub const ANY_MODEL: Self = Self(MODEL + N_MODEL);

    /// Whether a grammar forces the draft.
    pub const fn is_forced(self) -> bool {
        self.0 == FORCED
    }

    /// Whether a model made the draft.
    pub const fn is_model(self) -> bool {
        self.0 >= MODEL
    }
}

/// Steps without a class after which what is known of it is as old as after one with it.
const STEPS_A_TRY: f32 = 4.0;

/// How often draft tokens of each class were right lately.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// Right ones and all of them; older ones count less.
    known: [(f32, f32); N],
    /// What an observation of before is worth after the next.
    fading: f32,
}

impl Acceptance {
    /// Of one text: it follows within a few tokens.
    pub const fn of_text() -> Self {
        Self {
            known: [(0.0, 0.0); N],
            fading: 0.92,
        }
    }

    /// Of all texts.
    pub const fn of_session() -> Self {
        Self {
            known: [(0.0, 0.0); N],
            fading: 0.995,
        }
    }

    /// A draft token of this class was right, or not.
    pub fn note(&mut self, class: Class, is_right: bool) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        *right = *right * self.fading + if is_right { 1.0 } else { 0.0 };
        *all = *all * self.fading + 1.0;
    }

    /// What is known of this class becomes old: at last it is tried again.
    pub fn fade(&mut self, class: Class) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        let left = 1.0 - (1.0 - self.fading) / STEPS_A_TRY;
        (*right, *all) = (*right * left, *all * left);
    }

    /// What followed a text of this acceptance is known: its `drafts`, verified or not, were right up to the first
    /// that is none of `drawn`. `session` learns it, too.
    pub fn compare(
        &mut self,
        session: &mut Self,
        drafts: &[DraftToken],
        drawn: impl Iterator<Item = u32>,
    ) {
        for (draft, token) in drafts.iter().zip(drawn) {
            let is_right = draft.token == token;
            let any = draft.class.is_model().then_some(Class::ANY_MODEL);
            for class in [Some(draft.class), any].into_iter().flatten() {
                self.note(class, is_right);
                session.note(class, is_right);
            }
            if !is_right {
                break;
            }
        }
    }

    /// The part of such draft tokens that are right, 0 to 1, each with all before it: as [`Self::rate`].
    pub fn chances(&self, session: &Self, drafts: &[DraftToken]) -> impl Iterator<Item = f32> {
        drafts.iter().scan(1.0, |chance, draft| {
            *chance *= self.rate(session, draft.class);
            Some(*chance)
        })
    }

    /// The part of draft tokens of this class that are right, 0 to 1, where a text's own are few by those of all texts.
    pub fn rate(&self, session: &Self, class: Class) -> f32 {
        const WEIGHT: f32 = 3.0;
        let (right, all) = self.known[usize::from(class.0)];
        (right + WEIGHT * session.own_rate(class)) / (all + WEIGHT)
    }

    /// As [`Self::rate`], of all texts.
    pub fn own_rate(&self, class: Class) -> f32 {
        const WEIGHT: f32 = 8.0;
        let (right, all) = self.known[usize::from(class.0)];
        (right + WEIGHT * FIRST[usize::from(class.0)]) / (all + WEIGHT)
    }
}
