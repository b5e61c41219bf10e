//! The numeric contract: what every kernel table must compute, bit for bit.
//!
//! - Lanes hold outputs, never partial sums: a matrix product sums every row in the same order
//!   on every vector width.
//! - Fused multiply-add is part of the definition ([`Arith`]); rounding is to nearest even;
//!   denormals are kept ([`crate::FpEnv`]).
//! - A row of a linear layer is summed by ascending column, in units that the weight type
//!   defines. [`GROUP`] is 256 columns; `S`, `M` and `A` are exact integers:
//!
//!   | weights | activations | `acc` |
//!   |---|---|---|
//!   | F32, F16 | f32 | per group: `t = fma(w, x, t)` by column from 0, then `acc + t` |
//!   | IQ1, IQ2, IQ3, TQ and NVFP4 types | f32 | as F32, `w` the dequantised value |
//!   | BF16 | bf16 | per group: [`bf16_step`] by column pair from 0, then `acc + t` |
//!   | Q8_0, Q4_0, Q5_0, IQ4_NL, MXFP4, LANE3, LANE5, LANE7 | int8, a scale per 32 | per 32: `fma(d_w · d_a, f32(S), acc)` |
//!   | Q4_1, Q5_1 | int8, a scale per 32 | per 32: as above, then `fma(m_w · d_a, f32(A), acc)` |
//!   | Q4_K, Q5_K, Q2_K | int8, a scale per 256 | `t = fma(d, f32(S), 0)`, `t = fma(-dmin, f32(M), t)`, then `fma(d_a, t, acc)` |
//!   | Q6_K, Q3_K, IQ4_XS | int8, a scale per 256 | `t = fma(d, f32(S), 0)`, then `fma(d_a, t, acc)` |
//!
//!   With activation codes `a`: `A = Σ a` over the block; `S = Σ sc · Σ w · a` and
//!   `M = Σ min · Σ a` over a group's sub-blocks, where `w` is the signed weight code (the code
//!   without its offset, or the table's int8 value in IQ4_NL, IQ4_XS and MXFP4) and `sc` the
//!   integer scale, 1 for types without one. |S| is at most 133 million (Q6_K), |M| 2.1 million.
//!   `d_w` of MXFP4 is the power of two that ggml takes, half the E8M0 number, and its table holds
//!   twice the E2M1 values.
//!
//! - Sums that need a tree (RMSNorm, layer norm, softmax) use [`LANES`] virtual lanes and
//!   [`tree_sum`].
//! - A mixture of experts: the router's softmax over all experts, the largest weights (ties to the
//!   lower expert); where they are made to add up to 1, their sum is taken in ascending expert
//!   order. `x = fma(weight, y, x)` for the output `y` of each chosen expert, in that order.
//! - Attention: blocks of [`KV_BLOCK`] keys and splits of [`KV_SPLIT`] keys at absolute
//!   positions, an online softmax over blocks, splits merged in ascending order; keys that a
//!   query may not see are left out. A score is `scale · s` with `s = fma(q, k, s)` by
//!   ascending dimension, a weight is `p = exp(score - max)`, and
//!   `sum = fma(sum, c, Σp)`, `out = fma(p, v, out · c)` by ascending key, where
//!   `c = exp(max before - max)`. bf16 takes q and p rounded and steps by pairs. Maxima are
//!   order-free: the sign of a zero maximum, which order may change, reaches no weight. With a
//!   soft cap a score is [`soft_cap`] of `scale · s`. Keys before a query's window are left out
//!   like those after it: blocks and splits without a visible key change nothing.
//! - Quantised keys (q8_0, q4_0): the query is int8 with a scale per 32 dimensions, and
//!   `s = fma(d_k · d_q, f32(S), s)` per 32, `S` an exact integer. Quantised values: per block of
//!   64 keys and 32 dimensions, weights with the values' scales are integers of 16 bits,
//!   `w = round((p / p_max) · (d_v · (32767 / m)))`, `m` the largest `|d_v|` that is seen, and
//!   `out = fma(p_max · m · (1 / 32767), f32(Σ w · v), out · c)`. fp8 is f32 arithmetic.
//! - Recurrent states: (keys, values), a value's column by itself. With key `k`, query `q`, value `v` of a
//!   token: `seen = Σ k · S` over keys, in four sums of every fourth key, `s = fma(k, S, s)` by ascending
//!   key, added as `(s0 + s2) + (s1 + s3)`; `d = rate · fma(-decay, seen, v)` by the delta rule, else
//!   `d = rate · v`; `S = fma(k, d, decay · S)`; `out = Σ q · S` as `seen`. A convolution before it starts
//!   with its bias, or 0, and takes `fma(tap, x, sum)`, the oldest token first.
//! - Adapters: `t = A · x` over parts of 512 columns, which are added by ascending column; then `t = t · scale`.
//!   A part of floats has four sums of every fourth column, `s = fma(a, x, s)`, added as `(s0 + s2) + (s1 + s3)`;
//!   a part of int8 `s = fma(d_a, f32(S), s)` for each group of int8 activations, times the row's scale. `B · t` of
//!   floats is one part, `y + sum`; of int8 `t` is rounded to int8 with one scale, `y = fma(d · d_t, f32(S), y)`.
//!   Several adapters of a row follow each other.
//! - [`exp`], [`silu`], [`sigmoid`], [`softplus`], [`gelu()`], [`gelu_erf`], [`tanh`] and the rotary angles are the
//!   polynomials below.
//!
//! The bits of a NaN are outside the contract; that a result *is* NaN is inside.

