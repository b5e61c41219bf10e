//! The C functions that the image brings along, whose tests are beside them.
#![cfg(target_arch = "x86_64")]

#[path = "../src/image/mem.rs"]
mod mem;
