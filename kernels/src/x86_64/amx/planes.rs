//! Super-blocks of a panel as tiles read them: products of codes and scales as two planes of bytes,
//! and the numbers that sums are multiplied with.

use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::unpack::{Line, SubBlockBytes, SuperBlock, numbers, pairs};
use core::arch::asm;
use core::arch::x86_64::*;

/// A group of one panel as two planes of bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Planes {
    /// Unsigned bytes.
    pub(super) low: [[u8; LINE_BYTES]; GROUP / 4],
    /// Signed bytes.
    pub(super) high: [[u8; LINE_BYTES]; GROUP / 4],
}

/// What a group of a panel has in addition to its codes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Numbers {
    /// Minima of two sub-blocks as a pair of i16.
    pub(super) min_pairs: [[i32; PANEL_ROWS]; 8],
    pub(super) d: [f32; PANEL_ROWS],
    pub(super) dmin: [f32; PANEL_ROWS],
}

impl Numbers {
    pub(super) const EMPTY: Self = Self {
        min_pairs: [[0; _]; _],
        d: [0.0; _],
        dmin: [0.0; _],
    };
}

impl Planes {
    pub(super) const EMPTY: Self = Self {
        low: [[0; _]; _],
        high: [[0; _]; _],
    };

    /// Unpacks super-block `g` of a panel, and multiplies its codes with their scales.
    ///
    /// # Safety
    /// - `panel` is a whole panel of `n_cols` columns; the CPU has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    pub(super) unsafe fn fill<B: SuperBlock>(
        &mut self,
        panel: &[u8],
        n_cols: usize,
        g: usize,
        to: &mut Numbers,
    ) {
        let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
        let mut of_sub_blocks = [SubBlockBytes::EMPTY; 2];
        // SAFETY: the super-block and the panel are whole; rows of numbers are whole, aligned vectors.
        unsafe {
            B::scale_lines::<__m512i>(super_block, &mut of_sub_blocks);
            let [scales, mins] = &of_sub_blocks;
            if B::MIN {
                to.min_pairs = pairs::<__m512i>(mins, GROUP / B::SUB_COLS);
            }
            let [d, dmin] = numbers::<B, __m512i>(panel, n_cols, g);
            __m512i::store_floats(d, &mut to.d);
            __m512i::store_floats(dmin, &mut to.dmin);
            self.multiply::<B>(super_block, scales);
        }
    }

    /// # Safety
    /// - `super_block` is whole.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn multiply<B: SuperBlock>(&mut self, super_block: &[u8], scales: &SubBlockBytes) {
        let (low, _) = self.low.as_chunks_mut::<4>();
        let (high, _) = self.high.as_chunks_mut::<4>();
        let (low, _) = low.as_chunks_mut::<2>();
        let (high, _) = high.as_chunks_mut::<2>();
        for (run, (low, high)) in low.iter_mut().zip(high).enumerate() {
            // SAFETY: the super-block has eight runs.
            let lines = unsafe { B::lines::<__m512i>(super_block.as_ptr(), run) };
            let halves = low.iter_mut().zip(high).enumerate();
            for ((half, (low, high)), lines) in halves.zip(lines.as_chunks::<4>().0) {
                let sub_block = (32 * run + 16 * half) / B::SUB_COLS;
                // SAFETY: the sub-block has scales; the CPU has AVX-512.
                let scale = unsafe { scales.widen_twice::<__m512i>(sub_block) };
                let factors = Factors::new(scale, B::OFFSET);
                for ((low, high), codes) in low.iter_mut().zip(high).zip(lines) {
                    let (even, odd) = factors.multiply(*codes);
                    let (lower, upper) = bytes(even, odd);
                    // SAFETY: lines are whole, aligned vectors.
                    unsafe {
                        _mm512_store_si512(low.as_mut_ptr().cast(), lower);
                        _mm512_store_si512(high.as_mut_ptr().cast(), upper);
                    }
                }
            }
        }
    }
}

/// Scales of 16 rows, for the even and for the odd bytes of a line.
struct Factors {
    even: __m512i,
    odd: __m512i,
    /// What the offset of codes adds to each product.
    excess: __m512i,
    offset: i16,
}

impl Factors {
    /// From scales as pairs of equal words.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn new(scale: __m512i, offset: i16) -> Self {
        Self {
            even: _mm512_and_si512(scale, _mm512_set1_epi16(0xff)),
            odd: _mm512_slli_epi16::<8>(scale),
            excess: _mm512_mullo_epi16(scale, _mm512_set1_epi16(offset)),
            offset,
        }
    }

    /// The products of the even and of the odd bytes. Of each pair that the instruction adds, one
    /// factor is zero, and no product of a byte with a signed one leaves 16 bits.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn multiply(&self, codes: __m512i) -> (__m512i, __m512i) {
        let even = _mm512_maddubs_epi16(codes, self.even);
        let odd = _mm512_maddubs_epi16(codes, self.odd);
        if self.offset == 0 {
            return (even, odd);
        }
        let even = _mm512_sub_epi16(even, self.excess);
        (even, _mm512_sub_epi16(odd, self.excess))
    }
}

/// The lower and the upper bytes of alternating words.
///
/// By two instructions: of the intrinsics compilers make two that take three times as long.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn bytes(even: __m512i, odd: __m512i) -> (__m512i, __m512i) {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let swap = _mm512_broadcast_i32x4(_mm_setr_epi8(
        1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14,
    ));
    let (mut lower, mut upper) = (even, odd);
    // SAFETY: the CPU has AVX-512BW, and no memory is touched.
    unsafe {
        asm!("vpshufb {0}{{{2}}}, {1}, {3}", inout(zmm_reg) lower, in(zmm_reg) odd,
            in(kreg) ODD, in(zmm_reg) swap, options(pure, nomem, nostack, preserves_flags));
        asm!("vpshufb {0}{{{2}}}, {1}, {3}", inout(zmm_reg) upper, in(zmm_reg) even,
            in(kreg) !ODD, in(zmm_reg) swap, options(pure, nomem, nostack, preserves_flags));
    }
    (lower, upper)
}

/// The sums of products of which the planes' sums are `low` and `high`: `256 · high + low`.
///
/// The shift is a shuffle, by an instruction: tiles are multiplied on a port that does not shift, and
/// compilers make shifts of such shuffles.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn whole(low: __m512i, high: __m512i) -> __m512i {
    let by_a_byte = _mm512_broadcast_i32x4(_mm_setr_epi8(
        -1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14,
    ));
    let upper: __m512i;
    // SAFETY: the CPU has AVX-512BW, and no memory is touched.
    unsafe {
        asm!("vpshufb {0}, {1}, {2}", out(zmm_reg) upper, in(zmm_reg) high,
            in(zmm_reg) by_a_byte, options(pure, nomem, nostack, preserves_flags));
    }
    _mm512_add_epi32(upper, low)
}
