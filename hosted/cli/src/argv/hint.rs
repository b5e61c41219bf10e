//! What to type instead of what clap does not know.

use crate::flags::names::nearest;
use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use core::error::Error as _;
use std::ffi::OsString;
use std::path::Path;

/// An error about `name`, which is no command, if there is something to say of it.
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
            "unknown command {name}: `sluice run {name}` continues a text, `sluice chat {name}` chats"
        ),
        // The program's own flags.
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
    ("server start api", "`sluice serve` is the server"),
    ("version", "`sluice --version`"),
    (
        "list ls ps models",
        "models are files; fetched ones lie in ~/.cache/huggingface/hub",
    ),
    ("rm remove delete", "models are files: remove the file"),
    ("show info", "`sluice inspect FILE`"),
    ("download get fetch", "`sluice pull USER/NAME`"),
    (
        "generate gen complete simple main",
        "`sluice run -m FILE -p TEXT`",
    ),
    ("cli talk conversation", "`sluice chat -m FILE`"),
    ("embedding embeddings", "`sluice embed`"),
    ("tokens tokenise detokenize", "`sluice tokenize`"),
    ("ppl", "`sluice perplexity`"),
    ("quantise quant", "`sluice quantize`"),
    (
        "llama-bench benchmark batched-bench",
        "`sluice bench -m FILE`",
    ),
    ("completion", "`sluice completions SHELL`"),
    (
        "llama-gguf-split split merge",
        "`sluice gguf-split` makes parts and one file of them; to run a model, name its first part",
    ),
];

/// The error as it is; or, where a wrong value comes from a variable, with the variable's name in
/// the flag's place. `args` is the command line.
pub(super) fn blame(error: Error, command: &Command, args: &[OsString]) -> Error {
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
        Some(ContextValue::Strings(valid)) => Some(format!(": {} are known", valid.join(", "))),
        _ => None,
    };
    let why = why.or(valid).unwrap_or_default();
    let message = format!(
        "the variable {} has the value '{value}'{why}\n",
        variable.display()
    );
    Error::raw(ErrorKind::ValueValidation, message)
}
