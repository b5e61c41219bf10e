//! `sluice pull`: a model from Hugging Face into the cache; and `-hf` of the commands that run one.

use super::output::{TextOutput, note};
use super::progress::WorkBar;
use super::{Ending, UsageError};
use anyhow::Context as _;
use clap::Args;
use sluice::core::team::StopFlag;
use sluice::host::interrupt;
use sluice_pull::{Cache, Choice, Hub, Progress, PullError, Pulled, Request, Watch};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice pull ggml-org/gemma-3-1b-it-GGUF
  sluice pull Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_0 --revision main
  sluice pull TinyLlama/TinyLlama-1.1B-Chat-v1.0 --folder

Prints where it lies: the first file of the model, or the folder. Files are kept as huggingface_hub and
llama.cpp keep them, in HF_HUB_CACHE (~/.cache/huggingface/hub). HF_ENDPOINT names another server,
HTTPS_PROXY and NO_PROXY a proxy, SSL_CERT_FILE other certificates than Mozilla's.";

#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// Repository, and the type of its model: Q4_K_M, else Q8_0, else its first one
    #[arg(value_name = "USER/NAME[:QUANT]")]
    repo: String,
    /// File in the repository, or a pattern such as '*Q8_0.gguf', instead of a type [short: -hff]
    #[arg(
        long = "hf-file",
        visible_alias = "file",
        value_name = "PATH",
        env = "LLAMA_ARG_HF_FILE",
        hide_env_values = true
    )]
    file: Option<String>,
    /// Fetch what `sluice convert` reads: safetensors, tokenizer, configuration
    #[arg(long, conflicts_with = "file")]
    folder: bool,
    /// Branch, tag or commit
    #[arg(long, value_name = "NAME", default_value = "main")]
    revision: String,
    #[command(flatten)]
    access: AccessArgs,
}

/// A model on Hugging Face, beside `-m`.
#[derive(Debug, Args)]
pub(super) struct HubArgs {
    /// Model on Hugging Face, fetched where it is not here yet: Q4_K_M, else Q8_0, else its first
    /// [short: -hf]
    #[arg(
        long,
        value_name = "USER/NAME[:QUANT]",
        env = "LLAMA_ARG_HF_REPO",
        hide_env_values = true
    )]
    hf_repo: Option<String>,
    /// File in that repository, or a pattern, instead of a type [short: -hff]
    #[arg(
        long,
        value_name = "PATH",
        env = "LLAMA_ARG_HF_FILE",
        hide_env_values = true
    )]
    hf_file: Option<String>,
    #[command(flatten)]
    access: AccessArgs,
}

impl HubArgs {
    /// Whether a repository is named.
    pub(super) const fn is_named(&self) -> bool {
        self.hf_repo.is_some()
    }

    /// What is asked for.
    ///
    /// # Errors
    /// [`UsageError`]: no name of a repository, or a file of none.
    pub(super) fn repo(&self) -> anyhow::Result<Option<Request>> {
        let Some(repo) = &self.hf_repo else {
            if self.hf_file.is_some() {
                let message = "--hf-file is a file of a repository: -hf USER/NAME";
                return Err(UsageError(message.to_owned()).into());
            }
            return Ok(None);
        };
        let mut request = request(repo)?;
        if let Some(file) = &self.hf_file {
            request.choice = Choice::File(file.clone());
        }
        Ok(Some(request))
    }

    /// The model's file.
    ///
    /// # Errors
    /// [`PullError`].
    pub(super) fn fetch(&self, request: &Request) -> anyhow::Result<PathBuf> {
        let pulled = self.access.fetch(request)?;
        Ok(pulled.files.into_iter().next().unwrap_or(pulled.folder))
    }
}

/// How the hub is reached.
#[derive(Debug, Args)]
pub(super) struct AccessArgs {
    /// Access token; else that of `hf auth login` [short: -hft]
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    hf_token: Option<String>,
    /// Use what is in the cache; ask no server (also HF_HUB_OFFLINE=1)
    #[arg(long, env = "LLAMA_ARG_OFFLINE", hide_env_values = true)]
    offline: bool,
}

pub(super) fn pull(args: &PullArgs) -> anyhow::Result<Ending> {
    let request = request(&args.repo)?;
    let mut request = request.at(&args.revision).map_err(usage)?;
    if args.folder {
        if matches!(request.choice, Choice::Quant(_)) {
            let message = "--folder fetches a whole model: leave the :QUANT out";
            return Err(UsageError(message.to_owned()).into());
        }
        request.choice = Choice::Folder;
    }
    if let Some(file) = &args.file {
        request.choice = Choice::File(file.clone());
    }
    let pulled = args.access.fetch(&request)?;
    let path = match pulled.files.first() {
        Some(first) if !args.folder => first,
        _ => &pulled.folder,
    };
    TextOutput::new().write(&format!("{}\n", path.display()))?;
    Ok(Ending::Done)
}

/// What `-hf` says.
///
/// # Errors
/// [`UsageError`].
fn request(repo: &str) -> anyhow::Result<Request> {
    Ok(Request::parse(repo).map_err(usage)?)
}

fn usage(error: PullError) -> UsageError {
    UsageError(error.to_string())
}

impl AccessArgs {
    /// Fetches what `request` names.
    ///
    /// # Errors
    /// [`PullError`].
    fn fetch(&self, request: &Request) -> anyhow::Result<Pulled> {
        let cache = Cache::from_env()?;
        let hub = match self.is_offline() {
            true => None,
            false => Some(Hub::from_env(self.hf_token.as_deref())?),
        };
        let stop = interrupt::install().context("cannot handle Ctrl-C")?;
        let mut shown = Shown { bar: None, stop };
        Ok(sluice_pull::pull(
            request,
            hub.as_ref(),
            &cache,
            &mut shown,
        )?)
    }

    fn is_offline(&self) -> bool {
        let set = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
        let words = ["1", "on", "yes", "true"];
        self.offline || words.iter().any(|word| set.eq_ignore_ascii_case(word))
    }
}

/// A bar on a terminal, notes on stderr.
struct Shown {
    bar: Option<WorkBar>,
    stop: &'static StopFlag,
}

impl Watch for Shown {
    fn progress(&mut self, progress: Progress) {
        let bar = &mut self.bar;
        let bar = bar.get_or_insert_with(|| WorkBar::of_bytes("fetching", progress.total_bytes));
        bar.update(progress.done_bytes);
    }

    fn note(&mut self, text: &str) {
        note(format_args!("note: {text}"));
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}
