//! Zero crossings of a frame, from masks of signs.

/// How often neighbours have different signs, 64 samples at a time.
#[derive(Debug)]
pub(crate) struct Signs {
    /// Bit 0: whether the last sample so far is ≥ 0.
    before: u64,
    n_crossings: usize,
}

impl Signs {
    /// Starts a frame whose first sample is `first`.
    #[inline(always)]
    pub(crate) fn new(first: f32) -> Self {
        Self {
            before: u64::from(first >= 0.0),
            n_crossings: 0,
        }
    }

    /// Takes `n` samples, 64 or fewer at the end: bit l is set if sample l is ≥ 0.
    #[inline(always)]
    pub(crate) fn take(&mut self, positive: u64, n: usize) {
        let valid = if n < 64 { (1 << n) - 1 } else { u64::MAX };
        let changed = (positive ^ (positive << 1 | self.before)) & valid;
        self.n_crossings += changed.count_ones() as usize;
        self.before = positive >> 63;
    }

    /// Neighbours of which one is ≥ 0 and the other not.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.n_crossings
    }
}
