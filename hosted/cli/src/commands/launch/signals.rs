//! Signals while a client runs. Ctrl-C is the client's affair; what ends this program ends the client.

use anyhow::Context as _;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};
use std::io;

/// The last signal that came, or 0.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Takes SIGINT, SIGQUIT, SIGTERM and SIGHUP. A client does not inherit that.
///
/// # Errors
/// The kernel refuses the handler.
pub(super) fn install() -> anyhow::Result<()> {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
        let action = libc::sigaction {
            sa_sigaction: on_signal as extern "C" fn(c_int) as usize,
            sa_mask: empty_set(),
            sa_flags: libc::SA_RESTART,
            sa_restorer: None,
        };
        // SAFETY: the handler only stores a number, and `action` lives through the call.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error()).context("cannot handle signals");
        }
    }
    Ok(())
}

/// Whether a signal came before the client was started.
pub(super) fn is_stopped() -> bool {
    CAME.load(Ordering::Relaxed) != 0
}

/// A signal that the client has to get from us: it does not come from the terminal.
pub(super) fn take_end() -> Option<c_int> {
    let came = CAME.swap(0, Ordering::Relaxed);
    [libc::SIGTERM, libc::SIGHUP]
        .contains(&came)
        .then_some(came)
}

extern "C" fn on_signal(signal: c_int) {
    CAME.store(signal, Ordering::Relaxed);
}

fn empty_set() -> libc::sigset_t {
    let mut set = core::mem::MaybeUninit::zeroed();
    // SAFETY: `set` has room for it; the call cannot fail for a valid address.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: all of it is zero, or was written by the call.
    unsafe { set.assume_init() }
}
