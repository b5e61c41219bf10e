//! Experts that stay on disk.

use crate::arguments::{Versioned, check_out, give};
use crate::model::{Model, handle};
use crate::status::{Failure, Status, guard};
use sluice::experts;
use static_assertions::const_assert_eq;

/// What was done with a model's experts since it was opened. Set `struct_bytes` before it is filled in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExpertStats {
    /// `sizeof` this struct.
    pub struct_bytes: usize,
    /// Experts of all layers; 0 where they are in memory, and all other numbers, too.
    pub n_experts: u64,
    /// Experts that there is memory for.
    pub n_slots: u64,
    /// Bytes of each.
    pub slot_bytes: u64,
    /// Times that a layer of a step needed an expert.
    pub needed: u64,
    /// Of them, those that were in memory.
    pub hits: u64,
    /// Of them, those that were on their way because they had been guessed.
    pub late: u64,
    /// Experts that made room for another.
    pub evictions: u64,
    /// Experts that were read by a guess.
    pub guessed: u64,
    /// Of them, those that were needed.
    pub guessed_needed: u64,
    /// Reads that were done.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that failed and were tried again.
    pub retries: u64,
    /// Experts that did not come.
    pub failures: u64,
    /// Nanoseconds that threads waited for experts, all threads together.
    pub stall_ns: u64,
}

// SAFETY: numbers without padding.
unsafe impl Versioned for ExpertStats {
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

// What C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ExpertStats>(), 120);

impl ExpertStats {
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

/// Fills in `*stats`. May be called while contexts of the model are at work.
///
/// # Safety
/// - `model` is a handle, `stats` a struct that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_model_get_expert_stats(
    model: *const Model,
    stats: *mut ExpertStats,
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
            .map(|experts| ExpertStats::of(&experts.stats()));
        give(stats, &found.unwrap_or(ExpertStats::DEFAULT))
    })
}
