//! A status line for a stream.

use core::time::Duration;
use sluice_gate::Snapshot;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

/// On a terminal, one line that is overwritten; elsewhere one line per second.
#[derive(Debug)]
pub(super) struct Watch {
    is_terminal: bool,
    last: Option<Instant>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
            last: None,
        }
    }

    pub(super) fn update(&mut self, snapshot: &Snapshot) {
        let period = Duration::from_millis(if self.is_terminal { 100 } else { 1000 });
        if self.last.is_some_and(|last| last.elapsed() < period) {
            return;
        }
        self.last = Some(Instant::now());
        let counts = &snapshot.counts;
        let line = format!(
            "{:>12.0} frames/s  {:>5.1}% silent  ring {:>3.0}%  dropped {}  processed {}",
            snapshot.frames_per_second,
            counts.sparsity_pct(),
            snapshot.buffer_fill_pct,
            counts.dropped,
            counts.processed
        );
        // A failure to write to stderr cannot be reported.
        let _written = if self.is_terminal {
            write!(io::stderr(), "\r{line}\x1b[K")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_terminal && self.last.is_some() {
            let _written = writeln!(io::stderr());
        }
    }
}
