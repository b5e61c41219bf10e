//! Requests of a gate's thread to the kernel, and their results.
//!
//! Every item is requested, read back from the kernel, and reported as granted or not, with the reason and the command
//! that would grant it ([`sluice::host::measures`]). A refusal never fails a run. Everything is undone when the
//! thread ends. No function here changes the thread that calls it: requests are made by the observer's thread, or by
//! one that [`probe`] starts for the purpose.
//!
//! | item | request | read back from |
//! |---|---|---|
//! | core | affinity to one CPU, away from CPU 0's core if there is another | `Cpus_allowed_list` of the thread |
//! | smt | a core that no other thread shares | `thread_siblings_list` |
//! | scheduling | `SCHED_FIFO` | `sched_getscheduler`, `sched_getparam` |
//! | timer slack | `PR_SET_TIMERSLACK` | `PR_GET_TIMERSLACK` |
//! | cpu latency | `/dev/cpu_dma_latency` held open | the device itself |
//! | huge pages | `MADV_HUGEPAGE` on the ring | `AnonHugePages` of the ring in smaps |
//! | memory lock | `mlock` of the ring | `Locked` of the ring in smaps |
//! | prefetch | every page of the ring written | `Rss` of the ring in smaps |
//! | numa | the ring on the worker's node | `get_mempolicy` of the ring's pages against `getcpu` |

mod memory;
mod thread;

use core::fmt;
use sluice::host::measures::{HostMeasure, Report};

pub use memory::RingMemory;
pub use thread::Isolation;

/// The requests to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationRequest {
    /// A core to itself.
    pub core: CoreRequest,
    /// `SCHED_FIFO` with this priority, 1 to 99.
    pub fifo_priority: Option<i32>,
    /// Maximum delay of timers.
    pub timer_slack_ns: Option<u64>,
    /// CPUs to wake up within this many microseconds: keeps them out of deep sleep.
    pub cpu_latency_us: Option<i32>,
    /// Huge pages for the ring.
    pub huge_pages: bool,
    /// The ring locked in memory.
    pub lock_memory: bool,
    /// The ring in memory before the first sample.
    pub prefetch: bool,
    /// The ring on the worker's NUMA node.
    pub numa: bool,
}

/// Which CPU to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CoreRequest {
    /// Leave it to the scheduler.
    #[default]
    Any,
    /// The last allowed physical core's first thread: interrupts and other programs prefer the
    /// first core.
    Last,
    /// This CPU.
    Cpu(usize),
}

impl IsolationRequest {
    /// Requests nothing.
    pub const fn none() -> Self {
        Self {
            core: CoreRequest::Any,
            fifo_priority: None,
            timer_slack_ns: None,
            cpu_latency_us: None,
            huge_pages: false,
            lock_memory: false,
            prefetch: false,
            numa: false,
        }
    }

    /// Requests everything.
    pub const fn all() -> Self {
        Self {
            core: CoreRequest::Last,
            fifo_priority: Some(50),
            timer_slack_ns: Some(1),
            cpu_latency_us: Some(0),
            huge_pages: true,
            lock_memory: true,
            prefetch: true,
            numa: true,
        }
    }
}

/// Builds lines of the report.
trait NotHeld {
    /// The measure as not held, or only partly.
    fn not(self, why_not: impl fmt::Display, remedy: Option<&str>) -> Self;
}

impl NotHeld for HostMeasure {
    fn not(self, why_not: impl fmt::Display, remedy: Option<&str>) -> Self {
        Self {
            why_not: Some(why_not.to_string()),
            remedy: remedy.map(str::to_owned),
            ..self
        }
    }
}

/// Asks for everything in `request` on the calling thread, which is the observer's own. Undone
/// when the guard is dropped, on the same thread.
pub(super) fn isolate(
    request: &IsolationRequest,
    memory: Option<&RingMemory>,
) -> (Isolation, Report) {
    let mut report = Report::default();
    // The core before the memory, so that pages come from its node; of the thread's measures the
    // scheduling class last, because a real-time thread does not have a timer slack to set.
    let isolation = Isolation::new(request, &mut report);
    if let Some(memory) = memory {
        memory.prepare(request, &mut report);
    }
    (isolation, report)
}

/// The results of `request` for a ring of `ring_bytes`: requested by a separate thread, read
/// back, and undone.
///
/// # Errors
/// The thread cannot be started, or memory for the ring is short.
pub fn probe(request: &IsolationRequest, ring_bytes: usize) -> std::io::Result<Report> {
    let memory = RingMemory::new(ring_bytes)?;
    let request = request.clone();
    let thread = std::thread::Builder::new().name("sluice-probe".into());
    let thread = thread.spawn(move || {
        let (_isolation, report) = isolate(&request, Some(&memory));
        report
    })?;
    let failed = |_| std::io::Error::other("the probing thread panicked");
    thread.join().map_err(failed)
}
