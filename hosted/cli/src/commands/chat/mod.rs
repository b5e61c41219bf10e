//! `sluice chat`: a conversation, typed or piped.

mod command;
mod input;
mod saved;

use crate::flags::adapters::AdapterArgs;
use crate::flags::engine::EngineArgs;
use crate::flags::experts;
use crate::flags::model::ModelArgs;
use crate::flags::open::LocalModel;
use crate::flags::prompt_cache::PromptCacheArgs;
use crate::flags::sampling::SamplingArgs;
use crate::flags::speculation::{self, SpeculationArgs};
use crate::outcome::{Ending, UsageError};
use crate::ui::footer::{self, Setup};
use crate::ui::output::{TextOutput, note, tell};
use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Args, value_parser};
use command::{Command, HELP};
use input::{Input, UserInput};
use sluice::generate::EndReason;
use sluice::host::{interrupt, isa};
use sluice::{Generator, Limits};
use sluice_text::chat::{Chat, ChatError, ChatOptions, TEMPLATES, end_of_turn, template};
use sluice_text::chat_template::{ChatTemplate, RenderOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Set the first message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the first message from a file; - is stdin
    ///
    /// UTF-8. A newline at the end is dropped.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Set the system message [short: -sys]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system_prompt: Option<String>,
    /// Read the system message from a file (UTF-8) [short: -sysf]
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt")]
    system_prompt_file: Option<PathBuf>,
    /// Exit after the first answer [short: -st]
    #[arg(long)]
    single_turn: bool,
    /// Override the model's chat template
    ///
    /// chatml, gemma, llama3, phi3, zephyr, or Jinja text.
    #[arg(long, value_name = "NAME|TEXT")]
    chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Set template variables as JSON: '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    /// Set the maximum number of tokens per answer; -1 is unlimited
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N",
        default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)))]
    n_predict: i64,
    /// When the context is full, stop instead of dropping its older half
    #[arg(long, overrides_with = "context_shift")]
    no_context_shift: bool,
    /// When the context is full, drop its older half (the default)
    #[arg(long)]
    context_shift: bool,
    /// Keep this many tokens at the beginning when the context is shifted
    ///
    /// By default those before the first message.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(0..=1 << 24))]
    keep: Option<u32>,
    /// Let the terminal edit lines: no history, at most 4095 bytes a line
    #[arg(long)]
    simple_io: bool,
    /// Use texts on the command line as written, without replacing escapes
    #[arg(long)]
    no_escape: bool,
    #[command(flatten)]
    prompt_cache: PromptCacheArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
}

impl ChatArgs {
    /// There is one template: the last flag's, or else the environment's.
    pub(super) fn settle_templates(&mut self, given: &clap::ArgMatches) {
        // The position of a flag on the command line, if it is given.
        let place = |name| match given.value_source(name) {
            Some(ValueSource::CommandLine) => given.indices_of(name).and_then(Iterator::max),
            _ => None,
        };
        let (text, file) = (place("chat_template"), place("chat_template_file"));
        if text > file {
            self.chat_template_file = None;
        }
    }
}

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice chat -m model.gguf
  sluice chat -m model.gguf -sys \"Answer in one sentence.\" -p \"What is a panel?\" -st
  echo \"Tell me about dogs\" | sluice chat -m model.gguf --temp 0 > answer.txt

/help in a chat lists its commands. SLUICE_HISTORY sets the history file; empty disables it.";

