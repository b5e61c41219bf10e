//! Eight sub-blocks side by side: lane l of every vector belongs to sub-block l.

use super::vector::{LANES, Vector};

/// Numbers and weights of eight sub-blocks of `N`.
#[derive(Clone, Copy)]
pub(super) struct Lanes<V, const N: usize> {
    pub(super) x: [V; N],
    pub(super) w: [V; N],
}

impl<V: Vector, const N: usize> Lanes<V, N> {
    /// From eight sub-blocks one after the other.
    #[inline(always)]
    pub(super) fn new(x: &[f32], w: &[f32]) -> Self {
        let zero = [V::splat(0.0); N];
        let mut lanes = Self { x: zero, w: zero };
        columns(x, &mut lanes.x);
        columns(w, &mut lanes.w);
        lanes
    }

    /// `GROUPS` times eight sub-blocks.
    #[inline(always)]
    pub(super) fn groups<const GROUPS: usize>(x: &[f32; 256], w: &[f32; 256]) -> [Self; GROUPS] {
        let zero = [V::splat(0.0); N];
        let mut groups = [Self { x: zero, w: zero }; GROUPS];
        for (g, lanes) in groups.iter_mut().enumerate() {
            columns(&x[g * LANES * N..], &mut lanes.x);
            columns(&w[g * LANES * N..], &mut lanes.w);
        }
        groups
    }
}

/// `N` vectors from eight runs of `N` numbers.
#[inline(always)]
fn columns<V: Vector, const N: usize>(x: &[f32], out: &mut [V; N]) {
    let (chunks, _) = x[..LANES * N].as_chunks::<LANES>();
    for (i, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *out = V::transpose(core::array::from_fn(|l| &chunks[l * (N / LANES) + i]));
    }
}

/// The inverse of [`columns`] for small integers, plus `offset`, as bytes.
#[inline(always)]
pub(super) fn codes<V: Vector, const N: usize>(q: &[V; N], offset: f32, out: &mut [u8]) {
    let (chunks, _) = out[..LANES * N].as_chunks_mut::<LANES>();
    // The last byte of a number in 0..256 plus 2^23 is the number.
    let magic = V::splat(offset + 8_388_608.0);
    for (i, q) in q.as_chunks::<LANES>().0.iter().enumerate() {
        let rows = q.map(|q| q.add(magic).store());
        let turned = V::transpose(core::array::from_fn(|l| &rows[l]));
        for (l, numbers) in turned.into_iter().enumerate() {
            let numbers = numbers.store();
            for (code, number) in chunks[l * (N / LANES) + i].iter_mut().zip(numbers) {
                *code = number.to_bits().to_le_bytes()[0];
            }
        }
    }
}
