//! What the person says: typed with line editing, or from a pipe.

use super::super::output::note;
use anyhow::Context as _;
use core::cell::RefCell;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, Config, Context, Editor, Helper};
use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;

/// Where messages come from.
pub(super) enum Input {
    Terminal(Box<Terminal>),
    Pipe,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Message(String),
    /// Ctrl-C instead of a message.
    Interrupted,
    /// No more will come.
    End,
}

impl Input {
    pub(super) fn new() -> anyhow::Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        Ok(Self::Terminal(Box::new(Terminal::new()?)))
    }

    pub(super) const fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next message. A line that ends with a backslash goes on in the next one.
    pub(super) fn next(&mut self) -> anyhow::Result<Heard> {
        let mut message = String::new();
        loop {
            let line = match self {
                Self::Terminal(terminal) => terminal.line(message.is_empty())?,
                Self::Pipe => piped_line()?,
            };
            match line {
                Heard::Message(line) => match line.strip_suffix('\\') {
                    Some(begun) => {
                        message.push_str(begun);
                        message.push('\n');
                    }
                    None => {
                        message.push_str(&line);
                        break;
                    }
                },
                Heard::End if !message.is_empty() => break,
                other => return Ok(other),
            }
        }
        if let Self::Terminal(terminal) = self {
            terminal.remember(&message);
        }
        Ok(Heard::Message(message))
    }
}

/// A line of stdin. Bytes that are not UTF-8 become U+FFFD, and that is said.
fn piped_line() -> anyhow::Result<Heard> {
    let mut line = Vec::new();
    let n = io::stdin()
        .lock()
        .read_until(b'\n', &mut line)
        .context("cannot read stdin")?;
    if n == 0 {
        return Ok(Heard::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let text = String::from_utf8(line).unwrap_or_else(|error| {
        let at = error.utf8_error().valid_up_to();
        note(format_args!(
            "warning: the message is not UTF-8 from byte {at} on: what is not was replaced"
        ));
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    Ok(Heard::Message(text))
}

/// Line editing with a history on disk.
pub(super) struct Terminal {
    editor: Editor<Recorder, FileHistory>,
    history: Option<PathBuf>,
}

impl Terminal {
    fn new() -> anyhow::Result<Self> {
        // Where stdout is a file the editor writes to the terminal itself.
        let behavior = if io::stdout().is_terminal() {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .behavior(behavior)
            .bracketed_paste(true)
            .history_ignore_space(true)
            .build();
        let history = FileHistory::with_config(&config);
        let mut editor =
            Editor::with_history(config, history).context("cannot set up the terminal")?;
        editor.set_helper(Some(Recorder::default()));
        let path = history_path();
        if let Some(path) = &path
            && path.exists()
            && let Err(error) = editor.load_history(path)
        {
            note(format_args!("warning: history {}: {error}", path.display()));
        }
        Ok(Self {
            editor,
            history: path,
        })
    }

    fn line(&mut self, is_first: bool) -> anyhow::Result<Heard> {
        let prompt = if is_first { "> " } else { ". " };
        let (mut left, mut right) = (String::new(), String::new());
        loop {
            if let Some(recorder) = self.editor.helper() {
                recorder.0.replace((left.clone() + &right, left.len()));
            }
            let line = self.editor.readline_with_initial(prompt, (&left, &right));
            return match line {
                Ok(line) => Ok(Heard::Message(line)),
                Err(ReadlineError::Interrupted) => Ok(Heard::Interrupted),
                Err(ReadlineError::Eof) => Ok(Heard::End),
                // The editor gives up at bytes that are no text: it begins again with what it had.
                // What it had read in one piece with them, behind them, it loses.
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    let recorded = self.editor.helper().map(|recorder| recorder.0.take());
                    let (line, at) = recorded.unwrap_or_default();
                    let (before, behind) = line.split_at_checked(at).unwrap_or((&line, ""));
                    left = format!("{before}\u{fffd}");
                    behind.clone_into(&mut right);
                    continue;
                }
                Err(error) => Err(error).context("cannot read the terminal"),
            };
        }
    }

    /// Adds a message to the history, at once, so that a crash loses none.
    fn remember(&mut self, message: &str) {
        if message.is_empty() || message.len() > HISTORY_BYTES_MAX {
            return;
        }
        let added = self.editor.add_history_entry(message);
        let Some(path) = self.history.take_if(|_| added.unwrap_or(false)) else {
            return;
        };
        if let Some(folder) = path.parent() {
            // Where this fails so does the next, which says why.
            let _made = std::fs::create_dir_all(folder);
        }
        match self.editor.append_history(&path) {
            Ok(()) => self.history = Some(path),
            Err(error) => note(format_args!(
                "warning: the history is not kept in {}: {error}",
                path.display()
            )),
        }
    }
}

/// Remembers the line that is being typed, and where in it the cursor is.
#[derive(Debug, Default)]
struct Recorder(RefCell<(String, usize)>);

impl Hinter for Recorder {
    type Hint = String;

    /// Called after every change of the line. Has no hint.
    fn hint(&self, line: &str, at: usize, _: &Context<'_>) -> Option<String> {
        let mut recorded = self.0.borrow_mut();
        line.clone_into(&mut recorded.0);
        recorded.1 = at;
        None
    }
}

impl Completer for Recorder {
    type Candidate = String;
}

impl Highlighter for Recorder {}
impl Validator for Recorder {}
impl Helper for Recorder {}

/// `SLUICE_HISTORY`, or the place for such files; an empty variable is none.
fn history_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("SLUICE_HISTORY") {
        return Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    }
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("sluice/chat_history"))
}

/// Longer messages, pasted ones, are not kept in the history.
const HISTORY_BYTES_MAX: usize = 16 << 10;
