//! Random numbers as a function of a counter, without any state.
//!
//! Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3"
//! (SC 2011): ten rounds of two 32 × 32 → 64 bit products turn a 128-bit counter and a 64-bit
//! key into 128 bits that pass the usual statistical batteries.

/// The 128 random bits of `counter` under `key`.
#[must_use]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    let mut k = key;
    for _ in 0..ROUNDS {
        let [high_0, low_0] = halves(u64::from(MULTIPLIER_0) * u64::from(c[0]));
        let [high_1, low_1] = halves(u64::from(MULTIPLIER_1) * u64::from(c[2]));
        c = [high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0];
        k = [k[0].wrapping_add(WEYL_0), k[1].wrapping_add(WEYL_1)];
    }
    c
}

/// A uniform number in `0.0..1.0` (53 random bits) for one decision.
///
/// Key: `seed`. Counter: (`position`, `sequence`, `draw`, 0). `draw` numbers the decisions at
/// one position: 0 is the one [`sample`](super::sample) takes, others are free for, say, the
/// acceptance tests of speculative decoding.
#[must_use]
pub fn uniform(seed: u64, sequence: u32, position: u32, draw: u32) -> f64 {
    let [key_1, key_0] = halves(seed);
    let [a, b, ..] = philox4x32([position, sequence, draw, 0], [key_0, key_1]);
    // 27 + 26 bits: both products and the sum are exact.
    let (high, low) = (f64::from(a >> 5), f64::from(b >> 6));
    (high * 67_108_864.0 + low) * (1.0 / 9_007_199_254_740_992.0)
}

/// The high and the low 32 bits.
fn halves(x: u64) -> [u32; 2] {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low half is what is wanted"
    )]
    [(x >> 32) as u32, x as u32]
}

const ROUNDS: usize = 10;
const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

#[cfg(test)]
mod tests {
    use super::{philox4x32, uniform};

    /// Known answers: file `kat_vectors` of Random123 (D. E. Shaw Research), `philox4x32 10`.
    #[test]
    fn philox_gives_the_published_answers() {
        let known = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in known {
            assert_eq!(philox4x32(counter, key), answer, "{counter:x?} {key:x?}");
        }
    }

    #[test]
    fn uniform_uses_the_words_in_the_documented_places() {
        let bits = |seed, sequence, position, draw| {
            let [a, b, ..] = philox4x32([position, sequence, draw, 0], seed);
            (u64::from(a >> 5) << 26) | u64::from(b >> 6)
        };
        for (sequence, position, draw) in [(0, 0, 0), (1, 2, 3), (7, u32::MAX, 0)] {
            let u = uniform(0x0123_4567_89ab_cdef, sequence, position, draw);
            assert!((0.0..1.0).contains(&u));
            let scaled = u * (1u64 << 53) as f64;
            assert_eq!(
                scaled.to_bits(),
                (bits([0x89ab_cdef, 0x0123_4567], sequence, position, draw) as f64).to_bits()
            );
        }
    }
}