// Targets that always have the instruction use this module only in tests and Miri.
#[cfg(any(test, miri, not(all(target_arch = "aarch64", target_feature = "neon"))))]
mod fma;
mod gelu;

pub use gelu::{gelu, gelu_erf};

/// Grows with every change of the rules above that changes a result: answers of one version are the same
/// bits everywhere.
pub const CONTRACT_VERSION: u32 = 1;
/// Columns that share one activation scale; also the block of partial float sums.
pub const GROUP: usize = 256;
/// Virtual lanes of a reduction: lane `l` takes elements `l`, `l + 16`, …
pub const LANES: usize = 16;
/// Keys per step of the online softmax.
pub const KV_BLOCK: usize = 64;
/// Keys per independent partial result of attention.
pub const KV_SPLIT: usize = 512;

const _: () = assert!(KV_SPLIT.is_multiple_of(KV_BLOCK));
const _: () = assert!(KV_BLOCK.is_multiple_of(LANES));

/// The arithmetic of a build. All implementations agree in every bit.
///
/// The loops here are the definition; an implementation overrides what the compiler does not
/// turn into vector instructions by itself.
pub trait Arith: Copy {
    /// `a * b + c`, rounded once.
    fn fma(a: f32, b: f32, c: f32) -> f32;

    /// `c = a * b + c` in every lane.
    #[inline(always)]
    fn fma_lanes(a: f32, b: &[f32; LANES], c: &mut [f32; LANES]) {
        for (c, b) in c.iter_mut().zip(b) {
            *c = Self::fma(a, *b, *c);
        }
    }

