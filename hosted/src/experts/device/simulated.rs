//! A device with a set latency and bandwidth, whose reads end in any order and fail as configured: for tests and
//! measurements.

use super::{Completions, Device, DeviceSetup, OpenDevice, Read};
use core::time::Duration;
use rustix::mm::{Advice, madvise};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// What a simulated device does.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// From the end of a read's transfer to the end of the read.
    pub latency: Duration,
    /// Of all reads together; infinite for a device that takes only the latency.
    pub bytes_per_second: f64,
    /// Whether reads that end at the same look at the clock are reported in reverse.
    pub is_reversed: bool,
    /// The result of read `n`, from 0, of `len` bytes: its bytes, maybe fewer than asked for, or an error number.
    pub fate: fn(n: u64, len: usize) -> Result<usize, i32>,
}

impl Simulation {
    /// All bytes at once.
    pub const IDEAL: Self = Self {
        latency: Duration::ZERO,
        bytes_per_second: f64::INFINITY,
        is_reversed: false,
        fate: |_, len| Ok(len),
    };

    /// Makes such a device.
    #[must_use]
    pub fn device(self) -> OpenDevice {
        OpenDevice::new(move |setup| match SimulatedDevice::new(setup, self) {
            Ok(device) => Ok(Box::new(device)),
            Err(error) => Err(error.to_string()),
        })
    }
}

/// A device that reads its files as fast as its [`Simulation`] says.
#[derive(Debug)]
pub struct SimulatedDevice {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    /// Opened again: read through the page cache, which is faster than the simulated drive.
    files: Vec<File>,
    simulation: Simulation,
}

struct Queue {
    /// Reads, with the time that each is done.
    reads: Vec<(Instant, Read)>,
    /// When the transfer of the last one ends.
    free_at: Instant,
    ended: bool,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.simulation.fmt(f)
    }
}

impl SimulatedDevice {
    fn new(setup: DeviceSetup, simulation: Simulation) -> std::io::Result<Self> {
        let files = setup.files.iter().map(|file| File::open(&file.path));
        let files = files.collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                reads: Vec::with_capacity(setup.n_reads),
                free_at: Instant::now(),
                ended: false,
            }),
            filled: Condvar::new(),
            files,
            simulation,
        });
        let in_thread = shared.clone();
        let completions = setup.completions;
        let thread = std::thread::spawn(move || in_thread.work(&*completions));
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }
}

impl Device for SimulatedDevice {
    fn name(&self) -> &'static str {
        "simulated"
    }

    #[expect(clippy::cast_precision_loss, reason = "reads are below 2^52 bytes")]
    fn start(&self, read: Read) {
        let Simulation {
            latency,
            bytes_per_second,
            ..
        } = self.shared.simulation;
        let transfer = Duration::from_secs_f64(read.len as f64 / bytes_per_second);
        let mut queue = lock(&self.shared.queue);
        queue.free_at = queue.free_at.max(Instant::now()) + transfer;
        let due = queue.free_at + latency;
        queue.reads.push((due, read));
        self.shared.filled.notify_one();
    }

    fn flush(&self) {}

    fn close(&self) {
        lock(&self.shared.queue).ended = true;
        self.shared.filled.notify_one();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ended = thread.join();
        }
    }
}

impl Drop for SimulatedDevice {
    fn drop(&mut self) {
        self.close();
    }
}

/// Before a read is due, the clock is watched instead of slept for: sleepers come late.
const WATCH: Duration = Duration::from_micros(120);

impl Shared {
    fn work(&self, completions: &dyn Completions) {
        let mut n_done = 0;
        loop {
            let pause = completions.tick();
            let queue = lock(&self.queue);
            let Some(&(due, next)) = queue.reads.first() else {
                if queue.ended {
                    return;
                }
                drop(self.filled.wait_timeout(queue, pause));
                continue;
            };
            drop(queue);
            let result = self.read(&next, n_done);
            let now = Instant::now();
            if due > now + WATCH {
                std::thread::park_timeout(due - now - WATCH);
            }
            while Instant::now() < due {
                core::hint::spin_loop();
            }
            n_done += 1;
            self.finish();
            completions.completed(next.token, result);
        }
    }

    /// The first read is done.
    fn finish(&self) {
        let mut queue = lock(&self.queue);
        queue.reads.remove(0);
        if self.simulation.is_reversed && queue.reads.len() > 1 {
            // The next ones first: all orders come up as requests are few or many.
            queue.reads.reverse();
        }
    }

    fn read(&self, read: &Read, n: u64) -> Result<usize, i32> {
        let len = (self.simulation.fate)(n, read.len)?;
        let room = read.into.as_ptr().cast();
        // SAFETY: memory for the read; only whether its pages are there changes. A hint: direct reads make them present, too.
        let _hint = unsafe { madvise(room, read.len, Advice::LinuxPopulateWrite) };
        // SAFETY: nothing else uses that memory until the read is done, as `Read::into` requires.
        let into = unsafe { core::slice::from_raw_parts_mut(read.into.as_ptr(), read.len) };
        let found = self.files[read.file].read_at(into, read.offset);
        let found = found.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(found.min(len))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
