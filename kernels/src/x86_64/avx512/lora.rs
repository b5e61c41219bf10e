//! Products of adapters in vectors of 16 lanes.

use super::attention::Avx512;
use crate::lora::{LoraDown, LoraUp};
use crate::vector::lora;

/// `out = A · x`.
///
/// # Safety
/// - The CPU has the features.
/// - As [`crate::KernelTable::lora_down`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn down(args: &LoraDown<'_>) {
    // SAFETY: by the caller.
    unsafe { lora::down::<Avx512, 1, 4>(args) }
}

/// `out += B · t`.
///
/// # Safety
/// - The CPU has the features.
/// - As [`crate::KernelTable::lora_up`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn up(args: &LoraUp<'_>) {
    // SAFETY: by the caller.
    unsafe { lora::up::<Avx512, 1, 4, 4>(args) }
}