    /// 16 half-precision numbers, little endian, as f32. Exact.
    #[inline(always)]
    fn halves(bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
        let mut out = [0f32; LANES];
        for (out, half) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *out = crate::half::f16_to_f32(u16::from_le_bytes(*half));
        }
        out
    }

    /// The numbers of 16 bf16 pairs, firsts and seconds apart, denormals as zero: the operands
    /// of [`Self::bf16_step_lanes`].
    #[inline(always)]
    fn bf16_pairs(bytes: &[u8; 4 * LANES]) -> [[f32; LANES]; 2] {
        let mut pairs = [[0f32; LANES]; 2];
        for (lane, pair) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let word = u32::from_le_bytes(*pair);
            pairs[0][lane] = flush(f32::from_bits(word << 16));
            pairs[1][lane] = flush(f32::from_bits(word & 0xffff_0000));
        }
        pairs
    }

    /// A [`bf16_step`] in every lane, `c = a · b + c`. Operands hold no denormals (see
    /// [`flush`]), and neither do the results.
    #[inline(always)]
    fn bf16_step_lanes(a: [f32; 2], b: &[[f32; LANES]; 2], c: &mut [f32; LANES]) {
        for (lane, c) in c.iter_mut().enumerate() {
            let inner = flush(Self::fma(a[1], b[1][lane], *c));
            *c = flush(Self::fma(a[0], b[0][lane], inner));
        }
    }

    /// Calls `f`, compiled once for all callers: what many types share stays one function.
    #[inline(never)]
    fn outlined<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    /// Adds the exact dot product of four codes with four columns to `sum` in every lane;
    /// lane l has the codes `4l..4l + 4`.
    #[inline(always)]
    fn dot4_lanes(codes: &[u8; 4 * LANES], q: [i8; 4], sum: &mut [i32; LANES]) {
        for (sum, codes) in sum.iter_mut().zip(codes.as_chunks::<4>().0) {
            let codes = u32::from_le_bytes(*codes);
            for (j, q) in q.into_iter().enumerate() {
                *sum += (codes >> (8 * j) & 0xff).cast_signed() * i32::from(q);
            }
        }
    }

    /// `acc = fma(d_w · d_a, f32(sum - correction), acc)` in every lane.
    #[inline(always)]
    fn add_scaled_lanes(
        d_w: &[f32; LANES],
        d_a: f32,
        sum: &[i32; LANES],
        correction: i32,
        acc: &mut [f32; LANES],
    ) {
        for (lane, acc) in acc.iter_mut().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "rounds to nearest even")]
            let sum = (sum[lane] - correction) as f32;
            *acc = Self::fma(d_w[lane] * d_a, sum, *acc);
        }
    }
}

/// The portable definition: [`fma`], integer conversions.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Arith for Portable {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        fma(a, b, c)
    }
}

/// `a * b + c`, rounded once: by the instruction where this is compiled for CPUs that have it.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    // The crate's function is the instruction there, and wrong elsewhere (see `fma.rs`).
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", not(miri)))]
    return libm::fmaf(a, b, c);
    #[cfg(not(all(target_arch = "aarch64", target_feature = "neon", not(miri))))]
    fma::fma(a, b, c)
}

/// Adds 16 lanes in the fixed order +8, +4, +2, +1.
#[inline(always)]
pub fn tree_sum(lanes: &[f32; LANES]) -> f32 {
    let mut sum = *lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sum[lane] += sum[lane + half];
        }
        half /= 2;
    }
    sum[0]
}

/// Below this, [`exp`] is exactly zero: results never are denormal.
pub const EXP_LO: f32 = -87.3;
/// Above this, [`exp`] saturates.
pub const EXP_HI: f32 = 88.0;

/// ln 2 as two numbers; a whole number below 2^15 times the first is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// e^x within 1.2 ulp for `EXP_LO ≤ x ≤ EXP_HI`; 0 below, saturated above, NaN for NaN;
/// exactly 1 for 0.
///
/// Cody–Waite reduction by ln 2 and a polynomial of degree 6, without a table, so that scalar
/// and vector code do the same operations.
#[inline(always)]
pub fn exp<F: Arith>(x: f32) -> f32 {
    // 1.5 * 2^23 + 127: adding it leaves n + 127 in the low bits, ready to be an exponent.
    const MAGIC: f32 = 12_583_039.0;
    // These comparisons match maxps(EXP_LO, x) and minps(EXP_HI, x): NaN passes through.
    let clamped = if EXP_LO > x { EXP_LO } else { x };
    let clamped = if EXP_HI < clamped { EXP_HI } else { clamped };
    let shifted = F::fma(clamped, core::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = F::fma(n, -LN2_HI, clamped);
    let r = F::fma(n, -LN2_LO, r);
    let mut p = 1.987_569_1e-4;
    for c in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = F::fma(p, r, c);
    }
    let y = F::fma(p, r * r, r) + 1.0;
    let y = y * f32::from_bits(shifted.to_bits() << 23);
    if x < EXP_LO { 0.0 } else { y }
}

