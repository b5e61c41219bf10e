//! Mapped files that shrink. Touching a page past the new end raises SIGBUS, which ends the process without a word
//! unless a program asks for one ([`report_shrunk_maps`]).

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// A map in the table. It stays there as long as this value.
pub(super) struct MapRecord {
    entry: &'static Entry,
    /// What the handler writes. A `Box`: the table refers to its bytes.
    _line: Box<[u8]>,
}

/// A place in the table.
struct Entry {
    /// 0 if it is free, 1 while it is being filled.
    start: AtomicUsize,
    end: AtomicUsize,
    line: AtomicPtr<u8>,
    line_len: AtomicUsize,
}

/// Maps beyond this number end the process without a word.
const N_MAPS: usize = 1024;

static MAPS: [Entry; N_MAPS] = [const { Entry::free() }; N_MAPS];

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A thread is ending the process.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Makes a mapped file that shrinks end the process with exit status 1 and a line on stderr that names the file. Other
/// faults go to the handler that was there before, or to the default.
///
/// For programs alone: a library leaves signals to the program that uses it.
///
/// # Errors
/// The kernel refuses the handler.
pub fn report_shrunk_maps() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action only; `before` has room for it.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it in.
    let before = unsafe { before.assume_init() };
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
    let action = libc::sigaction {
        sa_sigaction: handler as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK,
        ..before
    };
    // SAFETY: the handler is async-signal-safe: atomics, `write`, `_exit`, and what handled the signal before.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl Entry {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            line: AtomicPtr::new(ptr::null_mut()),
            line_len: AtomicUsize::new(0),
        }
    }

    /// The line for a fault at `address`, if it is in this map.
    ///
    /// The thread that touched a map borrows it, so its record is not removed meanwhile. Records that others add or
    /// remove in the same place are of other addresses: read in part, they do not match either.
    fn line_for(&self, address: usize) -> Option<(*const u8, usize)> {
        let start = self.start.load(SeqCst);
        let end = self.end.load(SeqCst);
        let line = (
            self.line.load(SeqCst).cast_const(),
            self.line_len.load(SeqCst),
        );
        let is_whole = start > 1 && self.start.load(SeqCst) == start;
        (is_whole && (start..end).contains(&address)).then_some(line)
    }
}

impl MapRecord {
    /// Enters a map of `len` bytes, which is not unmapped before the record is dropped. `None` if the table is full.
    pub(super) fn new(start: usize, len: usize, path: &Path) -> Option<Self> {
        let claim = |entry: &&Entry| entry.start.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
        let entry = MAPS.iter().find(claim)?;
        let path = path.display().to_string().replace(char::is_control, "?");
        let line = format!(
            "error: {path}: the file was cut short, or its drive failed, while the model was in use; replace model \
             files by renaming, or copy them into memory (-lm none)\n"
        );
        let mut line = line.into_bytes().into_boxed_slice();
        entry.end.store(
            start.saturating_add(len.next_multiple_of(PAGE_BYTES)),
            SeqCst,
        );
        entry.line.store(line.as_mut_ptr(), SeqCst);
        entry.line_len.store(line.len(), SeqCst);
        entry.start.store(start, SeqCst);
        Some(Self { entry, _line: line })
    }
}

