//! The image's own C functions, with the tests in their file.
#![cfg(target_arch = "x86_64")]

#[path = "../src/image/mem.rs"]
mod mem;
