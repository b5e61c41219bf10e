//! Products whose terms are walked in a stated order: `out[i][j] += Σ a[i][k] · b[k][j]`.

use crate::contract::{GROUP, Portable, bf16_step, fma};

/// `out[i][j] += Σ a[i][k] · b[k][j]` in f32, for `i < m`, `j < n`, `k < steps`: per group of [`GROUP`] values of `k`
/// from zero, `t = fma(a, b, t)` by ascending `k`, then `out + t`.
#[derive(Debug)]
pub struct Product<'a> {
    /// Elements `i · a_strides[0] + k · a_strides[1]`.
    pub a: &'a [f32],
    /// Elements from a row of `a` to the next, and from a value of `k` to the next.
    pub a_strides: [usize; 2],
    /// Rows of `n` elements, one for each `k`.
    pub b: &'a [f32],
    /// Elements from a row of `b` to the next.
    pub b_stride: usize,
    /// Rows of `n` elements, one for each `i`.
    pub out: *mut f32,
    /// Elements from a row of `out` to the next.
    pub out_stride: usize,
    /// Rows of `a` and of `out`.
    pub m: usize,
    /// Columns of `b` and of `out`.
    pub n: usize,
    /// Values of `k`.
    pub steps: usize,
}

/// As [`Product`], of pairs of bf16 that follow each other in `k`: an element is the pair `2 k` (low half) and `2 k + 1`.
/// Per [`GROUP`]` / 2` pairs from zero, a [`bf16_step`] by ascending pair, then `out + t`.
#[derive(Debug)]
pub struct PairProduct<'a> {
    /// Pairs `i · a_stride + k`.
    pub a: &'a [u32],
    /// Pairs from a row of `a` to the next.
    pub a_stride: usize,
    /// Rows of `n` pairs, one for each pair of `k`.
    pub b: &'a [u32],
    /// Pairs from a row of `b` to the next.
    pub b_stride: usize,
    /// Rows of `n` elements, one for each `i`.
    pub out: *mut f32,
    /// Elements from a row of `out` to the next.
    pub out_stride: usize,
    /// Rows of `a` and of `out`.
    pub m: usize,
    /// Columns of `b` and of `out`.
    pub n: usize,
    /// Pairs of `k`.
    pub steps: usize,
}

/// Pairs in a group.
pub(crate) const GROUP_PAIRS: usize = GROUP / 2;

/// Whether `rows` rows, `stride` apart, of elements that end at `row_len`, lie within `len`.
fn fits(len: usize, rows: usize, stride: usize, row_len: usize) -> bool {
    if rows == 0 || row_len == 0 {
        return true;
    }
    let last = (rows - 1).checked_mul(stride);
    let end = last.and_then(|last| last.checked_add(row_len));
    end.is_some_and(|end| end <= len)
}

impl Product<'_> {
    pub(super) fn check(&self) {
        let [row, step] = self.a_strides;
        let last = self.steps.saturating_sub(1).checked_mul(step);
        let last = last.expect("strides are within memory");
        assert!(self.steps == 0 || fits(self.a.len(), self.m, row, last + 1));
        assert!(fits(self.b.len(), self.steps, self.b_stride, self.n));
        assert!(self.out_stride >= self.n || self.m <= 1);
    }
}

impl PairProduct<'_> {
    pub(super) fn check(&self) {
        assert!(fits(self.a.len(), self.m, self.a_stride, self.steps));
        assert!(fits(self.b.len(), self.steps, self.b_stride, self.n));
        assert!(self.out_stride >= self.n || self.m <= 1);
    }
}

/// [`super::BackwardKernels::add_product`], the definition.
pub(super) unsafe fn scalar(p: &Product<'_>) {
    let [row, step] = p.a_strides;
    for i in 0..p.m {
        for j in 0..p.n {
            let at = p.out.wrapping_add(i * p.out_stride + j);
            for start in (0..p.steps).step_by(GROUP) {
                let mut t = 0.0;
                for k in start..(start + GROUP).min(p.steps) {
                    t = fma(p.a[i * row + k * step], p.b[k * p.b_stride + j], t);
                }
                // SAFETY: an output, by the caller.
                unsafe { *at += t };
            }
        }
    }
}

/// [`super::BackwardKernels::add_pair_product`], the definition.
pub(super) unsafe fn scalar_pairs(p: &PairProduct<'_>) {
    let numbers = |pair: u32| [pair << 16, pair & 0xffff_0000].map(f32::from_bits);
    for i in 0..p.m {
        for j in 0..p.n {
            let at = p.out.wrapping_add(i * p.out_stride + j);
            for start in (0..p.steps).step_by(GROUP_PAIRS) {
                let mut t = 0.0;
                for k in start..(start + GROUP_PAIRS).min(p.steps) {
                    let (a, b) = (p.a[i * p.a_stride + k], p.b[k * p.b_stride + j]);
                    t = bf16_step::<Portable>(numbers(a), numbers(b), t);
                }
                // SAFETY: an output, by the caller.
                unsafe { *at += t };
            }
        }
    }
}
