//! Prefetching: memory is requested before it is needed.
//!
//! Every call is a hint: the pointer may point anywhere, and nothing is read that a program sees. CPUs
//! other than x86-64 ignore it.

use crate::panel::LINE_BYTES;

/// Prefetches the `bytes` from `p` on, which will be read or written soon: for rows so far apart that
/// the CPU's own prefetchers do not see which is next.
#[inline(always)]
pub fn prefetch(p: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        prefetch_line(p.wrapping_add(at));
    }
}

/// Prefetches the `bytes` from `p` on, which will be read later, into the second-level cache.
#[inline(always)]
pub fn prefetch_to_l2(p: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        prefetch_line_to_l2(p.wrapping_add(at));
    }
}

/// Prefetches one cache line into the first-level cache.
#[inline(always)]
pub(crate) fn prefetch_line(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64; a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    let _ = p;
}

/// Prefetches one cache line into the second-level cache.
#[inline(always)]
pub(crate) fn prefetch_line_to_l2(p: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of x86-64; a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    let _ = p;
}
