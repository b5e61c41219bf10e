//! Block formats, weight panels, numeric contract and kernels of Sluice.
//!
//! `no_std`, no alloc: that nothing here allocates is checked by the compiler. Every
//! `core::arch` line of the project lives in this crate.
//!
//! The scalar kernels are the specification (see [`contract`]): every other table computes
//! the same bits. A [`KernelTable`] is chosen once, from what CPUID and XCR0 say
//! ([`CpuFeatures::detect`]), and passed down explicitly. Other tables than the scalar one are
//! compiled for x86-64 with hardware floats: the targets without them (x86_64-unknown-none, -uefi) turn
//! vector intrinsics into library calls without a word, or crash the compiler. `target_feature =
//! "sse2"` tells the two kinds apart.
#![no_std]

#[cfg(not(target_endian = "little"))]
compile_error!(
    "the bytes of GGUF files and panels are used as they lie, and they are little endian"
);

pub mod activation;
mod args;
pub mod attention;
pub mod backward;
pub mod blocks;
pub mod bytes;
pub mod contract;
pub mod cpu;
pub mod cycles;

pub mod float_rows;
pub mod fp_env;
pub mod frame;
pub mod ggml_type;
pub mod hadamard;
pub mod half;
pub mod kv;
pub mod literals;
pub mod lora;
mod magnitudes;
pub mod neuron;
pub mod panel;
mod peak;
mod prefetch;
pub mod probe;
pub mod quantize;
pub mod recurrent;
mod scalar;
pub mod score_scan;
mod statistics;
pub mod table;
#[cfg(test)]
mod tests;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(dead_code, reason = "no vector table for this processor yet")
)]
mod tuning;
mod vector;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86_64;

pub use cpu::CpuFeatures;
pub use fp_env::FpEnv;
pub use frame::{FrameKernels, FrameStats};
pub use ggml_type::GgmlType;
pub use kv::{KvLayout, KvType};
pub use literals::words;
pub use panel::{PanelLayout, WeightType};
pub use prefetch::{prefetch, prefetch_to_l2};
pub use table::KernelTable;
