//! Ctrl-C: the first one asks the engine to stop, the second one ends the process. Other signals that end the
//! process clean up before.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use sluice_core::team::StopFlag;
use std::io;
use std::sync::OnceLock;

/// Set by Ctrl-C once [`install`] has run.
static STOP: StopFlag = StopFlag::new();

/// Called by the first Ctrl-C in addition.
static ALSO: OnceLock<fn()> = OnceLock::new();

/// Called before another signal ends the process.
static BEFORE_END: OnceLock<fn()> = OnceLock::new();

/// Makes the first Ctrl-C call `then`, once in the life of the process; a second call changes nothing.
///
/// `then` runs in a signal handler, so it must be async-signal-safe: atomics and such system calls,
/// no locks and no allocation.
pub fn also(then: fn()) {
    let _first = ALSO.set(then);
}

/// Makes a signal that ends the process (SIGTERM, SIGHUP) call `then` before. As with [`also`], once,
/// and async-signal-safe only.
pub fn before_end(then: fn()) {
    let _first = BEFORE_END.set(then);
}

/// Makes SIGINT set a flag instead of ending the process, once: the first delivery restores the
/// signal's default, so that a second Ctrl-C always ends the process. Returns the flag.
///
/// SIGTERM and SIGHUP end the process as before, after the functions set by [`also`] and
/// [`before_end`]. A file that grows over the process's limit (SIGXFSZ) is a write error.
///
/// A process that was started with a signal ignored (`nohup`, a script's background job) keeps
/// ignoring it.
///
/// # Errors
/// The kernel refuses the handler.
pub fn install() -> io::Result<&'static StopFlag> {
    let on_interrupt = on_interrupt as extern "C" fn(c_int) as usize;
    handle(libc::SIGINT, on_interrupt)?;
    let on_end = on_end as extern "C" fn(c_int) as usize;
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        handle(signal, on_end)?;
    }
    handle(libc::SIGXFSZ, libc::SIG_IGN)?;
    Ok(&STOP)
}

/// Sets what the first delivery of `signal` does, unless it is ignored.
fn handle(signal: c_int, handler: usize) -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action only; `before` has room for it.
    let result = unsafe { libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it in.
    let before = unsafe { before.assume_init() };
    if before.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    let action = libc::sigaction {
        sa_sigaction: handler,
        // RESTART: reads and writes continue; the flag is checked where a stop is clean.
        sa_flags: libc::SA_RESETHAND | libc::SA_RESTART,
        ..before
    };
    // SAFETY: the handlers use atomics, and call what `also` and `before_end` were given, which may
    // run in one.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Forgets an interruption that was dealt with: the next Ctrl-C sets the flag again.
///
/// # Errors
/// As [`install`].
pub fn rearm() -> io::Result<()> {
    STOP.clear();
    install().map(drop)
}

extern "C" fn on_end(signal: c_int) {
    for then in [ALSO.get(), BEFORE_END.get()].into_iter().flatten() {
        then();
    }
    if is_default(signal) {
        // SAFETY: its default ends the process after this handler.
        unsafe { libc::raise(signal) };
    }
}

/// Whether the default of `signal` is back, as it is after a delivery to one of our handlers. A handler that was
/// installed over ours, such as tokio's, may call it and ends the process itself: raised again, the signal would
/// return to it endlessly.
fn is_default(signal: c_int) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: async-signal-safe; asks for the present action only, and `now` has room for it.
    if unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the kernel has filled it in.
    unsafe { now.assume_init() }.sa_sigaction == libc::SIG_DFL
}

extern "C" fn on_interrupt(_: c_int) {
    STOP.stop();
    if let Some(then) = ALSO.get() {
        then();
    }
}
