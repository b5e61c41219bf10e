//! A terminal on stdin while nobody reads it.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The settings to go back to; null where there is nothing to go back to.
static SAVED: AtomicPtr<libc::termios> = AtomicPtr::new(ptr::null_mut());

/// While it lives, what is typed is kept as it comes for whoever reads next: it is not shown in the
/// middle of an answer, and no line is too long for the kernel, which would cut it after 4095
/// bytes. Ctrl-C remains a signal, and gives the terminal back at once
/// ([`crate::interrupt`]), so that even a program killed by the next one leaves it in order.
#[derive(Debug)]
pub struct TypeAhead(());

impl TypeAhead {
    /// Sets the terminal up. `None` if stdin is no terminal, or is set up already.
    #[must_use]
    pub fn begin() -> Option<Self> {
        let mut found = MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: `found` has room for the answer.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call has filled it in.
        let found = unsafe { found.assume_init() };
        let mut quiet = found;
        quiet.c_lflag &= !(libc::ICANON | libc::ECHO);
        // With NOFLSH, Ctrl-C does not throw away what was typed before it.
        quiet.c_lflag |= libc::ISIG | libc::NOFLSH;
        quiet.c_cc[libc::VMIN] = 1;
        quiet.c_cc[libc::VTIME] = 0;
        let saved = Box::into_raw(Box::new(found));
        let nothing = ptr::null_mut();
        let exchanged = SAVED.compare_exchange(nothing, saved, Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_err() {
            // SAFETY: made above and published to nobody.
            drop(unsafe { Box::from_raw(saved) });
            return None;
        }
        // SAFETY: settings that the kernel gave, with flags changed.
        let _set = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const quiet) };
        Some(Self(()))
    }
}

impl Drop for TypeAhead {
    fn drop(&mut self) {
        restore();
        // The few bytes stay: a signal handler may be about to read them.
        SAVED.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Sets the terminal back to what it was. Safe in a signal handler.
pub(crate) fn restore() {
    let saved = SAVED.load(Ordering::Acquire);
    if !saved.is_null() {
        // SAFETY: never freed once published; `tcsetattr` is async-signal-safe.
        let _set = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, saved) };
    }
}
