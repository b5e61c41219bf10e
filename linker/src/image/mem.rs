//! The C functions that compiled Rust calls by name.
//!
//! The precompiled `compiler_builtins` of x86_64-unknown-linux-gnu leaves them to libc, and
//! there is none here. They live in the binary: in core they would collide with libc in hosted
//! programs. The compares read volatile, or the optimiser recognises each loop as the function
//! that it is in and replaces it by a call to itself.

use core::arch::asm;

/// # Safety
/// - As in C: `n` readable bytes at `src`, `n` writable ones at `dst`, no overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the instruction touches exactly the bytes that the caller vouches for.
    unsafe {
        asm!("rep movsb", inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") n => _,
            options(nostack, preserves_flags));
    }
    dst
}

/// # Safety
/// - As in C: `n` writable bytes at `dst`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(dst: *mut u8, value: i32, n: usize) -> *mut u8 {
    let [byte, ..] = value.to_le_bytes(); // C converts to unsigned char
    // SAFETY: the instruction touches exactly the bytes that the caller vouches for.
    unsafe {
        asm!("rep stosb", inout("rdi") dst => _, in("al") byte, inout("rcx") n => _,
            options(nostack, preserves_flags));
    }
    dst
}

/// # Safety
/// - As in C: like [`memcpy`], and the ranges may overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(dst: *mut u8, src: *const u8, n: usize) -> *mut u8 {
    let forward_is_safe = dst.addr().wrapping_sub(src.addr()) >= n;
    if forward_is_safe {
        // SAFETY: `dst` does not begin inside the source: no byte is overwritten before it is
        // read.
        return unsafe { memcpy(dst, src, n) };
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
#[unsafe(no_mangle)]
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
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(a, b, n) }
}

/// `CStr::from_ptr` calls this one.
///
/// # Safety
/// - As in C: a zero byte ends the text.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut n = 0;
    // SAFETY: no byte before this one was zero.
    while unsafe { text.wrapping_add(n).read_volatile() } != 0 {
        n += 1;
    }
    n
}
