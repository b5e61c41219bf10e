//! Threads that read and wait, each for one read: `pread`, or copies from a memory map.

use super::{Completions, Device, DeviceFile, DeviceSetup, Read, stay_on};
use crate::file::MappedFile;
use core::time::Duration;
use sluice_core::gguf::source::TensorSource as _;
use std::collections::VecDeque;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Reads at once.
const N_THREADS: usize = 8;

/// Threads, and what they have to do.
#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    is_mapped: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is a read in the queue, or the end.
    filled: Condvar,
    files: Vec<Readable>,
}

struct Queue {
    reads: VecDeque<Read>,
    ended: bool,
}

enum Readable {
    File(DeviceFile),
    Map(MappedFile),
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Threads")
    }
}

impl Threads {
    pub(super) fn open(setup: DeviceSetup, is_mapped: bool) -> Result<Box<dyn Device>, String> {
        let readable = |file: DeviceFile| match is_mapped {
            false => Ok(Readable::File(file)),
            true => MappedFile::open_undisturbed(&file.path).map(Readable::Map),
        };
        let files = setup.files.into_iter().map(readable);
        let files = files.collect::<Result<_, _>>();
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                reads: VecDeque::with_capacity(setup.n_reads),
                ended: false,
            }),
            filled: Condvar::new(),
            files: files.map_err(|error| error.to_string())?,
        });
        let device = Self {
            shared,
            threads: Mutex::default(),
            is_mapped,
        };
        for index in 0..N_THREADS {
            let (shared, cpus) = (device.shared.clone(), setup.cpus.clone());
            // The threads alone have it: the device is its own.
            let completions = setup.completions.clone();
            let thread = std::thread::Builder::new().name("expert-io".into());
            let thread = thread.spawn(move || {
                stay_on(&cpus);
                shared.work(&*completions, index == 0);
            });
            let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
            lock(&device.threads).push(thread);
        }
        Ok(Box::new(device))
    }
}

impl Device for Threads {
    fn name(&self) -> &'static str {
        if self.is_mapped { "mmap" } else { "pread" }
    }

    fn start(&self, read: Read) {
        lock(&self.shared.queue).reads.push_back(read);
        self.shared.filled.notify_one();
    }

    fn flush(&self) {}

    fn close(&self) {
        lock(&self.shared.queue).ended = true;
        self.shared.filled.notify_all();
        for thread in lock(&self.threads).drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Reads until the end; one thread looks at the clock besides.
    fn work(&self, completions: &dyn Completions, has_clock: bool) {
        let mut pause = Duration::from_secs(1);
        loop {
            if has_clock {
                pause = completions.tick();
            }
            let mut queue = lock(&self.queue);
            let Some(read) = queue.reads.pop_front() else {
                if queue.ended {
                    return;
                }
                let waited = self.filled.wait_timeout(queue, pause);
                drop(waited);
                continue;
            };
            drop(queue);
            completions.completed(read.token, self.read(&read));
        }
    }

    fn read(&self, read: &Read) -> Result<usize, i32> {
        // SAFETY: nothing else uses that memory until the read is done, as `Read::into` requires.
        let into = unsafe { core::slice::from_raw_parts_mut(read.into.as_ptr(), read.len) };
        match &self.files[read.file] {
            Readable::File(file) => {
                let read = file.file.read_at(into, read.offset);
                read.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
            }
            Readable::Map(file) => {
                let len = file
                    .len_bytes()
                    .saturating_sub(read.offset)
                    .min(read.len as u64);
                let len = usize::try_from(len).unwrap_or(0);
                let Some(bytes) = file.slice(read.offset, len) else {
                    // The file has become shorter.
                    return Ok(0);
                };
                into[..len].copy_from_slice(bytes);
                file.release(read.offset, len);
                Ok(len)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
