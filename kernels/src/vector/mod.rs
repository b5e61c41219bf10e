//! Kernels written once for every instruction set with vectors.
//!
//! Nothing here names an intrinsic. Attention is generic over [`attention::Vector`], unpacking over [`unpack::Line`];
//! the module of an instruction set implements these traits, and calls this code from functions that enable its
//! features. The generic functions are `#[inline(always)]` and enable no features themselves, so they are compiled with
//! the features of their caller.
//!
//! Products are not here: what fits into registers differs too much between instruction sets.
#![cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "no vector table for this processor yet"
    )
)]

pub(crate) mod attention;
pub(crate) mod backward;
pub(crate) mod lora;
pub(crate) mod neurons;
#[cfg(test)]
pub(crate) mod plain;
pub(crate) mod recurrent;
pub(crate) mod rows;
pub(crate) mod scan;
pub(crate) mod signs;
pub(crate) mod stream;
pub(crate) mod unpack;
