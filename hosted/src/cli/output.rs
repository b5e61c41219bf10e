//! Writing to stdout, where readers leave, and to stderr, where nobody may be.

use core::fmt;
use std::io::{self, StdoutLock, Write};

/// Writes a line to stderr. Nothing is left to do where that fails.
pub(super) fn note(line: fmt::Arguments<'_>) {
    let _written = writeln!(io::stderr(), "{line}");
}

/// Text to stdout, piece by piece.
#[derive(Debug)]
pub(super) struct TextOutput {
    stdout: StdoutLock<'static>,
    /// The reader has gone (EPIPE).
    closed: bool,
    last_char: Option<char>,
}

impl TextOutput {
    pub(super) fn new() -> Self {
        Self {
            stdout: io::stdout().lock(),
            closed: false,
            last_char: None,
        }
    }

    /// Writes at once.
    ///
    /// # Errors
    /// Any but a reader that has gone, which [`Self::is_closed`] then says.
    pub(super) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        if self.closed || text.is_empty() {
            return Ok(());
        }
        self.last_char = text.chars().last();
        let written = self
            .stdout
            .write_all(text.as_bytes())
            .and_then(|()| self.stdout.flush());
        self.settle(written)
    }

    /// Ends the last line, if it is not ended.
    pub(super) fn end_line(&mut self) -> anyhow::Result<()> {
        match self.last_char {
            None | Some('\n') => Ok(()),
            Some(_) => self.write("\n"),
        }
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    fn settle(&mut self, written: io::Result<()>) -> anyhow::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            result => Ok(result.map_err(|error| anyhow::anyhow!("writing to stdout: {error}"))?),
        }
    }
}
