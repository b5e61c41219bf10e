//! How often guesses are right.

use super::Guess;

/// Guesses that are equally sure: where they come from, and how much spoke for them.
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

/// How often guesses of each class are right before any was seen.
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
    #[expect(clippy::cast_possible_truncation, reason = "there are three orders")]
    pub(super) const fn table(order: usize, count: u32) -> Self {
        let often = match count {
            0..=1 => 0,
            2..=3 => 1,
            _ => 2,
        };
        Self(TABLE + 3 * (order as u8) + often)
    }

    /// Of what a grammar forces.
    pub const FORCED: Self = Self(FORCED);

    /// Of what a model found likely with this probability.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates, and the last tenth is what is above it"
    )]
    pub const fn model(probability: f32) -> Self {
        let tenth = (probability * f32::from_bits(0x4120_0000)) as u8;
        Self(MODEL + if tenth < N_MODEL { tenth } else { N_MODEL - 1 })
    }

    /// Of what a model will guess, whatever the probability.
    pub const ANY_MODEL: Self = Self(MODEL + N_MODEL);

    /// Whether a grammar forces the guess.
    pub const fn is_forced(self) -> bool {
        self.0 == FORCED
    }

    /// Whether a model made the guess.
    pub const fn is_model(self) -> bool {
        self.0 >= MODEL
    }
}

/// What is left of what is known of a class after a step without it.
const FADING: f32 = 0.99;

/// How often guesses of each class were right lately.
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

    /// A guess of this class was right, or not.
    pub fn note(&mut self, class: Class, is_right: bool) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        *right = *right * self.fading + if is_right { 1.0 } else { 0.0 };
        *all = *all * self.fading + 1.0;
    }

    /// What is known of this class becomes old.
    pub fn fade(&mut self, class: Class) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        (*right, *all) = (*right * FADING, *all * FADING);
    }

    /// What followed a text of this acceptance is known: its `guesses`, verified or not, were right up to the first
    /// that is none of `drawn`. `session` learns it, too.
    pub fn compare(
        &mut self,
        session: &mut Self,
        guesses: &[Guess],
        drawn: impl Iterator<Item = u32>,
    ) {
        for (guess, token) in guesses.iter().zip(drawn) {
            let is_right = guess.token == token;
            let any = guess.class.is_model().then_some(Class::ANY_MODEL);
            for class in [Some(guess.class), any].into_iter().flatten() {
                self.note(class, is_right);
                session.note(class, is_right);
            }
            if !is_right {
                break;
            }
        }
    }

    /// The part of such guesses that are right, 0 to 1, each with all before it: as [`Self::rate`].
    pub fn chances(&self, session: &Self, guesses: &[Guess]) -> impl Iterator<Item = f32> {
        guesses.iter().scan(1.0, |chance, guess| {
            *chance *= self.rate(session, guess.class);
            Some(*chance)
        })
    }

    /// The part of guesses of this class that are right, 0 to 1, where a text's own are few by those of all texts.
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
