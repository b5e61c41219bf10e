//! Products and weighted sums of listed rows of f32: for networks of which some neurons are computed.
//!
//! A product has [`LANES`] partial sums, by the column modulo 16, which are added by [`tree_sum`], and then the columns after
//! the last whole sixteen. Products are rounded before they are added, so that processors without fused operations
//! are as fast as their vectors. Every instance gives the same bits.

#[cfg(test)]
mod tests;

use crate::KernelTable;
use crate::contract::{LANES, tree_sum};
#[cfg(any(test, all(target_arch = "x86_64", target_feature = "sse2")))]
use crate::cpu::CpuFeatures;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use crate::x86_64::float_rows as x86;

/// The products of each row with `x`, or sums of rows.
type DotsFn = unsafe fn(&[&[f32]], &[f32], &mut [f32]);
type AddFn = unsafe fn(&[f32], &[&[f32]], &mut [f32]);

/// The functions of one instruction set.
#[derive(Debug)]
pub struct FloatRows {
    dots: DotsFn,
    add: AddFn,
}

static SCALAR: FloatRows = FloatRows {
    dots: scalar_dots,
    add: scalar_add,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
static AVX2: FloatRows = FloatRows {
    dots: x86::avx2::dots,
    add: x86::avx2::add,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
static AVX512: FloatRows = FloatRows {
    dots: x86::avx512::dots,
    add: x86::avx512::add,
};

impl KernelTable {
    /// Products of rows of f32. No part of the table, so that programs without them do not link them.
    pub const fn float_rows(&self) -> &'static FloatRows {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.requires().contains(CpuFeatures::AVX512) {
            return &AVX512;
        } else if self.requires().contains(CpuFeatures::AVX2) {
            return &AVX2;
        }
        &SCALAR
    }
}

impl FloatRows {
    /// Writes the product of each row with `x`, all of one length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn dots(&self, rows: &[&[f32]], x: &[f32], out: &mut [f32]) {
        assert_eq!(rows.len(), out.len());
        assert!(rows.iter().all(|row| row.len() == x.len()));
        // SAFETY: a table's features are there; lengths were compared.
        unsafe { (self.dots)(rows, x, out) }
    }

    /// Adds `values[i] · rows[i]` to `out`, in the order of the rows.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add(&self, values: &[f32], rows: &[&[f32]], out: &mut [f32]) {
        assert_eq!(rows.len(), values.len());
        assert!(rows.iter().all(|row| row.len() == out.len()));
        // SAFETY: as above.
        unsafe { (self.add)(values, rows, out) }
    }
}

/// [`FloatRows::dots`], the definition.
fn scalar_dots(rows: &[&[f32]], x: &[f32], out: &mut [f32]) {
    let (chunks, _) = x.as_chunks::<LANES>();
    for (out, row) in out.iter_mut().zip(rows) {
        let mut sums = [0f32; LANES];
        for (w, x) in row.as_chunks::<LANES>().0.iter().zip(chunks) {
            for ((sum, w), x) in sums.iter_mut().zip(w).zip(x) {
                *sum += w * x;
            }
        }
        *out = finish(&sums, row, x);
    }
}

/// The sum of partial sums and of the columns after them.
#[inline(always)]
pub(crate) fn finish(sums: &[f32; LANES], row: &[f32], x: &[f32]) -> f32 {
    let mut sum = tree_sum(sums);
    for (w, x) in row
        .as_chunks::<LANES>()
        .1
        .iter()
        .zip(x.as_chunks::<LANES>().1)
    {
        sum += w * x;
    }
    sum
}

/// [`FloatRows::add`], the definition.
fn scalar_add(values: &[f32], rows: &[&[f32]], out: &mut [f32]) {
    for (value, row) in values.iter().zip(rows) {
        add_one(*value, row, out);
    }
}

/// Adds one row.
#[inline(always)]
pub(crate) fn add_one(value: f32, row: &[f32], out: &mut [f32]) {
    for (out, w) in out.iter_mut().zip(row) {
        *out += value * w;
    }
}
