//! The fused multiply-add in software against the instruction.

use super::fma;
use crate::tests::skipped;
extern crate std;

/// SplitMix64's output for the `i`th state.
fn hash(i: u64) -> u64 {
    let mut z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A number with the exponent field given and a significand that is full, short, or at an end.
fn number(exponent: u32, hash: u32) -> f32 {
    let significand = match hash >> 24 & 7 {
        0 => 0,
        1 => 0x7f_ffff,
        2 => 1 << (hash % 23),
        3 => (hash & 0x7f_ffff) & !0 << (hash >> 27),
        4 => 0x40_0000 | hash & 1,
        _ => hash & 0x7f_ffff,
    };
    f32::from_bits(hash & 1 << 31 | exponent << 23 | significand)
}

/// Three numbers: any, or such that the product and c are near each other, half of these where
/// the result is a denormal.
fn triple(i: u64) -> [f32; 3] {
    let hashes = [3 * i, 3 * i + 1, 3 * i + 2].map(hash);
    let bits = hashes.map(|x| (x & 0xffff_ffff) as u32);
    let fields = hashes.map(|x| (x >> 32 & 0xff) as u32);
    if i.is_multiple_of(4) {
        return core::array::from_fn(|j| number(fields[j], bits[j]));
    }
    // The exponent fields of the product, before its own carry, and of c, which is far below it,
    // cancels it, or is far above.
    let (a, free) = (fields[0] as i32, fields[1] as i32);
    let product = if i % 4 == 1 { free } else { free % 34 - 30 };
    let c = product + (hashes[2] >> 40) as i32 % 56 - 28;
    let field = |exponent: i32| exponent.clamp(0, 254).cast_unsigned();
    [
        number(field(a), bits[0]),
        number(field(product + 127 - a), bits[1]),
        number(field(c), bits[2]),
    ]
}

/// The instruction's result, where the CPU has it.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
fn instruction() -> Option<impl Fn(f32, f32, f32) -> f32> {
    use core::arch::x86_64::{_mm_cvtss_f32, _mm_fmadd_ss, _mm_set_ss};

    #[target_feature(enable = "fma")]
    fn fused(a: f32, b: f32, c: f32) -> f32 {
        _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)))
    }
    let has_it = std::is_x86_feature_detected!("fma");
    // SAFETY: the feature was just seen.
    has_it.then_some(|a, b, c| unsafe { fused(a, b, c) })
}

/// The standard library's, which is the instruction of these CPUs.
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
fn instruction() -> Option<impl Fn(f32, f32, f32) -> f32> {
    let exact = cfg!(any(target_arch = "aarch64", miri));
    exact.then_some(f32::mul_add)
}

fn assert_same(expected: f32, [a, b, c]: [f32; 3]) {
    let got = fma(a, b, c);
    assert!(
        got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(),
        "fma({a:e}, {b:e}, {c:e}) is {:#010x}, not {:#010x}",
        got.to_bits(),
        expected.to_bits()
    );
}

#[test]
fn a_tie_of_a_denormal_that_is_none_is_rounded_by_what_is_beyond_it() {
    let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    let a = (1.0 + power(-12)) * power(-75);
    let b = (1.0 + 0xff_e002 as f32 * power(-24)) * power(-76);
    // 2^-127 is a denormal.
    let c = f32::from_bits(1 << 22);
    assert_eq!(fma(a, b, c).to_bits(), 0x0040_0001);
    assert_eq!(fma(-a, b, -c).to_bits(), 0x8040_0001);
    assert_eq!(fma(a, -b, c).to_bits(), 0x003f_ffff);
}

#[test]
fn special_numbers_are_those_of_the_instruction() {
    let Some(instruction) = instruction() else {
        skipped("this CPU has no such instruction");
        return;
    };
    let specials = [
        0.0,
        f32::from_bits(1),
        f32::from_bits(3),
        f32::from_bits(0x7f_ffff),
        f32::MIN_POSITIVE,
        f32::from_bits(0x3f7f_ffff),
        1.0,
        f32::from_bits(0x3f80_0001),
        1.5,
        16_777_216.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let both = || specials.into_iter().flat_map(|x| [x, -x]);
    for (a, b) in both().flat_map(|a| both().map(move |b| (a, b))) {
        for c in both() {
            assert_same(instruction(a, b, c), [a, b, c]);
        }
    }
}

/// Eight million, which is two seconds.
#[test]
fn random_numbers_are_those_of_the_instruction() {
    let Some(instruction) = instruction() else {
        skipped("this CPU has no such instruction");
        return;
    };
    let n = if cfg!(miri) { 2_000 } else { 8_000_000 };
    let (mut denormals, mut infinite, mut nan) = (0, 0, 0);
    for i in 0..n {
        let [a, b, c] = triple(i);
        let expected = instruction(a, b, c);
        denormals += u64::from(expected.is_subnormal());
        infinite += u64::from(expected.is_infinite());
        nan += u64::from(expected.is_nan());
        assert_same(expected, [a, b, c]);
    }
    // What the triples are made for does come about.
    assert!(denormals > n / 20, "{denormals}");
    assert!(infinite > n / 100, "{infinite}");
    assert!(nan > n / 4000, "{nan}");
}
