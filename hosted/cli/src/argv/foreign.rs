//! Handling of llama.cpp flags that a command here does not have.

mod own;
mod table;

use crate::ui::output::note;
use clap::Error;
use clap::error::ErrorKind;
use core::iter::Peekable;
use own::OWN;
use std::ffi::{OsStr, OsString};
use table::{Row, TABLE};

/// The handling of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Print a note that explains why nothing is lost without the flag.
    Ignored(&'static str),
    /// Return an error that gives the reason or what to type instead.
    Refused(&'static str),
}

/// Whether a flag takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    No,
    One,
    /// Only if the next argument is one of these words.
    Maybe(&'static [&'static str]),
}

/// Handles `arg` of `command` and its value if the tables list it. Returns whether they do.
///
/// # Errors
/// The flag is refused.
pub(super) fn settle(
    command: &str,
    arg: &OsStr,
    rest: &mut Peekable<impl Iterator<Item = OsString>>,
) -> Result<bool, Error> {
    let text = arg.to_str().unwrap_or_default();
    let (flag, joined) = match text.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        _ => (text, None),
    };
    let own = OWN.iter().find(|(of, _)| *of == command);
    let own = own.map_or(&[][..], |(_, table)| table);
    let is_flag = |(flags, ..): &&Row| flags.split(' ').any(|known| known == flag);
    let found = own.iter().chain(TABLE).find(is_flag);
    let Some(&(_, value, fate)) = found else {
        return Ok(false);
    };
    let is_next = |words: &[&str], next: &OsString| words.iter().any(|word| next == *word);
    let value = match (joined, value) {
        (Some(value), _) => Some(value.to_owned()),
        (None, Value::No) => None,
        (None, Value::One) => rest.next().map(|next| next.display().to_string()),
        (None, Value::Maybe(words)) => rest
            .next_if(|next| is_next(words, next))
            .map(|next| next.display().to_string()),
    };
    let shown = value.map_or_else(|| flag.to_owned(), |value| format!("{flag} {value}"));
    match fate {
        Fate::Ignored(why) => {
            note(format_args!("note: {shown} has no effect: {why}"));
            Ok(true)
        }
        Fate::Refused(why) => {
            let message = format!("{shown}: {why}\n");
            Err(Error::raw(ErrorKind::UnknownArgument, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(args: &[&str]) -> Result<(bool, Vec<OsString>), String> {
        let mut rest = args[1..].iter().map(OsString::from).peekable();
        let known = settle("run", OsStr::new(args[0]), &mut rest);
        known
            .map(|known| (known, rest.collect()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn flags_go_with_their_values() {
        assert_eq!(settled(&["-ngl", "99", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-fa", "on", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-fa", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(
            settled(&["--n-gpu-layers=3", "x"]),
            Ok((true, vec!["x".into()]))
        );
        assert_eq!(settled(&["-nkvo", "x"]), Ok((true, vec!["x".into()])));
        assert_eq!(settled(&["-xyz", "x"]), Ok((false, vec!["x".into()])));
        let refused = settled(&["-md", "draft.gguf"]).unwrap_err();
        assert!(
            refused.contains("-md draft.gguf: this command generates no text"),
            "{refused}"
        );
    }

    #[test]
    fn each_flag_stands_once() {
        let mut flags: Vec<_> = TABLE
            .iter()
            .flat_map(|(flags, ..)| flags.split(' '))
            .collect();
        assert!(flags.len() > 400, "{}", flags.len());
        let count = flags.len();
        flags.sort_unstable();
        flags.dedup();
        assert_eq!(flags.len(), count);
        assert!(flags.iter().all(|flag| flag.starts_with('-')));
    }
}
