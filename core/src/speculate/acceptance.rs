//! The rate at which draft tokens are right.

use super::DraftToken;

/// A class of draft tokens that are equally likely to be right, by their source and its evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u8);

/// First classes of the sources.
const TEXT: u8 = 0;
const TABLE: u8 = 8;
const FORCED: u8 = 17;
const MODEL: u8 = 18;
const N_MODEL: u8 = 10;
/// Number of classes.
const N: usize = (MODEL + N_MODEL + 1) as usize;

/// The initial rate of right draft tokens for each class.
#[rustfmt::skip]
const FIRST: [f32; N] = [
    // By the length of the match: 2, 3, 4, 5 to 6, 7 to 9, 10 to 15, 16 to 31, longer.
    0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9,
    // By the length of the context and the number of times it was seen: once, two or three times, more often.
    0.1, 0.2, 0.3, 0.2, 0.35, 0.5, 0.3, 0.5, 0.7,
    // Tokens that a grammar forces; only their split into tokens is uncertain.
    0.8,
    // By the probability that a model gave them, in tenths.
    0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95,
    // From a model, before its probability is known.
    0.6,
];

impl Class {
    /// For the continuation of a match of `match_len` tokens in the text itself.
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

    /// For an entry of a table of n-grams of order 0, 1 or 2 (the longest), by the number of times it was seen.
    pub(super) const fn table(order: u8, count: u32) -> Self {
        let often = match count {
            0..=1 => 0,
            2..=3 => 1,
            _ => 2,
        };
        Self(TABLE + 3 * order + often)
    }

    /// For tokens that a grammar forces.
    pub const FORCED: Self = Self(FORCED);

    /// For tokens to which a model gave this probability.
    pub fn model(probability: f32) -> Self {
        let tenths = (1..N_MODEL).filter(|&tenth| probability * 10.0 >= f32::from(tenth));
        Self(MODEL + tenths.fold(0, |n, _| n + 1))
    }

    /// For tokens that a model will draft, whatever the probability.
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

/// Steps without a class that age its statistics as much as one step with it.
const STEPS_A_TRY: f32 = 4.0;

/// The recent rate of right draft tokens for each class.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// Counts of right ones and of all; older observations weigh less.
    known: [(f32, f32); N],
    /// The factor on earlier observations at each new one.
    fading: f32,
}

impl Acceptance {
    /// For one text: it adapts within a few tokens.
    pub const fn of_text() -> Self {
        Self {
            known: [(0.0, 0.0); N],
            fading: 0.92,
        }
    }

    /// For all texts.
    pub const fn of_session() -> Self {
        Self {
            known: [(0.0, 0.0); N],
            fading: 0.995,
        }
    }

    /// Records whether a draft token of this class was right.
    pub fn note(&mut self, class: Class, is_right: bool) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        *right = *right * self.fading + if is_right { 1.0 } else { 0.0 };
        *all = *all * self.fading + 1.0;
    }

    /// Ages the statistics of this class, so that it is eventually tried again.
    pub fn fade(&mut self, class: Class) {
        let (right, all) = &mut self.known[usize::from(class.0)];
        let left = 1.0 - (1.0 - self.fading) / STEPS_A_TRY;
        (*right, *all) = (*right * left, *all * left);
    }

    /// Learns from the actual continuation of a text with this acceptance: its `drafts`, verified or not, were right up
    /// to the first that differs from `drawn`. `session` learns it, too.
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

    /// The fraction of such draft tokens that are right, 0 to 1, each given that all before it are: as [`Self::rate`].
    pub fn chances(&self, session: &Self, drafts: &[DraftToken]) -> impl Iterator<Item = f32> {
        drafts.iter().scan(1.0, |chance, draft| {
            *chance *= self.rate(session, draft.class);
            Some(*chance)
        })
    }

    /// The fraction of draft tokens of this class that are right, 0 to 1; all texts' rate counts if this one has few.
    pub fn rate(&self, session: &Self, class: Class) -> f32 {
        const WEIGHT: f32 = 3.0;
        let (right, all) = self.known[usize::from(class.0)];
        (right + WEIGHT * session.own_rate(class)) / (all + WEIGHT)
    }

    /// As [`Self::rate`], for all texts.
    pub fn own_rate(&self, class: Class) -> f32 {
        const WEIGHT: f32 = 8.0;
        let (right, all) = self.known[usize::from(class.0)];
        (right + WEIGHT * FIRST[usize::from(class.0)]) / (all + WEIGHT)
    }
}
