//! The functions of the contract against f64, and the orders that it states.

use super::*;

/// Miri is slow.
const STEP: usize = if cfg!(miri) { 2001 } else { 1 };

pub(super) fn ulps(a: f32, b: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let nearest = b as f32;
    let spacing = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
    (f64::from(a) - b).abs() / spacing.abs()
}

#[test]
fn exp_is_within_its_stated_error() {
    let mut worst = 0.0f64;
    for i in (0..4_000_000u32).step_by(STEP) {
        let x = EXP_LO + (EXP_HI - EXP_LO) * (i as f32 / 4e6);
        worst = worst.max(ulps(exp::<Portable>(x), libm::exp(f64::from(x))));
    }
    assert!(worst < 1.2, "{worst} ulp");
    assert_eq!(exp::<Portable>(0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp::<Portable>(-87.4).to_bits(), 0);
    assert_eq!(exp::<Portable>(f32::NEG_INFINITY).to_bits(), 0);
    assert!(exp::<Portable>(f32::INFINITY).is_finite());
    assert!(exp::<Portable>(f32::NAN).is_nan());
}

#[test]
fn tanh_and_gelu_are_within_their_stated_errors() {
    let (mut worst_tanh, mut worst_gelu) = (0.0f64, 0.0f64);
    for i in (0..2_000_000u32).step_by(STEP) {
        let x = 12.0 * (i as f32 / 1e6 - 1.0);
        let wide = f64::from(x);
        worst_tanh = worst_tanh.max(ulps(tanh::<Portable>(x), libm::tanh(wide)));
        let u = (2.0 / core::f64::consts::PI).sqrt() * wide * (1.0 + 0.044_715 * wide * wide);
        let exact = 0.5 * wide * (1.0 + libm::tanh(u));
        // Far below zero the f64 formula cancels, and nothing is left that counts.
        let error = (f64::from(gelu::<Portable>(x)) - exact).abs();
        worst_gelu = worst_gelu.max(error / (exact.abs() + 1e-9));
    }
    assert!(worst_tanh < 1.5, "{worst_tanh} ulp");
    assert!(worst_gelu < 2e-5, "{worst_gelu}");
    assert_eq!(tanh::<Portable>(0.0).to_bits(), 0f32.to_bits());
    // fma(-0, -0, -0) is +0: the one input whose sign is lost.
    assert_eq!(tanh::<Portable>(-0.0).to_bits(), 0f32.to_bits());
    assert_eq!(tanh::<Portable>(f32::INFINITY).to_bits(), 1f32.to_bits());
    assert_eq!(tanh::<Portable>(-100.0).to_bits(), (-1f32).to_bits());
    assert!(tanh::<Portable>(f32::NAN).is_nan());
    assert!(gelu::<Portable>(f32::NAN).is_nan());
    let capped = soft_cap::<Portable>(1e9, 30.0, 1.0 / 30.0);
    assert_eq!(capped.to_bits(), 30f32.to_bits());
}

#[test]
fn angles_agree_with_libm() {
    for i in (0..200_000u32).step_by(STEP) {
        let x = f64::from(i) * 4.999_137 - 13.0;
        let (c, s) = double::cos_sin(x);
        assert!((c - libm::cos(x)).abs() < 2e-15, "cos {x}");
        assert!((s - libm::sin(x)).abs() < 2e-15, "sin {x}");
    }
    for i in 1..2000u32 {
        let x = f64::from(i) * 531.7;
        assert!((double::ln(x) / libm::log(x) - 1.0).abs() < 1e-15, "ln {x}");
        let y = f64::from(i) * 0.35 - 350.0;
        assert!(
            (double::exp(y) / libm::exp(y) - 1.0).abs() < 2e-15,
            "exp {y}"
        );
    }
}

#[test]
fn tree_sum_has_the_stated_order() {
    let x: [f32; 16] = core::array::from_fn(|i| 1.0 + 1e-7 * (i * i) as f32);
    let by_eight: [f32; 8] = core::array::from_fn(|i| x[i] + x[i + 8]);
    let by_four: [f32; 4] = core::array::from_fn(|i| by_eight[i] + by_eight[i + 4]);
    let expected = (by_four[0] + by_four[2]) + (by_four[1] + by_four[3]);
    assert_eq!(tree_sum(&x).to_bits(), expected.to_bits());
}
