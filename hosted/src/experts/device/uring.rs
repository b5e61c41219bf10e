//! `io_uring`: reads are started without waiting, and one thread waits for all of them.
//!
//! Source: Jens Axboe, "Efficient IO with io_uring"; io_uring_setup(2), io_uring_enter(2), io_uring_register(2).

use super::{Completions, Device, DeviceSetup, Read, stay_on};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use io_uring::types::{Fixed, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};

/// A ring, its buffers, and the thread that waits for it.
#[derive(Debug)]
pub(super) struct Uring {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    notes: Vec<String>,
}

struct Shared {
    ring: IoUring,
    /// Begin and end of each registered buffer; empty if registering failed.
    buffers: Vec<(usize, usize)>,
    /// Reads that are started and not reported.
    n_reading: AtomicUsize,
    /// Calls of `io_uring_enter` so far.
    n_enters: AtomicU64,
    queue: Mutex<Queue>,
    is_ending: AtomicBool,
    /// Kept open as long as the ring uses them.
    _files: Vec<super::DeviceFile>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IoUring")
    }
}

/// Entries on their way to the kernel. The lock is held for all uses of the ring's submission queue.
#[derive(Default)]
struct Queue {
    /// In the ring, and not taken by the kernel.
    waiting: VecDeque<u64>,
    /// Entries that the kernel will never take.
    refused: Vec<u64>,
    /// The error number that refused them. What is in the ring stays there, so nothing is submitted any more: its
    /// memory may be in use for something else.
    errno: Option<i32>,
    /// Waits for completions; parked while there is nothing to wait for in the ring, or that is not possible.
    waiter: Option<Thread>,
}

/// Marks the entry that wakes the thread at the end.
const END: u64 = u64::MAX;

/// Whether a ring can be made here, or why not.
pub(super) fn probe() -> Result<(), String> {
    let ring = IoUring::new(8).map_err(|error| refusal(&error))?;
    match ring.params().is_feature_ext_arg() {
        true => Ok(()),
        false => Err("the kernel is older than 5.11".into()),
    }
}

fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel does not support io_uring".into(),
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is not permitted (kernel.io_uring_disabled, or a sandbox's filter)".into()
        }
        _ => format!("io_uring cannot be set up: {error}"),
    }
}

impl Uring {
    pub(super) fn open(setup: DeviceSetup) -> Result<Box<dyn Device>, String> {
        probe()?;
        let entries = (setup.n_reads + 1).next_power_of_two();
        let entries = u32::try_from(entries).map_err(|_| "too many concurrent reads")?;
        let ring = IoUring::new(entries).map_err(|error| refusal(&error))?;
        let fds: Vec<_> = setup
            .files
            .iter()
            .map(|file| file.file.as_raw_fd())
            .collect();
        let submitter = ring.submitter();
        submitter
            .register_files(&fds)
            .map_err(|error| format!("files cannot be registered: {error}"))?;
        let mut notes = Vec::new();
        let parts = setup.memory.iter();
        let vectors: Vec<_> = parts
            .map(|(start, len)| libc::iovec {
                iov_base: start.as_ptr().cast(),
                iov_len: *len,
            })
            .collect();
        // SAFETY: the memory is valid until the device is closed, as the caller guarantees.
        let registered = unsafe { submitter.register_buffers(&vectors) };
        let buffers = match registered {
            Ok(()) => {
                let range = |&(start, len): &(core::ptr::NonNull<u8>, usize)| {
                    (start.addr().get(), start.addr().get() + len)
                };
                setup.memory.iter().map(range).collect()
            }
            // Neurons are read to their places, of which most are empty: nothing is to be pinned.
            Err(_) if setup.memory.is_empty() => Vec::new(),
            Err(error) => {
                notes.push(format!(
                    "buffers cannot be registered ({error}; see ulimit -l)"
                ));
                Vec::new()
            }
        };
        let shared = Arc::new(Shared {
            ring,
            buffers,
            n_reading: AtomicUsize::new(0),
            n_enters: AtomicU64::new(0),
            queue: Mutex::default(),
            is_ending: AtomicBool::new(false),
            _files: setup.files,
        });
        let (in_thread, completions, cpus) = (shared.clone(), setup.completions, setup.cpus);
        let thread = std::thread::Builder::new().name("expert-io".into());
        let thread = thread.spawn(move || {
            stay_on(&cpus);
            in_thread.wait(&*completions);
        });
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Box::new(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            notes,
        }))
    }
}

