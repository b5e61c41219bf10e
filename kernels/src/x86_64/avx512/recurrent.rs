//! The recurrence of states in vectors of 16 lanes.

use super::attention::Avx512;
use crate::recurrent::Recurrence;
use crate::vector::recurrent;

/// Takes tokens through a state.
///
/// # Safety
/// - The CPU has the features.
/// - The operands are as [`crate::KernelTable::recurrence`] checks them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn recurrence(args: &mut Recurrence<'_, '_>) {
    // SAFETY: by the caller.
    unsafe { recurrent::recurrence::<Avx512, 1>(args) }
}