pub(super) fn chat(args: &ChatArgs) -> anyhow::Result<Ending> {
    let start = Instant::now();
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let settings = args.sampling.settings(!args.no_escape)?;
    args.speculation.check()?;
    args.adapters.check()?;
    args.prompt_cache.check()?;
    let (mut stops, extra) = (args.sampling.stops(!args.no_escape)?, kwargs(args)?);
    let path = args.model.path()?;
    let opened = LocalModel::open(path.as_deref(), &args.engine)?;
    opened.check_decoder()?;
    let (template, name) = own_template(args, &opened)?;
    if let Some(end) = name.and_then(end_of_turn) {
        stops.add(end, false);
    }
    let n_ctx = args.engine.told_n_ctx(opened.config());
    let limits = Limits {
        n_ctx,
        n_batch: args.engine.n_batch().min(n_ctx),
        types: Some(args.engine.cache_types()),
        kv_rotation: !args.engine.no_kv_rotation,
        n_checkpoints: 1,
        table: Some(table),
        ..Limits::default()
    };
    let limits = args.speculation.limits(&opened, limits)?;
    let sampler = args
        .sampling
        .sampler(&settings, opened.tokenizer(), n_ctx)?;
    let options = ChatOptions {
        render: RenderOptions {
            extra,
            ..RenderOptions::default()
        },
        n_predict: usize::try_from(args.n_predict).ok(),
        ignore_eos: settings.ignore_eos,
        shift: !args.no_context_shift,
        keep: args.keep.map(|n| n as usize),
        stops,
    };
    let n_workers = args.engine.n_workers(opened.cores.default_workers());
    let Some((model, team)) = opened.load(n_workers, stop)? else {
        return Ok(Ending::Interrupted);
    };
    model.identify_when_idle(|_| {});
    let setup = Setup::pinned(&team, table.name());
    let mut session = args.adapters.session(&args.engine, &model, &team, limits)?;
    session.set_stop(stop);
    if !args
        .speculation
        .begin(&mut session, args.engine.draft_file(), &limits, stop)?
    {
        return Ok(Ending::Interrupted);
    }
    let mut generator = Generator::new(session, Box::new(sampler))?;
    generator.timings.load = start.elapsed();
    args.prompt_cache.restore(&mut generator)?;
    let mut chat = Chat::new(generator, template, options);
    let ending = converse(args, &mut chat)?;
    let generator = chat.generator();
    let n_tokens = generator.tokens().len();
    args.prompt_cache.save(generator, n_tokens)?;
    generator.timings.total = start.elapsed();
    footer::print(&generator.timings, &setup);
    footer::print_neurons(generator.session().neurons());
    experts::say_end(&model, &setup, &generator.timings);
    speculation::say(generator.session_mut(), false);
    Ok(ending)
}

/// The variables of `--chat-template-kwargs`.
fn kwargs(args: &ChatArgs) -> Result<serde_json::Map<String, serde_json::Value>, UsageError> {
    let Some(text) = &args.chat_template_kwargs else {
        return Ok(serde_json::Map::new());
    };
    serde_json::from_str(text).map_err(|error| {
        UsageError(format!(
            "--chat-template-kwargs: not a JSON object: {error}"
        ))
    })
}

/// The requested template, the model's own, or the most common one; and its name if it is a
/// built-in one.
fn own_template<'a>(
    args: &'a ChatArgs,
    opened: &LocalModel<'_>,
) -> anyhow::Result<(ChatTemplate, Option<&'a str>)> {
    if let Some(path) = &args.chat_template_file {
        let name = path.display();
        let text = crate::ui::input::text("file", path).context("chat template")?;
        let parsed = ChatTemplate::parse(&text);
        return Ok((
            parsed.with_context(|| format!("chat template {name}"))?,
            None,
        ));
    }
    if let Some(text) = &args.chat_template {
        if !text.contains(['{', ' ', '\n']) && template(text).is_none() {
            let names = TEMPLATES.map(|(name, _)| name).join(", ");
            let message = format!(
                "unknown chat template {text:?}: expected {names}, or Jinja text (--chat-template-file reads a file)"
            );
            return Err(UsageError(message).into());
        }
        let parsed = ChatTemplate::parse(template(text).unwrap_or(text))?;
        return Ok((parsed, Some(text)));
    }
    match ChatTemplate::from_gguf(opened.gguf(), None) {
        Err(sluice_text::chat_template::ChatTemplateError::Missing { .. }) => {
            note(format_args!(
                "{} has no chat template; using chatml (--chat-template overrides it)",
                opened.name()
            ));
            let parsed = ChatTemplate::parse(template("chatml").unwrap_or_default())?;
            Ok((parsed, Some("chatml")))
        }
        result => Ok((result.with_context(|| opened.name().to_owned())?, None)),
    }
}

/// A text of the command line, or of a file that errors call `what`.
fn given(
    what: &str,
    text: Option<&String>,
    path: Option<&PathBuf>,
) -> anyhow::Result<Option<String>> {
    let Some(path) = path else {
        return Ok(text.cloned());
    };
    let text = crate::ui::input::text(what, path)?;
    Ok(Some(
        crate::ui::input::without_last_newline(&text).to_owned(),
    ))
}

