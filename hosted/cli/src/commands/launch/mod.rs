//! `sluice launch`: runs a client with a server.

mod clients;
mod http;
mod server;
mod signals;

use crate::outcome::{Ending, UsageError};
use crate::ui::output::{TextOutput, note, tell};
use anyhow::{Context as _, anyhow};
use clap::{Args, value_parser};
use clients::{Client, Setting, Target};
use core::time::Duration;
use rustix::process::{Pid, Signal, kill_process};
use server::{Offered, Started, choose, free_port, model_flags, models};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The client: claude, codex, opencode or goose
    #[arg(value_name = "CLIENT")]
    client: Client,
    /// Set the model: a served name, a file, or a Hugging Face USER/NAME[:QUANT]
    ///
    /// By default the first one of the server that is in memory.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// Use the server at this address
    ///
    /// By default the one at --port, if there is one that has the model.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Set the server's port
    ///
    /// A free one is taken if another program has it.
    #[arg(long, value_name = "N", default_value_t = 8080, value_parser = value_parser!(u16).range(1..))]
    port: u16,
    /// Set the server's key
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Set a started server's context size; 0 is the model's own
    #[arg(short, long, value_name = "N", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=1 << 24))]
    ctx_size: u32,
    /// Print what would be set and run, and start nothing
    #[arg(long)]
    print: bool,
    /// Arguments of the client
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice launch claude -m model.gguf
  sluice launch codex -m unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M -- exec \"Fix the tests\"
  sluice launch opencode --url http://127.0.0.1:8080
  sluice launch goose -m model.gguf --print

A server that is there is used if it has the model, and left alone afterwards. Otherwise one is started, with the
variables LLAMA_ARG_… of `sluice serve`, and stopped when the client ends. The exit code is the client's.";

/// The server of a client.
enum Place {
    /// One that is there.
    Found(Target),
    /// One to be started, on a port.
    New { port: u16, flags: Vec<OsString> },
}

pub(super) fn launch(args: &LaunchArgs) -> anyhow::Result<Ending> {
    let client = args.client;
    let program = program(client.program());
    if args.print {
        return print(args, program.unwrap_or_else(|| client.program().into()));
    }
    let missing = || {
        anyhow!(
            "{} is not installed: {}",
            client.program(),
            client.install()
        )
    };
    let program = program.ok_or_else(missing)?;
    signals::install()?;
    let key = args.api_key.as_deref();
    let (target, started) = match place(args)? {
        Place::Found(target) => (target, None),
        Place::New { port, flags } => {
            note(format_args!("starting a server on port {port}"));
            let mut started = Started::new(port, &flags, key)?;
            if !started.wait()? {
                return Ok(Ending::Interrupted);
            }
            let all = models(&started.url, key)?.unwrap_or_default();
            let model = choose(&all, None).context("the server has no model")?;
            (args.target(started.url.clone(), model), Some(started))
        }
    };
    check_context(client, &target);
    let ended = run(program, &client.setting(&target), &args.args);
    drop(started);
    ended.map(|status| Ending::Code(code(status)))
}

impl LaunchArgs {
    fn target(&self, url: String, model: &Offered) -> Target {
        Target {
            url,
            model: model.name.clone(),
            n_ctx: model.n_ctx,
            key: self.api_key.clone(),
        }
    }
}

