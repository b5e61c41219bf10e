//! Ctrl-C: the first one asks the engine to stop, the second one ends the process.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use sluice_core::team::StopFlag;
use std::io;
use std::sync::OnceLock;

/// What Ctrl-C sets once [`install`] has run.
static STOP: StopFlag = StopFlag::new();

/// What else the first Ctrl-C does.
static ALSO: OnceLock<fn()> = OnceLock::new();

/// Lets the first Ctrl-C call `then`, once in the life of the process; a second call changes nothing.
///
/// `then` runs in a signal handler, so it may do only what is async-signal-safe: atomics and such calls
/// of the kernel, no locks and no memory.
pub fn also(then: fn()) {
    let _first = ALSO.set(then);
}

/// Lets SIGINT set a flag instead of ending the process, once: the signal's default comes back
/// with its first delivery, so that a second Ctrl-C always ends the process. Returns the flag.
///
/// A process that was started with SIGINT ignored (`nohup`, a script's background job) keeps
/// ignoring it.
///
/// # Errors
/// The kernel refuses the handler.
pub fn install() -> io::Result<&'static StopFlag> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action only; `before` has room for it.
    let result = unsafe { libc::sigaction(libc::SIGINT, ptr::null(), before.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it in.
    let before = unsafe { before.assume_init() };
    if before.sa_sigaction == libc::SIG_IGN {
        return Ok(&STOP);
    }
    let action = libc::sigaction {
        sa_sigaction: on_interrupt as extern "C" fn(c_int) as usize,
        // RESTART: reads and writes go on; the flag is looked at where a stop is clean.
        sa_flags: libc::SA_RESETHAND | libc::SA_RESTART,
        ..before
    };
    // SAFETY: the handler uses atomics, and calls what `also` was given, which may run in one.
    if unsafe { libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(&STOP)
}

/// Forgets an interruption that was dealt with: the next Ctrl-C sets the flag again.
///
/// # Errors
/// As [`install`].
pub fn rearm() -> io::Result<()> {
    STOP.clear();
    install().map(drop)
}

extern "C" fn on_interrupt(_: c_int) {
    STOP.stop();
    if let Some(then) = ALSO.get() {
        then();
    }
}
