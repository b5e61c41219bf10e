//! Which model a command is about: a file, one on Hugging Face, or the one in the program.

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
    /// The model, without a flag
    #[arg(value_name = "MODEL", hide = true)]
    bare: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArgs,
}

impl ModelArgs {
    /// The model's file, fetched where it is not here yet; `None` if none is named.
    ///
    /// # Errors
    /// Two are named, or one cannot be fetched.
    pub(crate) fn path(&self) -> anyhow::Result<Option<PathBuf>> {
        let flag = self.model.as_deref().filter(|path| !self.is_default(path));
        match (flag, &self.bare, self.hub.repo()?) {
            (Some(path), None, None) => Ok(Some(path.to_path_buf())),
            (None, Some(path), None) => Ok(Some(path.clone())),
            (None, None, Some(request)) => Ok(Some(self.hub.fetch(&request)?)),
            (None, None, None) => Ok(self.model.clone()),
            _ => {
                let message =
                    "more than one model is named: use one of -m FILE, FILE, or -hf USER/NAME";
                Err(UsageError(message.to_owned()).into())
            }
        }
    }

    /// The model's file, of a command that has none by itself.
    ///
    /// # Errors
    /// As [`path`](Self::path), and none is named.
    pub(crate) fn required(&self) -> anyhow::Result<PathBuf> {
        let missing = || UsageError("a model is needed: -m FILE or -hf USER/NAME".to_owned());
        Ok(self.path()?.ok_or_else(missing)?)
    }

    /// Whether a model is named at all.
    pub(crate) fn is_named(&self) -> bool {
        self.model.is_some() || self.bare.is_some() || self.hub.is_named()
    }

    /// The variable's model is taken where no other is named.
    fn is_default(&self, path: &Path) -> bool {
        let is_other = self.bare.is_some() || self.hub.is_named();
        is_other && std::env::var_os("LLAMA_ARG_MODEL").is_some_and(|set| path == Path::new(&set))
    }
}
