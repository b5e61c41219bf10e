//! Experts that stay on disk.

use crate::arguments::{Versioned, check_out, give};
use crate::model::{ModelHandle, handle};
use crate::status::{Failure, Status, guard};
use sluice::experts;
use static_assertions::const_assert_eq;

/// Statistics of a model's experts since it was opened. Set `struct_bytes` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertCounts {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// Experts of all layers; 0 if they are in memory, and then all other numbers are 0 as well.
    pub n_experts: u64,
    /// Number of experts that fit into memory.
    pub n_slots: u64,
    /// Bytes per expert.
    pub slot_bytes: u64,
    /// Number of times a layer of a step needed an expert.
    pub needed: u64,
    /// How many of them were in memory.
    pub hits: u64,
    /// How many of them were being read because of a correct guess.
    pub late: u64,
    /// Number of experts evicted.
    pub evictions: u64,
    /// Number of experts read speculatively.
    pub guessed: u64,
    /// How many of them were used.
    pub guessed_needed: u64,
    /// Number of completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of failed reads that were retried.
    pub retries: u64,
    /// Number of experts that could not be read.
    pub failures: u64,
    /// Time that threads waited for experts, in nanoseconds, summed over threads.
    pub stall_ns: u64,
}

// SAFETY: numbers without padding.
unsafe impl Versioned for ExpertCounts {
    const NAME: &'static str = "sluice_expert_stats";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        n_experts: 0,
        n_slots: 0,
        slot_bytes: 0,
        needed: 0,
        hits: 0,
        late: 0,
        evictions: 0,
        guessed: 0,
        guessed_needed: 0,
        reads: 0,
        read_bytes: 0,
        retries: 0,
        failures: 0,
        stall_ns: 0,
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ExpertCounts>(), 120);

impl ExpertCounts {
    fn of(stats: &experts::ExpertStats) -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            n_experts: stats.n_experts as u64,
            n_slots: stats.n_slots as u64,
            slot_bytes: stats.slot_bytes as u64,
            needed: stats.needed,
            hits: stats.hits,
            late: stats.late,
            evictions: stats.evictions,
            guessed: stats.guessed,
            guessed_needed: stats.guessed_needed,
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            retries: stats.retries,
            failures: stats.failures,
            stall_ns: u64::try_from(stats.stall.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Fills in `*stats`. May be called while contexts of the model are in use.
///
/// # Safety
/// - `model` is a handle, `stats` a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_get_expert_stats(
    model: *const ModelHandle,
    stats: *mut ExpertCounts,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let model = handle("model", model)?;
        if stats.is_null() {
            return Err(Failure::null("stats"));
        }
        check_out(stats)?;
        let found = model
            .model
            .experts()
            .map(|experts| ExpertCounts::of(&experts.stats()));
        give(stats, &found.unwrap_or(ExpertCounts::DEFAULT))
    })
}
