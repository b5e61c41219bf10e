//! Scores and values of the types whose elements are multiplied one by one (or in bf16 pairs).

use super::{CHUNK, Scores, Values, Vector, stride};
use crate::contract::{KV_BLOCK, LANES};

/// One step of a chunk: a line of keys (or values) times a word for each query.
pub(crate) trait Elements<V: Vector> {
    /// Bytes of a lane of a line.
    const BYTES: usize;
    /// Dimensions of a key in a lane.
    const DIMS: usize = 1;
    /// A line.
    type Line: Copy;
    fn zero() -> Self::Line;
    unsafe fn line(from: *const u8) -> Self::Line;
    unsafe fn line_part(from: *const u8, n: usize) -> Self::Line;
    /// `sum + line · word` for each line, the word at `word` in all lanes.
    unsafe fn step<const N: usize>(lines: [Self::Line; N], word: *const u32, sums: &mut [V::F; N]);
    /// A sum as steps want it.
    #[inline(always)]
    fn sum(sum: V::F) -> V::F {
        sum
    }
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Fp8;
pub(crate) struct Bf16;
/// Pairs of which the first alone counts.
pub(crate) struct Bf16First;
/// Pairs of which the second alone counts.
pub(crate) struct Bf16Second;

macro_rules! elements {
    ($name:ident, $bytes:literal, $line:ident, $line_part:ident) => {
        impl<V: Vector> Elements<V> for $name {
            const BYTES: usize = $bytes;
            type Line = V::F;

            #[inline(always)]
            fn zero() -> V::F {
                V::splat(0.0)
            }

            #[inline(always)]
            unsafe fn line(from: *const u8) -> V::F {
                // SAFETY: by the caller.
                unsafe { V::$line(from.cast()) }
            }

            #[inline(always)]
            unsafe fn line_part(from: *const u8, n: usize) -> V::F {
                // SAFETY: by the caller.
                unsafe { V::$line_part(from.cast(), n) }
            }

            #[inline(always)]
            unsafe fn step<const N: usize>(
                lines: [V::F; N],
                word: *const u32,
                sums: &mut [V::F; N],
            ) {
                // SAFETY: by the caller.
                unsafe { V::fma_at(lines, word.cast(), sums) };
            }
        }
    };
}

elements!(F32, 4, load, load_part);
elements!(F16, 2, halves, halves_part);
elements!(Fp8, 1, e4m3, e4m3_part);

macro_rules! bf16_elements {
    ($name:ident, $mask:literal) => {
        impl<V: Vector> Elements<V> for $name {
            const BYTES: usize = 4;
            const DIMS: usize = 2;
            type Line = V::I;

            #[inline(always)]
            fn zero() -> V::I {
                V::splat_int(0)
            }

            #[inline(always)]
            unsafe fn line(from: *const u8) -> V::I {
                // SAFETY: by the caller.
                let line = unsafe { V::load_int(from) };
                V::and(line, V::splat_int($mask))
            }

            #[inline(always)]
            unsafe fn line_part(from: *const u8, n: usize) -> V::I {
                // SAFETY: by the caller.
                let line = unsafe { V::load_int_part(from, n) };
                V::and(line, V::splat_int($mask))
            }

            #[inline(always)]
            unsafe fn step<const N: usize>(
                lines: [V::I; N],
                word: *const u32,
                sums: &mut [V::F; N],
            ) {
                // SAFETY: by the caller.
                let word = V::splat_int(unsafe { word.read() });
                for (sum, line) in sums.iter_mut().zip(lines) {
                    *sum = V::bf16_step(line, word, *sum);
                }
            }

            #[inline(always)]
            fn sum(sum: V::F) -> V::F {
                V::flush(sum)
            }
        }
    };
}

bf16_elements!(Bf16, 0xffff_ffff);
bf16_elements!(Bf16First, 0x0000_ffff);
bf16_elements!(Bf16Second, 0xffff_0000);

/// Products of `Q` queries with the keys of a block, `L` vectors of keys at a time.
///
/// # Safety
/// - The pointers of `args` are what [`Scores`] says, for `Q` queries.
#[inline(always)]
pub(crate) unsafe fn scores<V: Vector, E: Elements<V>, const Q: usize, const L: usize>(
    args: &Scores,
) {
    let n_steps = args.head_dim.div_ceil(E::DIMS);
    let step_bytes = KV_BLOCK * E::BYTES;
    let mut v = args.start / (V::WIDTH * L) * L;
    while v * V::WIDTH < args.end {
        let mut sums = [[V::splat(0.0); L]; Q];
        let mut lines = [args.keys; L];
        for (l, line) in lines.iter_mut().enumerate() {
            *line = args.keys.wrapping_add((v + l) * V::WIDTH * E::BYTES);
        }
        let mut words = args.queries;
        // Keys of a step, in bytes: one to four cache lines.
        let tile_bytes = L * V::WIDTH * E::BYTES;
        let first = v * V::WIDTH * n_steps * E::BYTES;
        for step in 0..n_steps {
            args.ahead.prefetch(first + step * tile_bytes, tile_bytes);
            let mut keys = [E::zero(); L];
            for (key, line) in keys.iter_mut().zip(&lines) {
                // SAFETY: lines lie within the keys of a block.
                *key = unsafe { E::line(line.wrapping_add(step * step_bytes)) };
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                let word = words.wrapping_add(q * stride(Q));
                // SAFETY: each query has n_steps words.
                unsafe { E::step(keys, word, sums) };
            }
            words = words.wrapping_add(1);
        }
        for (q, sums) in sums.iter().enumerate() {
            for (l, sum) in sums.iter().enumerate() {
                let at = q * KV_BLOCK + (v + l) * V::WIDTH;
                // SAFETY: each query has 64 products.
                unsafe { V::store(*sum, args.out.wrapping_add(at)) };
            }
        }
        v += L;
    }
}

/// Adds weights times values to the sums of `Q` queries, some vectors of dimensions at a time.
///
/// # Safety
/// - The pointers of `args` are what [`Values`] says, for `Q` queries.
#[inline(always)]
pub(crate) unsafe fn values<V: Vector, E: Elements<V>, const Q: usize>(args: &Values) {
    let mut dim = 0;
    // Four queries of f16 leave registers for sums of four vectors; other types gain nothing.
    while V::WIDTH == LANES && Q == 4 && E::BYTES == 2 && dim + 4 * V::WIDTH <= args.head_dim {
        // SAFETY: by the caller; four whole vectors are left.
        unsafe { values_tile::<V, E, Q, 4>(args, dim) };
        dim += 4 * V::WIDTH;
    }
    while dim + 2 * V::WIDTH <= args.head_dim {
        // SAFETY: by the caller; two whole vectors are left.
        unsafe { values_tile::<V, E, Q, 2>(args, dim) };
        dim += 2 * V::WIDTH;
    }
    // An odd vector is rare: loaded as a part of one, of all lanes, it needs no code of its own.
    while dim < args.head_dim {
        // SAFETY: by the caller; a vector or a part of one is left.
        unsafe { values_tile::<V, E, Q, 1>(args, dim) };
        dim += V::WIDTH;
    }
}

/// `D` vectors of dimensions from `dim` on; one may be a part.
#[inline(always)]
unsafe fn values_tile<V: Vector, E: Elements<V>, const Q: usize, const D: usize>(
    args: &Values,
    dim: usize,
) {
    const { assert!(Q <= CHUNK) }
    let may_be_part = D == 1;
    let n = (args.head_dim - dim).min(V::WIDTH);
    let mut sums = [[V::splat(0.0); D]; Q];
    for (q, sums) in sums.iter_mut().enumerate() {
        for (d, sum) in sums.iter_mut().enumerate() {
            let at = args.out[q].wrapping_add(dim + d * V::WIDTH);
            // SAFETY: the dimensions are within the query's sums.
            let x = unsafe {
                if may_be_part {
                    V::load_part(at, n)
                } else {
                    V::load(at)
                }
            };
            *sum = E::sum(V::mul(x, V::splat(args.corrections[q])));
        }
    }
    let row_bytes = args.head_dim * E::BYTES;
    let from = args.values.wrapping_add(dim * E::BYTES);
    for step in args.start..args.end {
        let row = from.wrapping_add(step * row_bytes);
        let first = step * row_bytes + dim * E::BYTES;
        // A single vector is rare, and not worth the code.
        if !may_be_part {
            args.ahead.prefetch(first, D * V::WIDTH * E::BYTES);
        }
        let mut lines = [E::zero(); D];
        for (d, line) in lines.iter_mut().enumerate() {
            let at = row.wrapping_add(d * V::WIDTH * E::BYTES);
            // SAFETY: a row has head_dim lanes.
            *line = unsafe {
                if may_be_part {
                    E::line_part(at, n)
                } else {
                    E::line(at)
                }
            };
        }
        for (q, sums) in sums.iter_mut().enumerate() {
            let word = args.weights.wrapping_add(q * KV_BLOCK + step);
            // SAFETY: each query has 64 weights.
            unsafe { E::step(lines, word, sums) };
        }
    }
    for (q, sums) in sums.iter().enumerate() {
        for (d, sum) in sums.iter().enumerate() {
            let at = args.out[q].wrapping_add(dim + d * V::WIDTH);
            // SAFETY: as for loading.
            unsafe {
                if may_be_part {
                    V::store_part(*sum, at, n);
                } else {
                    V::store(*sum, at);
                }
            }
        }
    }
}
