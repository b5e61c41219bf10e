//! What the tests of several modules share.

extern crate std;

use super::pi::PiChaos;
use crate::kernels::{CpuFeatures, KernelTable};
use std::vec::Vec;

/// Numbers within ±1.
pub(super) fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut chaos = PiChaos::hashed(seed);
    (0..n).map(|_| chaos.next_float() * 2.0 - 1.0).collect()
}

/// The fastest table of this machine.
pub(super) fn best() -> &'static KernelTable {
    KernelTable::best(CpuFeatures::detect())
}