/// Finds the server, or what to start.
fn place(args: &LaunchArgs) -> anyhow::Result<Place> {
    let url = args.url.clone();
    let url = url.unwrap_or_else(|| format!("http://127.0.0.1:{}", args.port));
    let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let found = match models(&url, args.api_key.as_deref()) {
        // Another program has the port, and there is something to start elsewhere.
        Err(_) if args.url.is_none() && args.model.is_some() => None,
        found => found?,
    };
    let Some(all) = found else {
        return match (&args.model, &args.url) {
            (_, Some(url)) => Err(anyhow!("{url}: no server answers there")),
            (Some(model), None) => new(args, model),
            (None, None) => {
                let message = format!(
                    "no server answers at {url}: name a model to start one, -m FILE or -m USER/NAME"
                );
                Err(UsageError(message).into())
            }
        };
    };
    let asked = args.model.as_deref();
    if let Some(model) = choose(&all, asked) {
        return Ok(Place::Found(args.target(url, model)));
    }
    match (asked, &args.url) {
        (Some(model), None) if model_flags(model).is_ok() => new(args, model),
        (Some(model), _) => {
            let names: Vec<_> = all.iter().map(|one| &*one.name).collect();
            Err(anyhow!(
                "{url}: no model {model:?}; available: {}",
                names.join(", ")
            ))
        }
        (None, _) => Err(anyhow!(
            "{url}: the server has no model: start it with -m FILE"
        )),
    }
}

fn new(args: &LaunchArgs, model: &str) -> anyhow::Result<Place> {
    let model = model_flags(model)?;
    let port = free_port(args.port)?;
    let mut flags: Vec<OsString> = vec!["serve".into()];
    flags.extend(model);
    // Clients invent names for side tasks.
    flags.push("--any-model".into());
    for (flag, value) in [
        ("--host", "127.0.0.1".to_owned()),
        ("--port", port.to_string()),
        ("--ctx-size", args.ctx_size.to_string()),
    ] {
        flags.extend([flag.into(), value.into()]);
    }
    Ok(Place::New { port, flags })
}

fn check_context(client: Client, target: &Target) {
    let min = client.n_ctx_min();
    if let Some(n_ctx) = target.n_ctx.filter(|&n_ctx| n_ctx < min) {
        tell(format_args!(
            "warning: {:?} has a context of {n_ctx} tokens; {} needs about {min} for its own prompt and some turns",
            target.model,
            client.program()
        ));
    }
}

/// Prints what would be run, as lines of a shell.
fn print(args: &LaunchArgs, program: PathBuf) -> anyhow::Result<Ending> {
    let mut text = String::new();
    let target = match place(args)? {
        Place::Found(target) => target,
        Place::New { port, flags } => {
            let flags: Vec<_> = flags
                .iter()
                .map(|flag| quoted(&flag.to_string_lossy()))
                .collect();
            text += &format!("sluice {} &\n", flags.join(" "));
            let model = args.model.clone().unwrap_or_default();
            let file = PathBuf::from(&model);
            let stem = file.file_stem().filter(|_| file.is_file());
            Target {
                url: format!("http://127.0.0.1:{port}"),
                model: stem.map_or(model, |stem| stem.to_string_lossy().into_owned()),
                n_ctx: Some(u64::from(args.ctx_size)).filter(|&n| n > 0),
                key: args.api_key.clone(),
            }
        }
    };
    let setting = args.client.setting(&target);
    for name in setting.removed {
        text += &format!("unset {name}\n");
    }
    for (name, value) in &setting.set {
        text += &format!("export {name}={}\n", quoted(value));
    }
    let own = args
        .args
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned());
    let words = [program.to_string_lossy().into_owned()].into_iter();
    let words = words.chain(setting.args).chain(own);
    let words: Vec<_> = words.map(|word| quoted(&word)).collect();
    text += &(words.join(" ") + "\n");
    let mut output = TextOutput::new();
    output.write(&text)?;
    Ok(Ending::Done)
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The program of this name in the folders of PATH.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| {
        rustix::fs::access(place, rustix::fs::Access::EXEC_OK).is_ok() && place.is_file()
    })
}

/// Runs the client and waits for it.
fn run(program: PathBuf, setting: &Setting, args: &[OsString]) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new(&program);
    for name in setting.removed {
        command.env_remove(name);
    }
    let set = setting.set.iter().map(|(name, value)| (*name, value));
    command.envs(set).args(&setting.args).args(args);
    let mut child = command
        .spawn()
        .with_context(|| program.display().to_string())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(signal) = signals::take_end() {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
            if let Some(pid) = pid {
                let _sent = kill_process(pid, signal);
            }
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A client's exit code, as shells have it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
