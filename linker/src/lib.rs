//! The machine-independent half of the bare-metal image: which memory is free, the options on the
//! command line, and a model run from memory to text.
//!
//! Nothing here accesses a port, a register or a fixed address: the image supplies
//! memory, a clock, cores and a console, and so may a test, a unikernel or firmware.
#![no_std]
#![forbid(unsafe_code)]

pub mod acpi;
pub mod memory_map;
pub mod options;
pub mod story;
