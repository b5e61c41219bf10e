//! What the bare-metal image does, apart from the machine: which memory is free, what the
//! command line asks for, and a model run from memory to text.
//!
//! Nothing here touches a port, a register or an address of its own choice: the image gives
//! memory, a clock, cores and a console, and so may a test, a unikernel or firmware.
#![no_std]
#![forbid(unsafe_code)]

pub mod acpi;
pub mod memory_map;
pub mod options;
pub mod story;
