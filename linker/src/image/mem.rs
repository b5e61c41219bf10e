//! The C functions that compiled Rust calls by name.
//!
//! The precompiled `compiler_builtins` of x86_64-unknown-linux-gnu leaves them to libc, which
//! does not exist here. They are in the binary: in core they would collide with libc in hosted
//! programs. The compares use volatile reads, or the optimiser would recognise each loop as the function
//! that it is in and replace it by a call to itself.

use core::arch::asm;
use core::arch::x86_64::__m128i;

/// Length from which the string instructions are as fast: they take dozens of cycles to start.
const LONG: usize = 512;

/// # Safety
/// - As in C: `n` readable bytes at `src`, `n` writable ones at `dst`, no overlap.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcpy(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    match n {
        // SAFETY: here and below, pieces stay within `n` bytes, which the caller guarantees.
        0..4 => pieces(n, 1, |at| unsafe { copy::<u8>(dst, src, at) }),
        // SAFETY: as above.
        4..16 => pieces(n, 4, |at| unsafe { copy::<u32>(dst, src, at) }),
        // SAFETY: as above.
        16..LONG => pieces(n, 16, |at| unsafe { copy::<__m128i>(dst, src, at) }),
        // SAFETY: by the caller.
        _ => unsafe { forward(dst, src, n) },
    }
    dst
}

/// # Safety
/// - As in C: `n` writable bytes at `dst`.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memset(dst: *mut u8, value: i32, n: usize) -> *mut u8 {
    let [byte, ..] = value.to_le_bytes(); // C converts to unsigned char
    match n {
        // SAFETY: here and below, pieces stay within `n` bytes, which the caller guarantees.
        0..4 => pieces(n, 1, |at| unsafe { set(dst, byte, at) }),
        // SAFETY: as above.
        4..16 => pieces(n, 4, |at| unsafe {
            set(dst, u32::from(byte) * 0x0101_0101, at)
        }),
        // SAFETY: as above.
        16..LONG => pieces(n, 16, |at| unsafe {
            set(dst, u128::from(byte) * (u128::MAX / 255), at)
        }),
        // SAFETY: the instruction touches exactly the bytes that the caller guarantees.
        _ => unsafe {
            asm!("rep stosb", inout("rdi") dst => _, in("al") byte, inout("rcx") n => _,
                options(nostack, preserves_flags));
        },
    }
    dst
}

