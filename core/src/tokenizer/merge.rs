//! Merging neighbours, best first, until no pair of them merges.
//!
//! Both kinds of vocabulary do this: byte-level ones merge the bytes of a word by ranked pairs,
//! SentencePiece ones the characters of a whole text by scored pieces. Symbols are in order and
//! cover the text, so a symbol is identified by the position of its first byte: its length
//! leads to the next, and a copy of the length at its last byte leads back.
//!
//! Keys are processed in bands, from the lowest on: the pairs of a band are collected from the
//! symbols and sorted. Pairs that appear meanwhile are put into a heap if they belong to the band, else
//! they are collected with their own band. A pair that has changed since it was noted is
//! recognised by the key that its left symbol has now. So most pairs are never in a heap, and
//! long texts are read from front to back instead of at random.
//!
//! Time is O(n log n) in the bytes of the text: a band has an eighth of them in pairs, or all that
//! are left, and a merge removes up to two. The room is [`words_for`] them.

use super::error::TokenizerError;
use super::queue::{Entry, Queue};
use super::vocab::{NONE, position};

/// The pairs that merge, their keys, and their results.
pub(super) trait Rules {
    /// The merge of two neighbours, if there is one: their ids, the position of the first byte
    /// of the left and the length of both in bytes.
    fn candidate(&self, ids: [u32; 2], start: usize, len: usize) -> Option<u32>;

    /// The order of merges: the lowest key first, and of equal keys the leftmost.
    fn key(&self, candidate: u32) -> u32;

    /// The id of the symbol that a merge makes.
    fn merged(&self, candidate: u32) -> u32;
}

/// The symbols of a text, in the caller's memory.
#[derive(Debug)]
pub(super) struct Symbols<'w> {
    /// At the first and the last byte of each symbol: its length in bytes. Elsewhere unspecified.
    len: &'w mut [u32],
    /// At the first byte of each symbol: its id, or [`NONE`].
    id: &'w mut [u32],
    /// At the first byte of each symbol: its merge with the next, or [`NONE`]. If not `NONE`,
    /// the queue holds an entry of this position and the merge's key, should it be of the band.
    candidate: &'w mut [u32],
    queue: Queue<'w>,
    /// Number of bytes that have been pushed.
    filled: usize,
}

impl<'w> Symbols<'w> {
    /// Room for a text of `n` bytes.
    ///
    /// # Errors
    ///
    /// `words` is shorter than [`words_for`] `n`: how many words there are.
    pub(super) fn new(words: &'w mut [u32], n: usize) -> Result<Self, TokenizerError> {
        let needed_words = words_for(n);
        let given = words.len();
        let words = words
            .get_mut(..needed_words)
            .ok_or(TokenizerError::WorkspaceTooSmall {
                needed_words,
                words: given,
            })?;
        let (len, words) = words.split_at_mut(n);
        let (id, words) = words.split_at_mut(n);
        let (candidate, words) = words.split_at_mut(n);
        let (entries, _) = words.as_chunks_mut();
        Ok(Self {
            len,
            id,
            candidate,
            queue: Queue::new(entries),
            filled: 0,
        })
    }

    /// Appends a symbol of `len` bytes, at least one.
    pub(super) fn push(&mut self, len: usize, id: u32) {
        debug_assert!(len > 0);
        self.id[self.filled] = id;
        self.set_len(self.filled, position(len));
        self.filled += len;
    }

    /// Merges until no pair merges.
    pub(super) fn merge(&mut self, rules: &impl Rules) {
        let mut start = 0;
        while start < self.filled {
            self.candidate[start] = self.candidate_at(start, rules).unwrap_or(NONE);
            start += self.len[start] as usize;
        }
        while self.next_band(rules) {
            self.merge_band(rules);
        }
    }

    fn merge_band(&mut self, rules: &impl Rules) {
        while let Some(Entry { key, start }) = self.queue.pop() {
            let start = start as usize;
            let candidate = self.candidate[start];
            if candidate == NONE || rules.key(candidate) != key {
                continue;
            }
            let right = start + self.len[start] as usize;
            self.candidate[start] = NONE;
            self.candidate[right] = NONE;
            self.id[start] = rules.merged(candidate);
            self.set_len(start, self.len[start] + self.len[right]);
            if start > 0 {
                self.update(start - self.len[start - 1] as usize, rules);
            }
            self.update(start, rules);
        }
    }

