//! The other cores: started through the local APIC, then waiting for jobs.
//!
//! Everything happens in ring 3: the APIC's registers are memory (xAPIC mode), and page tables
//! are writable. The driver of `x86` (`apic::xapic::XAPIC`) reads a model-specific register, which
//! ring 3 must not; its register addresses and commands are used here. If the APIC is in x2APIC
//! mode or absent, the first core works alone.
//!
//! A core is admitted by `boot.s`, which gives it the next rank; the first core stops admission before it
//! hands out work. Cores that are late, or have no stack left, halt permanently.
//!
//! Source: Intel's Software Developer's Manual, volume 3A, 10.4 and 10.6 (local APIC, ICR) and
//! 8.4 (start-up of application processors).

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use x86::apic::xapic::{XAPIC_ICR0, XAPIC_VERSION};
use x86::apic::{
    ApicId, DeliveryMode, DeliveryStatus, DestinationMode, DestinationShorthand, Icr, Level,
    TriggerMode,
};

use super::boot_info::at;
use super::clock::ticks;

/// Maximum cores in `boot.s`.
pub(super) const CORES_MAX: usize = 64;

/// Bytes of memory for the stacks of `n_cores` cores but the first, to be aligned to [`STACK_BYTES`].
pub(super) const fn stack_bytes(n_cores: usize) -> u64 {
    (n_cores as u64 - 1) * STACK_BYTES
}

/// The clock, and how long to wait for the next core.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) ticks_per_ms: u64,
    pub(super) patience_ms: u32,
}

/// Starts up to `n_cores - 1` other cores and admits those that respond soon; returns the number of cores
/// now. `stacks` is free memory of [`stack_bytes`], aligned to [`STACK_BYTES`]; `apic` is the address of
/// the registers of the local APIC.
///
/// # Safety
/// - Called once, with up to [`CORES_MAX`] cores. `stacks` belongs to the cores from now on. Nothing
///   that the loader left and is needed later is at [`TRAMPOLINE`]. `apic` is mapped.
pub(super) unsafe fn start(
    n_cores: usize,
    stacks: Range<u64>,
    apic: u64,
    waiting: Waiting,
) -> usize {
    // SAFETY: the register of that name; without an APIC, reads give all ones.
    let version = unsafe { at::<u32>(apic + u64::from(XAPIC_VERSION)).read_volatile() };
    let (true, Ok(limit)) = (version != u32::MAX, u32::try_from(n_cores - 1)) else {
        return 1;
    };
    if limit == 0 {
        return 1;
    }
    // SAFETY: the first core has written it before Rust ran.
    let no_execute = u64::from(unsafe { NO_EXECUTE }) << 32;
    for core in 1..n_cores as u64 {
        let page = stacks.start + (core - 1) * STACK_BYTES;
        // The upper half of the core's window; the lower half stays unmapped.
        let entry = at::<u64>((&raw const STACKS_DIRECTORY).addr() as u64 + (2 * core + 1) * 8);
        // SAFETY: an entry of the directory, unused so far, so it is not cached.
        unsafe { entry.write_volatile(page | PAGE_LARGE_USER | no_execute) };
    }
    let code = (&raw const TRAMPOLINE_START).cast::<u8>();
    let len = (&raw const TRAMPOLINE_END).addr() - code.addr();
    // SAFETY: `len` bytes of code in the image; by the caller the target is free.
    unsafe { core::ptr::copy_nonoverlapping(code, at(TRAMPOLINE), len) };

    let Waiting {
        ticks_per_ms,
        patience_ms,
    } = waiting;
    LIMIT.store(limit, Ordering::Release);
    send(apic, DeliveryMode::Init, 0);
    wait(10 * ticks_per_ms);
    // Twice, as the manual requires.
    for _ in 0..2 {
        send(apic, DeliveryMode::StartUp, TRAMPOLINE_PAGE);
        wait(ticks_per_ms);
    }
    wait_for_others(limit, ticks_per_ms.saturating_mul(patience_ms.into()));
    1 + ADMITTED.swap(CLOSED, Ordering::AcqRel) as usize
}

/// Waits until `limit` cores are admitted, or none has been for a while.
fn wait_for_others(limit: u32, patience_ticks: u64) {
    let (mut n_seen, mut since) = (0, ticks());
    while n_seen < limit && ticks() - since < patience_ticks {
        spin_loop();
        let n = ADMITTED.load(Ordering::Acquire);
        if n != n_seen {
            (n_seen, since) = (n, ticks());
        }
    }
}

