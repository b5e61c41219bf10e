//! AVX2, FMA, F16C.

pub(crate) mod attention;
