//! The model of a command: a file, a Hugging Face repository, or the embedded one.

use crate::flags::hub::HubArgs;
use crate::outcome::UsageError;
use clap::Args;
use std::path::{Path, PathBuf};

/// A model by path or by repository.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Set the model: a GGUF or .slc file
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The model, as a positional argument.
    #[arg(value_name = "MODEL", hide = true)]
    bare: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArgs,
}

impl ModelArgs {
    /// The path of the model's file, downloaded if necessary; `None` if no model is named.
    ///
    /// # Errors
    /// Two models are named, or the download fails.
    pub(crate) fn path(&self) -> anyhow::Result<Option<PathBuf>> {
        let flag = self.model.as_deref().filter(|path| !self.is_default(path));
        match (flag, &self.bare, self.hub.repo()?) {
            (Some(path), None, None) => Ok(Some(path.to_path_buf())),
            (None, Some(path), None) => Ok(Some(path.clone())),
            (None, None, Some(request)) => Ok(Some(self.hub.fetch(&request)?)),
            (None, None, None) => Ok(self.model.clone()),
            _ => {
                let message =
                    "several models are named: use only one of -m FILE, FILE, or -hf USER/NAME";
                Err(UsageError(message.to_owned()).into())
            }
        }
    }

    /// The path of the model's file, for a command without a default model.
    ///
    /// # Errors
    /// As [`path`](Self::path), or no model is named.
    pub(crate) fn required(&self) -> anyhow::Result<PathBuf> {
        let missing = || UsageError("no model is named: use -m FILE or -hf USER/NAME".to_owned());
        Ok(self.path()?.ok_or_else(missing)?)
    }

    /// Whether a model is named.
    pub(crate) fn is_named(&self) -> bool {
        self.model.is_some() || self.bare.is_some() || self.hub.is_named()
    }

    /// The environment variable applies if no other model is named.
    fn is_default(&self, path: &Path) -> bool {
        let is_other = self.bare.is_some() || self.hub.is_named();
        is_other && std::env::var_os("LLAMA_ARG_MODEL").is_some_and(|set| path == Path::new(&set))
    }
}
