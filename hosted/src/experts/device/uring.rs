//! `io_uring`: reads are started without waiting, and one thread waits for all of them.
//!
//! Source: Jens Axboe, "Efficient IO with io_uring"; io_uring_setup(2), io_uring_enter(2), io_uring_register(2).

use super::{Completions, Device, DeviceSetup, Read, stay_on};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

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
    /// Reads in the kernel.
    n_reading: AtomicUsize,
    /// Kept open as long as the ring uses them.
    _files: Vec<super::DeviceFile>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IoUring")
    }
}

/// Marks the entry that ends the thread.
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

    fn push(&self, entry: &io_uring::squeue::Entry) {
        loop {
            // SAFETY: one thread at a time starts reads, by the trait's contract, and this is the only use.
            let mut queue = unsafe { self.shared.ring.submission_shared() };
            // SAFETY: files and memory of the entry are valid until it is done, by the trait's contract.
            if unsafe { queue.push(entry) }.is_ok() {
                return;
            }
            drop(queue);
            self.flush();
        }
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
        self.push(&entry.user_data(read.token.into()));
    }

    fn flush(&self) {
        // Entries that the kernel does not take now (EBUSY, EINTR) are taken at the waiting thread's next call.
        let _n = self.shared.ring.submitter().submit();
    }

    fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            self.push(&opcode::Nop::new().build().user_data(END));
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
    /// Reports reads as they are done, until the end is requested and the kernel no longer writes to memory.
    fn wait(&self, completions: &dyn Completions) {
        let ring = &self.ring;
        let mut is_ending = false;
        while !is_ending || self.n_reading.load(Ordering::SeqCst) > 0 {
            let pause = Timespec::from(completions.tick().max(Duration::from_millis(1)));
            let args = SubmitArgs::new().timespec(&pause);
            // A timeout and a signal are reasons to look again.
            let _n = ring.submitter().submit_with_args(1, &args);
            loop {
                // SAFETY: this thread alone takes completions.
                let Some(done) = unsafe { ring.completion_shared() }.next() else {
                    break;
                };
                if done.user_data() == END {
                    is_ending = true;
                    continue;
                }
                let token = u32::try_from(done.user_data()).unwrap_or(u32::MAX);
                let result = usize::try_from(done.result()).map_err(|_| -done.result());
                completions.completed(token, result);
                self.n_reading.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}
