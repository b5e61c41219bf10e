//! Two- and three-letter flags with a single dash, as in llama.cpp (`-ub`, `-ctk`).
//!
//! clap supports single-letter short flags only. Longer ones are replaced by their long names
//! before clap parses them, unless they are the value of another flag.

mod foreign;
mod hint;
pub(crate) mod setting;

use clap::error::ErrorKind;
use clap::{Arg, Command};
use sluice::core::kernels::words;
use std::ffi::{OsStr, OsString};

/// Short names of more than one letter.
const ALIASES: &[(&str, &str)] = &[
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-md", "--model-draft"),
    ("-td", "--threads-draft"),
    ("-cd", "--ctx-size-draft"),
    ("-ctkd", "--cache-type-k-draft"),
    ("-ctvd", "--cache-type-v-draft"),
    ("-lm", "--load-mode"),
    ("-pg", "--n-prompt-gen"),
    ("-npl", "--n-parallel"),
    ("-npos", "--n-positions"),
    ("-oe", "--output-err"),
    ("-fa", "--flash-attn"),
    ("-Cr", "--cpu-range"),
    ("-jf", "--json-schema-file"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-st", "--single-turn"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-np", "--parallel"),
    ("-cram", "--cache-ram"),
    ("-to", "--timeout"),
    ("-rea", "--reasoning"),
    ("--output-file", "--output"),
    ("--log-disable", "--quiet"),
];

/// Flags that llama.cpp has removed, and their replacements.
const OLD: &[(&str, &str, &str)] = &[
    ("--no-mmap", "--load-mode", "none"),
    ("--mmap", "--load-mode", "mmap"),
    ("--mlock", "--load-mode", "mmap+mlock"),
];

/// llama.cpp flags that request what a command does anyway.
const NEEDLESS: &[(&str, &[&str])] = &[
    (
        "chat",
        words!("-cnv --conversation -i --interactive -if --interactive-first --jinja -e --escape"),
    ),
    ("serve", &["--jinja"]),
    (
        "run",
        &["-no-cnv", "--no-conversation", "--simple-io", "--no-jinja"],
    ),
];

/// llama.cpp flags that correspond to another command here, and what to type.
const ELSEWHERE: &[(&str, &[&str], &str)] = &[
    (
        "run",
        words!("-cnv --conversation -i --interactive -if --interactive-first --jinja"),
        "`sluice run` continues a text as it is; use `sluice chat`, which applies the model's template",
    ),
    (
        "chat",
        &["-no-cnv", "--no-conversation"],
        "`sluice chat` holds a conversation; use `sluice run` to continue a text",
    ),
    (
        "chat",
        &["--no-jinja"],
        "chat templates are always Jinja; use --chat-template chatml for a plain one",
    ),
];

/// `args` with long names. The first is the program, the second the command.
///
/// # Errors
/// A flag that belongs to another command.
pub(super) fn expand(command: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, clap::Error> {
    let name = args
        .get(1)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let program = command;
    let Some(command) = program.find_subcommand(name) else {
        return hint::no_command(program, name).map_or(Ok(args), Err);
    };
    let needless = NEEDLESS.iter().filter(|(of, _)| *of == command.get_name());
    let needless: Vec<_> = needless.flat_map(|(_, flags)| *flags).collect();
    let elsewhere = |arg: &OsString| {
        let mut of_this = ELSEWHERE
            .iter()
            .filter(|(of, ..)| *of == command.get_name());
        let found = of_this.find(|(_, flags, _)| flags.iter().any(|flag| arg == flag));
        found.map(|(_, _, why)| *why)
    };
    let mut expanded = Vec::with_capacity(args.len());
    let mut args = args.into_iter().peekable();
    expanded.extend(args.by_ref().take(2));
    while let Some(arg) = args.next() {
        let arg = with_dashes(command, arg);
        if arg == "--" {
            expanded.push(arg);
            break;
        }
        let is_foreign = !is_ours(command, &arg);
        if is_foreign && foreign::settle(command.get_name(), &arg, &mut args)? {
            continue;
        }
        let old = OLD.iter().find(|(old, flag, _)| {
            arg == *old && find(command, &arg).is_none() && find(command, &(*flag).into()).is_some()
        });
        if let Some((old, flag, value)) = old {
            crate::ui::output::note(format_args!("note: {old} is now {flag} {value}"));
            expanded.extend([flag.into(), value.into()]);
            continue;
        }
        if needless.iter().any(|flag| arg == **flag) {
            continue;
        }
        if let Some(why) = elsewhere(&arg) {
            let message = format!("{}: {why}\n", arg.display());
            return Err(clap::Error::raw(ErrorKind::UnknownArgument, message));
        }
        check_elsewhere(program, command, &arg)?;
        // Only if the command has the flag: otherwise the error should name what was typed.
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
    Ok(expanded)
}

/// clap's error about `args`, reworded to blame the environment variable that caused it.
pub(super) fn blame(error: clap::Error, command: &Command, args: &[OsString]) -> clap::Error {
    hint::blame(error, command, args)
}

/// # Errors
/// `arg` is a flag of other commands; the error names them.
fn check_elsewhere(program: &Command, command: &Command, arg: &OsStr) -> Result<(), clap::Error> {
    let text = arg.to_str().unwrap_or_default();
    let flag = text.split_once('=').map_or(text, |(flag, _)| flag);
    let alias = ALIASES.iter().find(|(short, _)| *short == flag);
    let long = alias.map_or(flag, |(_, long)| long);
    let is_flag = long.starts_with('-') && !matches!(long, "-" | "--");
    // Arguments after a subcommand are checked by that subcommand.
    if !is_flag || command.has_subcommands() || find(command, &long.into()).is_some() {
        return Ok(());
    }
    let others = program
        .get_subcommands()
        .filter(|other| find(other, &long.into()).is_some());
    let names: Vec<_> = others
        .map(|other| format!("`sluice {}`", other.get_name()))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{flag}: not a flag of `sluice {}`, but of {}\n",
        command.get_name(),
        names.join(", ")
    );
    Err(clap::Error::raw(ErrorKind::UnknownArgument, message))
}

/// Accepts underscores in long flags, as llama.cpp does.
fn with_dashes(command: &Command, arg: OsString) -> OsString {
    let text = arg.to_str().unwrap_or_default();
    let (flag, value) = match text.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        None => (text, None),
    };
    if !flag.starts_with("--") || !flag.contains('_') || find(command, &flag.into()).is_some() {
        return arg;
    }
    let flag = flag.replace('_', "-");
    value
        .map_or(flag.clone(), |value| format!("{flag}={value}"))
        .into()
}

/// Whether the command has the flag, or a short name of it.
fn is_ours(command: &Command, arg: &OsString) -> bool {
    let is_alias =
        |(short, long): &(&str, &str)| arg == *short && find(command, &(*long).into()).is_some();
    let flag = arg.to_str().and_then(|text| text.split_once('='));
    let flag = flag.map_or_else(|| arg.clone(), |(flag, _)| flag.into());
    let arg = &flag;
    // Arguments after a subcommand belong to it.
    let mut inner = command.get_subcommands();
    find(command, arg).is_some()
        || ALIASES.iter().any(is_alias)
        || inner.any(|inner| find(inner, arg).is_some())
}

/// Whether the next argument is the value of `flag`.
fn takes_value(command: &Command, flag: &OsString) -> bool {
    find(command, flag).is_some_and(|arg| arg.get_action().takes_values())
}

/// The argument of that name.
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
