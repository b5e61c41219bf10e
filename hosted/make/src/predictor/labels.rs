//! Which neurons of a text's tokens are active, and how much they add.

/// Bits of active neurons, a token after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    bits: Vec<u64>,
    words: usize,
}

impl Labels {
    /// No tokens yet, of `n_ff` neurons each.
    pub(super) fn new(n_ff: usize) -> Self {
        Self {
            bits: Vec::new(),
            words: n_ff.div_ceil(64),
        }
    }

    /// Adds a token.
    pub(super) fn push(&mut self, active: impl Iterator<Item = bool>) {
        let start = self.bits.len();
        self.bits.resize(start + self.words, 0);
        for (i, active) in active.enumerate() {
            self.bits[start + i / 64] |= u64::from(active) << (i % 64);
        }
    }

    /// Whether a neuron of a token is active.
    pub(super) fn is_active(&self, token: usize, neuron: usize) -> bool {
        self.bits[token * self.words + neuron / 64] >> (neuron % 64) & 1 == 1
    }

    /// The number of active neurons of all tokens.
    pub(super) fn n_active(&self) -> usize {
        self.bits
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }
}

/// Marks the neurons of a token that add the most: `n` of them, the first ones of equal size.
pub(super) fn largest(contributions: &[f32], n: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..contributions.len()).collect();
    order.sort_by(|a, b| contributions[*b].total_cmp(&contributions[*a]));
    let mut is_active = vec![false; contributions.len()];
    order.iter().take(n).for_each(|i| is_active[*i] = true);
    is_active
}
