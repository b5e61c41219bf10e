//! Asking for memory before it is needed.

/// Asks for the `bytes` from `p` on, which will be read or written soon: for rows that lie so far
/// apart that the CPU's own prefetchers do not see what is next. A hint: `p` may point anywhere, and
/// other CPUs than x86-64 ignore it.
#[inline(always)]
pub fn prefetch(p: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    for at in (0..bytes).step_by(crate::panel::LINE_BYTES) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch reads nothing that a program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(at).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    let _ = (p, bytes);
}
