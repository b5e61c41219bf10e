//! The token that follows a few tokens, learnt from all texts.
//!
//! A table of fixed size, as in branch predictors: for the last four tokens, the last two and the last one,
//! an entry with a check, the token that followed, and a confidence. A different token lowers the confidence
//! and, at zero, replaces the entry.

use super::ngram::hash;
use super::{Class, DraftToken};

/// Lengths of the contexts; the class of a draft token counts them from the shortest.
const ORDERS: [usize; 3] = [1, 2, 4];
/// Words of an entry.
const ENTRY: usize = 2;
/// An entry's second word is a token and, above it, the confidence.
const TOKEN_BITS: u32 = 24;
const SURE_MAX: u32 = 15;

/// The table, in words that the caller brings: a power of two.
#[derive(Clone, Debug)]
pub struct NgramTable<S> {
    words: S,
}

impl<S: AsRef<[u32]> + AsMut<[u32]>> NgramTable<S> {
    /// An empty table. `None` if the number of `words` is not a power of two, or is under 64.
    pub fn new(mut words: S) -> Option<Self> {
        let n = words.as_ref().len();
        if !n.is_power_of_two() || n < 64 {
            return None;
        }
        words.as_mut().fill(0);
        Some(Self { words })
    }

    /// Learns the tokens of `text` from `start` on.
    pub fn learn(&mut self, text: &[u32], start: usize) {
        for end in start.max(1)..text.len() {
            for (order, &n) in ORDERS.iter().enumerate() {
                if n <= end {
                    self.see(order, &text[end - n..end], text[end]);
                }
            }
        }
    }

    fn see(&mut self, order: usize, context: &[u32], token: u32) {
        if token >> TOKEN_BITS != 0 {
            return;
        }
        let (at, check) = self.place(order, context);
        let words = self.words.as_mut();
        let (known, sure) = (
            words[at + 1] & ((1 << TOKEN_BITS) - 1),
            words[at + 1] >> TOKEN_BITS,
        );
        let is_same = words[at] == check && known == token;
        if is_same && sure > 0 {
            words[at + 1] = token | (sure + 1).min(SURE_MAX) << TOKEN_BITS;
        } else if sure > 1 {
            words[at + 1] = known | (sure - 1) << TOKEN_BITS;
        } else {
            (words[at], words[at + 1]) = (check, token | 1 << TOKEN_BITS);
        }
    }

    /// Writes a likely continuation of `text` into `drafts`; returns its length.
    pub fn draft(&self, text: &[u32], drafts: &mut [DraftToken]) -> usize {
        let mut context = [0; ORDERS[ORDERS.len() - 1]];
        let n = text.len().min(context.len());
        let start = context.len() - n;
        context[start..].copy_from_slice(&text[text.len() - n..]);
        for (i, draft) in drafts.iter_mut().enumerate() {
            let Some(found) = self.find(&context[start.saturating_sub(i)..]) else {
                return i;
            };
            *draft = found;
            context.rotate_left(1);
            context[ORDERS[ORDERS.len() - 1] - 1] = found.token;
        }
        drafts.len()
    }

    /// What followed the longest known suffix of `context`.
    fn find(&self, context: &[u32]) -> Option<DraftToken> {
        [(2u8, ORDERS[2]), (1, ORDERS[1]), (0, ORDERS[0])]
            .into_iter()
            .find_map(|(order, n)| {
                let start = context.len().checked_sub(n)?;
                let (at, check) = self.place(order.into(), &context[start..]);
                let [found, entry] = [self.words.as_ref()[at], self.words.as_ref()[at + 1]];
                let sure = entry >> TOKEN_BITS;
                (found == check && sure > 0).then_some(DraftToken {
                    token: entry & ((1 << TOKEN_BITS) - 1),
                    class: Class::table(order, sure),
                })
            })
    }

    fn place(&self, order: usize, context: &[u32]) -> (usize, u32) {
        let hash = hash(context).wrapping_add(u32::try_from(order).expect("few") << 29);
        let n = self.words.as_ref().len() / ENTRY;
        let check = hash.rotate_left(16) ^ context[context.len() - 1];
        (ENTRY * (hash as usize % n), check)
    }
}
