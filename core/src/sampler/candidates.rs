//! The list of tokens that may still be chosen, over storage of the caller.

use super::{SampleError, math};
use crate::sort::{heap_sort_by_key, sift_down, sort_heap};

/// One token that may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Its logit, as changed by the processors.
    pub logit: f32,
    /// Its probability in `0..=1` after [`Candidates::softmax`]; scratch before that.
    pub p: f32,
}

/// How a [`Candidates`] list is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateOrder {
    /// Token ids ascend.
    ById,
    /// Logits descend; equal logits have ascending ids.
    Sorted,
    /// Neither is known to hold.
    Unordered,
}

/// The candidates of one draw: the first `len` entries of the caller's storage, ids distinct.
///
/// The list knows its own order, so that a step needing sorted candidates sorts only once.
#[derive(Debug)]
pub struct Candidates<'c> {
    storage: &'c mut [Candidate],
    len: usize,
    order: CandidateOrder,
}

impl<'c> Candidates<'c> {
    /// Every token of `logits: (n_vocab)` as a candidate, in order of id.
    ///
    /// # Errors
    /// [`SampleError::StorageTooSmall`] when `storage` is shorter than `logits`, and
    /// [`SampleError::NotANumber`] naming the first NaN.
    pub fn from_logits(storage: &'c mut [Candidate], logits: &[f32]) -> Result<Self, SampleError> {
        let len = logits.len();
        if storage.len() < len {
            return Err(SampleError::StorageTooSmall {
                needed: len,
                available: storage.len(),
            });
        }
        for ((id, &logit), slot) in (0u32..).zip(logits).zip(storage.iter_mut()) {
            if logit.is_nan() {
                return Err(SampleError::NotANumber { id });
            }
            *slot = Candidate { id, logit, p: 0.0 };
        }
        Ok(Self {
            storage,
            len,
            order: CandidateOrder::ById,
        })
    }

    /// Keeps the `k` candidates of the highest logits, sorted; `k` may exceed the length.
    ///
    /// Selects with a heap of `k`, so a vocabulary costs little more than one comparison per
    /// token where `k` is small.
    pub fn keep_top(&mut self, k: usize) {
        if self.order == CandidateOrder::Sorted || k >= self.len {
            self.sort();
            self.len = self.len.min(k);
            return;
        }
        let (top, rest) = self.storage[..self.len].split_at_mut(k);
        select_top(top, rest.iter().copied(), |candidate| {
            (candidate.logit, candidate.id)
        });
        self.len = k;
        self.order = CandidateOrder::Sorted;
    }

