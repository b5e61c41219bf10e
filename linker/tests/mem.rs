//! The C functions that the image brings along, whose tests are beside them.

#[path = "../src/image/mem.rs"]
mod mem;
