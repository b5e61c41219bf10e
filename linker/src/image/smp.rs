//! The other cores: started through the local APIC, then waiting for jobs.
//!
//! Everything happens in ring 3: the APIC's registers are memory (xAPIC mode), and page tables
//! are writable. The driver of `x86` (`apic::xapic::XAPIC`) reads a model-specific register, which
//! ring 3 must not; its register addresses and commands are used here. Where the APIC is in x2APIC
//! mode or absent, the first core works alone.
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
use super::cpu;

/// Cores that `boot.s` has room for.
pub(super) const CORES_MAX: usize = 64;

/// Cores that may exist, including the first.
pub(super) fn cores_hint() -> usize {
    cpu::cores_hint().clamp(1, CORES_MAX)
}

/// Bytes of memory for the stacks of `n_cores` cores but the first, aligned to themselves.
pub(super) const fn stack_bytes(n_cores: usize) -> u64 {
    (n_cores as u64 - 1) * STACK_BYTES
}

/// Starts up to `n_cores - 1` other cores and waits a while for them; returns how many cores
/// there are now. `stacks` is free memory of [`stack_bytes`], aligned to [`STACK_BYTES`].
///
/// # Safety
/// - Called once. `stacks` belongs to the cores from now on. Nothing that the loader left and is
///   needed later lies at [`TRAMPOLINE`].
pub(super) unsafe fn start(n_cores: usize, stacks: Range<u64>, ticks_per_ms: u64) -> usize {
    // SAFETY: the register of that name; where there is no APIC, reads give all ones.
    let version = unsafe { at::<u32>(APIC + u64::from(XAPIC_VERSION)).read_volatile() };
    if n_cores < 2 || version == u32::MAX {
        return 1;
    }
    for core in 1..n_cores as u64 {
        let page = stacks.start + (core - 1) * STACK_BYTES;
        // The upper half of the core's window; the lower half stays without a page.
        let entry = at::<u64>((&raw const STACKS_DIRECTORY).addr() as u64 + (2 * core + 1) * 8);
        // SAFETY: an entry of the directory, unused so far, so nothing of it is cached.
        unsafe { entry.write_volatile(page | PAGE_LARGE_USER) };
    }
    let code = (&raw const TRAMPOLINE_START).cast::<u8>();
    let len = (&raw const TRAMPOLINE_END).addr() - code.addr();
    // SAFETY: `len` bytes of code in the image; by the caller the target is free.
    unsafe { core::ptr::copy_nonoverlapping(code, at(TRAMPOLINE), len) };

    send(DeliveryMode::Init, 0);
    wait(10 * ticks_per_ms);
    // Twice, as the manual asks for.
    for _ in 0..2 {
        send(DeliveryMode::StartUp, TRAMPOLINE_PAGE);
        wait(ticks_per_ms);
    }
    let until = ticks() + 100 * ticks_per_ms;
    while arrived() < n_cores && ticks() < until {
        spin_loop();
    }
    arrived().min(n_cores)
}

/// Cores in ring 3, including the first.
fn arrived() -> usize {
    1 + READY.load(Ordering::Acquire)
}

/// Sends a command to all cores but this one. `vector` is the start-up page.
fn send(mode: DeliveryMode, vector: u8) {
    let command = Icr::for_xapic(
        vector,
        ApicId::XApic(0), // the shorthand says who
        DestinationShorthand::AllExcludingSelf,
        mode,
        DestinationMode::Physical,
        DeliveryStatus::Idle,
        Level::Assert,
        TriggerMode::Edge,
    );
    let register = at::<u32>(APIC + u64::from(XAPIC_ICR0));
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
/// [`start`] said.
pub(super) fn spread(n_cores: usize, n_ranks: usize, job: &(dyn Fn(usize) + Sync)) {
    assert!((1..=n_cores).contains(&n_ranks));
    let posted = Job {
        job: (&raw const job).cast(),
        n_ranks,
    };
    // SAFETY: the other cores are idle, so none of them accesses the cell.
    unsafe { *JOB.0.get() = Some(posted) };
    DONE.store(0, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Release);
    job(0);
    while DONE.load(Ordering::Acquire) < n_cores - 1 {
        spin_loop();
    }
}

/// Where `boot.s` sends every other core, numbered from 1.
#[unsafe(no_mangle)]
extern "C" fn ap_main(core: u32) -> ! {
    let rank = core as usize;
    let mut seen = EPOCH.load(Ordering::Relaxed);
    READY.fetch_add(1, Ordering::Release);
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
            // SAFETY: `spread` made it of a reference of this type, and waits for this core
            // before it returns.
            let job = unsafe { *job.cast::<&(dyn Fn(usize) + Sync)>() };
            job(rank);
        }
        DONE.fetch_add(1, Ordering::Release);
    }
}

/// What cores are to do. The lifetime is forgotten: see [`spread`].
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
/// Counts jobs.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Other cores that wait for jobs.
static READY: AtomicUsize = AtomicUsize::new(0);
/// Other cores that are done with the current job.
static DONE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    #[link_name = "ap_trampoline"]
    static TRAMPOLINE_START: u8;
    #[link_name = "ap_trampoline_end"]
    static TRAMPOLINE_END: u8;
    #[link_name = "pd_stacks"]
    static STACKS_DIRECTORY: u8;
}

/// Where the other cores wake up: a page of low memory that loaders leave alone.
pub(super) const TRAMPOLINE: u64 = (TRAMPOLINE_PAGE as u64) << 12;
const TRAMPOLINE_PAGE: u8 = 0x10;
/// A large page for each stack.
pub(super) const STACK_BYTES: u64 = 2 << 20;
/// Present, writable, user, large.
const PAGE_LARGE_USER: u64 = 0x87;
const APIC: u64 = 0xFEE0_0000;
