//! Partial files, removed by a signal that ends the process.

use crate::host::interrupt;
use core::ffi::c_char;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A file under a temporary name: removed when dropped, and by SIGTERM and SIGHUP where handlers
/// are installed.
#[derive(Debug)]
pub(super) struct PartialFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Whether the file has its final name. The temporary one may then be another file's already.
    pub(super) is_renamed: bool,
    /// Its place in [`NAMES`].
    slot: Option<usize>,
}

/// A folder under a temporary name, removed as a [`PartialFile`] is. Its files are removed first.
#[derive(Debug)]
pub(super) struct PartialFolder {
    pub(super) path: PathBuf,
    pub(super) is_renamed: bool,
    slot: Option<usize>,
}

/// The files and folders to remove; null where a place is free. As many as may usually be open.
static NAMES: [AtomicPtr<c_char>; 1024] = [const { AtomicPtr::new(ptr::null_mut()) }; 1024];

/// Handlers that are reading names.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// Number of files being created and not entered yet.
static MAKERS: AtomicUsize = AtomicUsize::new(0);

/// Holds back signals that end the process: this thread does not take them, and a handler on another
/// one waits for [`MAKERS`].
struct Waiting {
    /// The thread's signal mask before.
    before: libc::sigset_t,
}

impl Waiting {
    fn begin() -> Self {
        let mut ending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: there is room for a set.
        unsafe { libc::sigemptyset(ending.as_mut_ptr()) };
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: a set, by the call above, and a valid signal.
            unsafe { libc::sigaddset(ending.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        let (block, ending) = (libc::SIG_BLOCK, ending.as_ptr());
        // SAFETY: a set to read, and room for another.
        unsafe { libc::pthread_sigmask(block, ending, before.as_mut_ptr()) };
        MAKERS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: filled in above; if that was refused, zeroes are the empty set.
        let before = unsafe { before.assume_init() };
        Self { before }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        MAKERS.fetch_sub(1, Ordering::SeqCst);
        let before = &raw const self.before;
        // SAFETY: a set to read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
    }
}

impl PartialFile {
    /// Creates a file in the folder of `path`, with the permissions `mode`.
    pub(super) fn create(path: &Path, mode: u32) -> io::Result<Self> {
        with_free_name(path, |partial| Self::create_as(partial, mode))
    }

    /// Creates a file with this temporary name.
    pub(super) fn create_as(path: PathBuf, mode: u32) -> io::Result<Self> {
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true).mode(mode);
        // No signal arrives between the file's creation and its entry.
        let _waiting = Waiting::begin();
        let file = options.open(&path)?;
        Ok(Self {
            slot: enter(&path),
            path,
            file,
            is_renamed: false,
        })
    }
}

impl PartialFolder {
    /// Creates a folder in the folder of `path`.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        with_free_name(path, |partial| {
            let _waiting = Waiting::begin();
            fs::create_dir(&partial)?;
            Ok(Self {
                slot: enter(&partial),
                path: partial,
                is_renamed: false,
            })
        })
    }
}

/// Creates something under a temporary name beside `path`. What an earlier process of the same number left does no harm:
/// a free name is used.
fn with_free_name<T>(path: &Path, create: impl Fn(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = std::process::id();
    let tries = (0..TRIES).map(|n| match n {
        0 => format!(".{name}.partial-{pid}"),
        n => format!(".{name}.partial-{pid}-{n}"),
    });
    for name in tries {
        match create(path.with_file_name(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Maximum number of names tried.
const TRIES: u32 = 1000;

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _removed = fs::remove_file(&self.path);
        }
        if let Some(slot) = self.slot {
            leave(slot);
        }
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _removed = fs::remove_dir(&self.path);
        }
        if let Some(slot) = self.slot {
            leave(slot);
        }
    }
}

/// Enters `path` into the files to remove; `None` if [`NAMES`] is full.
fn enter(path: &Path) -> Option<usize> {
    interrupt::before_end(remove_all);
    let name = CString::new(path.as_os_str().as_bytes()).ok()?.into_raw();
    let is_free = |slot: &AtomicPtr<c_char>| {
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        slot.compare_exchange(ptr::null_mut(), name, order.0, order.1)
            .is_ok()
    };
    let found = NAMES.iter().position(is_free);
    if found.is_none() {
        // SAFETY: from `into_raw` above, and not stored in any place.
        drop(unsafe { CString::from_raw(name) });
    }
    found
}

fn leave(slot: usize) {
    let name = NAMES[slot].swap(ptr::null_mut(), Ordering::SeqCst);
    // A handler on another thread may have taken it before; it is done in a moment.
    while READERS.load(Ordering::SeqCst) > 0 {
        core::hint::spin_loop();
    }
    if !name.is_null() {
        // SAFETY: `enter` put it there with `into_raw`; it is out of its place, and no handler that
        // saw it there is left.
        drop(unsafe { CString::from_raw(name) });
    }
}

/// Runs in a signal handler: atomics, `unlink` and `rmdir` alone.
fn remove_all() {
    while MAKERS.load(Ordering::SeqCst) > 0 {
        core::hint::spin_loop();
    }
    READERS.fetch_add(1, Ordering::SeqCst);
    // Folders can be removed once they are empty; neither call removes what is for the other.
    for remove in [libc::unlink, libc::rmdir] {
        for slot in &NAMES {
            let name = slot.load(Ordering::SeqCst);
            if !name.is_null() {
                // SAFETY: a string of `enter`, which `leave` keeps while there are readers.
                unsafe { remove(name) };
            }
        }
    }
    READERS.fetch_sub(1, Ordering::SeqCst);
}