/// x · sigmoid(x) = x / (1 + e^-x).
#[inline(always)]
pub fn silu<F: Arith>(x: f32) -> f32 {
    x / (1.0 + exp::<F>(-x))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<F: Arith>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<F>(-x))
}

/// ln(1 + e^x) within 2 ulp where `e^x` is not 0; NaN for NaN.
///
/// `max(x, 0) + 2 artanh s`, `s = e / (2 + e)` at most 1/3 with `e = e^-|x|`; its series is cut where
/// 1.4e-8 of it are left. Beyond 17 nothing is added to x.
#[inline(always)]
pub fn softplus<F: Arith>(x: f32) -> f32 {
    let e = exp::<F>(-x.abs());
    let s = e / (2.0 + e);
    let z = s * s;
    let mut p = 1.0 / 13.0;
    for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0] {
        p = F::fma(p, z, c);
    }
    let half = F::fma(p * z, s, s);
    F::fma(2.0, half, if x > 0.0 { x } else { 0.0 })
}

/// tanh x within 1.5 ulp; NaN for NaN, +0 for both zeros.
///
/// A polynomial of x² below 0.625, fitted for the relative error; `1 - 2 / (e^2|x| + 1)` above.
#[inline(always)]
pub fn tanh<F: Arith>(x: f32) -> f32 {
    const SMALL: f32 = 0.625;
    let z = x * x;
    let mut p = -5.704_986_4e-3;
    for c in [2.063_908_6e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_8] {
        p = F::fma(p, z, c);
    }
    let near = F::fma(p * z, x, x);
    let far = (1.0 - 2.0 / (exp::<F>(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < SMALL { near } else { far }
}

/// `cap · tanh(x / cap)`: x for small x, never beyond the cap; `inverse` is `1 / cap`.
#[inline(always)]
pub fn soft_cap<F: Arith>(x: f32, cap: f32, inverse: f32) -> f32 {
    cap * tanh::<F>(x * inverse)
}

/// One step of a bf16 dot product: `fma(a0, b0, fma(a1, b1, c))` on the f32 values of two
/// bf16 pairs, with denormal inputs and results taken as zero.
///
/// This is what `vdpbf16ps` computes (checked against the instruction in the tests where the
/// CPU has it).
#[inline(always)]
pub fn bf16_step<F: Arith>(a: [f32; 2], b: [f32; 2], c: f32) -> f32 {
    let inner = flush(F::fma(flush(a[1]), flush(b[1]), flush(c)));
    flush(F::fma(flush(a[0]), flush(b[0]), inner))
}

/// Zero of the same sign for a denormal, otherwise `x`.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    })
}

/// The square root, correctly rounded.
#[inline]
pub fn sqrt(x: f32) -> f32 {
    // `libm` has the instruction as assembly, which miri does not run.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_set_ss, _mm_sqrt_ss};

        #[target_feature(enable = "sse2")]
        fn sqrt(x: f32) -> f32 {
            _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)))
        }
        // SAFETY: this is compiled for CPUs that have the feature.
        unsafe { sqrt(x) }
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    libm::sqrtf(x)
}

/// Rounds to the nearest integer, ties to even. Exact for |x| < 2^22.
#[inline(always)]
pub const fn round_ties_even(x: f32) -> f32 {
    (x + MAGIC) - MAGIC
}