/// Alternates messages and answers until either side ends.
fn converse(args: &ChatArgs, chat: &mut Chat) -> anyhow::Result<Ending> {
    let mut input = Input::new(args.simple_io);
    let system = given(
        "system prompt",
        args.system_prompt.as_ref(),
        args.system_prompt_file.as_ref(),
    )?;
    chat.set_system(system.as_deref());
    let prompt = given("prompt file", args.prompt.as_ref(), args.file.as_ref())?;
    if input.is_terminal() && prompt.is_none() {
        note(format_args!("/help lists commands, Ctrl-D exits"));
    }
    let mut first = prompt.as_deref();
    let mut interrupted = false;
    // In a script, a failure is visible only in the exit code.
    let mut failed = false;
    loop {
        let given = first.take();
        let heard = match given {
            Some(text) => UserInput::Message(text.to_owned()),
            None => input.next()?,
        };
        let done = if failed { Ending::Failed } else { Ending::Done };
        let line = match heard {
            UserInput::Message(line) => line,
            UserInput::End => return Ok(done),
            UserInput::Interrupted if interrupted => return Ok(Ending::Interrupted),
            UserInput::Interrupted => {
                interrupted = true;
                tell(format_args!("(Ctrl-C again exits)"));
                continue;
            }
        };
        interrupted = false;
        if line.trim().is_empty() {
            continue;
        }
        // A text given by a flag is a message; from a pipe, anything that is not a known command is
        // one.
        let asked = match given {
            Some(_) => None,
            None => Command::parse(&line, input.is_terminal()),
        };
        let turn = match asked {
            None => answer(chat, |chat, each| chat.say(&line, each))?,
            Some(Ok(command)) => obey(chat, command)?,
            Some(Err(problem)) => {
                tell(format_args!("error: {problem}"));
                Turn::Failed
            }
        };
        match turn {
            Turn::Left => return Ok(done),
            Turn::Other => {}
            Turn::Failed => {
                failed |= !input.is_terminal();
                if args.single_turn {
                    return Ok(Ending::Failed);
                }
            }
            Turn::Interrupted => {
                if !input.is_terminal() {
                    return Ok(Ending::Interrupted);
                }
                interrupted = true;
                interrupt::rearm().context("cannot handle Ctrl-C")?;
                input.go_on();
            }
            Turn::Answered if args.single_turn => return Ok(done),
            Turn::Answered => {}
        }
    }
}

/// The result of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Answered,
    Interrupted,
    Other,
    /// It failed, and the error was reported.
    Failed,
    Left,
}

/// Prints an answer as it is generated.
fn answer(
    chat: &mut Chat,
    make: impl FnOnce(&mut Chat, &mut dyn FnMut(&str) -> bool) -> Result<EndReason, ChatError>,
) -> anyhow::Result<Turn> {
    let mut output = TextOutput::new();
    let mut written = Ok(());
    let made = make(chat, &mut |piece| {
        written = output.write(piece);
        written.is_ok() && !output.is_closed()
    });
    written?;
    output.end_line()?;
    let ended = match made {
        Ok(ended) => ended,
        // Errors that the user can correct do not end the chat.
        Err(
            error @ (ChatError::Full { .. }
            | ChatError::Nothing
            | ChatError::Media { .. }
            | ChatError::Encode(_)
            | ChatError::Template(_)),
        ) => {
            tell(format_args!("error: {error}"));
            return Ok(Turn::Failed);
        }
        Err(error) => return Err(error.into()),
    };
    match ended {
        EndReason::Interrupted => {
            tell(format_args!("(stopped; /continue resumes)"));
            return Ok(Turn::Interrupted);
        }
        EndReason::ContextFull => note(format_args!(
            "(the context is full: /clear starts a new conversation, -c sets a larger context)"
        )),
        EndReason::Length => note(format_args!("(limit of -n reached; /continue resumes)")),
        _ if output.is_closed() => return Ok(Turn::Left),
        _ => {}
    }
    Ok(Turn::Answered)
}

fn obey(chat: &mut Chat, command: Command) -> anyhow::Result<Turn> {
    let done = match command {
        Command::Exit => return Ok(Turn::Left),
        Command::Regenerate => return answer(chat, |chat, each| chat.regenerate(each)),
        Command::Continue => return answer(chat, |chat, each| chat.resume(each)),
        Command::Read(path) => match crate::ui::input::text("file", Path::new(&path)) {
            Ok(text) => {
                note(format_args!("({path}: {} bytes)", text.len()));
                return answer(chat, |chat, each| {
                    chat.say(text.trim_end_matches(['\r', '\n']), each)
                });
            }
            Err(error) => Err(error),
        },
        Command::Help => Ok(HELP.to_owned()),
        Command::Clear => {
            chat.clear();
            Ok("(new conversation)".to_owned())
        }
        Command::System(text) => {
            let given = Some(&*text).filter(|text| !text.is_empty());
            chat.set_system(given);
            let what = given.map_or("removed", |_| "set");
            Ok(format!("(the system message is {what})"))
        }
        Command::Tokens => {
            let generator = chat.generator();
            let (n, n_ctx) = (generator.tokens().len(), generator.n_ctx());
            Ok(format!("{n} of {n_ctx} tokens"))
        }
        Command::Save(path) => saved::save(chat, Path::new(&path)),
        Command::Load(path) => saved::load(chat, Path::new(&path)),
    };
    match done {
        Ok(text) => {
            tell(format_args!("{text}"));
            Ok(Turn::Other)
        }
        Err(error) => {
            tell(format_args!("error: {error:#}"));
            Ok(Turn::Failed)
        }
    }
}
