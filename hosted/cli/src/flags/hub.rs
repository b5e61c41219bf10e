//! A model on Hugging Face: `-hf` and how the hub is reached.

use crate::outcome::UsageError;
use crate::ui::output::note;
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use clap::Args;
use sluice::core::team::StopFlag;
use sluice::file::HashRecords;
use sluice::host::interrupt;
use sluice::identity::Identity;
use sluice_pull::{FileChoice, HubAccess, Progress, PullError, PullRequest, PulledFiles, Watch};
use std::path::{Path, PathBuf};

/// A model on Hugging Face, as an alternative to `-m`.
#[derive(Debug, Args)]
pub(crate) struct HubArgs {
    /// Use a model from Hugging Face [short: -hf]
    ///
    /// It is downloaded unless it is in the cache. QUANT is the type of its weights: by default Q4_K_M, else
    /// Q8_0, else the first one.
    #[arg(
        long,
        value_name = "USER/NAME[:QUANT]",
        env = "LLAMA_ARG_HF_REPO",
        hide_env_values = true
    )]
    hf_repo: Option<String>,
    /// Use this file or pattern, not a quantization [short: -hff]
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
    pub(crate) const fn is_named(&self) -> bool {
        self.hf_repo.is_some()
    }

    /// The requested repository.
    ///
    /// # Errors
    /// [`UsageError`]: an invalid repository name, or a file without a repository.
    pub(crate) fn repo(&self) -> anyhow::Result<Option<PullRequest>> {
        let Some(repo) = &self.hf_repo else {
            if self.hf_file.is_some() {
                let message = "--hf-file requires a repository: -hf USER/NAME";
                return Err(UsageError(message.to_owned()).into());
            }
            return Ok(None);
        };
        let mut request = request(repo)?;
        if let Some(file) = &self.hf_file {
            request.choice = FileChoice::File(file.clone());
        }
        Ok(Some(request))
    }

    /// How the hub is reached.
    pub(crate) fn access(&self) -> HubAccess {
        self.access.options()
    }

    /// The model's file.
    ///
    /// # Errors
    /// [`PullError`].
    pub(crate) fn fetch(&self, request: &PullRequest) -> anyhow::Result<PathBuf> {
        Ok(self.access.fetch(request)?.into_model())
    }
}

/// How the hub is reached.
#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    /// Set the access token [short: -hft]
    ///
    /// By default the one stored by `hf auth login`.
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    hf_token: Option<String>,
    /// Use only cached downloads (also HF_HUB_OFFLINE=1)
    #[arg(long, env = "LLAMA_ARG_OFFLINE", hide_env_values = true)]
    offline: bool,
}

/// The request of `-hf`.
///
/// # Errors
/// [`UsageError`].
pub(crate) fn request(repo: &str) -> anyhow::Result<PullRequest> {
    Ok(PullRequest::parse(repo).map_err(usage)?)
}

pub(crate) fn usage(error: PullError) -> UsageError {
    UsageError(error.to_string())
}

impl AccessArgs {
    /// Downloads what `request` names.
    ///
    /// # Errors
    /// [`PullError`].
    pub(crate) fn fetch(&self, request: &PullRequest) -> anyhow::Result<PulledFiles> {
        let stop = interrupt::install().context("cannot handle Ctrl-C")?;
        let mut shown = Shown { bar: None, stop };
        Ok(self.options().fetch(request, &mut shown)?)
    }

    fn options(&self) -> HubAccess {
        HubAccess {
            token: self.hf_token.clone(),
            offline: self.offline,
            ..HubAccess::default()
        }
    }
}

/// A progress bar on a terminal, and notes on stderr.
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

    fn received(&mut self, path: &Path, sha256: [u8; 32]) {
        HashRecords::note(path, Identity(sha256));
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}