/// [`round_ties_even`] of |x| ≤ 127 as a byte: where the sum has its last bits, without a
/// conversion and its checks.
#[inline(always)]
pub(crate) const fn round_to_byte(x: f32) -> i8 {
    low_byte(shifted(x))
}

/// A sum whose last bits are `x`, rounded as by [`round_ties_even`].
#[inline(always)]
pub(crate) const fn shifted(x: f32) -> f32 {
    x + MAGIC
}

/// 1.5 · 2^23: sums with it have no fraction.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// The integer in -128..128 that [`shifted`] holds.
#[inline(always)]
pub(crate) const fn low_byte(shifted: f32) -> i8 {
    shifted.to_bits().to_le_bytes()[0].cast_signed()
}

/// Functions in f64, by plain scalar arithmetic without fused steps, the same on every table:
/// for what is computed once per model (rotary frequencies), per token (sines) or per draw.
pub mod double {
    /// ln x for a positive, finite, normal `x`; error below 1e-15 relative.
    #[must_use]
    pub fn ln(x: f64) -> f64 {
        let bits = x.to_bits();
        let mut exponent = f64::from(u32::try_from((bits >> 52) & 0x7ff).unwrap_or(0)) - 1023.0;
        let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
        if m > core::f64::consts::SQRT_2 {
            m *= 0.5;
            exponent += 1.0;
        }
        // ln m = 2 artanh((m - 1) / (m + 1)); |s| ≤ 0.172, so 12 terms reach 1e-17.
        let s = (m - 1.0) / (m + 1.0);
        let s2 = s * s;
        let mut sum = 0.0;
        for k in (0..12u32).rev() {
            sum = sum * s2 + 1.0 / f64::from(2 * k + 1);
        }
        exponent * core::f64::consts::LN_2 + 2.0 * s * sum
    }

    /// e^x for |x| ≤ 700; error below 1e-15 relative.
    #[must_use]
    pub fn exp(x: f64) -> f64 {
        let n = round(x * core::f64::consts::LOG2_E);
        let r = x - n * 0.693_147_180_369_123_8 - n * 1.908_214_929_270_587_7e-10;
        let mut sum = 1.0;
        for k in (1..=14u32).rev() {
            sum = 1.0 + sum * r / f64::from(k);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "n is an integer below 1024"
        )]
        #[expect(clippy::cast_sign_loss, reason = "the biased exponent is positive")]
        let exponent = (n as i64 + 1023) as u64;
        sum * f64::from_bits(exponent << 52)
    }

    /// (cos x, sin x) for |x| < 10^6, error below 1e-15 absolute.
    #[must_use]
    pub fn cos_sin(x: f64) -> (f64, f64) {
        // Quarter turns are taken off in three parts of pi/2; the first has 33 bits, so that
        // its product with a quadrant number below 2^20 is exact.
        const PIO2: [f64; 3] = [
            1.570_796_326_734_125_6,
            6.077_100_506_303_966e-11,
            2.022_266_248_795_950_6e-21,
        ];
        let n = round(x * core::f64::consts::FRAC_2_PI);
        let r = ((x - n * PIO2[0]) - n * PIO2[1]) - n * PIO2[2];
        let r2 = r * r;
        let (mut cos, mut sin) = (1.0, 1.0);
        for k in (1..=9u32).rev() {
            cos = 1.0 - cos * r2 / f64::from((2 * k - 1) * (2 * k));
            sin = 1.0 - sin * r2 / f64::from((2 * k) * (2 * k + 1));
        }
        sin *= r;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "n is an integer below 2^20"
        )]
        match n as i64 & 3 {
            0 => (cos, sin),
            1 => (-sin, cos),
            2 => (-cos, -sin),
            _ => (sin, -cos),
        }
    }

    /// Nearest integer, ties to even; exact for |x| < 2^51.
    fn round(x: f64) -> f64 {
        const MAGIC: f64 = 6_755_399_441_055_744.0;
        (x + MAGIC) - MAGIC
    }
}

#[cfg(test)]
mod tests;
