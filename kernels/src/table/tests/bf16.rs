//! The contract's bf16 step against the instruction.
#![cfg(all(target_arch = "x86_64", target_feature = "sse2"))]

use crate::CpuFeatures;
use crate::contract::{LANES, Portable, bf16_step};
use crate::half::bf16_to_f32;
use crate::tests::{Noise, skipped};
use core::arch::x86_64::{__m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_storeu_ps};
extern crate std;

/// `out = vdpbf16ps(out, a, b)`; `a` and `b` hold a pair of bf16 in each word.
#[target_feature(enable = "avx512f,avx512bf16")]
fn hardware(out: &mut [f32; LANES], a: &[u32; LANES], b: &[u32; LANES]) {
    // SAFETY: an unaligned load of the 64 bytes of `a`; any bits are a vector.
    let a = unsafe { a.as_ptr().cast::<__m512bh>().read_unaligned() };
    // SAFETY: the same for `b`.
    let b = unsafe { b.as_ptr().cast::<__m512bh>().read_unaligned() };
    // SAFETY: `out` has 64 bytes.
    let c = unsafe { _mm512_loadu_ps(out.as_ptr()) };
    let sum = _mm512_dpbf16_ps(c, a, b);
    // SAFETY: as above.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
}

/// The two numbers of a word.
fn pair(word: u32) -> [f32; 2] {
    let [a, b, c, d] = word.to_le_bytes();
    [[a, b], [c, d]].map(|half| bf16_to_f32(u16::from_le_bytes(half)))
}

/// Bits of an f32 of one of three kinds: ordinary, of any magnitude, around the denormal border.
fn draw(noise: &mut Noise, kind: u32) -> u32 {
    match kind {
        0 => noise.value().to_bits(),
        1 => (noise.u32() & 0xbfff_ffff) | 0x0080_0000,
        _ => noise.u32() & 0x81ff_ffff,
    }
}

#[test]
fn bf16_step_is_vdpbf16ps() {
    if !CpuFeatures::detect().contains(CpuFeatures::AVX512_BF16) {
        skipped("this CPU has no AVX-512 BF16");
        return;
    }
    let mut noise = Noise(5);
    for round in 0..60_000 {
        let mut bits = |_| draw(&mut noise, round % 3);
        let a: [u32; LANES] = core::array::from_fn(&mut bits);
        let b: [u32; LANES] = core::array::from_fn(&mut bits);
        let c: [f32; LANES] = core::array::from_fn(|lane| f32::from_bits(bits(lane)));
        let mut out = c;
        // SAFETY: AVX-512 BF16 was detected above.
        unsafe { hardware(&mut out, &a, &b) };
        for lane in 0..LANES {
            let (a, b, c, out) = (pair(a[lane]), pair(b[lane]), c[lane], out[lane]);
            let expected = bf16_step::<Portable>(a, b, c);
            let same = out.to_bits() == expected.to_bits() || (out.is_nan() && expected.is_nan());
            assert!(same, "{a:?} · {b:?} + {c:e}: {out:e}, not {expected:e}");
        }
    }
}
