//! Products of adapters in vectors: a lane is an output.
//!
//! Four sums keep several additions in flight, and a few tokens share what is made of a column.
//! [`crate::scalar::lora`] is the definition.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod int8;

use super::attention::Vector;
use crate::contract::LANES;
use crate::lora::{LoraDown, LoraType, LoraUp, PART};
use int8::Int8;

/// How elements become floats.
trait Element {
    const BYTES: usize;

    /// # Safety
    /// - The CPU has what `V` needs; as many elements as it has lanes are readable.
    unsafe fn load<V: Vector>(from: *const u8) -> V::F;
}

struct Bf16;
struct F16;
struct F32;

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8) -> V::F {
        // SAFETY: by the caller.
        unsafe { V::bf16(from) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8) -> V::F {
        // SAFETY: by the caller.
        unsafe { V::halves(from) }
    }
}

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8) -> V::F {
        // SAFETY: by the caller.
        unsafe { V::load(from.cast()) }
    }
}

/// How a few tokens are multiplied with a panel of some type.
trait Kind {
    /// Whether several panels are multiplied at once, and not one after the other.
    const JOINS_PANELS: bool;

    /// Computes `A · x` of `T` tokens from `token` on; returns their number.
    ///
    /// # Safety
    /// - As [`down`].
    unsafe fn tokens_down<V: Vector, const N: usize, const T: usize>(
        args: &LoraDown<'_>,
        panel: *const u8,
        token: usize,
        out: *mut f32,
    ) -> usize;

    /// `B · t` of `T` tokens from `token` on, whose first `n` rows are added to `out`: all of `P` panels, or of one or
    /// more where they are not joined.
    ///
    /// # Safety
    /// - As [`up`].
    unsafe fn tokens_up<V: Vector, const N: usize, const T: usize, const P: usize>(
        args: &LoraUp<'_>,
        panels: *const u8,
        token: usize,
        out: *mut f32,
        n: usize,
    );
}

/// Calls `$f` for the matrix's type.
macro_rules! by_type {
    ($args:ident, $f:ident::<$v:ty, $($n:ident),+>) => {
        match $args.matrix.ty() {
            LoraType::Int8 => $f::<$v, Int8, $($n),+>($args),
            LoraType::Bf16 => $f::<$v, Bf16, $($n),+>($args),
            LoraType::F16 => $f::<$v, F16, $($n),+>($args),
            LoraType::F32 => $f::<$v, F32, $($n),+>($args),
        }
    };
}

/// `out = A · x`; `N` vectors are a panel's rows, `T` tokens go together.
///
/// # Safety
/// - The CPU has what `V` needs.
/// - As [`crate::KernelTable::lora_down`] asks.
#[inline(always)]
pub(crate) unsafe fn down<V: Vector, const N: usize, const T: usize>(args: &LoraDown<'_>) {
    // SAFETY: by the caller.
    unsafe { by_type!(args, down_of::<V, N, T>) }
}

/// `out += B · t`; `N` vectors are a panel's rows, `T` tokens or `P` panels go together.
///
/// # Safety
/// - The CPU has what `V` needs.
/// - As [`crate::KernelTable::lora_up`] asks.
#[inline(always)]
pub(crate) unsafe fn up<V: Vector, const N: usize, const T: usize, const P: usize>(
    args: &LoraUp<'_>,
) {
    // SAFETY: by the caller.
    unsafe { by_type!(args, up_of::<V, N, T, P>) }
}

/// # Safety
/// - As [`down`].
#[inline(always)]
unsafe fn down_of<V: Vector, K: Kind, const N: usize, const T: usize>(args: &LoraDown<'_>) {
    const { assert!(N * V::WIDTH == LANES) }
    for panel in args.panels.start..args.panels.end {
        let from = args.matrix.panels(panel..panel + 1).as_ptr();
        let out = args.out.wrapping_add((panel - args.panels.start) * LANES);
        let mut token = args.tokens.start;
        while token < args.tokens.end {
            let out = out.wrapping_add((token - args.tokens.start) * args.out_stride);
            // SAFETY: by the caller.
            token += unsafe {
                match args.tokens.end - token {
                    n if n >= T => K::tokens_down::<V, N, T>(args, from, token, out),
                    _ => K::tokens_down::<V, N, 1>(args, from, token, out),
                }
            };
        }
    }
}

/// # Safety
/// - As [`up`].
#[inline(always)]
unsafe fn up_of<V: Vector, K: Kind, const N: usize, const T: usize, const P: usize>(
    args: &LoraUp<'_>,
) {
    const { assert!(N * V::WIDTH == LANES) }
    let panel_bytes = args.matrix.panel_bytes();
    let all = args.matrix.bytes().as_ptr();
    let mut token = 0;
    while token < args.n_tokens {
        let is_one = T == 1 || args.n_tokens - token < T;
        let mut row = args.rows.start;
        while row < args.rows.end {
            let from = all.wrapping_add(row / LANES * panel_bytes);
            let n = args.rows.end - row;
            let is_whole = is_one && K::JOINS_PANELS && n >= P * LANES;
            let is_many = is_whole || is_one && !K::JOINS_PANELS;
            let n = n.min(if is_many { P * LANES } else { LANES });
            let out = args.out.wrapping_add(row - args.rows.start);
            // SAFETY: by the caller.
            unsafe {
                match is_one {
                    true if is_whole => K::tokens_up::<V, N, 1, P>(args, from, token, out, n),
                    true => K::tokens_up::<V, N, 1, 1>(args, from, token, out, n),
                    false => K::tokens_up::<V, N, T, 1>(args, from, token, out, n),
                }
            }
            row += n;
        }
        token += if is_one { 1 } else { T };
    }
}

