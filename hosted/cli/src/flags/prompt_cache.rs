//! `--prompt-cache`: the evaluated prompt stays on disk.

use crate::ui::output::note;
use anyhow::bail;
use clap::Args;
use sluice::generate::Generator;
use std::path::PathBuf;
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
    /// Checks that the file's folder exists before a model is loaded.
    ///
    /// # Errors
    /// The folder does not exist.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(path) = &self.prompt_cache else {
            return Ok(());
        };
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| !folder.is_dir()) {
            bail!(
                "cannot write prompt cache {}: its folder does not exist",
                path.display()
            );
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
        match generator.restore(path)? {
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
