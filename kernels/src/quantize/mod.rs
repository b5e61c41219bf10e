//! Quantisers: rows of f32 weights into the blocks of GGUF files.
//!
//! The simple types (floats, Q8_0 and, without importance, Q4_0 to Q5_1, MXFP4, NVFP4 and the
//! ternary ones) are rounded as ggml rounds them, byte for byte. The others are searches for
//! the scales with the least squared error; see [`Quantizer::quantize_rows`].
//!
//! The same bytes come out on every machine: only single additions, products, quotients and
//! comparisons of f32 and f64 are used, in a fixed order, never fused, under the default
//! floating-point environment ([`crate::FpEnv`]). With AVX2 the same source runs faster.
//!
//! Formats: `ggml-common.h` of llama.cpp; rounding of the simple types: `ggml-quants.c`.

mod affine;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod avx2;
mod books;
mod codebook;
mod error;
mod fp4;
mod lanes;
mod simple;
mod symmetric;
mod ternary;
#[cfg(test)]
mod tests;
mod vector;

pub use error::QuantizeError;

use crate::{CpuFeatures, GgmlType};
use vector::Vector;

/// Quantises with the instructions this CPU has: [`Quantizer::quantize_rows`] of
/// [`Quantizer::detect`].
///
/// # Errors
/// As [`Quantizer::quantize_rows`].
pub fn quantize_rows(
    ty: GgmlType,
    source: &[f32],
    n_per_row: usize,
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantizeError> {
    Quantizer::detect().quantize_rows(ty, source, n_per_row, importance, out)
}

/// Whether [`quantize_rows`] makes blocks of type `ty`.
pub const fn can_quantize(ty: GgmlType) -> bool {
    use GgmlType as T;
    matches!(
        ty,
        T::F32
            | T::F16
            | T::BF16
            | T::Q8_0
            | T::Q4_0
            | T::Q4_1
            | T::Q5_0
            | T::Q5_1
            | T::Q2_K
            | T::Q3_K
            | T::Q4_K
            | T::Q5_K
            | T::Q6_K
            | T::IQ4_NL
            | T::IQ4_XS
            | T::TQ1_0
            | T::TQ2_0
            | T::MXFP4
            | T::NVFP4
            | T::IQ3_S
            | T::IQ3_XXS
            | T::IQ2_S
            | T::IQ2_XS
            | T::IQ2_XXS
            | T::LANE3
            | T::LANE5
            | T::LANE7
    )
}

/// The quantiser compiled for what a CPU can do.
///
/// Detection asks the CPU, which is slow inside a virtual machine: keep the value where rows
/// are quantised one at a time.
#[derive(Clone, Copy, Debug)]
pub struct Quantizer {
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_feature = "sse2")),
        expect(dead_code, reason = "there is nothing to choose elsewhere")
    )]
    avx2: bool,
}

impl Quantizer {
    /// For this CPU.
    #[must_use]
    pub fn detect() -> Self {
        Self::new(CpuFeatures::detect())
    }

    /// With at most `features`, which this CPU must have. The bytes do not depend on them.
    #[must_use]
    pub fn new(features: CpuFeatures) -> Self {
        // Never uses what the CPU lacks, whatever features the caller passes.
        let avx2 = features.contains(CpuFeatures::AVX2)
            && CpuFeatures::detect().contains(CpuFeatures::AVX2);
        Self { avx2 }
    }

    /// Quantises `source` into blocks of type `ty`.
    ///
    /// Rows do not influence each other: cutting a tensor into several calls, on several
    /// workers, gives the same bytes. Release builds use some 10 KiB of stack.
    ///
    /// - `source`: (n_rows, `n_per_row`), row-major f32, every |x| at most [`max_abs`]\(`ty`).
    /// - `importance`: (`n_per_row`), how much the squared error of each column counts: zero or
    ///   more, on any scale (such as llama.cpp's `imatrix` values of this tensor or expert).
    ///   Floats, Q8_0, NVFP4 and the ternary types make nothing of it. All zeros are as
    ///   `None`.
    /// - `out`: n_rows · [`GgmlType::row_bytes`] bytes, row after row.
    ///
    /// # Errors
    /// - [`QuantizeError::NoQuantizer`] where [`can_quantize`] is false.
    /// - Rows that are empty or not whole blocks, and slices of other lengths than above.
    /// - The index of the first number that is not finite, too large for the type, or an
    ///   importance that is negative. `out` is untouched then.
    pub fn quantize_rows(
        &self,
        ty: GgmlType,
        source: &[f32],
        n_per_row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), QuantizeError> {
        check_shape(ty, source, n_per_row, importance, out)?;
        check_values(ty, source)?;
        let importance = match importance {
            Some(values) => Importance::new(values)?,
            None => None,
        };
        let mut job = Job {
            ty,
            source,
            n_per_row,
            importance,
            out,
        };
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.avx2 {
            // SAFETY: `new` has seen that this CPU has AVX2.
            unsafe { run_avx2(&mut job) };
            return Ok(());
        }
        run::<vector::Portable>(&mut job);
        Ok(())
    }
}

