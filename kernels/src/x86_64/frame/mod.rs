//! The frame kernels in AVX2 and AVX-512 instructions.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod counting;
