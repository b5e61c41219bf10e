//! From a model's path to a model in memory: what `run`, `chat` and `perplexity` begin with.

use super::args::EngineArgs;
use super::footer::Setup;
use super::output::note;
use super::placement::PlacementArgs;
use super::progress::LoadBar;
use super::{embedded, format, prompt};
use anyhow::{Context as _, bail};
use sluice::core::gguf::{Gguf, optional};
use sluice::core::model::{Model, ModelConfig, ModelPlan};
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::Tokenizer;
use sluice::file::ModelFile;
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice::load::{LoadError, ModelMemory, load};
use std::path::Path;

/// A model's file, read as far as its tokenizer.
#[derive(Debug)]
pub(super) struct Opened<'o> {
    pub(super) file: &'o ModelFile,
    pub(super) gguf: &'o Gguf<'o>,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: &'o Tokenizer<'o>,
    pub(super) cores: Cores,
    pub(super) placement: &'o PlacementArgs,
}

/// Opens the model at `path`, or the one that is part of the program.
///
/// # Errors
/// It is no model that can be run, or `then` fails.
pub(super) fn with_model<T>(
    path: Option<&Path>,
    engine: &EngineArgs,
    then: impl FnOnce(&Opened<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let file = match path {
        Some(path) => ModelFile::open(path, engine.load_mode())?,
        None => embedded::open()?,
    };
    let gguf = file.parse()?;
    let of_file = || file.name().to_owned();
    check_whole(&gguf).with_context(of_file)?;
    let config = ModelConfig::from_gguf(&gguf).with_context(of_file)?;
    let mut words = prompt::tokenizer_memory(&gguf).with_context(of_file)?;
    let tokenizer = Tokenizer::new(&gguf, &mut words).with_context(of_file)?;
    check_vocabulary(&config, &tokenizer).with_context(of_file)?;
    then(&Opened {
        file: &file,
        gguf: &gguf,
        config,
        tokenizer: &tokenizer,
        cores: engine.placement.cores(engine.locks()),
        placement: &engine.placement,
    })
}

impl Opened<'_> {
    /// # Errors
    /// The model is an encoder, which cannot continue or foresee a text.
    pub(super) fn check_decoder(&self) -> anyhow::Result<()> {
        if !self.config.is_causal {
            let name = self.file.name();
            bail!("{name} is an encoder: it gives embeddings (sluice embed), no text");
        }
        Ok(())
    }

    /// Loads the weights with `n_workers` threads. `None` if `stop` was set meanwhile.
    ///
    /// # Errors
    /// There is no memory, the file is broken, or `then` fails.
    pub(super) fn load<T>(
        &self,
        n_workers: usize,
        stop: &StopFlag,
        then: impl FnOnce(Model<'_>, &mut Workers) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        let mut workers = self.placement.workers(n_workers, &self.cores)?;
        let mut memory = ModelMemory::for_file(self.file, self.gguf, &self.config, n_workers)?;
        note_unused(self.gguf, &self.config);
        let mut bar = LoadBar::new();
        let progress = |progress| bar.update(progress);
        let (file, gguf, config) = (self.file, self.gguf, &self.config);
        let loaded = load(
            file,
            gguf,
            config,
            &mut memory,
            &mut workers,
            stop,
            progress,
        );
        drop(bar);
        match loaded {
            Err(LoadError::Stopped) => Ok(None),
            result => {
                let model = result?;
                self.placement.say_memory();
                then(model, &mut workers).map(Some)
            }
        }
    }
}

impl Setup {
    /// Of workers that were placed.
    pub(super) fn pinned(workers: &Workers, isa: &'static str) -> Self {
        Self {
            n_workers: workers.count(),
            n_pinned: workers.pinned_count(),
            isa,
        }
    }
}

/// A part of a split model lacks tensors that are in the other files.
fn check_whole(gguf: &Gguf<'_>) -> anyhow::Result<()> {
    let n_parts = optional(gguf.u32("split.count"))?.unwrap_or(1);
    if n_parts > 1 {
        bail!(
            "it is one of {n_parts} files of a split model, which cannot be read in parts: \
             llama-gguf-split --merge makes one file of them"
        );
    }
    Ok(())
}

/// Names the tensors that the model does without, as llama.cpp does: a file may hold more than its
/// architecture says.
fn note_unused(gguf: &Gguf<'_>, config: &ModelConfig) {
    let mut names: Vec<_> = gguf.tensors().map(|tensor| Some(tensor.name)).collect();
    let used = ModelPlan::used_tensors(gguf, config, |index| names[index] = None);
    let unused: Vec<_> = names.into_iter().flatten().collect();
    if used.is_err() || unused.is_empty() {
        return;
    }
    let shown = unused.len().min(UNUSED_SHOWN);
    let mut list: Vec<_> = unused[..shown]
        .iter()
        .map(|name| format::shown(name.as_bytes(), 60))
        .collect();
    if shown < unused.len() {
        list.push(format!("and {} more", unused.len() - shown));
    }
    note(format_args!(
        "warning: the model does not use {} of the file's tensors: {}",
        unused.len(),
        list.join(", ")
    ));
}

const UNUSED_SHOWN: usize = 8;

/// Every token that can be read or chosen must have an embedding and a piece.
fn check_vocabulary(config: &ModelConfig, tokenizer: &Tokenizer<'_>) -> anyhow::Result<()> {
    let (rows, tokens) = (config.n_vocab, tokenizer.n_vocab() as usize);
    if rows != tokens {
        bail!("the vocabulary has {tokens} tokens, the embedding {rows} rows");
    }
    Ok(())
}
