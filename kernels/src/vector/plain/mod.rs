//! Plain arrays as vectors: they show in tests that the texts need no instruction set.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_possible_truncation,
    reason = "as in other implementations of the traits; integers are within 32 bits"
)]

pub(crate) mod block;
mod line;
pub(crate) mod super_block;

use super::attention::{
    self, Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, Scores, ScoresFn, Values, ValuesFn,
    Vector, attention_functions,
};
use crate::contract::{self, Portable, bf16_step, flush, tree_sum};
use crate::half::{bf16_to_f32, e4m3_to_f32, f16_to_f32, f32_to_bf16};
use crate::kv::KvType;
use core::array::from_fn;

attention_functions!(Plain);

/// Lanes.
const N: usize = 8;

type Floats = [f32; N];
type Ints = [u32; N];

#[derive(Clone, Copy)]
struct Plain;

pub(crate) fn recurrence(args: &mut crate::recurrent::Recurrence<'_, '_>) {
    // SAFETY: plain code needs no features; the table has checked the operands.
    unsafe { super::recurrent::recurrence::<Plain, 2>(args) }
}

/// # Safety
/// - As [`crate::KernelTable::lora_down`] asks.
pub(crate) unsafe fn lora_down(args: &crate::lora::LoraDown<'_>) {
    // SAFETY: plain code needs no features; the table has checked the operands, and its caller vouches for `out`.
    unsafe { super::lora::down::<Plain, 2, 2>(args) }
}

/// # Safety
/// - As [`crate::KernelTable::lora_up`] asks.
pub(crate) unsafe fn lora_up(args: &crate::lora::LoraUp<'_>) {
    // SAFETY: as in `lora_down`.
    unsafe { super::lora::up::<Plain, 2, 2, 2>(args) }
}

/// Words of 16 bits of each integer, signed.
fn words(x: u32) -> [i32; 2] {
    [x as u16, (x >> 16) as u16].map(|word| word.cast_signed().into())
}

/// Reads up to `N` elements, the others zero.
///
/// # Safety
/// - `n` elements are readable.
unsafe fn read<T: Copy + Default>(from: *const T, n: usize) -> [T; N] {
    let mut out = [T::default(); N];
    for (l, out) in out[..n.min(N)].iter_mut().enumerate() {
        // SAFETY: by the caller.
        *out = unsafe { from.add(l).read_unaligned() };
    }
    out
}

/// # Safety
/// - `n` elements are writable.
unsafe fn write<T: Copy>(x: [T; N], to: *mut T, n: usize) {
    for (l, x) in x[..n.min(N)].iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { to.add(l).write_unaligned(*x) };
    }
}

/// Methods that read or write some elements.
macro_rules! accesses {
    ($($name:ident($($x:ident: $ty:ty),*) $(-> $out:ty)? = $text:expr;)*) => {$(
        unsafe fn $name($($x: $ty),*) $(-> $out)? {
            // SAFETY: by the caller.
            unsafe { $text }
        }
    )*};
}

/// Methods that compute lane by lane.
macro_rules! by_lanes {
    ($($name:ident($($x:ident: $ty:ty),*) -> $out:ty = |$l:ident| $text:expr;)*) => {$(
        fn $name($($x: $ty),*) -> $out {
            from_fn(|$l| $text)
        }
    )*};
}

impl Vector for Plain {
    type F = Floats;
    type I = Ints;
    type M = [bool; N];
    const WIDTH: usize = N;
    const SIZES: &'static [(usize, usize)] = &[(4, 2), (1, 1)];

    fn scores_of(size: usize, ty: KvType) -> ScoresFn {
        match size {
            0 => Functions::<4, 2>::scores(ty),
            _ => Functions::<1, 4>::scores(ty),
        }
    }

    fn values_of(size: usize, ty: KvType) -> ValuesFn {
        match size {
            0 => Functions::<4, 2>::values(ty),
            _ => Functions::<1, 4>::values(ty),
        }
    }

    fn values_of_half_pair(second: bool) -> ValuesFn {
        match second {
            true => values::<Bf16Second, 1>,
            false => values::<Bf16First, 1>,
        }
    }

