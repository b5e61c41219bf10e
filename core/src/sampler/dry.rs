//! DRY ("don't repeat yourself"): makes tokens less likely that would continue a repetition.
//!
//! llama.cpp's sampler of that name (`src/llama-sampler.cpp`), which follows koboldcpp's pull
//! request 982. Where the last tokens of the text occurred before, the token that followed them
//! there would continue the repetition; it is penalised by the length of what is repeated.

use super::candidates::find_by_id;
use super::{Candidates, LogitsProcessor, SampleContext, math};

/// Settings of [`Dry`]. The default is llama.cpp's, which is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DryConfig {
    /// Factor of the penalty, default 0: off.
    pub multiplier: f32,
    /// Grows the penalty with the length of the repetition, default 1.75; below 1 is off.
    pub base: f32,
    /// Maximum length of a repetition that may be continued with a penalty of only `multiplier`, default 2.
    pub allowed_length: u32,
    /// Number of the latest tokens that are searched, default 64; 0 is off.
    pub penalty_last_n: u32,
}

impl DryConfig {
    /// llama.cpp's defaults.
    pub const DEFAULT: Self = Self {
        multiplier: 0.0,
        base: 1.75,
        allowed_length: 2,
        penalty_last_n: 64,
    };

    /// Whether these settings change nothing.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        !(self.multiplier != 0.0 && self.base >= 1.0 && self.penalty_last_n > 0)
    }

    /// Words of workspace for a history of `history_len` tokens.
    #[must_use]
    pub fn workspace_len(&self, history_len: usize) -> usize {
        if self.is_neutral() {
            return 0;
        }
        history_len.min(usize::try_from(self.penalty_last_n).unwrap_or(usize::MAX))
    }

    /// `multiplier` times `base` to the power of the part of `repeated` beyond the allowed length.
    fn penalty(&self, repeated: u32) -> f32 {
        let base = f64::from(self.base);
        let mut exponent = repeated - self.allowed_length;
        if self.base > 1.000_001 {
            // So that the power stays within f32.
            let most = 88.722_839_1 / math::ln(base);
            exponent = exponent.min(math::to_u32(most).max(1));
        }
        math::round_to_f32(f64::from(self.multiplier) * math::powi(base, exponent))
    }
}

impl Default for DryConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A sequence of tokens across which nothing counts as a repetition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DryBreaker {
    /// The first token of the sequence.
    pub head: u32,
    /// Start of the other tokens in [`DryBreakers::tails`].
    pub tail_start: u32,
    /// Number of the other tokens.
    pub tail_len: u32,
}

/// The sequence breakers of [`Dry`], as tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryBreakers<'b> {
    /// Sorted by `head`, which may occur several times.
    pub entries: &'b [DryBreaker],
    /// The tokens after the heads.
    pub tails: &'b [u32],
}

impl<'b> DryBreakers<'b> {
    /// The tokens that follow `head` in each of its sequences.
    fn tails_of(&self, head: u32) -> impl Iterator<Item = &'b [u32]> + use<'b> {
        let (entries, tails) = (self.entries, self.tails);
        let first = entries.partition_point(|entry| entry.head < head);
        let same = entries[first..].iter();
        same.take_while(move |entry| entry.head == head)
            .map(move |entry| {
                let start = usize::try_from(entry.tail_start).unwrap_or(usize::MAX);
                let len = usize::try_from(entry.tail_len).unwrap_or(usize::MAX);
                tails.get(start..start.saturating_add(len)).unwrap_or(&[])
            })
    }

    /// Length of the longest sequence that begins `back` tokens before the last of `recent` and
    /// is complete there.
    fn longest_at(&self, recent: &Reversed<'_>, back: usize) -> Option<usize> {
        self.tails_of(recent.at(back))
            .filter(|tail| {
                tail.len() <= back
                    && (1..)
                        .zip(tail.iter())
                        .all(|(n, &id)| recent.at(back - n) == id)
            })
            .map(<[u32]>::len)
            .max()
    }

    fn is_single(&self, id: u32) -> bool {
        self.tails_of(id).any(<[u32]>::is_empty)
    }
}

/// The penalty, with the memory and settings that it needs from the caller.
#[derive(Debug)]
pub struct Dry<'d> {
    /// Its settings.
    pub config: DryConfig,
    /// Sequences that end a repetition.
    pub breakers: DryBreakers<'d>,
    /// Scratch: [`DryConfig::workspace_len`] words. With fewer, only as many of the latest
    /// tokens are searched.
    pub workspace: &'d mut [u32],
}

impl LogitsProcessor for Dry<'_> {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        let len = self.config.workspace_len(context.history.len());
        let len = len.min(self.workspace.len());
        let recent = Reversed(&context.history[context.history.len() - len..]);
        let allowed = self.config.allowed_length;
        let Ok(n) = u32::try_from(len) else { return };
        if n <= allowed {
            return;
        }
        let unbroken = self.unbroken(&recent);
        if unbroken < allowed {
            return;
        }
        let repeats = &mut self.workspace[..len];
        measure_repeats(&recent, repeats);

        // `p` holds the length of the longest repetition that a token would continue; -1 for none.
        let by_id = candidates.by_id_mut();
        for candidate in by_id.iter_mut() {
            candidate.p = -1.0;
        }
        // The token after the repeated ones is one nearer to the end.
        for (before, &repeated) in repeats[1..].iter().enumerate() {
            let repeated = repeated.min(unbroken);
            if repeated < allowed {
                continue;
            }
            if let Some(index) = find_by_id(by_id, recent.at(before)) {
                by_id[index].p = by_id[index].p.max(math::count_to_f32(repeated));
            }
        }
        for candidate in by_id.iter_mut() {
            if candidate.p >= 0.0 && !self.breakers.is_single(candidate.id) {
                let repeated = math::to_u32(f64::from(candidate.p));
                candidate.logit -= self.config.penalty(repeated);
            }
        }
    }
}

impl Dry<'_> {
    /// Number of the latest tokens after the last sequence breaker.
    fn unbroken(&self, recent: &Reversed<'_>) -> u32 {
        let broken = (0..recent.0.len())
            .find_map(|back| Some(back - self.breakers.longest_at(recent, back)?));
        u32::try_from(broken.unwrap_or(recent.0.len())).unwrap_or(u32::MAX)
    }
}

/// Tokens, counted back from the last.
struct Reversed<'t>(&'t [u32]);

impl Reversed<'_> {
    fn at(&self, back: usize) -> u32 {
        self.0[self.0.len() - 1 - back]
    }
}

/// `repeats[k]`: how many tokens before and including the one `k` back are the same as the
/// latest ones. `repeats[0]` is not written.
///
/// The Z function of the reversed text, in linear time: `start..end` is the match found so far
/// that reaches furthest back, and its inside has been compared already.
fn measure_repeats(recent: &Reversed<'_>, repeats: &mut [u32]) {
    let len = repeats.len();
    let (mut start, mut end) = (0, 0);
    for back in 1..len {
        let mut same = 0;
        if back < end {
            let known = usize::try_from(repeats[back - start]).unwrap_or(usize::MAX);
            same = known.min(end - back);
        }
        while back + same < len && recent.at(same) == recent.at(back + same) {
            same += 1;
        }
        if back + same > end {
            (start, end) = (back, back + same);
        }
        repeats[back] = u32::try_from(same).unwrap_or(u32::MAX);
    }
}
