//! Scores of a chunk's queries to weights.
//!
//! What a query does is a long chain: the largest score, exponentials below it, their sum. So
//! each step is done for all queries before the next begins, and none waits for its own last.

use super::{CHUNK, Vector, exp, soft_cap};
use crate::args::TileRange;
use crate::contract::{KV_BLOCK, LANES};

/// How scores and weights are transformed.
pub(super) struct How {
    /// Factor on scores.
    pub(super) scale: f32,
    /// Cap of the scores; 0 for none.
    pub(super) soft_cap: f32,
    /// Whether weights are rounded to bf16.
    pub(super) round: bool,
    /// Each query's slope, and where it stands as seen from the block's first key; none without slopes.
    pub(super) slopes: Option<[(f32, f32); CHUNK]>,
}

/// Places of the keys of a block.
static KEYS: [f32; KV_BLOCK] = {
    let mut keys = [0.0; KV_BLOCK];
    let mut key = 1;
    while key < KV_BLOCK {
        keys[key] = keys[key - 1] + 1.0;
        key += 1;
    }
    keys
};

/// Running softmaxes of the queries of a chunk, in whole vectors.
#[repr(C, align(64))]
pub(super) struct Running {
    /// Largest scores so far.
    pub(super) max: [f32; 16],
    /// Sums of weights relative to `max`.
    pub(super) sum: [f32; 16],
}

impl Running {
    /// The state without any keys.
    pub(super) const NONE: Self = Self {
        max: [0.0; _],
        sum: [0.0; _],
    };

    /// Continues with a block: its scores, a row for each query, become weights in place. Returns the factors for the
    /// queries' sums so far, and their largest weights.
    ///
    /// # Safety
    /// - The CPU has what `V` needs.
    #[inline(always)]
    pub(super) unsafe fn softmax<V: Vector>(
        &mut self,
        rows: &mut [[f32; KV_BLOCK]],
        seen: &[TileRange; CHUNK],
        how: &How,
    ) -> ([f32; CHUNK], [f32; CHUNK]) {
        let sees = |q: usize| seen[q].start < seen[q].end;
        let mut largest = [V::splat(f32::NEG_INFINITY); CHUNK];
        for (q, row) in rows.iter_mut().enumerate() {
            if sees(q) {
                let slope = how.slopes.as_ref().map(|slopes| slopes[q]);
                largest[q] = scale::<V>(row, seen[q], how, slope);
            }
        }
        let (mut less, mut below) = ([0f32; 16], [0f32; 16]);
        for q in 0..rows.len() {
            if sees(q) {
                let top = V::largest(largest[q]);
                let max = if top > self.max[q] { top } else { self.max[q] };
                less[q] = self.max[q] - max;
                below[q] = top - max;
                self.max[q] = max;
            }
        }
        let mut lanes = [[V::splat(0.0); 2]; CHUNK];
        for (q, row) in rows.iter_mut().enumerate() {
            if sees(q) {
                lanes[q] = weigh::<V>(row, seen[q], self.max[q], how);
            } else {
                row.fill(0.0);
            }
        }
        let mut added = [0f32; 16];
        for (added, lanes) in added.iter_mut().zip(&lanes[..rows.len()]) {
            *added = V::tree_sum(*lanes);
        }
        let (mut corrections, mut tops) = ([0f32; 16], [0f32; 16]);
        for v in (0..16).step_by(V::WIDTH) {
            // SAFETY: all of them have 16 floats.
            unsafe {
                let correction = exp::<V>(V::load(less.as_ptr().wrapping_add(v)));
                let sum = V::load(self.sum.as_ptr().wrapping_add(v));
                let sum = V::fma(sum, correction, V::load(added.as_ptr().wrapping_add(v)));
                V::store(sum, self.sum.as_mut_ptr().wrapping_add(v));
                V::store(correction, corrections.as_mut_ptr().wrapping_add(v));
                let top = exp::<V>(V::load(below.as_ptr().wrapping_add(v)));
                V::store(top, tops.as_mut_ptr().wrapping_add(v));
            }
        }
        let chunk = |x: &[f32; 16]| *x.first_chunk().expect("16 are more than a chunk");
        (chunk(&corrections), chunk(&tops))
    }
}

/// All keys of a block.
const ALL: TileRange = TileRange {
    start: 0,
    end: KV_BLOCK,
};

/// Whether lanes of vector `v` are keys that are seen.
#[inline(always)]
fn lanes_seen<V: Vector>(v: usize, seen: TileRange) -> V::M {
    let first = (v * V::WIDTH).cast_signed();
    V::range(
        seen.start.cast_signed() - first,
        seen.end.cast_signed() - first,
    )
}

/// Scales and caps scores, and subtracts distances; scores of keys out of sight become minus infinity. Returns the
/// maximum of each lane.
#[inline(always)]
fn scale<V: Vector>(
    row: &mut [f32; KV_BLOCK],
    seen: TileRange,
    how: &How,
    slope: Option<(f32, f32)>,
) -> V::F {
    let mut largest = V::splat(f32::NEG_INFINITY);
    for v in 0..KV_BLOCK / V::WIDTH {
        let at = row.as_mut_ptr().wrapping_add(v * V::WIDTH);
        // SAFETY: v · WIDTH + WIDTH is at most 64.
        let mut x = V::mul(unsafe { V::load(at) }, V::splat(how.scale));
        if how.soft_cap != 0.0 {
            x = soft_cap::<V>(x, how.soft_cap, 1.0 / how.soft_cap);
        }
        if let Some((slope, position)) = slope {
            // SAFETY: as above.
            let keys = unsafe { V::load(KEYS.as_ptr().wrapping_add(v * V::WIDTH)) };
            let distance = V::abs(V::sub(keys, V::splat(position)));
            x = V::fma(V::splat(-slope), distance, x);
        }
        if seen != ALL {
            x = V::select(lanes_seen::<V>(v, seen), x, V::splat(f32::NEG_INFINITY));
        }
        largest = V::max(x, largest);
        // SAFETY: as above.
        unsafe { V::store(x, at) };
    }
    largest
}

/// Takes the maximum out and exponentiates; gives the sums of 16 virtual lanes, one or two vectors.
#[inline(always)]
fn weigh<V: Vector>(row: &mut [f32; KV_BLOCK], seen: TileRange, max: f32, how: &How) -> [V::F; 2] {
    let mut sums = [V::splat(0.0); 2];
    for v in 0..KV_BLOCK / V::WIDTH {
        let at = row.as_mut_ptr().wrapping_add(v * V::WIDTH);
        // SAFETY: v · WIDTH + WIDTH is at most 64.
        let mut weight = exp::<V>(V::sub(unsafe { V::load(at) }, V::splat(max)));
        if seen != ALL {
            weight = V::select(lanes_seen::<V>(v, seen), weight, V::splat(0.0));
        }
        if how.round {
            weight = V::round_bf16(weight);
        }
        let sum = &mut sums[v % (LANES / V::WIDTH)];
        *sum = V::add(*sum, weight);
        // SAFETY: as above.
        unsafe { V::store(weight, at) };
    }
    sums
}
