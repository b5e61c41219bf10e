//! Kernels for x86-64's vector extensions.

pub(crate) mod amx;
pub(crate) mod attention;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod fma3;
pub(crate) mod frame;
pub(crate) mod probe;
pub(crate) mod rows;
pub(crate) mod unpack;