/// Copies from the first byte on.
///
/// # Safety
/// - `n` readable bytes at `src`, `n` writable ones at `dst`; `dst` does not begin inside the source.
unsafe fn forward(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the instruction touches exactly the bytes that the caller guarantees.
    unsafe {
        asm!("rep movsb", inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") n => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// - A `T` is readable at `src + at`, and writable at `dst + at`.
#[inline(always)]
unsafe fn copy<T>(dst: *mut u8, src: *const u8, at: usize) {
    // SAFETY: by the caller.
    let v = unsafe { src.wrapping_add(at).cast::<T>().read_unaligned() };
    // SAFETY: by the caller.
    unsafe { set(dst, v, at) };
}

/// # Safety
/// - A `T` is writable at `dst + at`.
#[inline(always)]
unsafe fn set<T>(dst: *mut u8, value: T, at: usize) {
    // SAFETY: by the caller.
    unsafe { dst.wrapping_add(at).cast::<T>().write_unaligned(value) };
}

/// Calls `piece` with the start of each piece of `size` of `n` bytes; the last one ends at `n`
/// and may overlap the one before. In `memcpy` and `memset`, which the optimiser recognises by
/// name, such a loop does not become a call of them.
#[inline(always)]
fn pieces(n: usize, size: usize, piece: impl Fn(usize)) {
    let Some(last) = n.checked_sub(size) else {
        return;
    };
    let mut at = 0;
    while at < last {
        piece(at);
        at += size;
    }
    piece(last);
}

/// # Safety
/// - As in C: like [`memcpy`], and the ranges may overlap.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memmove(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    let forward_is_safe = dst.addr().wrapping_sub(src.addr()) >= n;
    if forward_is_safe {
        // SAFETY: by the caller; no byte is overwritten before it is read. `memcpy` must not be used here,
        // as its last piece may be read after that.
        unsafe { forward(dst, src, n) };
        return dst;
    }
    // SAFETY: the same bytes, last one first. The direction flag is clear again afterwards.
    unsafe {
        asm!("std", "rep movsb", "cld",
            inout("rdi") dst.wrapping_add(n).wrapping_sub(1) => _,
            inout("rsi") src.wrapping_add(n).wrapping_sub(1) => _,
            inout("rcx") n => _, options(nostack));
    }
    dst
}

/// # Safety
/// - As in C: `n` readable bytes at both pointers.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: i < n.
        let x = unsafe { a.wrapping_add(i).read_volatile() };
        // SAFETY: i < n.
        let y = unsafe { b.wrapping_add(i).read_volatile() };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// # Safety
/// - As [`memcmp`].
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller guarantees the same.
    unsafe { memcmp(a, b, n) }
}

/// Used by `CStr::from_ptr`.
///
/// # Safety
/// - As in C: a zero byte ends the text.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut n = 0;
    // SAFETY: no byte before this one was zero.
    while unsafe { text.wrapping_add(n).read_volatile() } != 0 {
        n += 1;
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    /// Bytes that differ from their neighbours.
    fn bytes(n: usize) -> Vec<u8> {
        (0..n)
            .map(|i| u8::try_from(i % 251).expect("a byte"))
            .collect()
    }

    #[test]
    fn copies_of_every_length_touch_nothing_else() {
        let from = bytes(1200);
        for n in (0..LONG + 80).chain([1024]) {
            for at in [0, 1, 7, 16] {
                let mut to = [0xee_u8; 1200];
                // SAFETY: both have more than 1100 bytes.
                unsafe { memcpy(to[at..].as_mut_ptr(), from[3..].as_ptr(), n) };
                assert_eq!(to[at..at + n], from[3..3 + n], "{n} bytes");
                assert!(to[..at].iter().chain(&to[at + n..]).all(|b| *b == 0xee));

                let mut to = [0xee_u8; 1200];
                // SAFETY: as above. C takes the lowest byte.
                unsafe { memset(to[at..].as_mut_ptr(), 0x1234, n) };
                assert!(to[at..at + n].iter().all(|b| *b == 0x34), "{n} bytes");
                assert!(to[..at].iter().chain(&to[at + n..]).all(|b| *b == 0xee));
            }
        }
    }

    #[test]
    fn moves_may_overlap_by_any_distance() {
        for n in [0, 1, 3, 4, 15, 16, 17, 33, 64, 500, LONG, 700] {
            for (from, to) in (0..20).flat_map(|d| [(20 + d, 20), (20, 20 + d)]) {
                let mut ours = bytes(800);
                let mut theirs = ours.clone();
                let start = ours.as_mut_ptr();
                // SAFETY: at most 740 bytes from the start.
                unsafe { memmove(start.wrapping_add(to), start.wrapping_add(from), n) };
                theirs.copy_within(from..from + n, to);
                assert_eq!(ours, theirs, "{n} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn comparisons_have_signs() {
        let (a, mut b) = (bytes(40), bytes(40));
        // SAFETY: 40 bytes each.
        assert_eq!(unsafe { memcmp(a.as_ptr(), b.as_ptr(), 40) }, 0);
        b[39] = 200;
        // SAFETY: 40 bytes each.
        assert!(unsafe { memcmp(a.as_ptr(), b.as_ptr(), 40) } < 0);
        // SAFETY: 40 bytes each.
        assert!(unsafe { bcmp(b.as_ptr(), a.as_ptr(), 40) } > 0);
        // SAFETY: 39 bytes each.
        assert_eq!(unsafe { bcmp(a.as_ptr(), b.as_ptr(), 39) }, 0);
        // SAFETY: a zero ends it.
        assert_eq!(unsafe { strlen(c"four".as_ptr().cast()) }, 4);
    }
}
