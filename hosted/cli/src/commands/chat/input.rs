//! The user's messages: typed with line editing, or read from a pipe.

use crate::ui::output::note;
use crate::ui::terminal::Terminal;
use anyhow::Context as _;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use sluice::host::interrupt;
use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The source of messages.
pub(super) struct Input {
    /// The terminal of stdin, if it is one.
    terminal: Option<Terminal>,
    editor: Option<Box<LineEditor>>,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UserInput {
    Message(String),
    /// Ctrl-C instead of a message.
    Interrupted,
    /// The end of the input.
    End,
}

impl Input {
    /// With `is_simple`, lines are edited by the terminal itself, if at all.
    pub(super) fn new(is_simple: bool) -> Self {
        let terminal = Terminal::take();
        let is_edited = terminal.is_some() && !is_simple && !is_dumb();
        let editor = is_edited.then(|| Box::new(LineEditor::new()));
        Self { terminal, editor }
    }

    pub(super) const fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Resumes after Ctrl-C in an answer.
    pub(super) fn go_on(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.keep();
        }
    }

    /// The next message. A line that ends with a backslash continues on the next one.
    pub(super) fn next(&mut self) -> anyhow::Result<UserInput> {
        let mut message = String::new();
        loop {
            match self.line(message.is_empty())? {
                UserInput::Message(line) => match line.strip_suffix('\\') {
                    Some(begun) => {
                        message.push_str(begun);
                        message.push('\n');
                    }
                    None => {
                        message.push_str(&line);
                        break;
                    }
                },
                UserInput::End if !message.is_empty() => break,
                other => return Ok(other),
            }
        }
        if let Some(editor) = &mut self.editor {
            editor.remember(&message);
        }
        Ok(UserInput::Message(message))
    }

    fn line(&mut self, is_first: bool) -> anyhow::Result<UserInput> {
        let Some(terminal) = &mut self.terminal else {
            return piped_line();
        };
        let prompt = if is_first { "> " } else { ". " };
        if let Some(editor) = &mut self.editor {
            match terminal.edit(|| editor.line(prompt)) {
                Ok(line) => return line,
                Err(error) => {
                    note(format_args!(
                        "warning: line editing is off: cannot open a pseudo-terminal: {error}"
                    ));
                    self.editor = None;
                }
            }
        }
        // The prompt is not part of the answers that stdout is for.
        let _shown = write!(io::stderr(), "{prompt}");
        let line = terminal.plain(piped_line);
        // The terminal has discarded what was typed before Ctrl-C, so there is nothing to submit.
        interrupt::rearm().context("cannot handle Ctrl-C")?;
        line
    }
}

/// Whether the terminal cannot move its cursor.
fn is_dumb() -> bool {
    let names = ["dumb", "cons25", "emacs"];
    std::env::var("TERM").is_ok_and(|term| names.contains(&&*term.to_ascii_lowercase()))
}

/// A line of stdin. Bytes that are not UTF-8 become U+FFFD, with a warning.
fn piped_line() -> anyhow::Result<UserInput> {
    let mut line = Vec::new();
    let n = io::stdin()
        .lock()
        .read_until(b'\n', &mut line)
        .context("cannot read stdin")?;
    if n == 0 {
        return Ok(UserInput::End);
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
            "warning: the message is not UTF-8 from byte {at} on; invalid bytes were replaced"
        ));
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    Ok(UserInput::Message(text))
}

/// Line editing with a history on disk.
struct LineEditor {
    /// Created with the first line, when stdin is set up for it.
    editor: Option<Editor<(), FileHistory>>,
    config: Config,
    history: Option<PathBuf>,
}

impl LineEditor {
    fn new() -> Self {
        let config = Config::builder()
            .bracketed_paste(true)
            .history_ignore_space(true)
            .build();
        Self {
            editor: None,
            config,
            history: history_path(),
        }
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<UserInput> {
        let _shown = OnTerminal::new()?;
        let editor = match &mut self.editor {
            Some(editor) => editor,
            none => none.insert(editor(&self.config, self.history.as_deref())?),
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(UserInput::Message(line)),
            Err(ReadlineError::Interrupted) => Ok(UserInput::Interrupted),
            Err(ReadlineError::Eof) => Ok(UserInput::End),
            Err(error) => Err(error).context("cannot read the terminal"),
        }
    }

    /// Adds a message to the history at once, so that a crash loses none.
    fn remember(&mut self, message: &str) {
        if message.is_empty() || message.len() > HISTORY_BYTES_MAX {
            return;
        }
        let Some(editor) = &mut self.editor else {
            return;
        };
        let added = editor.add_history_entry(message);
        let Some(path) = self.history.take_if(|_| added.unwrap_or(false)) else {
            return;
        };
        if let Some(folder) = path.parent() {
            // If this fails, so does the next step, which reports why.
            let _made = std::fs::create_dir_all(folder);
        }
        match editor.append_history(&path) {
            Ok(()) => self.history = Some(path),
            Err(error) => note(format_args!(
                "warning: history is not saved to {}: {error}",
                path.display()
            )),
        }
    }
}

fn editor(config: &Config, path: Option<&Path>) -> anyhow::Result<Editor<(), FileHistory>> {
    let history = FileHistory::with_config(config);
    let mut editor =
        Editor::with_history(config.clone(), history).context("cannot set up the terminal")?;
    if let Some(path) = path
        && path.exists()
        && let Err(error) = editor.load_history(path)
    {
        note(format_args!("warning: history {}: {error}", path.display()));
    }
    Ok(editor)
}

/// While it exists, stdout is a terminal: the editor writes there even if answers are written to a
/// file.
struct OnTerminal(Option<OwnedFd>);

impl OnTerminal {
    fn new() -> anyhow::Result<Self> {
        if io::stdout().is_terminal() {
            return Ok(Self(None));
        }
        let cannot = "cannot write to the terminal (try --simple-io)";
        let terminal = File::options()
            .write(true)
            .open("/dev/tty")
            .context(cannot)?;
        let stdout = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).context(cannot)?;
        rustix::stdio::dup2_stdout(&terminal).context(cannot)?;
        Ok(Self(Some(stdout)))
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        if let Some(stdout) = &self.0 {
            // Both descriptors are open.
            let _back = rustix::stdio::dup2_stdout(stdout);
        }
    }
}

/// `SLUICE_HISTORY`, or the default path; `None` if the variable is empty.
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

/// Longer messages, usually pasted ones, are not saved to the history.
const HISTORY_BYTES_MAX: usize = 16 << 10;
