//! The flags of `sluice run`, and its prompt.

use super::prompts::PromptsArgs;
use crate::flags::adapters::AdapterArgs;
use crate::flags::embedded::DEFAULT_PROMPT;
use crate::flags::engine::EngineArgs;
use crate::flags::model::ModelArgs;
use crate::flags::prompt::unescaped;
use crate::flags::prompt_cache::PromptCacheArgs;
use crate::flags::sampling::SamplingArgs;
use crate::flags::speculation::SpeculationArgs;
use crate::ui::input;
use crate::ui::output::note;
use clap::{Args, value_parser};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Set the text to continue
    ///
    /// An empty text starts from the beginning-of-sequence token.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Read the text to continue from a file; - is stdin
    ///
    /// UTF-8. A newline at the end is dropped, and escapes are replaced unless --no-escape is given.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) prompts: PromptsArgs,
    /// Replace \n, \r, \t, \', \", \\ and \xHH in the prompt (the default)
    #[arg(short, long)]
    pub(crate) escape: bool,
    /// Use the prompt as written, without replacing escapes
    #[arg(long, conflicts_with = "escape")]
    pub(crate) no_escape: bool,
    /// Set the number of tokens to generate; -1 is unlimited
    ///
    /// Unlimited generation ends when the model ends the text or the context is full.
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N",
        default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    pub(crate) n_predict: i64,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// When the context is full, drop its older half and continue
    #[arg(long, overrides_with = "no_context_shift")]
    pub(crate) context_shift: bool,
    /// When the context is full, end the text (the default)
    #[arg(long)]
    pub(crate) no_context_shift: bool,
    /// Keep this many prompt tokens when the context is shifted; -1 keeps all
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 24))]
    pub(crate) keep: i64,
    #[command(flatten)]
    pub(crate) prompt_cache: PromptCacheArgs,
    /// Print only the generated text
    #[arg(long, overrides_with = "display_prompt")]
    pub(crate) no_display_prompt: bool,
    /// Print the prompt as well (the default)
    #[arg(long)]
    pub(crate) display_prompt: bool,
    /// Print one JSON object with text and timings at the end
    #[arg(long, conflicts_with = "logprobs")]
    pub(crate) json: bool,
    /// Print the time per operator
    #[arg(long)]
    pub(crate) profile: bool,
}

/// The text to continue, with the escapes that llama.cpp's `-e` processes.
///
/// # Errors
/// The prompt file cannot be read or is not UTF-8, or escapes do not produce UTF-8.
pub(super) fn text(args: &RunArgs) -> anyhow::Result<String> {
    let text = written(args)?;
    Ok(unescaped("the prompt", &text, !args.no_escape)?)
}

/// The prompt as it was written.
fn written(args: &RunArgs) -> anyhow::Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if let Some(path) = &args.file {
        let text = input::text("prompt file", path)?;
        return Ok(input::without_last_newline(&text).to_owned());
    }
    // The built-in story does not read stdin.
    if args.model.is_named() && input::is_piped() {
        note(format_args!("reading the prompt from stdin"));
        let text = input::stdin()?;
        return Ok(input::without_last_newline(&text).to_owned());
    }
    let default = if args.model.is_named() {
        ""
    } else {
        DEFAULT_PROMPT
    };
    Ok(default.to_owned())
}
