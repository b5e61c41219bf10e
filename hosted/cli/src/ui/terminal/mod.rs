//! A terminal on stdin, for a program that reads lines only at times.

mod filter;
mod modes;
mod relay;

pub(crate) use modes::restore;
use modes::{Mode, Modes};
use relay::Relay;
use std::io;

/// The terminal of stdin during a conversation with the user.
///
/// Between lines, typed text is kept for the next line: it is not echoed in the middle of an answer,
/// and the kernel does not truncate long lines after 4095 bytes. Ctrl-C is a signal then, and restores
/// the terminal at once ([`sluice::host::interrupt`]), so that even a program killed by the next one
/// leaves it in order. Ctrl-Z restores it while the program is stopped.
#[derive(Debug)]
pub(crate) struct Terminal {
    modes: &'static Modes,
    relay: Option<Relay>,
}

impl Terminal {
    /// Takes the terminal. `None` if stdin is not a terminal, or was taken before.
    #[must_use]
    pub(crate) fn take() -> Option<Self> {
        let modes = Modes::take()?;
        sluice::host::interrupt::also(restore);
        modes.set(Mode::Quiet);
        // Without the handler, Ctrl-Z leaves the terminal as it is; shells correct that.
        let _handled = modes::handle_stops();
        Some(Self { modes, relay: None })
    }

    /// Keeps typed text from now on, again after Ctrl-C has restored the terminal.
    pub(crate) fn keep(&self) {
        self.modes.set(Mode::Quiet);
    }

    /// Lets a line editor read a line from stdin.
    ///
    /// The editor sees valid UTF-8 only, with U+FFFD for invalid bytes, and one line at a time, so
    /// that no text after a line is lost between calls. From the first call on, stdin is a
    /// pseudo-terminal fed by a thread.
    ///
    /// # Errors
    /// A pseudo-terminal cannot be created; `read` was not called.
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

    /// Lets `read` read a line, edited by the terminal itself.
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
