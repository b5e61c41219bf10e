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

mod error;
mod fp4;
mod simple;
mod ternary;
#[cfg(test)]
mod tests;

pub use error::QuantizeError;

use crate::{CpuFeatures, GgmlType};

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
            | T::TQ1_0
            | T::TQ2_0
            | T::MXFP4
            | T::NVFP4
    )
}

/// The quantiser compiled for what a CPU can do.
///
/// Detection asks the CPU, which is slow inside a virtual machine: keep the value where rows
/// are quantised one at a time.
#[derive(Clone, Copy, Debug)]
pub struct Quantizer {
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
        // What the CPU lacks is never used, whatever the caller says.
        let avx2 = features.contains(CpuFeatures::AVX2)
            && CpuFeatures::detect().contains(CpuFeatures::AVX2);
        Self { avx2 }
    }

    /// Quantises `source` into blocks of type `ty`.
    ///
    /// - `source`: (n_rows, `n_per_row`), row-major f32, every |x| at most [`max_abs`]\(`ty`).
    /// - `importance`: (`n_per_row`), how much the squared error of each column counts: zero or
    ///   more, on any scale (such as llama.cpp's `imatrix` values of this tensor or expert).
    ///   Floats, Q8_0, NVFP4 and the ternary types have no choice to make with it. All zeros
    ///   are as `None`.
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
        #[cfg(target_arch = "x86_64")]
        if self.avx2 {
            // SAFETY: `new` has seen that this CPU has AVX2.
            unsafe { run_avx2(&mut job) };
            return Ok(());
        }
        run(&mut job);
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
    #[expect(dead_code, reason = "for the types to come")]
    n_per_row: usize,
    #[expect(dead_code, reason = "for the types to come")]
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
    #[expect(dead_code, reason = "for the types to come")]
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

/// [`run`] compiled with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(job: &mut Job<'_>) {
    run(job);
}

/// Quantises all rows. Everything below is inlined, so that it is compiled with the features
/// of the caller.
#[inline(always)]
fn run(job: &mut Job<'_>) {
    use GgmlType as T;
    match job.ty {
        T::F32 => blocks(job, simple::f32_block),
        T::F16 => blocks(job, simple::f16_block),
        T::BF16 => blocks(job, simple::bf16_block),
        T::Q8_0 => blocks(job, simple::q8_0_block),
        T::Q4_0 => blocks(job, simple::q4_0_block),
        T::Q4_1 => blocks(job, simple::q4_1_block),
        T::Q5_0 => blocks(job, simple::q5_0_block),
        T::Q5_1 => blocks(job, simple::q5_1_block),
        T::TQ1_0 => blocks(job, ternary::tq1_0_block),
        T::TQ2_0 => blocks(job, ternary::tq2_0_block),
        T::MXFP4 => blocks(job, fp4::mxfp4_block),
        T::NVFP4 => blocks(job, fp4::nvfp4_block),
        _ => unreachable!("`can_quantize` was asked"),
    }
}

/// Quantises block by block, without importance. `N` elements become `BYTES` bytes.
#[inline(always)]
fn blocks<const N: usize, const BYTES: usize>(
    job: &mut Job<'_>,
    block: impl Fn(&[f32; N], &mut [u8; BYTES]),
) {
    let (sources, _) = job.source.as_chunks::<N>();
    let (outs, _) = job.out.as_chunks_mut::<BYTES>();
    for (source, out) in sources.iter().zip(outs) {
        block(source, out);
    }
}