impl<E: Element> Kind for E {
    const JOINS_PANELS: bool = false;

    #[inline(always)]
    unsafe fn tokens_down<V: Vector, const N: usize, const T: usize>(
        args: &LoraDown<'_>,
        panel: *const u8,
        token: usize,
        out: *mut f32,
    ) -> usize {
        let x: [&[f32]; T] = core::array::from_fn(|t| args.activations.f32_row(token + t));
        let x: [*const f32; T] = x.map(<[f32]>::as_ptr);
        let step = LANES * E::BYTES;
        let mut all = [[V::splat(0.0); N]; T];
        let mut start = args.columns.start;
        while start < args.columns.end {
            let n = PART.min(args.columns.end - start);
            let at = panel.wrapping_add(start * step);
            // SAFETY: columns of the panel and of the rows.
            let sums = unsafe { product::<V, E, N, T>(at, x.map(|x| x.wrapping_add(start)), n) };
            match start == args.columns.start {
                true => all = sums,
                false => {
                    for (all, sum) in all.iter_mut().flatten().zip(sums.as_flattened()) {
                        *all = V::add(*all, *sum);
                    }
                }
            }
            start += n;
        }
        for (t, sums) in all.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: the outputs of a panel and a token, by the caller.
                unsafe { V::store(*sum, out.wrapping_add(t * args.out_stride + v * V::WIDTH)) };
            }
        }
        T
    }

    #[inline(always)]
    unsafe fn tokens_up<V: Vector, const N: usize, const T: usize, const P: usize>(
        args: &LoraUp<'_>,
        panels: *const u8,
        token: usize,
        out: *mut f32,
        n: usize,
    ) {
        let (rank, panel_bytes) = (args.matrix.n_cols(), args.matrix.panel_bytes());
        let t: [*const f32; T] =
            core::array::from_fn(|t| args.t[(token + t) * args.t_stride..][..rank].as_ptr());
        for p in 0..n.div_ceil(LANES) {
            let panel = panels.wrapping_add(p * panel_bytes);
            // SAFETY: all columns of the panel, and as many factors.
            let sums = unsafe { product::<V, E, N, T>(panel, t, rank) };
            for (i, sums) in sums.iter().enumerate() {
                let out = out.wrapping_add((token + i) * args.out_stride + p * LANES);
                // SAFETY: outputs of a token, as many as there are, by the caller.
                unsafe { change::<V, N>(out, n - p * LANES, |v, y| V::add(y, sums[v])) };
            }
        }
    }
}

/// Changes the first `n` outputs of a panel, or all.
///
/// # Safety
/// - The CPU has what `V` needs; they are readable and writable.
#[inline(always)]
unsafe fn change<V: Vector, const N: usize>(
    out: *mut f32,
    n: usize,
    with: impl Fn(usize, V::F) -> V::F,
) {
    for v in 0..N {
        let (out, left) = (
            out.wrapping_add(v * V::WIDTH),
            n.saturating_sub(v * V::WIDTH),
        );
        // SAFETY: by the caller.
        unsafe {
            match left >= V::WIDTH {
                true => V::store(with(v, V::load(out)), out),
                false => V::store_part(with(v, V::load_part(out, left)), out, left),
            }
        }
    }
}

/// Products of `n` columns of a panel with `T` rows of factors.
///
/// # Safety
/// - The CPU has what `V` needs; `n` columns and `n` factors of each are readable.
#[inline(always)]
unsafe fn product<V: Vector, E: Element, const N: usize, const T: usize>(
    panel: *const u8,
    x: [*const f32; T],
    n: usize,
) -> [[V::F; N]; T] {
    let mut sums = [[[V::splat(0.0); N]; T]; 4];
    let whole = n / 4 * 4;
    let mut k = 0;
    while k < whole {
        for (j, sums) in sums.iter_mut().enumerate() {
            // SAFETY: column k + j is below n.
            unsafe { add_column::<V, E, N, T>(panel, x, k + j, sums) };
        }
        k += 4;
    }
    for (j, sums) in sums.iter_mut().enumerate().take(n - whole) {
        // SAFETY: as above.
        unsafe { add_column::<V, E, N, T>(panel, x, whole + j, sums) };
    }
    let mut out = sums[0];
    for (t, out) in out.iter_mut().enumerate() {
        for (v, out) in out.iter_mut().enumerate() {
            *out = V::add(
                V::add(*out, sums[2][t][v]),
                V::add(sums[1][t][v], sums[3][t][v]),
            );
        }
    }
    out
}

/// # Safety
/// - As [`product`]; there is a column `k`.
#[inline(always)]
unsafe fn add_column<V: Vector, E: Element, const N: usize, const T: usize>(
    panel: *const u8,
    x: [*const f32; T],
    k: usize,
    sums: &mut [[V::F; N]; T],
) {
    // SAFETY: by the caller.
    let w = unsafe { elements::<V, E, N>(panel.wrapping_add(k * LANES * E::BYTES)) };
    for (x, sums) in x.into_iter().zip(sums) {
        // SAFETY: by the caller.
        let x = V::splat(unsafe { x.wrapping_add(k).read() });
        for (sum, w) in sums.iter_mut().zip(w) {
            *sum = V::fma(w, x, *sum);
        }
    }
}

/// 16 elements.
///
/// # Safety
/// - The CPU has what `V` needs; they are readable.
#[inline(always)]
unsafe fn elements<V: Vector, E: Element, const N: usize>(from: *const u8) -> [V::F; N] {
    let mut out = [V::splat(0.0); N];
    for (v, out) in out.iter_mut().enumerate() {
        // SAFETY: by the caller.
        *out = unsafe { E::load::<V>(from.wrapping_add(v * V::WIDTH * E::BYTES)) };
    }
    out
}
