//! This machine and its kernel: cores, threads, memory, signals, and the report of what was requested.

pub(crate) mod activity;
pub mod cpus;
pub mod drives;
pub mod futex;
pub mod interrupt;
pub mod isa;
pub mod measures;
pub mod memory;
pub mod pace;
pub mod placement;
pub mod process;
pub mod profile;
pub mod reads;
pub mod threads;
pub mod topology;
pub mod workers;
