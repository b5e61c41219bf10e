//! Devices that read files at several places at once.

mod files;
mod io;
mod simulated;
mod threads;
mod uring;

pub use files::DeviceFile;
pub use io::ExpertIo;
pub use simulated::{SimulatedDevice, Simulation};

pub(super) use files::open_file;

use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;
use std::sync::Arc;

/// A read to be done.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Reported back when the read is done.
    pub token: u32,
    /// Which of the device's files.
    pub file: usize,
    /// Where it begins in the file.
    pub offset: u64,
    /// Destination of the bytes: memory that nothing else uses before the read is done.
    pub into: NonNull<u8>,
    /// Maximum length, in bytes. Past the page cache both offset and length are multiples of [`DIRECT_ALIGN`].
    pub len: usize,
}

// SAFETY: an address that one read at a time writes to, by whichever thread does it.
unsafe impl Send for Read {}

/// Alignment of reads past the page cache, in bytes.
pub const DIRECT_ALIGN: usize = 4096;

/// Reads files at several places at once, and reports the end of each read.
pub trait Device: Send + Sync + fmt::Debug {
    /// A short name.
    fn name(&self) -> &'static str;

    /// Shortcomings to report to the user.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Takes up a read. Not called by two threads at once; never waits for a read.
    fn start(&self, read: Read);

    /// Begins with all that was taken up; from within [`Completions::completed`], by the time that the completions at hand
    /// are reported.
    fn flush(&self);

    /// Calls of `io_uring_enter` so far; 0 for other ways to read.
    fn n_enters(&self) -> u64 {
        0
    }

    /// Waits for all reads under way. Afterwards no read is started or reported.
    fn close(&self);
}

/// Receives the results of reads.
pub trait Completions: Send + Sync {
    /// A read is done: the number of bytes read, maybe fewer than asked for, or the system's error number. Called by
    /// one or several threads.
    fn completed(&self, token: u32, result: Result<usize, i32>);

    /// Handles what is due by now; returns the maximum time until the next call. Called by one thread.
    fn tick(&self) -> Duration;
}

/// Files and memory of a device, and the receiver of its results.
#[expect(
    missing_debug_implementations,
    reason = "contains a device without Debug"
)]
pub struct DeviceSetup {
    /// The files to read.
    pub files: Vec<DeviceFile>,
    /// The memory to read into: addresses and lengths, each at most 1 GiB.
    pub memory: Vec<(NonNull<u8>, usize)>,
    /// Maximum reads at once.
    pub n_reads: usize,
    /// Receives the results.
    pub completions: Arc<dyn Completions>,
    /// CPUs near the drives, for its threads; empty for all.
    pub cpus: Vec<usize>,
}

/// Makes a device.
#[derive(Clone)]
pub struct OpenDevice(Arc<OpenFn>);

type OpenFn = dyn Fn(DeviceSetup) -> Result<Box<dyn Device>, String> + Send + Sync;

impl OpenDevice {
    /// One that `open` makes.
    pub fn new(
        open: impl Fn(DeviceSetup) -> Result<Box<dyn Device>, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(open))
    }

    pub(super) fn open(&self, setup: DeviceSetup) -> Result<Box<dyn Device>, String> {
        (self.0)(setup)
    }
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenDevice")
    }
}

/// The machine's own device of that kind.
pub(super) fn open(io: ExpertIo, setup: DeviceSetup) -> Result<Box<dyn Device>, String> {
    match io {
        ExpertIo::Uring => uring::Uring::open(setup),
        ExpertIo::Pread => threads::Threads::open(setup, false),
        ExpertIo::Mmap => threads::Threads::open(setup, true),
    }
}

/// Whether `io_uring` can be set up, or why not.
pub(super) fn probe_uring() -> Result<(), String> {
    uring::probe()
}

/// Keeps the calling thread on `cpus`, if there are some.
fn stay_on(cpus: &[usize]) {
    if !cpus.is_empty() {
        // A thread that may not be bound reads from farther away.
        let _bound = crate::host::topology::bind_current_thread(cpus);
    }
}