/// The largest magnitude that a tensor of type `ty` may hold: the largest half where scales
/// are halves, so that no scale becomes infinite.
pub const fn max_abs(ty: GgmlType) -> f32 {
    match ty {
        GgmlType::F32 | GgmlType::MXFP4 => f32::MAX,
        // The largest bfloat16.
        GgmlType::BF16 => f32::from_bits(0x7f7f_0000),
        // 448 (the largest UE4M3 scale) times 6 (the largest E2M1 value).
        GgmlType::NVFP4 => 2688.0,
        _ => 65_504.0,
    }
}

/// Checked arguments.
struct Job<'a> {
    ty: GgmlType,
    source: &'a [f32],
    n_per_row: usize,
    importance: Option<Importance<'a>>,
    out: &'a mut [u8],
}

/// Importance of columns, and the factor that makes its mean 1.
#[derive(Clone, Copy)]
struct Importance<'a> {
    values: &'a [f32],
    factor: f64,
}

impl<'a> Importance<'a> {
    /// `None` where all are zero.
    fn new(values: &'a [f32]) -> Result<Option<Self>, QuantizeError> {
        let valid = |w: &f32| *w >= 0.0 && w.is_finite();
        if let Some(index) = values.iter().position(|w| !valid(w)) {
            return Err(QuantizeError::ImportanceNotValid { index });
        }
        let sum: f64 = values.iter().map(|w| f64::from(*w)).sum();
        #[expect(clippy::cast_precision_loss, reason = "any factor near this will do")]
        let factor = values.len() as f64 / sum;
        Ok((sum > 0.0).then_some(Self { values, factor }))
    }

    /// The weight of column `c`: 1 on average, and never zero, so that a block without
    /// importance is still quantised sensibly.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    fn weight(&self, c: usize) -> f32 {
        const FLOOR: f32 = 1e-5;
        (f64::from(self.values[c]) * self.factor) as f32 + FLOOR
    }
}

fn check_shape(
    ty: GgmlType,
    source: &[f32],
    n_per_row: usize,
    importance: Option<&[f32]>,
    out: &[u8],
) -> Result<(), QuantizeError> {
    if !can_quantize(ty) {
        return Err(QuantizeError::NoQuantizer { ty });
    }
    if n_per_row == 0 || !n_per_row.is_multiple_of(ty.block_len()) {
        return Err(QuantizeError::RowNotWholeBlocks { ty, n_per_row });
    }
    let len = source.len();
    if !len.is_multiple_of(n_per_row) {
        return Err(QuantizeError::SourceNotWholeRows { len, n_per_row });
    }
    if let Some(importance) = importance
        && importance.len() != n_per_row
    {
        let len = importance.len();
        return Err(QuantizeError::ImportanceLength { len, n_per_row });
    }
    // No overflow: a block never takes more bytes than its f32 source.
    let expected = len / ty.block_len() * ty.block_bytes();
    if out.len() != expected {
        let len_bytes = out.len();
        return Err(QuantizeError::OutLength {
            len_bytes,
            expected,
        });
    }
    Ok(())
}

/// One pass over the bits of the magnitudes, which order as the numbers do, NaN last.
fn check_values(ty: GgmlType, source: &[f32]) -> Result<(), QuantizeError> {
    let magnitude = |x: &f32| x.to_bits() & 0x7fff_ffff;
    let limit = max_abs(ty).to_bits();
    let largest = source.iter().map(magnitude).fold(0, u32::max);
    if largest <= limit {
        return Ok(());
    }
    let first = |bound: u32| source.iter().position(|x| magnitude(x) > bound);
    match first(f32::MAX.to_bits()) {
        Some(index) => Err(QuantizeError::ValueNotFinite { index }),
        None => Err(QuantizeError::ValueTooLarge {
            ty,
            index: first(limit).expect("the largest is above the limit"),
        }),
    }
}

/// Macros, because a function that is passed as an argument is not inlined for certain, and
/// would then be compiled without the caller's features.
///
/// Block by block, without importance; `$block`'s argument types set the lengths.
macro_rules! blocks {
    ($job:ident, $block:path) => {{
        let (sources, _) = $job.source.as_chunks();
        let (outs, _) = $job.out.as_chunks_mut();
        for (source, out) in sources.iter().zip(outs) {
            $block(source, out);
        }
    }};
}

/// Super-blocks of 256 numbers, with weights.
macro_rules! super_blocks {
    ($job:ident, $block:path) => {{
        let (sources, _) = $job.source.as_chunks::<256>();
        let (outs, _) = $job.out.as_chunks_mut();
        let per_row = $job.n_per_row / 256;
        for (b, (x, out)) in sources.iter().zip(outs).enumerate() {
            $block(x, &weights(x, $job.importance, b % per_row * 256), out);
        }
    }};
}

