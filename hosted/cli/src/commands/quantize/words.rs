//! The positional arguments of `sluice quantize`.

use super::QuantizeArgs;
use crate::flags::names::suggestion;
use crate::outcome::UsageError;
use core::str::FromStr as _;
use sluice::core::team::WORKERS_MAX;
use sluice_make::quantize::{FILE_TYPES, FileType};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The positional arguments, in order.
pub(super) struct Words {
    pub(super) input: PathBuf,
    pub(super) output: PathBuf,
    pub(super) file_type: FileType,
    pub(super) threads: Option<usize>,
}

impl Words {
    /// As llama.cpp parses them: the output and the number of threads are optional.
    pub(super) fn new(args: &QuantizeArgs) -> Result<Self, UsageError> {
        let usage = |what: String| Err(UsageError(what));
        let is_type = |word: &OsString| FileType::from_str(&word.to_string_lossy()).is_ok();
        let (input, rest) = args
            .words
            .split_first()
            .expect("clap requires at least one");
        let (output, file_type, rest) = if args.bits_per_weight.is_some() {
            if let Some(word) = rest.iter().take(2).find(|word| is_type(word)) {
                let what = "--bits-per-weight chooses the types: omit";
                return usage(format!("{what} {}", word.display()));
            }
            // In the file's metadata: what llama.cpp calls a mix.
            let mix = OsStr::new("Q4_K_M");
            (rest.first(), mix, rest.get(1..).unwrap_or_default())
        } else {
            match rest {
                [] => {
                    return usage(
                        "no type is given: sluice quantize IN [OUT] TYPE (--help lists the types)"
                            .into(),
                    );
                }
                [output, ty, rest @ ..] if !is_type(output) || is_type(ty) => {
                    (Some(output), ty.as_os_str(), rest)
                }
                [ty, output, ..] if number(output).is_none() => {
                    let (ty, output) = (ty.display(), output.display());
                    return usage(format!(
                        "{output} follows the type {ty} but must precede it: sluice quantize IN OUT {ty}"
                    ));
                }
                [ty, rest @ ..] => (None, ty.as_os_str(), rest),
            }
        };
        let file_type = &*file_type.to_string_lossy();
        let file_type = match FileType::from_str(file_type) {
            Ok(file_type) => file_type,
            Err(error) => {
                let near = suggestion(file_type, FILE_TYPES.iter().map(|known| known.name));
                return usage(format!("{file_type}: {error}{near}"));
            }
        };
        let threads = match rest {
            [] => None,
            [word] => match number(word) {
                Some(n @ 1..=WORKERS_MAX) => Some(n),
                _ => {
                    return usage(format!(
                        "{} is not a number of threads from 1 to {WORKERS_MAX}",
                        word.display()
                    ));
                }
            },
            [_, word, ..] => return usage(format!("unexpected argument {}", word.display())),
        };
        let asked = args.engine.threads.and_then(|n| usize::try_from(n).ok());
        let input = PathBuf::from(input);
        let name = args
            .bits_per_weight
            .map_or(file_type.name.to_owned(), |n| format!("{n}bpw"));
        let extension = ["gguf", "slc"][usize::from(file_type.base.is_lane())];
        let next_to = || input.with_file_name(format!("ggml-model-{name}.{extension}"));
        Ok(Self {
            output: output.map_or_else(next_to, PathBuf::from),
            input,
            file_type,
            threads: threads.or(asked.filter(|&n| n > 0)),
        })
    }
}

fn number(word: &OsStr) -> Option<usize> {
    word.to_str()?.parse().ok()
}
