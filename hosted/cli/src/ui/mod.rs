//! The user interface: text, notes, progress, numbers, the terminal.

pub(crate) mod footer;
pub(crate) mod format;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod terminal;
