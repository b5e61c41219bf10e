//! A setting `key = value` of an INI file as arguments of a command. As in llama-server's presets, a key is a flag
//! without its dashes, or its environment variable.

use super::{ALIASES, NEEDLESS, find, foreign};
use clap::{Arg, Command};
use std::ffi::OsString;

/// What a setting means.
#[derive(Debug)]
pub(crate) struct Words {
    /// The flag's name in clap; `None` for a flag of llama.cpp that has no effect here.
    pub(crate) id: Option<String>,
    /// The arguments.
    pub(crate) args: Vec<OsString>,
}

/// The arguments of `command` for `key = value`.
///
/// # Errors
/// The key is not a flag, or is one that is refused here; the value of a switch is neither true nor false.
pub(crate) fn words(command: &Command, key: &str, value: &str) -> Result<Words, String> {
    let Some(arg) = flag(command, key) else {
        let plain = key.strip_prefix("LLAMA_ARG_").unwrap_or(key);
        let dashed = plain.to_lowercase().replace('_', "-");
        let is_needless = |flag: &String| {
            let mut all = NEEDLESS.iter().filter(|(of, _)| *of == command.get_name());
            all.any(|(_, flags)| flags.contains(&&**flag))
        };
        for flag in [format!("--{dashed}"), format!("-{key}")] {
            if is_needless(&flag) {
                return Ok(Words {
                    id: None,
                    args: Vec::new(),
                });
            }
            let mut rest = [OsString::from(value)].into_iter().peekable();
            let settled = foreign::settle(command.get_name(), flag.as_ref(), &mut rest);
            if settled.map_err(|error| first_line(&error))? {
                return Ok(Words {
                    id: None,
                    args: Vec::new(),
                });
            }
        }
        return Err(format!("is not a flag of `sluice {}`", command.get_name()));
    };
    let long = arg.get_long().unwrap_or_default();
    let args = match arg.get_action().takes_values() {
        true => vec![format!("--{long}={value}").into()],
        false => match truth(value)? {
            true => vec![format!("--{long}").into()],
            false => opposite(command, long).into_iter().collect(),
        },
    };
    Ok(Words {
        id: Some(arg.get_id().as_str().to_owned()),
        args,
    })
}

/// What clap says of an error, in one line.
pub(crate) fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// The flag that a key names: long, short or by its environment variable.
fn flag<'c>(command: &'c Command, key: &str) -> Option<&'c Arg> {
    let mut all = command.get_arguments();
    let by_variable = all.find(|arg| arg.get_env().is_some_and(|name| name == key));
    by_variable
        .or_else(|| find(command, &format!("--{}", key.replace('_', "-")).into()))
        .or_else(|| {
            let names = [format!("-{key}"), format!("--{key}")];
            let alias = ALIASES
                .iter()
                .find(|(short, _)| names.iter().any(|name| name == short));
            find(command, &alias?.1.into())
        })
        .or_else(|| find(command, &format!("-{key}").into()))
}

/// # Errors
/// It is neither.
pub(crate) fn truth(value: &str) -> Result<bool, String> {
    match value {
        "true" | "on" | "enabled" | "1" => Ok(true),
        "false" | "off" | "disabled" | "0" => Ok(false),
        _ => Err(format!("expected true or false, found {value:?}")),
    }
}

/// The flag that undoes a switch, if the command has one.
fn opposite(command: &Command, long: &str) -> Option<OsString> {
    let name = match long.strip_prefix("no-") {
        Some(rest) => format!("--{rest}"),
        None => format!("--no-{long}"),
    };
    find(command, &OsString::from(&name)).map(|_| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_flags_in_any_spelling() {
        let tree = crate::commands::tree();
        let serve = tree.find_subcommand("serve").unwrap();
        let words = |key: &str, value: &str| {
            words(serve, key, value).map(|words| {
                let args = words
                    .args
                    .iter()
                    .map(|arg| arg.to_string_lossy().into_owned());
                args.collect::<Vec<_>>().join(" ")
            })
        };
        for (key, value, expected) in [
            ("ctx-size", "4096", "--ctx-size=4096"),
            ("c", "4096", "--ctx-size=4096"),
            ("LLAMA_ARG_CTX_SIZE", "4096", "--ctx-size=4096"),
            ("ctk", "q8_0", "--cache-type-k=q8_0"),
            ("hf-repo", "a/b", "--hf-repo=a/b"),
            ("hf", "a/b", "--hf-repo=a/b"),
            ("context_shift", "true", "--context-shift"),
            ("context-shift", "off", "--no-context-shift"),
            ("no-context-shift", "0", "--context-shift"),
            // Nothing undoes it, and it is off.
            ("check-tensors", "false", ""),
            // llama.cpp's, without effect here.
            ("n-gpu-layers", "99", ""),
            ("ngl", "99", ""),
            ("LLAMA_ARG_N_GPU_LAYERS", "99", ""),
            ("jinja", "true", ""),
        ] {
            assert_eq!(words(key, value).as_deref(), Ok(expected), "{key}");
        }
        for (key, value, expected) in [
            ("nonsense", "1", "is not a flag"),
            ("context-shift", "maybe", "expected true or false"),
            ("media-path", "x", "--media-path x"),
        ] {
            let error = words(key, value).unwrap_err();
            assert!(error.contains(expected), "{key}: {error}");
        }
    }
}
