//! A terminal on stdin, for a program that at times reads lines and at times does not.

mod filter;
mod modes;
mod relay;

pub(crate) use modes::restore;
use modes::{Mode, Modes};
use relay::Relay;
use std::io;

/// Stdin's terminal while a program talks with a person.
///
/// Between lines, what is typed is kept as it comes for the next one: it is not shown in the middle
/// of an answer, and no line is too long for the kernel, which would cut it after 4095 bytes. Ctrl-C
/// is a signal then, and gives the terminal back at once ([`sluice::host::interrupt`]), so that even a
/// program killed by the next one leaves it in order. Ctrl-Z gives it back while the program
/// is stopped.
#[derive(Debug)]
pub(crate) struct Terminal {
    modes: &'static Modes,
    relay: Option<Relay>,
}

impl Terminal {
    /// Takes the terminal. `None` if stdin is none, or was taken before.
    #[must_use]
    pub(crate) fn take() -> Option<Self> {
        let modes = Modes::take()?;
        sluice::host::interrupt::also(restore);
        modes.set(Mode::Quiet);
        // Without it, Ctrl-Z leaves the terminal as it is; shells correct that.
        let _handled = modes::handle_stops();
        Some(Self { modes, relay: None })
    }

    /// Keeps what is typed from now on, again after Ctrl-C has given the terminal back.
    pub(crate) fn keep(&self) {
        self.modes.set(Mode::Quiet);
    }

    /// Lets a line editor read a line from stdin.
    ///
    /// The editor sees UTF-8 alone, with U+FFFD for what is none, and a line at a time: behind it
    /// nothing is there to be lost until the next call. From the first call on
    /// stdin is a pseudo-terminal that a thread feeds.
    ///
    /// # Errors
    /// There is no pseudo-terminal to be had; `read` was not called.
    pub(crate) fn edit<R>(&mut self, read: impl FnOnce() -> R) -> io::Result<R> {
        if self.relay.is_none() {
            self.relay = Some(Relay::start(self.modes)?);
            self.modes.mark_pastes();
        }
        self.modes.set(Mode::Keys);
        if let Some(relay) = &mut self.relay {
            relay.begin();
        }
        let line = read();
        if let Some(relay) = &mut self.relay {
            relay.end();
        }
        self.keep();
        Ok(line)
    }

    /// Lets `read` read a line as the terminal itself edits it.
    pub(crate) fn plain<R>(&mut self, read: impl FnOnce() -> R) -> R {
        self.modes.set(Mode::Own);
        let line = read();
        self.keep();
        line
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(relay) = self.relay.take() {
            relay.stop(self.modes);
        }
        restore();
    }
}
