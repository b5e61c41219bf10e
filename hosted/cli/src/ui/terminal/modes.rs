//! The settings of a terminal, which are always restored.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr,
    tcsetattr,
};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// How a terminal treats typed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Mode {
    /// As it was found.
    Own,
    /// Keeps it without echo; Ctrl-C is a signal.
    Quiet,
    /// Passes on every key, including Ctrl-C.
    Keys,
}

/// A terminal's settings. Only one terminal of a process can have them.
#[derive(Debug)]
pub(super) struct Modes {
    terminal: OwnedFd,
    own: Termios,
    quiet: Termios,
    keys: Termios,
}

/// The terminal in use; null before there is one. Never freed, because a signal handler may be
/// reading it.
static TERMINAL: AtomicPtr<Modes> = AtomicPtr::new(ptr::null_mut());
static MODE: AtomicU8 = AtomicU8::new(Mode::Own as u8);
/// Whether the terminal marks pastes, so that a paste of several lines remains one even while no
/// line is being read.
static MARKS: AtomicBool = AtomicBool::new(false);

impl Modes {
    /// Takes the terminal of stdin. `None` if stdin is not a terminal, or was taken before.
    pub(super) fn take() -> Option<&'static Self> {
        let terminal = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).ok()?;
        let own = tcgetattr(&terminal).ok()?;
        let mut quiet = own.clone();
        quiet.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // With NOFLSH, Ctrl-C does not discard what was typed before it.
        quiet.local_modes |= LocalModes::ISIG | LocalModes::NOFLSH;
        quiet.input_modes -= InputModes::ICRNL | InputModes::ISTRIP;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        let mut keys = quiet.clone();
        keys.local_modes -= LocalModes::ISIG | LocalModes::IEXTEN;
        keys.input_modes -= InputModes::BRKINT | InputModes::INPCK | InputModes::IXON;
        keys.control_modes |= ControlModes::CS8;
        let modes = Box::into_raw(Box::new(Self {
            terminal,
            own,
            quiet,
            keys,
        }));
        let nothing = ptr::null_mut();
        let taken = TERMINAL.compare_exchange(nothing, modes, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            // SAFETY: created above and not published.
            drop(unsafe { Box::from_raw(modes) });
            return None;
        }
        // SAFETY: created above, and published for the life of the process.
        Some(unsafe { &*modes })
    }

    /// Requests marks around pastes from now on.
    #[expect(
        clippy::unused_self,
        reason = "there are marks where there is a terminal"
    )]
    pub(super) fn mark_pastes(&self) {
        MARKS.store(true, Ordering::Release);
    }

    pub(super) const fn terminal(&self) -> &OwnedFd {
        &self.terminal
    }

    /// Settings that pass on every key.
    pub(super) const fn keys(&self) -> &Termios {
        &self.keys
    }

    /// Sets the terminal's mode. Typed text is preserved.
    pub(super) fn set(&self, mode: Mode) {
        MODE.store(mode as u8, Ordering::Release);
        self.apply(mode);
    }

    fn apply(&self, mode: Mode) {
        let termios = match mode {
            Mode::Own => &self.own,
            Mode::Quiet => &self.quiet,
            Mode::Keys => &self.keys,
        };
        // A terminal that refuses is gone.
        let _set = tcsetattr(self.terminal.as_fd(), OptionalActions::Now, termios);
        if MARKS.load(Ordering::Acquire) {
            let marks = match mode {
                Mode::Own => b"\x1b[?2004l",
                Mode::Quiet | Mode::Keys => b"\x1b[?2004h",
            };
            let _marked = rustix::io::write(self.terminal.as_fd(), marks);
        }
    }
}

/// The terminal that was taken.
fn taken() -> Option<&'static Modes> {
    // SAFETY: null, or published for the life of the process.
    unsafe { TERMINAL.load(Ordering::Acquire).as_ref() }
}

/// Restores the terminal. Safe in a signal handler.
pub(crate) fn restore() {
    if MODE.swap(Mode::Own as u8, Ordering::AcqRel) != Mode::Own as u8
        && let Some(modes) = taken()
    {
        modes.apply(Mode::Own);
    }
}

/// Makes Ctrl-Z restore the terminal, and take it again when the process continues.
pub(super) fn handle_stops() -> io::Result<()> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: queries the current action only; `before` has room for it.
    if unsafe { libc::sigaction(libc::SIGTSTP, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled it in.
    let before = unsafe { before.assume_init() };
    // In a shell without job control, the signal is ignored.
    if before.sa_sigaction != libc::SIG_DFL {
        return Ok(());
    }
    let action = libc::sigaction {
        sa_sigaction: on_stop as extern "C" fn(c_int) as usize,
        sa_flags: libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_RESTART,
        ..before
    };
    // SAFETY: the handler makes async-signal-safe calls and reads atomics only.
    if unsafe { libc::sigaction(libc::SIGTSTP, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_stop(_: c_int) {
    let Some(modes) = taken() else { return };
    let mode = match MODE.load(Ordering::Acquire) {
        mode if mode == Mode::Quiet as u8 => Mode::Quiet,
        mode if mode == Mode::Keys as u8 => Mode::Keys,
        _ => Mode::Own,
    };
    modes.apply(Mode::Own);
    // The default action is back, and the signal is not blocked: the process stops here.
    // SAFETY: async-signal-safe.
    unsafe { libc::raise(libc::SIGTSTP) };
    // The process continues. If it could not be stopped, nothing has changed.
    if mode != Mode::Own {
        modes.apply(mode);
    }
    let _handled = handle_stops();
}