impl Device for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn start(&self, read: Read) {
        let (into, len) = (
            read.into.as_ptr(),
            u32::try_from(read.len).unwrap_or(u32::MAX),
        );
        let file = Fixed(u32::try_from(read.file).unwrap_or(u32::MAX));
        let at = read.into.addr().get();
        let is_in = |&(start, end): &(usize, usize)| start <= at && at + read.len <= end;
        let entry = match self.shared.buffers.iter().position(is_in) {
            Some(index) => {
                let index = u16::try_from(index).unwrap_or(u16::MAX);
                let read_fixed = opcode::ReadFixed::new(file, into, len, index);
                read_fixed.offset(read.offset).build()
            }
            None => opcode::Read::new(file, into, len)
                .offset(read.offset)
                .build(),
        };
        self.shared.n_reading.fetch_add(1, Ordering::SeqCst);
        self.shared.push(entry, read.token.into());
    }

    fn flush(&self) {
        let mut queue = self.shared.lock();
        let own = std::thread::current().id();
        // What the waiting thread itself starts goes out with its next call.
        if queue
            .waiter
            .as_ref()
            .is_none_or(|waiter| waiter.id() != own)
        {
            self.shared.submit(&mut queue);
        }
    }

    fn n_enters(&self) -> u64 {
        self.shared.n_enters.load(Ordering::Relaxed)
    }

    fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            self.shared.is_ending.store(true, Ordering::SeqCst);
            self.shared.push(opcode::Nop::new().build(), END);
            self.flush();
            let _ended = thread.join();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, entry: squeue::Entry, token: u64) {
        let entry = entry.user_data(token);
        let mut queue = self.lock();
        // SAFETY: the lock is held, so this is the only use.
        let mut ring = unsafe { self.ring.submission_shared() };
        // SAFETY: files and memory of the entry are valid until it is done, by the trait's contract.
        match queue.errno.is_none() && unsafe { ring.push(&entry) }.is_ok() {
            true => queue.waiting.push_back(token),
            false => queue.refused.push(token),
        }
        if let Some(waiter) = &queue.waiter {
            waiter.unpark();
        }
    }

    /// Hands the kernel what is in the ring. What it has no room for now (EAGAIN, EBUSY) stays there for the waiting
    /// thread's next call; after any other error the entries are refused.
    fn submit(&self, queue: &mut Queue) {
        self.note_taken(queue);
        while queue.errno.is_none() && !queue.waiting.is_empty() {
            self.n_enters.fetch_add(1, Ordering::Relaxed);
            let result = self.ring.submitter().submit();
            self.note_taken(queue);
            match result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
                Ok(_) | Err(libc::EINTR) => {}
                Err(libc::EAGAIN | libc::EBUSY) => return,
                Err(errno) => queue.errno = Some(errno),
            }
        }
    }

    /// Entries that the kernel has taken no longer wait.
    fn note_taken(&self, queue: &mut Queue) {
        // SAFETY: the lock is held, so this is the only use.
        let n_left = unsafe { self.ring.submission_shared() }.len();
        let n_taken = queue.waiting.len().saturating_sub(n_left);
        queue.waiting.drain(..n_taken);
    }

    /// Reports reads as they are done, until the end is requested and the kernel no longer writes to memory.
    fn wait(&self, completions: &dyn Completions) {
        self.lock().waiter = Some(std::thread::current());
        loop {
            let pause = completions.tick().max(RETRY);
            let is_ending = self.is_ending.load(Ordering::SeqCst);
            let mut queue = self.lock();
            self.note_taken(&mut queue);
            if is_ending {
                self.submit(&mut queue);
                if !queue.waiting.is_empty() {
                    queue.errno.get_or_insert(libc::ECANCELED);
                }
            }
            let errno = queue.errno;
            let refused = queue.take_refused();
            drop(queue);
            for token in refused {
                // The ring has room for all reads at once; more are not taken.
                self.report(completions, token, Err(errno.unwrap_or(libc::EBUSY)));
            }
            let mut queue = self.lock();
            self.note_taken(&mut queue);
            // With what a report has started.
            let n_waiting = queue.waiting.len();
            drop(queue);
            match (self.n_reading.load(Ordering::SeqCst), errno) {
                (0, _) if is_ending => return,
                (0, Some(_)) => std::thread::park_timeout(pause),
                (_, Some(_)) => self.wait_for_one(0, RETRY),
                (_, None) => self.wait_for_one(n_waiting, pause),
            }
            self.take_completions(completions);
        }
    }

    fn take_completions(&self, completions: &dyn Completions) {
        loop {
            // SAFETY: the waiting thread alone takes completions.
            let Some(done) = unsafe { self.ring.completion_shared() }.next() else {
                return;
            };
            let result = usize::try_from(done.result()).map_err(|_| -done.result());
            self.report(completions, done.user_data(), result);
            // SAFETY: as above.
            if !unsafe { self.ring.completion_shared() }.is_empty() {
                // The drive is not idle while the rest is dealt with.
                self.submit(&mut self.lock());
            }
        }
    }

    fn report(&self, completions: &dyn Completions, token: u64, result: Result<usize, i32>) {
        // The entry that wakes the thread is not a read.
        if let Ok(token) = u32::try_from(token) {
            completions.completed(token, result);
            self.n_reading.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Submits the `n_waiting` entries in the ring, and waits for a completion, at most for `pause_max`: one call.
    fn wait_for_one(&self, n_waiting: usize, pause_max: Duration) {
        let pause = Timespec::from(pause_max);
        let args = WaitArgs {
            sigmask: 0,
            sigmask_len: 0,
            min_wait_us: 0,
            pause: &raw const pause,
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let (submitter, n) = (self.ring.submitter(), u32::try_from(n_waiting));
        self.n_enters.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the arguments have the layout of EXT_ARG, which `probe` has asked for; they outlive the call.
        let waited = unsafe { submitter.enter(n.unwrap_or(0), 1, flags.bits(), Some(&args)) };
        let errno = match waited.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            // A timeout and a signal are reasons to look again.
            Ok(_) | Err(libc::ETIME | libc::EINTR) => return,
            Err(errno) => errno,
        };
        if n_waiting > 0 {
            if matches!(errno, libc::EAGAIN | libc::EBUSY) {
                // Room comes with a completion.
                return self.wait_for_one(0, RETRY);
            }
            self.lock().errno.get_or_insert(errno);
        }
        // Completions come without this call, too.
        std::thread::park_timeout(match self.n_reading.load(Ordering::SeqCst) {
            0 => pause_max,
            _ => RETRY,
        });
    }
}

impl Queue {
    /// What the kernel will never take. For the waiting thread alone, while it is not in a call: until then its call may
    /// take what another thread's call could not hand over.
    fn take_refused(&mut self) -> Vec<u64> {
        let mut refused = core::mem::take(&mut self.refused);
        if self.errno.is_some() {
            refused.extend(self.waiting.drain(..));
        }
        refused
    }
}

/// `io_uring_getevents_arg` of the kernel.
#[repr(C)]
struct WaitArgs {
    sigmask: u64,
    sigmask_len: u32,
    min_wait_us: u32,
    pause: *const Timespec,
}

/// Between looks at a ring that takes no entries.
const RETRY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
