//! A text as a source of draft tokens: earlier occurrences of its end, and what followed them.
//!
//! Positions that end with the same few tokens are chained, newest first, as in the match finders of LZ77
//! compressors. Removing tokens is therefore as cheap as adding them, unlike in a suffix automaton.

use super::{Class, DraftToken};

/// Lengths of the n-grams by whose hash positions are chained, longest first.
const ORDERS: [usize; 2] = [6, 2];
/// Positions that are examined in a chain of each order.
const CANDIDATES: [usize; 2] = [8, 32];
/// Maximum match length; longer ones are not distinguished.
const MATCH_MAX: usize = 64;

/// An index of a text of up to `n_max` tokens, in `words` that the caller brings.
#[derive(Clone, Debug)]
pub struct Ngrams<S> {
    /// Tokens, a chain for each order, and the heads of chains for each order. Positions are ends of n-grams, so 0
    /// means none.
    words: S,
    n_max: usize,
    n_heads: usize,
    n: usize,
}

impl<S: AsRef<[u32]> + AsMut<[u32]>> Ngrams<S> {
    /// Words for texts of `n_max` tokens.
    pub const fn n_words(n_max: usize) -> usize {
        n_max * (1 + ORDERS.len()) + n_heads(n_max) * ORDERS.len()
    }

    /// An index of an empty text. `None` if there are fewer `words` than [`Self::n_words`].
    pub fn new(n_max: usize, mut words: S) -> Option<Self> {
        let (n_heads, heads) = (n_heads(n_max), n_max * (1 + ORDERS.len()));
        words.as_mut().get_mut(heads..Self::n_words(n_max))?.fill(0);
        Some(Self {
            words,
            n_max,
            n_heads,
            n: 0,
        })
    }

    /// The indexed text.
    pub fn tokens(&self) -> &[u32] {
        &self.words.as_ref()[..self.n]
    }

    /// Updates the index to `text`, from the first difference on; a text that is too long is cut.
    /// Returns the position of that difference.
    pub fn follow(&mut self, text: &[u32]) -> usize {
        let text = &text[..text.len().min(self.n_max)];
        let both = self.tokens().iter().zip(text);
        let same = both.take_while(|(a, b)| a == b).count();
        while self.n > same {
            self.pop();
        }
        for &token in &text[same..] {
            self.push(token);
        }
        same
    }

    fn push(&mut self, token: u32) {
        let words = self.words.as_mut();
        words[self.n] = token;
        self.n += 1;
        for order in 0..ORDERS.len() {
            if let Some(head) = self.head(order) {
                let link = self.link(order, self.n);
                let words = self.words.as_mut();
                words[link] = words[head];
                words[head] = u32::try_from(self.n).expect("texts are shorter");
            }
        }
    }

    fn pop(&mut self) {
        for order in 0..ORDERS.len() {
            if let Some(head) = self.head(order) {
                let link = self.link(order, self.n);
                let words = self.words.as_mut();
                words[head] = words[link];
            }
        }
        self.n -= 1;
    }

    /// The start of the chain for the n-gram at the text's end.
    fn head(&self, order: usize) -> Option<usize> {
        let start = self.n.checked_sub(ORDERS[order])?;
        let hash = hash(&self.tokens()[start..]) as usize % self.n_heads;
        Some(self.n_max * (1 + ORDERS.len()) + order * self.n_heads + hash)
    }

    const fn link(&self, order: usize, end: usize) -> usize {
        self.n_max * (1 + order) + end - 1
    }

    /// The longest earlier match of the text's end, the newest among equals: its length and its end.
    fn longest_match(&self) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        for (order, &n) in ORDERS.iter().enumerate() {
            if self.n < n || best.is_some() {
                continue;
            }
            let mut end = self.n;
            for _ in 0..CANDIDATES[order] {
                end = self.words.as_ref()[self.link(order, end)] as usize;
                if end == 0 {
                    break;
                }
                let len = self.match_len(end);
                if len >= ORDERS[1] && best.is_none_or(|(longest, _)| len > longest) {
                    best = Some((len, end));
                }
                if len >= MATCH_MAX {
                    break;
                }
            }
        }
        best
    }

    /// The number of tokens before `end` that equal the tokens at the text's end.
    fn match_len(&self, end: usize) -> usize {
        let tokens = self.tokens();
        let (before, last) = (tokens[..end].iter().rev(), tokens.iter().rev());
        let both = before.zip(last).take(MATCH_MAX);
        both.take_while(|(a, b)| a == b).count()
    }

    /// Writes a likely continuation of the text into `drafts`; returns its length. A match that reaches the text's
    /// end continues with its own drafts, so that repetition goes on.
    pub fn draft(&self, drafts: &mut [DraftToken]) -> usize {
        let Some((len, end)) = self.longest_match() else {
            return 0;
        };
        for i in 0..drafts.len() {
            let token = match self.tokens().get(end + i) {
                Some(&token) => token,
                None => drafts[end + i - self.n].token,
            };
            let class = Class::text(len + i);
            drafts[i] = DraftToken { token, class };
        }
        drafts.len()
    }
}

const fn n_heads(n_max: usize) -> usize {
    let n = n_max.next_power_of_two() / 2;
    if n < 64 {
        64
    } else if n > 1 << 15 {
        1 << 15
    } else {
        n
    }
}

/// FNV-1a over tokens, with a final mix.
pub(super) fn hash(tokens: &[u32]) -> u32 {
    let mix = |hash: u32, token: &u32| (hash ^ token).wrapping_mul(0x0100_0193).rotate_left(13);
    let hash = tokens.iter().fold(0x811c_9dc5, mix);
    (hash ^ hash >> 15).wrapping_mul(0x85eb_ca6b)
}
