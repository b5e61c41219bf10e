//! `sluice completions`, `sluice man`, and environment variables for flags.

use crate::outcome::{Ending, UsageError};
use crate::ui::output::TextOutput;
use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use sluice::file::OutputFile;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder to write the pages to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  sluice completions bash > ~/.local/share/bash-completion/completions/sluice
  sluice completions zsh > ~/.zfunc/_sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  sluice man ~/.local/share/man/man1
  man sluice-run";

pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<Ending> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sluice", &mut script);
    let script = String::from_utf8(script).context("the script is not UTF-8")?;
    TextOutput::new().write(&script)?;
    Ok(Ending::Done)
}

/// Writes `sluice.1` and a page for each command.
pub(super) fn man(args: &ManArgs, mut command: Command) -> anyhow::Result<Ending> {
    let folder = &args.folder;
    if !folder.is_dir() {
        let message = format!("{} is not a folder", folder.display());
        return Err(UsageError(message).into());
    }
    command.build();
    let commands = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help");
    let pages = commands.map(|sub| (format!("sluice-{}", sub.get_name()), sub.clone()));
    let pages: Vec<_> = [("sluice".to_owned(), command.clone())]
        .into_iter()
        .chain(pages)
        .collect();
    for (name, command) in pages {
        let mut page = Vec::new();
        let title = name.to_uppercase();
        clap_mangen::Man::new(command)
            .title(title)
            .render(&mut page)
            .with_context(|| format!("cannot make the page {name}"))?;
        let output = OutputFile::create(&folder.join(format!("{name}.1")), true)?;
        output.write_at(0, &page)?;
        output.finish()?;
    }
    Ok(Ending::Done)
}

/// Accepts negative numbers as values, so that errors name the range instead.
pub(super) fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_subcommands(with_negative_numbers);
    command.mut_args(
        |arg| match arg.get_action().takes_values() && !arg.is_positional() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        },
    )
}

/// Lets environment variables with llama.cpp's names set flags that are not given.
pub(super) fn with_environment(command: Command) -> Command {
    // These commands have other flags of the same names, or no counterpart in llama.cpp.
    const OTHERS: [&str; 4] = ["bench", "quantize", "completions", "man"];
    command.mut_subcommands(|sub| {
        if OTHERS.contains(&sub.get_name()) {
            return sub;
        }
        sub.mut_args(|arg| {
            let long = arg.get_long().unwrap_or_default();
            let variable = VARIABLES.iter().find(|(flag, _)| *flag == long);
            // An empty variable counts as unset; but an empty key is an error, or it would open the server.
            let is_empty = |name: &str| {
                name != API_KEY && std::env::var_os(name).is_some_and(|text| text.is_empty())
            };
            match variable {
                Some((_, name)) if arg.get_env().is_none() && !is_empty(name) => {
                    arg.env(name).hide_env_values(true)
                }
                _ => arg,
            }
        })
    })
}

const API_KEY: &str = "LLAMA_API_KEY";

/// Flags and their environment variables in llama.cpp.
const VARIABLES: &[(&str, &str)] = &[
    ("model", "LLAMA_ARG_MODEL"),
    ("predict", "LLAMA_ARG_N_PREDICT"),
    ("ctx-size", "LLAMA_ARG_CTX_SIZE"),
    ("batch-size", "LLAMA_ARG_BATCH"),
    ("ubatch-size", "LLAMA_ARG_UBATCH"),
    ("threads", "LLAMA_ARG_THREADS"),
    ("cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"),
    ("cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"),
    ("no-kv-rotation", "LLAMA_ATTN_ROT_DISABLE"),
    ("load-mode", "LLAMA_ARG_LOAD_MODE"),
    ("numa", "LLAMA_ARG_NUMA"),
    ("temp", "LLAMA_ARG_TEMPERATURE"),
    ("top-k", "LLAMA_ARG_TOP_K"),
    ("top-p", "LLAMA_ARG_TOP_P"),
    ("min-p", "LLAMA_ARG_MIN_P"),
    ("repeat-penalty", "LLAMA_ARG_REPEAT_PENALTY"),
    ("presence-penalty", "LLAMA_ARG_PRESENCE_PENALTY"),
    ("frequency-penalty", "LLAMA_ARG_FREQUENCY_PENALTY"),
    ("spec-type", "LLAMA_ARG_SPEC_TYPE"),
    ("model-draft", "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    ("spec-draft-n-max", "LLAMA_ARG_SPEC_DRAFT_N_MAX"),
    ("spec-draft-n-min", "LLAMA_ARG_SPEC_DRAFT_N_MIN"),
    ("spec-draft-p-min", "LLAMA_ARG_SPEC_DRAFT_P_MIN"),
    ("cache-type-k-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    ("cache-type-v-draft", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    ("host", "LLAMA_ARG_HOST"),
    ("port", "LLAMA_ARG_PORT"),
    ("api-key", API_KEY),
    ("api-key-file", "LLAMA_ARG_API_KEY_FILE"),
    ("alias", "LLAMA_ARG_ALIAS"),
    ("models-dir", "LLAMA_ARG_MODELS_DIR"),
    ("models-max", "LLAMA_ARG_MODELS_MAX"),
    ("models-preset", "LLAMA_ARG_MODELS_PRESET"),
    ("parallel", "LLAMA_ARG_N_PARALLEL"),
    ("timeout", "LLAMA_ARG_TIMEOUT"),
    ("threads-http", "LLAMA_ARG_THREADS_HTTP"),
    ("sse-ping-interval", "LLAMA_ARG_SSE_PING_INTERVAL"),
    ("slot-save-path", "LLAMA_ARG_SLOT_SAVE_PATH"),
    ("cache-ram", "LLAMA_ARG_CACHE_RAM"),
    ("metrics", "LLAMA_ARG_ENDPOINT_METRICS"),
    ("chat-template", "LLAMA_ARG_CHAT_TEMPLATE"),
    ("chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    ("chat-template-kwargs", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
    ("reasoning-format", "LLAMA_ARG_THINK"),
    ("reasoning-budget", "LLAMA_ARG_THINK_BUDGET"),
];
