//! Writing to stdout, which readers may close, and to stderr, which may be closed already.

use anyhow::Context as _;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, StdoutLock, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The log file, which receives everything that is printed on stderr.
static LOG: OnceLock<Mutex<File>> = OnceLock::new();

/// Whether only errors and responses to the user are printed on stderr.
static QUIET: AtomicBool = AtomicBool::new(false);

/// With `is_quiet`, only errors and responses to the user are printed on stderr. Everything is also
/// appended to the file `log`.
///
/// # Errors
/// The file cannot be written, or is not a log written by this program.
pub(crate) fn set_up(is_quiet: bool, log: Option<&Path>) -> anyhow::Result<()> {
    if let Some(path) = log {
        // Set once, before anything is printed.
        let _first = LOG.set(Mutex::new(open_log(path)?));
    }
    set_quiet(is_quiet);
    Ok(())
}

/// Sets whether only errors and responses to the user are printed on stderr.
fn set_quiet(is_quiet: bool) {
    QUIET.store(is_quiet, Ordering::Relaxed);
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    let cannot = || format!("cannot write log file {}", path.display());
    if std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        let mut head = Vec::new();
        let file = File::open(path).with_context(cannot)?;
        file.take(LOG_HEAD.len() as u64)
            .read_to_end(&mut head)
            .with_context(cannot)?;
        if !head.is_empty() && head != LOG_HEAD.as_bytes() {
            anyhow::bail!("{} is not a sluice log; it was not changed", path.display());
        }
    }
    let mut file = File::options()
        .append(true)
        .create(true)
        // The command line, which is logged, may contain prompts.
        .mode(0o600)
        .open(path)
        .with_context(cannot)?;
    let words: Vec<_> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    writeln!(file, "{LOG_HEAD}: {words:?}").with_context(cannot)?;
    Ok(file)
}

/// The beginning of every run's first line in a log, and of the log file.
const LOG_HEAD: &str = "# sluice log";

/// Writes a line to stderr. A failure cannot be reported.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    say(line, false);
}

/// Writes an error with each of its causes once, one per line.
pub(crate) fn tell_error(error: &anyhow::Error) {
    if MID_LINE.load(Ordering::Relaxed) {
        let _written = writeln!(io::stderr());
    }
    tell(format_args!("error: {}", said_once(error)));
}

/// An error and its causes, without those that the preceding message already contains.
fn said_once(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if said.is_empty() {
            said = text;
        } else if !said.contains(&*text) {
            said = format!("{said}: {text}");
        }
    }
    said
}

/// Whether the last line on stdout is unfinished.
static MID_LINE: AtomicBool = AtomicBool::new(false);

/// As [`note`], but also with `--quiet`: for errors and responses to what the user typed.
pub(crate) fn tell(line: fmt::Arguments<'_>) {
    say(line, true);
}

fn say(line: fmt::Arguments<'_>, is_wanted: bool) {
    if is_wanted || !QUIET.load(Ordering::Relaxed) {
        let _written = if io::stderr().is_terminal() {
            let shown = Controls::default().shown(&line.to_string());
            writeln!(io::stderr(), "{shown}")
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }
    if let Some(log) = LOG.get() {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let _written = writeln!(log, "{line}");
    }
}

/// Whether progress bars are drawn: on a terminal, unless plain or quiet output is requested.
pub(crate) fn shows_progress() -> bool {
    let is_quiet = QUIET.load(Ordering::Relaxed);
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
    !is_quiet && !is_plain && io::stderr().is_terminal()
}

/// Text to stdout, piece by piece.
#[derive(Debug)]
pub(crate) struct TextOutput {
    stdout: StdoutLock<'static>,
    /// The reader has closed the pipe (EPIPE).
    closed: bool,
    last_char: Option<char>,
    /// Control characters that must not reach a terminal.
    controls: Option<Controls>,
}

/// Makes control characters visible: a model's text, and names and templates in its file, may
/// contain sequences that retitle, repaint or reprogram a terminal.
#[derive(Debug, Default)]
struct Controls {
    /// The last character was a carriage return, which a newline may follow.
    is_return: bool,
}

impl Controls {
    /// `text` as it is safe to print on a terminal.
    fn shown(&mut self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        for c in text.chars() {
            if core::mem::take(&mut self.is_return) {
                shown.push_str(if c == '\n' { "\r" } else { "\\r" });
            }
            match c {
                '\n' | '\t' => shown.push(c),
                '\r' => self.is_return = true,
                c if c.is_control() => shown.extend(c.escape_default()),
                c => shown.push(c),
            }
        }
        shown
    }
}

impl TextOutput {
    pub(crate) fn new() -> Self {
        Self {
            stdout: io::stdout().lock(),
            closed: false,
            last_char: None,
            controls: io::stdout().is_terminal().then(Controls::default),
        }
    }

    /// Writes at once.
    ///
    /// # Errors
    /// Any error except a closed pipe, which [`Self::is_closed`] reports.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        if self.closed || text.is_empty() {
            return Ok(());
        }
        self.last_char = text.chars().last();
        MID_LINE.store(!text.ends_with('\n'), Ordering::Relaxed);
        let shown = self.controls.as_mut().map(|controls| controls.shown(text));
        let text = shown.as_deref().unwrap_or(text);
        let written = self
            .stdout
            .write_all(text.as_bytes())
            .and_then(|()| self.stdout.flush());
        self.settle(written)
    }

    /// Ends the last line if it is unfinished.
    pub(crate) fn end_line(&mut self) -> anyhow::Result<()> {
        match self.last_char {
            None | Some('\n') => Ok(()),
            Some(_) => self.write("\n"),
        }
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    fn settle(&mut self, written: io::Result<()>) -> anyhow::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            result => {
                Ok(result.map_err(|error| anyhow::anyhow!("cannot write to stdout: {error}"))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_shown_controls() {
        let mut controls = Controls::default();
        let parts = ["a\tb\r", "\nc\rd\x1b[2", "J\u{9b}31m\x07\x7f\0 \u{e9}\n"];
        let shown: String = parts.iter().map(|part| controls.shown(part)).collect();
        let expected = "a\tb\r\nc\\rd\\u{1b}[2J\\u{9b}31m\\u{7}\\u{7f}\\u{0} \u{e9}\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("no room").context("cannot write x: no room");
        assert_eq!(said_once(&error), "cannot write x: no room");
        let error = anyhow::anyhow!("no room").context("cannot write x");
        assert_eq!(said_once(&error), "cannot write x: no room");
    }
}
