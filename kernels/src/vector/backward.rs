//! Products of backward passes in vectors: see [`crate::backward::Product`].
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::attention::Vector;
use crate::backward::{PairProduct, Product};
use crate::contract::GROUP;

/// A product of any element: what a tile reads and how it steps.
pub(crate) trait Steps<V: Vector> {
    /// What a lane of `a` and `b` holds.
    type Lanes: Copy;

    /// Steps in a group.
    const GROUP: usize;

    /// The operand of row `i` of `a` at step `k`, in all lanes.
    ///
    /// # Safety
    /// - Row and step are within the product.
    unsafe fn a(&self, i: usize, k: usize) -> Self::Lanes;

    /// Lanes of `b` from column `j` on at step `k`, `n` of them.
    ///
    /// # Safety
    /// - Step and columns are within the product.
    unsafe fn b(&self, j: usize, k: usize, n: usize) -> Self::Lanes;

    fn step(a: Self::Lanes, b: Self::Lanes, t: V::F) -> V::F;

    /// (m, n, steps)
    fn shape(&self) -> [usize; 3];

    /// Where output (i, j) is.
    fn out(&self, i: usize, j: usize) -> *mut f32;
}

impl<V: Vector> Steps<V> for Product<'_> {
    type Lanes = V::F;
    const GROUP: usize = GROUP;

    #[inline(always)]
    unsafe fn a(&self, i: usize, k: usize) -> V::F {
        let [row, step] = self.a_strides;
        // SAFETY: by the caller; the operand was checked.
        V::splat(unsafe { self.a.as_ptr().add(i * row + k * step).read() })
    }

    #[inline(always)]
    unsafe fn b(&self, j: usize, k: usize, n: usize) -> V::F {
        let at = self.b.as_ptr().wrapping_add(k * self.b_stride + j);
        // SAFETY: as in `a`.
        unsafe {
            if n == V::WIDTH {
                V::load(at)
            } else {
                V::load_part(at, n)
            }
        }
    }

    #[inline(always)]
    fn step(a: V::F, b: V::F, t: V::F) -> V::F {
        V::fma(a, b, t)
    }

    #[inline(always)]
    fn shape(&self) -> [usize; 3] {
        [self.m, self.n, self.steps]
    }

    #[inline(always)]
    fn out(&self, i: usize, j: usize) -> *mut f32 {
        self.out.wrapping_add(i * self.out_stride + j)
    }
}

/// How a pair of bf16 is multiplied.
pub(crate) trait PairStep<V: Vector> {
    fn step(a: V::I, b: V::I, t: V::F) -> V::F;
}

/// By the definition's operations.
pub(crate) struct Emulated;

impl<V: Vector> PairStep<V> for Emulated {
    #[inline(always)]
    fn step(a: V::I, b: V::I, t: V::F) -> V::F {
        V::bf16_step(a, b, t)
    }
}

/// A product of pairs with its step.
pub(crate) struct Pairs<'p, 'a, S> {
    product: &'p PairProduct<'a>,
    step: core::marker::PhantomData<S>,
}

impl<'p, 'a, S> Pairs<'p, 'a, S> {
    pub(crate) const fn new(product: &'p PairProduct<'a>) -> Self {
        Self {
            product,
            step: core::marker::PhantomData,
        }
    }
}

impl<V: Vector, S: PairStep<V>> Steps<V> for Pairs<'_, '_, S> {
    type Lanes = V::I;
    const GROUP: usize = crate::backward::GROUP_PAIRS;

    #[inline(always)]
    unsafe fn a(&self, i: usize, k: usize) -> V::I {
        let p = self.product;
        // SAFETY: by the caller; the operand was checked.
        V::splat_int(unsafe { p.a.as_ptr().add(i * p.a_stride + k).read() })
    }

    #[inline(always)]
    unsafe fn b(&self, j: usize, k: usize, n: usize) -> V::I {
        let p = self.product;
        let at = p.b.as_ptr().wrapping_add(k * p.b_stride + j).cast();
        // SAFETY: as in `a`.
        unsafe {
            if n == V::WIDTH {
                V::load_int(at)
            } else {
                V::load_int_part(at, n)
            }
        }
    }

    #[inline(always)]
    fn step(a: V::I, b: V::I, t: V::F) -> V::F {
        S::step(a, b, t)
    }

    #[inline(always)]
    fn shape(&self) -> [usize; 3] {
        [self.product.m, self.product.n, self.product.steps]
    }

    #[inline(always)]
    fn out(&self, i: usize, j: usize) -> *mut f32 {
        let p = self.product;
        p.out.wrapping_add(i * p.out_stride + j)
    }
}

/// Adds a product to its outputs, by tiles of `R` rows × `C` vectors.
///
/// # Safety
/// - The CPU has the features of `V`; operands were checked; outputs are writable.
#[inline(always)]
pub(crate) unsafe fn add<V: Vector, P: Steps<V>, const R: usize, const C: usize>(p: &P) {
    let [m, n, steps] = p.shape();
    for start in (0..steps).step_by(P::GROUP) {
        let steps = [start, (start + P::GROUP).min(steps)];
        let mut j = 0;
        while j + C * V::WIDTH <= n {
            // SAFETY: whole vectors are left, by the condition.
            unsafe { columns::<V, P, R, C>(p, j, V::WIDTH, steps, m) };
            j += C * V::WIDTH;
        }
        while j < n {
            let lanes = V::WIDTH.min(n - j);
            // SAFETY: `lanes` columns are left.
            unsafe { columns::<V, P, R, 1>(p, j, lanes, steps, m) };
            j += V::WIDTH;
        }
    }
}

/// All rows of `C` vectors of columns from `j` on.
///
/// # Safety
/// - As [`add`]; the columns and steps are within the product. `lanes` is less than a vector for one vector alone.
#[inline(always)]
unsafe fn columns<V: Vector, P: Steps<V>, const R: usize, const C: usize>(
    p: &P,
    j: usize,
    lanes: usize,
    steps: [usize; 2],
    m: usize,
) {
    let mut i = 0;
    while i + R <= m {
        // SAFETY: by the caller; `R` rows are left.
        unsafe { tile::<V, P, R, C>(p, i, j, lanes, steps) };
        i += R;
    }
    while i < m {
        // SAFETY: by the caller; a row is left.
        unsafe { tile::<V, P, 1, C>(p, i, j, lanes, steps) };
        i += 1;
    }
}

/// # Safety
/// - As [`columns`]; the rows are within the product.
#[inline(always)]
unsafe fn tile<V: Vector, P: Steps<V>, const R: usize, const C: usize>(
    p: &P,
    i: usize,
    j: usize,
    lanes: usize,
    [start, end]: [usize; 2],
) {
    let mut sums = [[V::splat(0.0); C]; R];
    for k in start..end {
        // SAFETY: by the caller.
        unsafe {
            let mut b = [p.b(j, k, lanes); C];
            for (c, b) in b.iter_mut().enumerate().skip(1) {
                *b = p.b(j + c * V::WIDTH, k, V::WIDTH);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = p.a(i + r, k);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = P::step(a, b, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            let at = p.out(i + r, j + c * V::WIDTH);
            // SAFETY: outputs, by the caller.
            unsafe {
                if lanes == V::WIDTH {
                    V::store(V::add(V::load(at), *sum), at);
                } else {
                    V::store_part(V::add(V::load_part(at, lanes), *sum), at, lanes);
                }
            }
        }
    }
}