/// Sends a command to all cores but this one. `vector` is the start-up page.
fn send(apic: u64, mode: DeliveryMode, vector: u8) {
    let command = Icr::for_xapic(
        vector,
        ApicId::XApic(0), // the shorthand selects the cores
        DestinationShorthand::AllExcludingSelf,
        mode,
        DestinationMode::Physical,
        DeliveryStatus::Idle,
        Level::Assert,
        TriggerMode::Edge,
    );
    let register = at::<u32>(apic + u64::from(XAPIC_ICR0));
    // SAFETY: the interrupt command register; the commands go to the other cores only.
    unsafe { register.write_volatile(command.lower()) };
}

fn wait(n_ticks: u64) {
    let start = ticks();
    while ticks() - start < n_ticks {
        spin_loop();
    }
}

/// Calls `job` with ranks `0..n_ranks`, rank 0 here, and waits for all. `n_cores` is what
/// [`start`] returned.
pub(super) fn spread(n_cores: usize, n_ranks: usize, job: &(dyn Fn(usize) + Sync)) {
    assert!((1..=n_cores).contains(&n_ranks));
    let posted = Job {
        job: (&raw const job).cast(),
        n_ranks,
    };
    // SAFETY: every admitted core has finished the previous job, so none of them accesses the cell.
    unsafe { *JOB.0.get() = Some(posted) };
    DONE.store(0, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Release);
    job(0);
    while DONE.load(Ordering::Acquire) < n_cores - 1 {
        spin_loop();
    }
}

/// The target in `boot.s` of every other core that it admits. Ranks are in order, from 1.
#[unsafe(no_mangle)]
extern "C" fn ap_main(rank: u32) -> ! {
    let rank = rank as usize;
    // Not the current one: jobs may have been posted since this core was admitted.
    let mut seen = 0_u32;
    loop {
        while EPOCH.load(Ordering::Acquire) == seen {
            spin_loop();
        }
        seen = seen.wrapping_add(1);
        // SAFETY: written before the epoch that was just seen, and not again before this core
        // is done.
        if let Some(Job { job, n_ranks }) = unsafe { *JOB.0.get() }
            && rank < n_ranks
        {
            // SAFETY: `spread` made it from a reference of this type, and waits for this core
            // before it returns.
            let job = unsafe { *job.cast::<&(dyn Fn(usize) + Sync)>() };
            job(rank);
        }
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// The cores' job. Its lifetime is erased: see [`spread`].
#[derive(Clone, Copy)]
struct Job {
    /// A `&(dyn Fn(usize) + Sync)` in the frame of [`spread`].
    job: *const (),
    n_ranks: usize,
}

struct JobCell(UnsafeCell<Option<Job>>);
// SAFETY: the first core writes while the others wait for the epoch; they read after it.
unsafe impl Sync for JobCell {}

static JOB: JobCell = JobCell(UnsafeCell::new(None));
/// The number of jobs so far.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Other cores that have been admitted, or [`CLOSED`]. Cores count themselves, by compare-and-swap, as long
/// as fewer than [`LIMIT`] are.
#[unsafe(export_name = "ap_admitted")]
static ADMITTED: AtomicU32 = AtomicU32::new(0);
/// Other cores that have a stack.
#[unsafe(export_name = "ap_limit")]
static LIMIT: AtomicU32 = AtomicU32::new(0);
/// Higher than any limit.
const CLOSED: u32 = u32::MAX;
/// Other cores that are done with the current job.
static DONE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    #[link_name = "ap_trampoline"]
    static TRAMPOLINE_START: u8;
    #[link_name = "ap_trampoline_end"]
    static TRAMPOLINE_END: u8;
    #[link_name = "pd_stacks"]
    static STACKS_DIRECTORY: u8;
    #[link_name = "no_execute"]
    static NO_EXECUTE: u32;
}

/// Where the other cores start: a page of low memory that loaders do not use.
pub(super) const TRAMPOLINE: u64 = (TRAMPOLINE_PAGE as u64) << 12;
const TRAMPOLINE_PAGE: u8 = 0x10;
/// The size of a stack's window: a large page.
pub(super) const STACK_BYTES: u64 = 2 << 20;
/// Present, writable, user, large.
const PAGE_LARGE_USER: u64 = 0x87;
/// The address of a local APIC's registers, unless the firmware gives another.
pub(super) const APIC: u64 = 0xFEE0_0000;