    /// Position, length and id of every symbol in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize, u32)> {
        let mut next = 0;
        core::iter::from_fn(move || {
            let start = next;
            (start < self.filled).then(|| {
                let len = self.len[start] as usize;
                next += len;
                (start, len, self.id[start])
            })
        })
    }

    /// Looks for a merge of the symbol at `start` with its new neighbour.
    fn update(&mut self, start: usize, rules: &impl Rules) {
        let old = self.candidate[start];
        let Some(new) = self.candidate_at(start, rules) else {
            self.candidate[start] = NONE;
            return;
        };
        self.candidate[start] = new;
        // With the key unchanged, the entry in the queue serves the new merge.
        let key = rules.key(new);
        if key > self.queue.last || (old != NONE && rules.key(old) == key) {
            return;
        }
        let start = position(start);
        if !self.queue.push(Entry { key, start }) {
            self.next_band(rules);
        }
    }

    fn candidate_at(&self, start: usize, rules: &impl Rules) -> Option<u32> {
        let right = start + self.len[start] as usize;
        if right >= self.filled {
            return None;
        }
        let len = (self.len[start] + self.len[right]) as usize;
        rules.candidate([self.id[start], self.id[right]], start, len)
    }

    /// Collects the pairs of the next band; false if there are no pairs. Also in the middle of a
    /// band, when the queue is full: all that count are found from the symbols.
    fn next_band(&mut self, rules: &impl Rules) -> bool {
        let (mut low, mut high, mut count) = (u32::MAX, 0, 0);
        self.for_each_pair(|_, candidate| {
            let key = rules.key(candidate);
            (low, high, count) = (low.min(key), high.max(key), count + 1);
        });
        let enough = (self.filled / 8).max(BAND_MIN);
        let mut last = u32::MAX;
        if count > enough && low < high {
            let shift = (u32::BITS - (high - low).leading_zeros()).saturating_sub(BUCKET_BITS);
            let mut buckets = [0_usize; 1 << BUCKET_BITS];
            let bucket = |key: u32| ((key - low) >> shift) as usize;
            self.for_each_pair(|_, candidate| buckets[bucket(rules.key(candidate))] += 1);
            let mut counted = 0;
            let full = |&in_bucket: &usize| {
                counted += in_bucket;
                counted >= enough
            };
            // There are more than enough pairs, so that one bucket is where they become so.
            let index = buckets.iter().position(full).unwrap_or(buckets.len());
            let end = u64::from(low) + (u64::from(position(index) + 1) << shift);
            last = u32::try_from(end - 1).unwrap_or(u32::MAX);
        }
        self.queue.begin(last);
        // The queue is apart while the symbols are read.
        let mut queue = core::mem::replace(&mut self.queue, Queue::new(&mut []));
        self.for_each_pair(|start, candidate| {
            let key = rules.key(candidate);
            if key <= last {
                let start = position(start);
                queue.append(Entry { key, start });
            }
        });
        queue.sort();
        self.queue = queue;
        count > 0
    }

    /// Calls `note` with the position and the merge of every symbol that merges with the next.
    /// They are fewer than symbols, so that entries for all fit with a quarter of the room to
    /// spare, and collecting them costs O(1) per entry pushed since.
    fn for_each_pair(&self, mut note: impl FnMut(usize, u32)) {
        let mut start = 0;
        while start < self.filled {
            let candidate = self.candidate[start];
            if candidate != NONE {
                note(start, candidate);
            }
            start += self.len[start] as usize;
        }
    }

    fn set_len(&mut self, start: usize, len: u32) {
        self.len[start] = len;
        self.len[start + len as usize - 1] = len;
    }
}

/// The symbols of a word of at most [`SHORT`] bytes, one symbol a byte at first. Looking at every
/// pair for every merge is faster than a heap for so few.
#[derive(Debug)]
pub(super) struct ShortWord {
    ids: [u32; SHORT],
    /// Start of each symbol.
    starts: [u8; SHORT],
    /// For each symbol the key of its merge with the next, or [`NONE`].
    keys: [u32; SHORT],
    count: usize,
}

impl ShortWord {
    /// `ids` are at most [`SHORT`].
    #[inline]
    pub(super) fn new(ids: impl Iterator<Item = u32>) -> Self {
        let mut word = Self {
            ids: [NONE; SHORT],
            starts: [0; SHORT],
            keys: [NONE; SHORT],
            count: 0,
        };
        for (start, id) in (0..).zip(ids) {
            word.ids[word.count] = id;
            word.starts[word.count] = start;
            word.count += 1;
        }
        word
    }

