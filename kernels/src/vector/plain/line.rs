//! A line of a panel as bytes.

use crate::blocks::mxfp4;
use crate::half::f16_to_f32;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::scalar::matmul::Lanes;
use crate::vector::unpack::Line;
use core::array::from_fn;

pub(super) type Bytes = [u8; LINE_BYTES];

/// The line of some 32-bit integers.
fn of_ints(ints: [u32; PANEL_ROWS]) -> Bytes {
    from_fn(|i| ints[i / 4].to_le_bytes()[i % 4])
}

/// A function of each word of 16 bits.
fn by_words(line: Bytes, f: impl Fn(u16) -> u16) -> Bytes {
    from_fn(|i| f(u16::from_le_bytes([line[i & !1], line[i | 1]])).to_le_bytes()[i % 2])
}

impl Line for Bytes {
    type Floats = Lanes;

    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { p.cast::<Self>().read() }
    }

    unsafe fn store(self, p: *mut u8) {
        // SAFETY: by the caller.
        unsafe { p.cast::<Self>().write(self) };
    }

    fn splat(byte: u8) -> Self {
        [byte; _]
    }

    fn and(self, other: Self) -> Self {
        from_fn(|i| self[i] & other[i])
    }

    fn or(self, other: Self) -> Self {
        from_fn(|i| self[i] | other[i])
    }

    fn shift(self, n: i32) -> Self {
        by_words(self, |word| match n >= 0 {
            true => word << n,
            false => word >> -n,
        })
    }

    fn lookup(self, table: &[u8; 16]) -> Self {
        self.map(|byte| table[usize::from(byte)])
    }

    unsafe fn widen(p: *const u8) -> Self {
        // SAFETY: by the caller.
        let bytes = unsafe { p.cast::<[i8; PANEL_ROWS]>().read() };
        of_ints(bytes.map(|byte| i32::from(byte).cast_unsigned()))
    }

    unsafe fn widen_twice(p: *const u8) -> Self {
        // SAFETY: by the caller.
        let line = unsafe { Self::widen(p) };
        line.pair(line)
    }

    fn add(self, other: Self) -> Self {
        from_fn(|i| self[i].wrapping_add(other[i]))
    }

    fn pair(self, upper: Self) -> Self {
        from_fn(|i| if i % 4 < 2 { self[i] } else { upper[i - 2] })
    }

    unsafe fn exponents(p: *const u8) -> Lanes {
        // SAFETY: by the caller.
        let bytes = unsafe { p.cast::<[u8; PANEL_ROWS]>().read_unaligned() };
        bytes.map(mxfp4::scale)
    }

    unsafe fn halves(p: *const u8) -> Lanes {
        // SAFETY: by the caller.
        let halves = unsafe { p.cast::<[u16; PANEL_ROWS]>().read_unaligned() };
        halves.map(f16_to_f32)
    }

    fn floats(numbers: &Lanes) -> Lanes {
        *numbers
    }

    fn store_floats(numbers: Lanes, out: &mut Lanes) {
        *out = numbers;
    }
}
