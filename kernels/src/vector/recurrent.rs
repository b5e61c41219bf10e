//! The recurrence of [`crate::recurrent`] in vectors: a lane is a column of the state.
//!
//! A panel of the state stays in a first-level cache while all tokens pass; four sums of every fourth key keep
//! several additions in flight. [`crate::scalar::recurrent`] is the definition.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::attention::Vector;
use crate::recurrent::{Recurrence, RecurrentToken, Rule, STATE_LANES};

/// Takes the tokens through the panels of a state; `N` vectors are a panel's columns.
///
/// # Safety
/// - The CPU has what `V` needs.
/// - The operands are as [`crate::KernelTable::recurrence`] checks them.
#[inline(always)]
pub(crate) unsafe fn recurrence<V: Vector, const N: usize>(args: &mut Recurrence<'_, '_>) {
    const { assert!(N * V::WIDTH == STATE_LANES) }
    let len = args.n_key * STATE_LANES;
    for (p, panel) in args.state.chunks_exact_mut(len).enumerate() {
        let to = panel.as_mut_ptr();
        let mut from = match args.from {
            Some(from) => from[p * len..(p + 1) * len].as_ptr(),
            None => to.cast_const(),
        };
        for token in args.tokens.iter_mut() {
            // SAFETY: by the caller; both panels have n_key rows.
            unsafe {
                match args.rule {
                    Rule::Delta => step::<V, N, true>(token, p * STATE_LANES, from, to),
                    Rule::Add => step::<V, N, false>(token, p * STATE_LANES, from, to),
                }
            }
            from = to;
        }
        if args.tokens.is_empty() && args.from.is_some() {
            // SAFETY: as above; they are not the same panel.
            unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        }
    }
}

/// A token and the values from `first` on: rows are read at `from` and written at `to`.
///
/// # Safety
/// - As [`recurrence`]; both have a row of 16 floats for each key, and are the same or apart.
#[inline(always)]
unsafe fn step<V: Vector, const N: usize, const IS_DELTA: bool>(
    token: &mut RecurrentToken<'_>,
    first: usize,
    from: *const f32,
    to: *mut f32,
) {
    let (key, query) = (token.key, token.query);
    let decay = V::splat(token.decay);
    let n = token.value.len() - first;
    // SAFETY: `first` is below the number of values; parts end with them.
    let mut change: [V::F; N] = unsafe { load::<V, N>(token.value[first..].as_ptr(), n) };
    if IS_DELTA {
        let mut sums = [[V::splat(0.0); N]; 4];
        let (fours, rest) = key.as_chunks::<4>();
        let mut at = from;
        for four in fours {
            for (k, sums) in four.iter().zip(&mut sums) {
                // SAFETY: a row for each key.
                unsafe { add_row::<V, N>(k, row::<V, N>(at), sums) };
                at = at.wrapping_add(STATE_LANES);
            }
        }
        for (k, sums) in rest.iter().zip(&mut sums) {
            // SAFETY: as above.
            unsafe { add_row::<V, N>(k, row::<V, N>(at), sums) };
            at = at.wrapping_add(STATE_LANES);
        }
        let less = V::splat(-token.decay);
        for (change, seen) in change.iter_mut().zip(total::<V, N>(&sums)) {
            *change = V::fma(less, seen, *change);
        }
    }
    let rate = V::splat(token.rate);
    for change in &mut change {
        *change = V::mul(*change, rate);
    }
    let mut sums = [[V::splat(0.0); N]; 4];
    let (keys, rest) = key.as_chunks::<4>();
    let (queries, rest_of_queries) = query.as_chunks::<4>();
    let mut at = 0;
    for (k, q) in keys.iter().zip(queries) {
        for ((k, q), sums) in k.iter().zip(q).zip(&mut sums) {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: a row for each key.
            unsafe { update::<V, N>(k, q, decay, change, from, to, sums) };
            at += STATE_LANES;
        }
    }
    for ((k, q), sums) in rest.iter().zip(rest_of_queries).zip(&mut sums) {
        let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: as above.
        unsafe { update::<V, N>(k, q, decay, change, from, to, sums) };
        at += STATE_LANES;
    }
    let out = token.out[first..].as_mut_ptr();
    for (v, sum) in total::<V, N>(&sums).into_iter().enumerate() {
        let at = out.wrapping_add(v * V::WIDTH);
        let left = n.saturating_sub(v * V::WIDTH);
        // SAFETY: as many values as there are left.
        unsafe {
            match left >= V::WIDTH {
                true => V::store(sum, at),
                false => V::store_part(sum, at, left),
            }
        }
    }
}

/// A row of the state: decayed, changed, and added to the sums of a query.
///
/// # Safety
/// - The CPU has what `V` needs; 16 floats are readable at `from`, and writable at `to`.
#[inline(always)]
unsafe fn update<V: Vector, const N: usize>(
    k: &f32,
    q: &f32,
    decay: V::F,
    change: [V::F; N],
    from: *const f32,
    to: *mut f32,
    sums: &mut [V::F; N],
) {
    // SAFETY: by the caller.
    unsafe {
        let mut new = row::<V, N>(from);
        for new in &mut new {
            *new = V::mul(*new, decay);
        }
        add_row::<V, N>(k, change, &mut new);
        for (v, new) in new.iter().enumerate() {
            V::store(*new, to.wrapping_add(v * V::WIDTH));
        }
        add_row::<V, N>(q, new, sums);
    }
}

/// `sums + x · row`.
///
/// # Safety
/// - The CPU has what `V` needs.
#[inline(always)]
unsafe fn add_row<V: Vector, const N: usize>(x: &f32, row: [V::F; N], sums: &mut [V::F; N]) {
    let x = V::splat(*x);
    for (sum, row) in sums.iter_mut().zip(row) {
        *sum = V::fma(x, row, *sum);
    }
}

/// # Safety
/// - 16 floats are readable.
#[inline(always)]
unsafe fn row<V: Vector, const N: usize>(at: *const f32) -> [V::F; N] {
    let mut out = [V::splat(0.0); N];
    for (v, out) in out.iter_mut().enumerate() {
        // SAFETY: by the caller.
        *out = unsafe { V::load(at.wrapping_add(v * V::WIDTH)) };
    }
    out
}

/// Up to 16 floats, padded with zeros.
///
/// # Safety
/// - `n` floats are readable.
#[inline(always)]
unsafe fn load<V: Vector, const N: usize>(at: *const f32, n: usize) -> [V::F; N] {
    if n >= STATE_LANES {
        // SAFETY: by the caller.
        return unsafe { row::<V, N>(at) };
    }
    let mut out = [V::splat(0.0); N];
    for (v, out) in out.iter_mut().enumerate() {
        let left = n.saturating_sub(v * V::WIDTH).min(V::WIDTH);
        // SAFETY: by the caller.
        *out = unsafe { V::load_part(at.wrapping_add(v * V::WIDTH), left) };
    }
    out
}

/// The four sums in one.
#[inline(always)]
fn total<V: Vector, const N: usize>(sums: &[[V::F; N]; 4]) -> [V::F; N] {
    let mut out = sums[0];
    for (v, out) in out.iter_mut().enumerate() {
        *out = V::add(V::add(*out, sums[2][v]), V::add(sums[1][v], sums[3][v]));
    }
    out
}
