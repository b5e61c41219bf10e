//! `--prompt-cache`: the evaluated prompt stays on disk.

use crate::ui::output::note;
use anyhow::{Context as _, bail};
use clap::Args;
use sluice::file::{FolderKey, SharedFolder};
use sluice::generate::Generator;
use sluice::generate::prompt_cache::PromptCacheProblem;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
#[command(next_help_heading = "Prompt cache")]
pub(crate) struct PromptCacheArgs {
    /// Save the evaluated prompt to this file and reuse it next time
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Save the generated tokens as well
    #[arg(long, requires = "prompt_cache")]
    prompt_cache_all: bool,
    /// Reuse the prompt cache without updating it
    #[arg(long, requires = "prompt_cache")]
    prompt_cache_ro: bool,
}

impl PromptCacheArgs {
    /// Checks the file's folder before a model is loaded.
    ///
    /// # Errors
    /// The folder does not exist, or its key must not be used.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = &self.prompt_cache else {
            return Ok(());
        };
        let folder = path.parent();
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!(
                "cannot write prompt cache {}: its folder does not exist",
                path.display()
            );
        }
        FolderKey::existing(folder).context("a prompt cache needs a key in its folder")?;
        if let Some(shared) = SharedFolder::of(folder) {
            note(format_args!("warning: {shared}"));
        }
        Ok(())
    }

    /// Loads the file, if it exists.
    pub(crate) fn restore(&self, generator: &mut Generator) -> anyhow::Result<()> {
        let Some(path) = &self.prompt_cache else {
            return Ok(());
        };
        let start = Instant::now();
        let shown = path.display();
        let restored = match generator.restore(path) {
            Err(error) if matches!(*error.problem, PromptCacheProblem::Older) => {
                let then = if self.prompt_cache_ro {
                    "it is not used"
                } else {
                    "it is replaced"
                };
                note(format_args!("{error}; {then}"));
                return Ok(());
            }
            result => result?,
        };
        match restored {
            Some(n) => note(format_args!(
                "prompt cache {shown}: {n} tokens in {:.1} ms",
                1e3 * start.elapsed().as_secs_f64()
            )),
            None if self.prompt_cache_ro => {
                note(format_args!("prompt cache {shown} does not exist yet"))
            }
            None => {}
        }
        Ok(())
    }

    /// Whether generated tokens are saved as well.
    pub(crate) const fn keeps_all(&self) -> bool {
        self.prompt_cache_all
    }

    /// Saves the context, or its first `n_prompt` tokens.
    pub(crate) fn save(&self, generator: &mut Generator, n_prompt: usize) -> anyhow::Result<()> {
        let Some(path) = &self.prompt_cache else {
            return Ok(());
        };
        if self.prompt_cache_ro {
            return Ok(());
        }
        if generator.n_shifted() > 0 {
            note(format_args!(
                "prompt cache {} is not written: the context has been shifted",
                path.display()
            ));
            return Ok(());
        }
        if !self.prompt_cache_all {
            generator.truncate(n_prompt.min(generator.tokens().len()))?;
        }
        generator.save(path)?;
        Ok(())
    }
}