    /// Keeps the candidates for which `keep` holds, in their order. May leave none.
    pub fn retain(&mut self, mut keep: impl FnMut(&Candidate) -> bool) {
        let mut kept = 0;
        for index in 0..self.len {
            let candidate = self.storage[index];
            if keep(&candidate) {
                self.storage[kept] = candidate;
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Replaces every logit by `f` of its candidate.
    pub fn map_logits(&mut self, mut f: impl FnMut(&Candidate) -> f32) {
        for candidate in &mut self.storage[..self.len] {
            candidate.logit = f(candidate);
        }
        self.logits_changed();
    }

    /// Adds `bias` to the logit of token `id`, if it is still a candidate.
    pub fn add_bias(&mut self, id: u32, bias: f32) {
        if let Some(index) = self.index_of(id) {
            self.storage[index].logit += bias;
            self.logits_changed();
        }
    }

    /// Puts the candidates in [`CandidateOrder::Sorted`] order.
    pub fn sort(&mut self) {
        if self.order != CandidateOrder::Sorted {
            self.storage[..self.len].sort_unstable_by_key(Candidate::rank_key);
            self.order = CandidateOrder::Sorted;
        }
    }

    /// Puts the candidates in [`CandidateOrder::ById`] order.
    pub fn sort_by_id(&mut self) {
        if self.order != CandidateOrder::ById {
            // Usually few: the tokens that filters left.
            heap_sort_by_key(&mut self.storage[..self.len], |candidate| candidate.id);
            self.order = CandidateOrder::ById;
        }
    }

    /// Fills `p` with the softmax over the candidates that are left.
    ///
    /// # Errors
    /// [`SampleError::NotANumber`] for a NaN logit, [`SampleError::NoCandidate`] when the list
    /// is empty or every logit is minus infinity.
    pub fn softmax(&mut self) -> Result<(), SampleError> {
        let best = self.best().ok_or(SampleError::NoCandidate)?;
        if best.logit.is_nan() {
            return Err(SampleError::NotANumber { id: best.id });
        }
        if best.logit == f32::NEG_INFINITY {
            return Err(SampleError::NoCandidate);
        }
        let sum = self.weigh();
        for candidate in &mut self.storage[..self.len] {
            candidate.p = math::round_to_f32(f64::from(candidate.p) / sum);
        }
        Ok(())
    }

    /// The candidates, in the list's order.
    #[must_use]
    pub fn as_slice(&self) -> &[Candidate] {
        &self.storage[..self.len]
    }

    /// The best candidate: highest logit, lower id among equals; a NaN counts as highest.
    #[must_use]
    pub fn best(&self) -> Option<Candidate> {
        if self.order == CandidateOrder::Sorted {
            return self.as_slice().first().copied();
        }
        self.as_slice()
            .iter()
            .min_by_key(|candidate| candidate.rank_key())
            .copied()
    }

    /// Number of candidates left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no candidate is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How the list is ordered.
    #[must_use]
    pub fn order(&self) -> CandidateOrder {
        self.order
    }

    /// Fills `p` with `exp(logit - max)` and returns their sum, added in candidate order.
    ///
    /// The candidates at the maximum weigh 1 even if it is infinite. Any NaN makes all weights
    /// NaN.
    pub(super) fn weigh(&mut self) -> f64 {
        let max = self.best().map_or(f32::NAN, |best| best.logit);
        let mut sum = 0.0;
        for candidate in &mut self.storage[..self.len] {
            candidate.p = math::weight(candidate.logit, max);
            sum += f64::from(candidate.p);
        }
        sum
    }

    /// Keeps the best candidates, sorted, up to the first whose `p` makes their sum `enough`; at least
    /// `least`, if there are as many.
    ///
    /// Keeps all when the sum never gets there. Sorts piece by piece: of a whole vocabulary
    /// the nucleus is usually a small part.
    pub(super) fn keep_until(&mut self, enough: f64, least: usize) {
        let sorted = self.order == CandidateOrder::Sorted;
        let mut reached = 0.0;
        let mut done = 0;
        let mut piece_len = FIRST_PIECE;
        while done < self.len {
            let rest = &mut self.storage[done..self.len];
            piece_len = piece_len.min(rest.len());
            if !sorted {
                rest.select_nth_unstable_by_key(piece_len - 1, Candidate::rank_key);
                rest[..piece_len].sort_unstable_by_key(Candidate::rank_key);
            }
            let mut n = done;
            let last = rest[..piece_len].iter().position(|candidate| {
                reached += f64::from(candidate.p);
                n += 1;
                reached >= enough && n >= least
            });
            if let Some(last) = last {
                self.len = done + last + 1;
            }
            done += piece_len;
            piece_len *= 4;
        }
        self.order = CandidateOrder::Sorted;
    }

    /// Keeps the candidates at `start..end`, in their order.
    pub(super) fn keep_range(&mut self, start: usize, end: usize) {
        self.storage[..self.len].copy_within(start..end, 0);
        self.len = end - start;
    }

    /// The entropy of the softmax over the candidates; fills `p` as [`Self::weigh`] does.
    ///
    /// `None` where the probabilities are not defined: no candidate, NaN, all masked.
    pub(super) fn spread(&mut self) -> Option<Spread> {
        let max = self.best()?.logit;
        let sum = self.weigh();
        if max == f32::NEG_INFINITY || !sum.is_finite() {
            return None;
        }
        let mut spread = Spread {
            max,
            sum,
            ln_sum: math::ln(sum),
            entropy: 0.0,
        };
        // Sum of p × surprise, which needs no logarithm of each p.
        let weighed = self.as_slice().iter().filter(|candidate| candidate.p > 0.0);
        let total: f64 = weighed
            .map(|candidate| f64::from(candidate.p) * spread.surprise(candidate.logit))
            .sum();
        spread.entropy = (total / sum).max(0.0) + 0.0;
        Some(spread)
    }

    /// The candidates for a step that uses `p` as scratch and may change logits, in order of id.
    pub(super) fn by_id_mut(&mut self) -> &mut [Candidate] {
        self.sort_by_id();
        &mut self.storage[..self.len]
    }

    fn index_of(&self, id: u32) -> Option<usize> {
        match self.order {
            CandidateOrder::ById => find_by_id(self.as_slice(), id),
            _ => self
                .as_slice()
                .iter()
                .position(|candidate| candidate.id == id),
        }
    }

    /// Equal logits may have become unequal and the other way round, so only ids keep order.
    fn logits_changed(&mut self) {
        if self.order == CandidateOrder::Sorted {
            self.order = CandidateOrder::Unordered;
        }
    }
}

/// How the probability of a [`Candidates`] list is spread, in natural units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    max: f32,
    /// The sum of the weights.
    pub(super) sum: f64,
    ln_sum: f64,
    pub(super) entropy: f64,
}

impl Spread {
    /// Minus the logarithm of the probability of a candidate with this logit.
    pub(super) fn surprise(&self, logit: f32) -> f64 {
        #[expect(clippy::float_cmp, reason = "infinity minus itself is not zero")]
        let below = if logit == self.max {
            0.0
        } else {
            f64::from(self.max) - f64::from(logit)
        };
        self.ln_sum + below
    }
}

/// Number of candidates that [`Candidates::keep_until`] sorts first.
const FIRST_PIECE: usize = 256;

impl Candidate {
    #[inline]
    pub(super) fn rank_key(&self) -> u64 {
        rank_key(self.logit, self.id)
    }
}

/// A number that ascends from the best token to the worst: by logit descending, then by id.
///
/// NaN of either sign comes first, so that no selection can lose it; the two zeros are equal.
#[inline]
pub(super) fn rank_key(logit: f32, id: u32) -> u64 {
    // Adding zero turns -0.0 into +0.0. NaN gets one fixed pattern above infinity's.
    let bits = if logit.is_nan() {
        0x7fff_ffff
    } else {
        (logit + 0.0).to_bits()
    };
    let ascending = if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    };
    (u64::from(!ascending) << 32) | u64::from(id)
}

/// Index of token `id` in candidates whose ids ascend.
pub(super) fn find_by_id(candidates: &[Candidate], id: u32) -> Option<usize> {
    // Untouched vocabularies have candidate i at index i; the search is for masked ones.
    let direct = usize::try_from(id).ok()?;
    if candidates
        .get(direct)
        .is_some_and(|candidate| candidate.id == id)
    {
        return Some(direct);
    }
    candidates
        .binary_search_by_key(&id, |candidate| candidate.id)
        .ok()
}

/// Leaves in `top` the best entries of itself and `rest`, best first.
///
/// `of` gives an entry's logit and id, by which [`rank_key`] ranks it. Ids must be distinct; the
/// result is then independent of the order of the input.
pub(super) fn select_top<T: Copy>(
    top: &mut [T],
    rest: impl Iterator<Item = T>,
    of: impl Fn(&T) -> (f32, u32),
) {
    if top.is_empty() {
        return;
    }
    let key = |entry: &T| {
        let (logit, id) = of(entry);
        rank_key(logit, id)
    };
    // A heap with the worst of the chosen at the root: most of `rest` loses against it at once.
    for root in (0..top.len() / 2).rev() {
        sift_down(top, root, &key);
    }
    let (mut worst_logit, mut worst) = (of(&top[0]).0, key(&top[0]));
    for entry in rest {
        // One comparison for most entries; false for NaN, which the key ranks.
        if of(&entry).0 < worst_logit {
            continue;
        }
        if key(&entry) < worst {
            top[0] = entry;
            sift_down(top, 0, &key);
            (worst_logit, worst) = (of(&top[0]).0, key(&top[0]));
        }
    }
    sort_heap(top, &key);
}