    accesses! {
        load(from: *const f32) -> Floats = read(from, N);
        store(x: Floats, to: *mut f32) = write(x, to, N);
        load_part(from: *const f32, n: usize) -> Floats = read(from, n);
        store_part(x: Floats, to: *mut f32, n: usize) = write(x, to, n);
        load_int(from: *const u8) -> Ints = read(from.cast(), N);
        load_int_part(from: *const u8, n: usize) -> Ints = read(from.cast(), n);
        store_int(x: Ints, to: *mut u32) = write(x, to, N);
        halves(from: *const u8) -> Floats = read::<u16>(from.cast(), N).map(f16_to_f32);
        halves_part(from: *const u8, n: usize) -> Floats = read(from.cast(), n).map(f16_to_f32);
        bf16(from: *const u8) -> Floats = read::<u16>(from.cast(), N).map(bf16_to_f32);
        e4m3(from: *const u8) -> Floats = read(from, N).map(e4m3_to_f32);
        e4m3_part(from: *const u8, n: usize) -> Floats = read(from, n).map(e4m3_to_f32);
    }

    by_lanes! {
        splat(x: f32) -> Floats = |_l| x;
        splat_int(x: u32) -> Ints = |_l| x;
        fma(a: Floats, b: Floats, c: Floats) -> Floats = |l| contract::fma(a[l], b[l], c[l]);
        mul(a: Floats, b: Floats) -> Floats = |l| a[l] * b[l];
        add(a: Floats, b: Floats) -> Floats = |l| a[l] + b[l];
        sub(a: Floats, b: Floats) -> Floats = |l| a[l] - b[l];
        div(a: Floats, b: Floats) -> Floats = |l| a[l] / b[l];
        max(a: Floats, b: Floats) -> Floats = |l| if a[l] > b[l] { a[l] } else { b[l] };
        min(a: Floats, b: Floats) -> Floats = |l| if a[l] < b[l] { a[l] } else { b[l] };
        abs(x: Floats) -> Floats = |l| x[l].abs();
        copysign(x: Floats, sign: Floats) -> Floats = |l| x[l].copysign(sign[l]);
        lt(a: Floats, b: Floats) -> [bool; N] = |l| a[l] < b[l];
        ne(a: Floats, b: Floats) -> [bool; N] = |l| a[l] != b[l];
        select(mask: [bool; N], yes: Floats, no: Floats) -> Floats =
            |l| if mask[l] { yes[l] } else { no[l] };
        range(start: isize, end: isize) -> [bool; N] = |l| (start..end).contains(&l.cast_signed());
        as_exponent(x: Floats) -> Floats = |l| f32::from_bits(x[l].to_bits() << 23);
        round_bf16(x: Floats) -> Floats = |l| bf16_to_f32(f32_to_bf16(x[l]));
        flush(x: Floats) -> Floats = |l| flush(x[l]);
        bf16_step(a: Ints, b: Ints, c: Floats) -> Floats = |l| {
            let pair = |x: u32| [x << 16, x & 0xffff_0000].map(f32::from_bits);
            bf16_step::<Portable>(pair(a[l]), pair(b[l]), c[l])
        };
        and(a: Ints, b: Ints) -> Ints = |l| a[l] & b[l];
        sub16(a: Ints, b: Ints) -> Ints = |l| {
            let (low, high) = (a[l].wrapping_sub(b[l]), (a[l] >> 16).wrapping_sub(b[l] >> 16));
            low & 0xffff | high << 16
        };
        dot4(codes: Ints, q: Ints, c: Ints) -> Ints = |l| {
            let pairs = codes[l].to_le_bytes().into_iter().zip(q[l].to_le_bytes());
            let dot: i32 = pairs.map(|(c, q)| i32::from(c) * i32::from(q.cast_signed())).sum();
            c[l].wrapping_add(dot.cast_unsigned())
        };
        dot2(a: Ints, b: Ints, c: Ints) -> Ints = |l| {
            let ([a0, a1], [b0, b1]) = (words(a[l]), words(b[l]));
            c[l].wrapping_add((a0 * b0 + a1 * b1).cast_unsigned())
        };
        add_int(a: Ints, b: Ints) -> Ints = |l| a[l].wrapping_add(b[l]);
        to_float(x: Ints) -> Floats = |l| x[l].cast_signed() as f32;
        round(x: Floats) -> Ints = |l| match x[l] < -(i32::MIN as f32) {
            true => (libm::rintf(x[l]) as i32).cast_unsigned(),
            false => 1 << 31,
        };
        pair_weights(x: Ints) -> Ints = |l| x[l] & 0xffff | x[l ^ 2] << 16;
    }

    fn shift_right<const BITS: i32>(x: Ints) -> Ints {
        x.map(|x| (x & 0xffff) >> BITS | x >> 16 >> BITS << 16)
    }

    fn any(mask: [bool; N]) -> bool {
        mask.contains(&true)
    }

    fn largest(x: Floats) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    fn tree_sum(lanes: [Floats; 2]) -> f32 {
        tree_sum(lanes.as_flattened().first_chunk().expect("16 lanes"))
    }
}