/// Blocks of 32 with weights, eight of a row at a time, or what is left of them and zeros.
macro_rules! small_blocks {
    ($job:ident, $blocks:path) => {{
        let (outs, _) = $job.out.as_chunks_mut();
        let rows = $job.source.chunks_exact($job.n_per_row);
        for (row, outs) in rows.zip(outs.chunks_exact_mut($job.n_per_row / 32)) {
            for (c, (part, outs)) in row.chunks(256).zip(outs.chunks_mut(8)).enumerate() {
                let mut x = [0f32; 256];
                x[..part.len()].copy_from_slice(part);
                $blocks(&x, &weights(&x, $job.importance, 256 * c), outs);
            }
        }
    }};
}
/// [`run`] compiled with AVX2.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[target_feature(enable = "avx2")]
fn run_avx2(job: &mut Job<'_>) {
    run::<avx2::Avx2>(job);
}

/// Quantises all rows. Everything below is inlined, so that it is compiled with the features
/// of the caller.
#[inline(always)]
fn run<V: Vector>(job: &mut Job<'_>) {
    use GgmlType as T;
    let weighted = job.importance.is_some();
    match job.ty {
        T::F32 => blocks!(job, simple::f32_block),
        T::F16 => blocks!(job, simple::f16_block),
        T::BF16 => blocks!(job, simple::bf16_block),
        T::Q8_0 => blocks!(job, simple::q8_0_block),
        T::Q4_0 if weighted => small_blocks!(job, symmetric::q4_0_blocks::<V>),
        T::Q4_1 if weighted => small_blocks!(job, affine::q4_1_blocks::<V>),
        T::Q5_0 if weighted => small_blocks!(job, symmetric::q5_0_blocks::<V>),
        T::Q5_1 if weighted => small_blocks!(job, affine::q5_1_blocks::<V>),
        T::Q4_0 => blocks!(job, simple::q4_0_block),
        T::Q4_1 => blocks!(job, simple::q4_1_block),
        T::Q5_0 => blocks!(job, simple::q5_0_block),
        T::Q5_1 => blocks!(job, simple::q5_1_block),
        T::Q2_K => super_blocks!(job, affine::q2_k_block::<V>),
        T::Q3_K => super_blocks!(job, symmetric::q3_k_block::<V>),
        T::Q4_K => super_blocks!(job, affine::q4_k_block::<V>),
        T::Q5_K => super_blocks!(job, affine::q5_k_block::<V>),
        T::Q6_K => super_blocks!(job, symmetric::q6_k_block::<V>),
        T::IQ4_NL => small_blocks!(job, symmetric::iq4_nl_blocks::<V>),
        T::IQ4_XS => super_blocks!(job, symmetric::iq4_xs_block::<V>),
        T::IQ3_S => super_blocks!(job, codebook::iq3_s_block::<V>),
        T::IQ3_XXS => super_blocks!(job, codebook::iq3_xxs_block::<V>),
        T::IQ2_S => super_blocks!(job, codebook::iq2_s_block::<V>),
        T::IQ2_XS => super_blocks!(job, codebook::iq2_xs_block::<V>),
        T::IQ2_XXS => super_blocks!(job, codebook::iq2_xxs_block::<V>),
        T::TQ1_0 => blocks!(job, ternary::tq1_0_block),
        T::TQ2_0 => blocks!(job, ternary::tq2_0_block),
        T::LANE3 => small_blocks!(job, symmetric::lane_blocks::<V, 3, 14>),
        T::LANE5 => small_blocks!(job, symmetric::lane_blocks::<V, 5, 22>),
        T::LANE7 => small_blocks!(job, symmetric::lane_blocks::<V, 7, 30>),
        T::MXFP4 if weighted => small_blocks!(job, fp4::mxfp4_blocks),
        T::MXFP4 => blocks!(job, fp4::mxfp4_block),
        T::NVFP4 => blocks!(job, fp4::nvfp4_block),
        _ => unreachable!("`can_quantize` was asked"),
    }
}

/// How much the squared error of each number counts: its column's importance, and somewhat
/// more for numbers of large magnitude.
///
/// With [`MAGNITUDE`] 0 the plain squared error would be least. A little more for large numbers
/// costs less than half a percent of it and brings the error that ggml's searches reduce
/// (weights |x| + root mean square) below ggml's too.
#[inline(always)]
fn weights(x: &[f32; 256], importance: Option<Importance<'_>>, first: usize) -> [f32; 256] {
    const MAGNITUDE: f32 = 0.2;
    // Sums of eight lanes each, so that the loop vectorises.
    let mut sums = [0f32; vector::LANES];
    for x in x.as_chunks::<{ vector::LANES }>().0 {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x.abs();
        }
    }
    let mean = sums.iter().sum::<f32>() / 256.0;
    // Only MXFP4 can hold numbers beyond these.
    let ordinary = mean > 1e-30 && mean < 1e30;
    let slope = if ordinary { MAGNITUDE / mean } else { 0.0 };
    let mut weights = x.map(|x| 1.0 + slope * x.abs());
    if let Some(importance) = importance {
        let columns = importance.values.len().min(first + 256) - first;
        for (c, weight) in weights[..columns].iter_mut().enumerate() {
            *weight *= importance.weight(first + c);
        }
    }
    weights
}
