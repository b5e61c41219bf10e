//! The Sluice engine without an operating system: `no_std`, no alloc.
#![no_std]

pub use sluice_kernels as kernels;

pub mod engine;
pub mod gate;
pub mod gguf;
pub mod hash;
pub mod kv_cache;
pub mod memory;
pub mod model;
pub mod pooling;
pub mod ring;
pub mod sampler;
pub mod slc;
mod sync;
pub mod team;
pub mod tokenizer;
pub mod trace;
pub mod uth;
