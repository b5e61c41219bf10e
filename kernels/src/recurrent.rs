//! What kernels of recurrent mixers take: taps and rows of a convolution, tokens of a head, its state.
//!
//! A state has a row for each key element and a column for each value element. It is stored in panels of
//! [`STATE_LANES`] columns, (n_panels, n_key, 16), so that a column is always the same lane: sums over keys need no
//! horizontal step, a panel of 128 keys is 8 contiguous KiB, and it stays in a first-level cache while the tokens are
//! processed. Lanes past the last value are zero.

/// Columns of a panel of a state.
pub const STATE_LANES: usize = 16;

/// Floats of a head's state.
pub const fn state_floats(n_key: usize, n_value: usize) -> usize {
    n_key * n_value.next_multiple_of(STATE_LANES)
}

/// How a token changes a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `S = decay · S`, then `S = S + k · (rate · (v - Sᵀ k))ᵀ` (gated delta net).
    Delta,
    /// `S = decay · S + k · (rate · v)ᵀ` (Mamba 2: `k` is its B, `rate` its step).
    Add,
}

/// A token of a head.
#[derive(Debug)]
pub struct RecurrentToken<'a> {
    /// (n_key)
    pub key: &'a [f32],
    /// (n_key)
    pub query: &'a [f32],
    /// (n_value)
    pub value: &'a [f32],
    /// What the state is multiplied by.
    pub decay: f32,
    /// What the addition is multiplied by.
    pub rate: f32,
    /// `Sᵀ q` of the new state, (n_value).
    pub out: &'a mut [f32],
}

/// Tokens of a sequence, in order, through some values of a head.
#[derive(Debug)]
pub struct Recurrence<'a, 't> {
    /// How tokens change the state.
    pub rule: Rule,
    /// Elements of a key.
    pub n_key: usize,
    /// The state before the first token, as long as `state`; `None` where `state` holds it.
    pub from: Option<&'a [f32]>,
    /// The state after the last token, in whole panels.
    pub state: &'a mut [f32],
    /// The tokens.
    pub tokens: &'a mut [RecurrentToken<'t>],
}

/// A convolution over the last tokens, channel by channel, then SiLU.
#[derive(Debug)]
pub struct ConvSilu<'a> {
    /// (n_channel, n_taps): the taps of a channel are adjacent, the oldest token's first.
    pub taps: &'a [f32],
    /// Rows of `n_taps` tokens, oldest first, each (n_channel).
    pub rows: &'a [&'a [f32]],
    /// Initial value of the sums, (n_channel); 0 if `None`.
    pub bias: Option<&'a [f32]>,
    /// (n_channel)
    pub out: &'a mut [f32],
}
