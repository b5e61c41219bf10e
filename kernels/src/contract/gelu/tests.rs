//! GELU against f64.

use super::*;
use crate::contract::Portable;
use crate::contract::tests::ulps;

/// Through all bit patterns up to 20, by an odd number of them; all of them find 1.77 ulp at most.
const STEP: usize = if cfg!(miri) { 20_000_003 } else { 997 };

fn exact(x: f32) -> f64 {
    let x = f64::from(x);
    0.5 * x * libm::erfc(-x * core::f64::consts::FRAC_1_SQRT_2)
}

#[test]
fn gelu_is_within_its_stated_error_for_every_size_of_numbers() {
    let mut worst = [0f64; 2];
    for bits in (0..20f32.to_bits()).step_by(STEP) {
        for (sign, worst) in [1.0, -1.0].into_iter().zip(&mut worst) {
            let x = sign * f32::from_bits(bits);
            *worst = worst.max(ulps(gelu_erf::<Portable>(x), exact(x)));
        }
    }
    assert!(worst[0] < 1.3 && worst[1] < 1.8, "{worst:?} ulp");
    // The error function itself, where 1 is not most of it: gelu(x) / x = (1 + erf(x / √2)) / 2.
    for i in (1..400_000u32).step_by(STEP.min(2001)) {
        let x = 1e-5 * i as f32;
        let erf = 2.0 * f64::from(gelu_erf::<Portable>(x)) / f64::from(x) - 1.0;
        let error = erf - libm::erf(f64::from(x) * core::f64::consts::FRAC_1_SQRT_2);
        assert!(error.abs() < 3e-7, "{x}: {error}");
    }
}

#[test]
fn gelu_of_numbers_at_the_ends() {
    let gelu = |x: f32| gelu_erf::<Portable>(x);
    assert!(gelu(f32::NAN).is_nan());
    assert!(gelu(-f32::NAN).is_nan());
    for (x, expected) in [
        (0.0, 0.0),
        (-0.0, 0.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::NEG_INFINITY, -0.0),
        (f32::MAX, f32::MAX),
        (f32::MIN, -0.0),
        (30.0, 30.0),
        (-30.0, -0.0),
        (f32::MIN_POSITIVE, 0.5 * f32::MIN_POSITIVE),
    ] {
        assert_eq!(gelu(x).to_bits(), expected.to_bits(), "{x}");
    }
    // Denormal numbers, and denormal results.
    let least = f32::from_bits(1);
    for x in [least, -least, 1e-40, -1e-40, -13.5, -14.0, -14.25] {
        let error = f64::from(gelu(x)) - exact(x);
        assert!(error.abs() <= 1.01 * f64::from(least), "{x}: {error}");
    }
    assert_eq!(gelu(-14.0).to_bits(), (-f32::from_bits(78)).to_bits());
}