    /// Merges until no pair merges. The rules' candidates are keys at the same time.
    pub(super) fn merge(&mut self, rules: &impl Rules) {
        for i in 1..self.count {
            self.keys[i - 1] = self.key(i - 1, rules);
        }
        while self.count > 1 {
            let keys = &self.keys[..self.count - 1];
            let best = keys.iter().copied().min().unwrap_or(NONE);
            if best == NONE {
                break;
            }
            let at = keys.iter().position(|&key| key == best).unwrap_or(0);
            self.ids[at] = rules.merged(best);
            self.ids.copy_within(at + 2..self.count, at + 1);
            self.starts.copy_within(at + 2..self.count, at + 1);
            self.keys.copy_within(at + 2..self.count, at + 1);
            self.count -= 1;
            self.keys[at] = NONE;
            if at + 1 < self.count {
                self.keys[at] = self.key(at, rules);
            }
            if at > 0 {
                self.keys[at - 1] = self.key(at - 1, rules);
            }
        }
    }

    /// Position and id of every symbol in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u32)> {
        let starts = self.starts[..self.count].iter();
        starts.map(|&start| start.into()).zip(self.ids)
    }

    #[inline]
    fn key(&self, at: usize, rules: &impl Rules) -> u32 {
        let ids = [self.ids[at], self.ids[at + 1]];
        let candidate = rules.candidate(ids, 0, 0);
        candidate.map_or(NONE, |candidate| rules.key(candidate))
    }
}

/// The longest word for which this pays.
pub(super) const SHORT: usize = 32;

/// Words of room that [`Symbols`] need for a text of `n` bytes.
pub(super) fn words_for(n: usize) -> usize {
    3 * n + 2 * heap_entries_for(n)
}

/// Every symbol may have one entry that counts; the rest is for entries that no longer do.
fn heap_entries_for(n: usize) -> usize {
    n + n / 4 + 8
}

/// Fewer pairs are not worth another band. Small in tests, which have few.
const BAND_MIN: usize = if cfg!(test) { 2 } else { 4096 };

/// Bands end at one of `1 << BUCKET_BITS` keys.
const BUCKET_BITS: u32 = 8;

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Runs of one letter: a symbol's id is its length, and lengths merge if `table` says so.
    struct Lengths {
        /// Key of the merge that makes a length, by length.
        keys: Vec<Option<u32>>,
    }

    impl Rules for Lengths {
        fn candidate(&self, ids: [u32; 2], _: usize, len: usize) -> Option<u32> {
            assert_eq!((ids[0] + ids[1]) as usize, len);
            self.keys.get(len).copied().flatten().map(|_| position(len))
        }
        fn key(&self, candidate: u32) -> u32 {
            self.keys[candidate as usize].expect("only such are candidates")
        }
        fn merged(&self, candidate: u32) -> u32 {
            candidate
        }
    }

    /// The same by looking at every pair for every merge.
    fn by_hand(n: usize, rules: &Lengths) -> Vec<usize> {
        let mut lens = vec![1; n];
        loop {
            let best = (1..lens.len())
                .filter_map(|i| Some((rules.keys.get(lens[i - 1] + lens[i]).copied()??, i)))
                .min();
            let Some((_, i)) = best else { return lens };
            lens[i - 1] += lens.remove(i);
        }
    }

    #[test]
    fn merges_in_order_for_every_small_rule_set() {
        let mut random = 1_u32;
        for n in 0..60 {
            for _ in 0..40 {
                let keys = (0..12)
                    .map(|_| {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // Keys close together, and far apart.
                        let key = (random >> 24 & 3) * [1, 0x5555_5555][n % 2];
                        (random >> 28 < 9).then_some(key)
                    })
                    .collect();
                let rules = Lengths { keys };
                let mut words = vec![0; words_for(n)];
                let mut symbols = Symbols::new(&mut words, n).unwrap();
                for _ in 0..n {
                    symbols.push(1, 1);
                }
                symbols.merge(&rules);
                let lens: Vec<usize> = symbols.iter().map(|(_, len, _)| len).collect();
                assert_eq!(lens, by_hand(n, &rules), "{:?}", rules.keys);
            }
        }
    }
}
