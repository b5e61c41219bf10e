//! Two- and three-letter flags with one dash, as llama.cpp has them (`-ub`, `-ctk`).
//!
//! clap knows a dash and one letter. The longer ones are replaced by their long names before
//! clap sees them, except where they are the value of another flag.

use clap::{Arg, Command};
use std::ffi::OsString;

/// Short names of more than one letter.
const ALIASES: &[(&str, &str)] = &[
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-lm", "--load-mode"),
    ("-pg", "--n-prompt-gen"),
    ("-npl", "--n-parallel"),
    ("-npos", "--n-positions"),
    ("-oe", "--output-err"),
    ("-fa", "--flash-attn"),
    ("-Cr", "--cpu-range"),
    ("-jf", "--json-schema-file"),
    ("-sys", "--system-prompt"),
    ("-st", "--single-turn"),
];

/// Flags that llama.cpp has given up, and what it has instead.
const OLD: &[(&str, &str, &str)] = &[
    ("--no-mmap", "--load-mode", "none"),
    ("--mmap", "--load-mode", "mmap"),
    ("--mlock", "--load-mode", "mmap+mlock"),
];

/// `args` with the long names; the first is the program, the second the command.
pub(super) fn expand(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let name = args
        .get(1)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let Some(command) = command.find_subcommand(name) else {
        return args;
    };
    let mut expanded = Vec::with_capacity(args.len());
    let mut args = args.into_iter();
    expanded.extend(args.by_ref().take(2));
    while let Some(arg) = args.next() {
        let old = OLD.iter().find(|(old, flag, _)| {
            arg == *old && find(command, &arg).is_none() && find(command, &(*flag).into()).is_some()
        });
        if let Some((old, flag, value)) = old {
            super::output::note(format_args!("note: {old} is now {flag} {value}"));
            expanded.extend([flag.into(), value.into()]);
            continue;
        }
        if arg == "--" {
            expanded.push(arg);
            break;
        }
        // Only where the command has the flag: elsewhere the message should name what was typed.
        let is_known = |long: &str| find(command, &long.into()).is_some();
        let alias = ALIASES
            .iter()
            .find(|(short, long)| arg == *short && is_known(long));
        let arg = alias.map_or(arg, |(_, long)| long.into());
        let has_value = takes_value(command, &arg);
        expanded.push(arg);
        if has_value {
            expanded.extend(args.next());
        }
    }
    expanded.extend(args);
    expanded
}

/// Whether the next argument is the value of `flag`.
fn takes_value(command: &Command, flag: &OsString) -> bool {
    find(command, flag).is_some_and(|arg| arg.get_action().takes_values())
}

/// The argument that is called `flag`.
fn find<'c>(command: &'c Command, flag: &OsString) -> Option<&'c Arg> {
    let flag = flag.to_str()?;
    let is_it = |arg: &&Arg| match flag.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long)
                || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        None => arg
            .get_short()
            .is_some_and(|short| flag == format!("-{short}")),
    };
    command.get_arguments().find(is_it)
}
