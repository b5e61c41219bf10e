//! The number of draft tokens that are worth a row.

use crate::costs::Costs;

/// Minimum gain of a choice with draft tokens: a smaller one is noise.
pub const GAIN_MIN: f64 = 1.02;

/// The number of draft tokens to verify in addition to a step of `n_rows` rows that look back at `n_positions`, of
/// which `n_writing` each give a token. `chances` are the draft tokens' probabilities of being right, each given that
/// all before it in its text are, the likeliest first.
///
/// Returns 0 while there are no measurements of such steps, and from time to time to keep them up to date.
pub fn worth(
    costs: &Costs,
    n_rows: usize,
    n_positions: usize,
    n_writing: usize,
    chances: impl Iterator<Item = f32>,
) -> usize {
    let plain = costs.expect(n_rows, n_positions);
    if plain <= 0.0 || costs.is_old(n_rows) {
        return 0;
    }
    let deep = n_positions / n_rows.max(1);
    let mut tokens = count(n_writing);
    let (mut best, mut best_rate) = (0, GAIN_MIN * tokens / plain);
    for (i, chance) in chances.enumerate() {
        tokens += f64::from(chance);
        let n = i + 1;
        let rate = tokens / costs.expect(n_rows + n, n_positions + n * deep);
        if rate > best_rate {
            (best, best_rate) = (n, rate);
        }
    }
    best
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn count(n: usize) -> f64 {
    n as f64
}
