//! Kernels in AVX-512 with VNNI and the rest of the Ice Lake set.
//!
//! A vector is 16 rows of weights: one line of a panel, whose four bytes a row `vpdpbusd`
//! multiplies with four columns of one token, broadcast from memory. Two families of integer
//! types (`block`, `super_block`) have each
//!
//! - a product with up to four tokens, which unpacks lines in registers on the way, and
//! - a product with many, which unpacks 256 columns of some panels into a buffer in the L1
//!   cache and multiplies them, two at a time, with four tokens (`tile`): only the unpacking is
//!   compiled type by type.
//!
//! More than four tokens that do not pay for unpacking, and those that fill no tile, are multiplied
//! four at a time (`products`).
//!
//! How a type unpacks is in [`super::unpack`]. Outputs are the running sums between
//! groups of columns.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

pub(crate) mod attention;
mod block;
mod float;
mod line;
pub(crate) mod lora;
pub(crate) mod neurons;
mod products;
pub(crate) mod quantize;
pub(crate) mod recurrent;
mod super_block;
mod tile;

#[cfg(test)]
pub(crate) use block::matmul_split_otherwise as block_matmul_split_otherwise;
pub(crate) use block::{kind as block_kind, matmul as block_matmul};
pub(crate) use float::{bf16_matmul, bf16_serves, matmul as float_matmul};
pub(crate) use products::Product;
#[cfg(test)]
pub(crate) use super_block::matmul_split_otherwise as super_block_matmul_split_otherwise;
pub(crate) use super_block::{matmul as super_block_matmul, scaled};

use crate::args::Matmul;
use crate::vector::rows::{Int8Rows, Out};
use core::arch::asm;
use core::arch::x86_64::*;
use products::FEW;

/// Up to `T` tokens. If there are fewer, the last one is computed again.
struct Few<const T: usize> {
    x: [Int8Rows; T],
    n: usize,
}

impl<const T: usize> Few<T> {
    /// The tokens of `args`: at least one.
    fn new(args: &Matmul<'_>, per_32: bool) -> Self {
        let x = Int8Rows::new(args, args.tokens.start, per_32);
        let n = args.tokens.end - args.tokens.start;
        Self {
            x: core::array::from_fn(|t| x.tokens(t.min(n - 1))),
            n,
        }
    }

    /// The sums before the first column: of the columns before, or zeros.
    ///
    /// # Safety
    /// - The outputs are readable unless it `starts`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn start(&self, out: Out, starts: bool) -> [__m512; T] {
        let mut acc = [_mm512_setzero_ps(); T];
        for (t, acc) in acc.iter_mut().enumerate() {
            let t = if T == 1 { 0 } else { t.min(self.n - 1) };
            // SAFETY: by the caller.
            *acc = unsafe { out.running(t, starts) };
        }
        acc
    }

    /// # Safety
    /// - The outputs are writable, and nothing else accesses them.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn store(&self, acc: &[__m512; T], out: Out) {
        // Of a single one the compiler would make a loop for many, a kilobyte long.
        let n = if T == 1 { 1 } else { self.n };
        for (t, acc) in acc[..n].iter().enumerate() {
            // SAFETY: by the caller.
            unsafe { out.store(t, *acc) };
        }
    }
}

impl Out {
    /// The running sums of token `t`, zero before the first group of columns.
    ///
    /// # Safety
    /// - The outputs are readable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn running(self, t: usize, is_first: bool) -> __m512 {
        let mask = if is_first { 0 } else { self.mask };
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: masked lanes are not accessed; the caller vouches for the others.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }

    /// # Safety
    /// - The outputs are writable, and nothing else accesses them.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn store(self, t: usize, sums: __m512) {
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: as in `running`.
        unsafe { _mm512_mask_storeu_ps(at, self.mask, sums) };
    }
}

/// Four bytes in all lanes.
///
/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast(p: *const u8) -> __m512i {
    // SAFETY: by the caller.
    _mm512_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast_float(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_set1_ps(unsafe { p.cast::<f32>().read_unaligned() })
}

/// 16 halves as f32.
///
/// # Safety
/// - 32 bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
}

/// What dots of [`add_dots`] start with, in all lanes.
///
/// For [`FEW`] tokens by an instruction for integers: where assembly alone uses the value, compilers
/// choose the one for floats, and on Zen 4 the first product then waits for it to change sides.
#[target_feature(enable = "avx512f")]
#[inline]
fn start<const T: usize>(of_dot: &i32) -> __m512i {
    if T < FEW {
        return _mm512_set1_epi32(*of_dot);
    }
    let out;
    // SAFETY: reads what is borrowed.
    unsafe {
        asm!(
            "vpbroadcastd {out}, dword ptr [{at}]",
            out = lateout(zmm_reg) out,
            at = in(reg) core::ptr::from_ref(of_dot),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    out
}

/// Adds the dots of four lines with the columns of each token from column `AT` on.
///
/// # Safety
/// - 16 codes are readable at `AT` of each of `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_dots<const AT: usize, const T: usize>(
    sums: &mut [__m512i; T],
    w: [__m512i; 4],
    x: &[*const u8; T],
) {
    const { assert!(T <= FEW) }
    // SAFETY: by the caller.
    unsafe {
        if let (Some(sums), Some(x)) = (sums.first_chunk_mut(), x.first_chunk()) {
            return add_dots_of_few::<AT>(sums, w, x);
        }
        for (sum, x) in sums.iter_mut().zip(x) {
            for (i, w) in w.iter().enumerate() {
                *sum = _mm512_dpbusd_epi32(*sum, *w, broadcast(x.add(AT + 4 * i)));
            }
        }
    }
}

/// [`add_dots`] for [`FEW`] tokens.
///
/// Tokens take turns: a token's own dots wait for each other, and what waits takes the room of loads to
/// come. In assembly, because compilers write addresses of two registers, which Intel's CPUs split into
/// two instructions.
///
/// # Safety
/// - As [`add_dots`].
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_dots_of_few<const AT: usize>(
    [a, b, c, d]: &mut [__m512i; FEW],
    [w0, w1, w2, w3]: [__m512i; 4],
    x: &[*const u8; FEW],
) {
    macro_rules! line {
        ($w:literal $at:literal) => {
            line!($w $at, "a" "xa", "b" "xb", "c" "xc", "d" "xd")
        };
        ($w:literal $at:literal, $($sum:literal $x:literal),*) => {
            concat!($("vpdpbusd {", $sum, "}, {", $w, "}, dword ptr [{", $x, "} + {at} + ", $at,
                      "]{{1to16}}\n",)*)
        };
    }
    // SAFETY: reads 16 codes of each token from `AT` on, readable by the caller's contract.
    unsafe {
        asm!(
            line!("w0" 0), line!("w1" 4), line!("w2" 8), line!("w3" 12),
            a = inout(zmm_reg) *a, b = inout(zmm_reg) *b,
            c = inout(zmm_reg) *c, d = inout(zmm_reg) *d,
            w0 = in(zmm_reg) w0, w1 = in(zmm_reg) w1, w2 = in(zmm_reg) w2, w3 = in(zmm_reg) w3,
            xa = in(reg) x[0], xb = in(reg) x[1], xc = in(reg) x[2], xd = in(reg) x[3],
            at = const AT,
            options(nostack, readonly, preserves_flags),
        );
    }
}