impl Drop for MapRecord {
    fn drop(&mut self) {
        self.entry.start.store(0, SeqCst);
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a filled one to handlers with SA_SIGINFO.
    let found = unsafe { &*info };
    if found.si_code == libc::BUS_ADRERR {
        // SAFETY: a fault has an address.
        let address = unsafe { found.si_addr() }.addr();
        if let Some((line, len)) = MAPS.iter().find_map(|entry| entry.line_for(address)) {
            end(line, len);
        }
    }
    pass_on(signal, info, context);
}

/// Ends the process; the first thread writes the line.
fn end(line: *const u8, len: usize) -> ! {
    while IS_ENDING.swap(true, SeqCst) {
        // SAFETY: it waits for the thread that ends the process.
        unsafe { libc::pause() };
    }
    // SAFETY: the record is in the table, so its line is valid.
    unsafe { libc::write(libc::STDERR_FILENO, line.cast(), len) };
    // SAFETY: it runs nothing of this process.
    unsafe { libc::_exit(1) }
}

/// Hands a signal to what was there before.
#[expect(
    clippy::disallowed_methods,
    reason = "no cast makes a function of the address that the kernel keeps"
)]
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else {
        return;
    };
    // SAFETY: as in `on_fault`.
    let is_sent = unsafe { (*info).si_code } <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if is_sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction faults again, and then meets the default; a signal that was sent has to be repeated.
            // SAFETY: an action that the kernel gave us.
            unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
            if is_sent {
                // SAFETY: delivered after this handler.
                unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flag says that the handler takes these three.
            let handler = unsafe {
                transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(handler)
            };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the handler takes the number alone.
            let handler = unsafe { transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Pages of a map: its last one is mapped whole.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::super::MappedFile;
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    use std::fs::{self, File};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output};

    /// Which of the children below this process is.
    const ROLE: &str = "SLUICE_TEST_FAULT";

    /// Runs this very test again in another process, in a role.
    fn child(role: &str) -> Output {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &test, "--nocapture"])
            .env(ROLE, role);
        command.output().unwrap()
    }

    fn set_handler(handler: usize) {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeros are an action without flags.
        let action = unsafe { action.assume_init_mut() };
        action.sa_sigaction = handler;
        // SAFETY: the handlers of these tests only exit.
        let result = unsafe { libc::sigaction(libc::SIGBUS, action, ptr::null_mut()) };
        assert_eq!(result, 0);
    }

    extern "C" fn exit_42(_: c_int) {
        // SAFETY: it runs nothing of this process.
        unsafe { libc::_exit(42) }
    }

    fn file(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-fault-{}-{name}", std::process::id()));
        fs::write(&path, vec![1; 100_000]).unwrap();
        path
    }

    fn cut(path: &Path) {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(10)
            .unwrap();
    }

    /// Touches a page past the end of its file, in a map that is not in the table.
    fn fault_elsewhere() {
        let path = file("foreign");
        let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: a new map at an address of the kernel's choice.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                100_000,
                read,
                private,
                File::open(&path).unwrap(),
                0,
            )
        };
        cut(&path);
        fs::remove_file(path).unwrap();
        // SAFETY: the map is there, and the fault is what is tested.
        let _byte = unsafe {
            start
                .unwrap()
                .cast::<u8>()
                .wrapping_add(50_000)
                .read_volatile()
        };
    }

    fn as_child(role: &str) {
        match role {
            "handler" => set_handler(exit_42 as extern "C" fn(c_int) as usize),
            "default" | "sent" => set_handler(libc::SIG_DFL),
            _ => {}
        }
        report_shrunk_maps().unwrap();
        if role == "sent" {
            // SAFETY: the signal is what is tested.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        fault_elsewhere();
    }

    #[test]
    fn a_fault_elsewhere_meets_what_was_there_before() {
        if let Ok(role) = std::env::var(ROLE) {
            return as_child(&role);
        }
        assert_eq!(child("handler").status.code(), Some(42));
        // "std": the handler that Rust's runtime sets, which restores the default.
        for role in ["default", "std", "sent"] {
            let output = child(role);
            assert_eq!(
                output.status.signal(),
                Some(libc::SIGBUS),
                "{role}: {output:?}"
            );
        }
    }

    #[test]
    fn a_shrunk_map_is_named_once_by_whichever_thread_meets_it() {
        if std::env::var(ROLE).is_ok() {
            report_shrunk_maps().unwrap();
            let path = file("ours\n.gguf");
            let open = || MappedFile::open_undisturbed(&path).unwrap();
            for _ in 0..3 * N_MAPS {
                drop(open());
            }
            let map = open();
            cut(&path);
            fs::remove_file(&path).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| core::hint::black_box(map.bytes()[50_000]));
                }
            });
            return;
        }
        let output = child("ours");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("ours?.gguf: the file was cut short"),
            "{said}"
        );
    }
}
