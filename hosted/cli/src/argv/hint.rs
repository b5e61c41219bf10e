//! Suggestions for arguments that clap does not know.

use crate::flags::names::nearest;
use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use core::error::Error as _;
use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

/// An error with a suggestion for `name`, which is not a command; `None` without one.
pub(super) fn no_command(program: &Command, name: &str) -> Option<Error> {
    let known = COMMANDS
        .iter()
        .find(|(names, _)| names.split(' ').any(|known| known == name));
    let is_model = || {
        let path = Path::new(name);
        let ending = path.extension().and_then(|ending| ending.to_str());
        path.is_file() || matches!(ending, Some("gguf" | "slc"))
    };
    let hint = match known {
        Some((_, hint)) => format!("unknown command `{name}`: {hint}"),
        None if is_model() => format!(
            "unknown command {name}: use `sluice run {name}` to continue a text or `sluice chat {name}` to chat"
        ),
        // A flag of the program itself.
        None if name.starts_with('-') => return None,
        None => {
            let near = nearest(name, program.get_subcommands().map(Command::get_name))?;
            format!("unknown command `{name}`; did you mean `{near}`?")
        }
    };
    Some(Error::raw(ErrorKind::InvalidSubcommand, hint + "\n"))
}

/// Commands of other programs.
const COMMANDS: &[(&str, &str)] = &[
    ("server start api", "use `sluice serve`"),
    ("version", "use `sluice --version`"),
    (
        "list ls ps models",
        "models are plain files; downloaded ones are in ~/.cache/huggingface/hub",
    ),
    (
        "rm remove delete",
        "models are plain files; delete the file",
    ),
    ("show info", "use `sluice inspect FILE`"),
    ("download get fetch", "use `sluice pull USER/NAME`"),
    (
        "generate gen complete simple main",
        "use `sluice run -m FILE -p TEXT`",
    ),
    ("cli talk conversation", "use `sluice chat -m FILE`"),
    ("embedding embeddings", "use `sluice embed`"),
    ("tokens tokenise detokenize", "use `sluice tokenize`"),
    ("ppl", "use `sluice perplexity`"),
    ("quantise quant", "use `sluice quantize`"),
    (
        "llama-bench benchmark batched-bench",
        "use `sluice bench -m FILE`",
    ),
    ("completion", "use `sluice completions SHELL`"),
    (
        "llama-gguf-split split merge",
        "use `sluice gguf-split` to split or merge files; to run a split model, name its first part",
    ),
];

/// `error`, but with the argument that is not UTF-8, or with the variable's name in place of the flag's if the
/// wrong value comes from an environment variable. `args` is the command line.
pub(super) fn blame(error: Error, command: &Command, args: &[OsString]) -> Error {
    if error.kind() == ErrorKind::InvalidUtf8 {
        let wrong = args.iter().find(|arg| arg.to_str().is_none());
        let wrong = wrong.map_or_else(
            || Cow::from("an argument"),
            |arg| Cow::from(format!("{arg:?}")),
        );
        return Error::raw(
            ErrorKind::InvalidUtf8,
            format!("{wrong} is not UTF-8; only names of files may be other bytes\n"),
        );
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (Some(flag), Some(value)) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    ) else {
        return error;
    };
    let name = args.get(1).and_then(|name| name.to_str());
    let command = name.and_then(|name| command.find_subcommand(name));
    let long = flag.strip_prefix("--").unwrap_or_default();
    let long = long.split([' ', '=']).next();
    let arg = command.and_then(|command| {
        let mut all = command.get_arguments();
        all.find(|arg| arg.get_long().is_some() && arg.get_long() == long)
    });
    let Some(variable) = arg.and_then(|arg| arg.get_env()) else {
        return error;
    };
    let is_typed = args.iter().any(|arg| {
        let arg = arg.to_str().unwrap_or_default();
        arg == value || arg.ends_with(value) && arg.starts_with('-')
    });
    if is_typed || std::env::var_os(variable).is_none_or(|set| set.to_str() != Some(value)) {
        return error;
    }
    let why = error.source().map(|source| format!(": {source}"));
    let valid = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => {
            Some(format!("; expected one of {}", valid.join(", ")))
        }
        _ => None,
    };
    let why = why.or(valid).unwrap_or_default();
    let message = format!(
        "invalid value '{value}' of the environment variable {}{why}\n",
        variable.display()
    );
    Error::raw(ErrorKind::ValueValidation, message)
}
