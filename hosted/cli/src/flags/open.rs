//! From a model's path to a model in memory, for `run`, `chat` and `perplexity`.

use crate::flags::embedded;
use crate::flags::engine::EngineArgs;
use crate::flags::experts::{self, ExpertArgs};
use crate::flags::placement::PlacementArgs;
use crate::ui::footer::Setup;
use crate::ui::format;
use crate::ui::output::note;
use crate::ui::progress::LoadBar;
use anyhow::bail;
use core::ops::Deref;
use sluice::core::gguf::Gguf;
use sluice::core::model::{Activation, ModelPlan};
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::Tokenizer;
use sluice::host::topology::Cores;
use sluice::model::{self, LoadError, LoadOptions};
use sluice::{Model, Team};
use std::path::Path;

/// A model's file whose tokenizer has been read, and where it will run.
#[derive(Debug)]
pub(crate) struct LocalModel<'o> {
    file: model::ModelSource,
    pub(crate) cores: Cores,
    placement: &'o PlacementArgs,
    engine: &'o EngineArgs,
}

impl Deref for LocalModel<'_> {
    type Target = model::ModelSource;

    fn deref(&self) -> &model::ModelSource {
        &self.file
    }
}

impl<'o> LocalModel<'o> {
    /// Opens the model at `path`, or the embedded one.
    ///
    /// # Errors
    /// It is not a model that can be run.
    pub(crate) fn open(path: Option<&Path>, engine: &'o EngineArgs) -> anyhow::Result<Self> {
        let file = match path {
            Some(path) => model::ModelSource::open(path, engine.load_mode())?,
            None => model::ModelSource::of_file(embedded::open()?)?,
        };
        Ok(Self {
            file: engine
                .sparse
                .of(&with_activation(&file, engine.activation)?)?,
            cores: engine.placement.cores(engine.locks()),
            placement: &engine.placement,
            engine,
        })
    }

    /// # Errors
    /// The model is an encoder, which cannot continue or predict a text.
    pub(crate) fn check_decoder(&self) -> anyhow::Result<()> {
        if self.embeds() {
            let name = self.name();
            bail!(
                "{name} is an encoder: it computes embeddings (sluice embed) but does not generate text"
            );
        }
        Ok(())
    }

    /// Loads the weights with `n_workers` threads. `None` if `stop` was set meanwhile.
    ///
    /// # Errors
    /// There is not enough memory, or the file is damaged.
    pub(crate) fn load(
        &self,
        n_workers: usize,
        stop: &StopFlag,
    ) -> anyhow::Result<Option<(Model, Team)>> {
        let team = self.placement.team(n_workers, &self.cores)?;
        note_unused(&self.file);
        note_unread(&self.file);
        note_default_rules(self.file.gguf());
        let file_use = FileUse {
            experts: &self.engine.experts,
            tables: self.engine.gather_tables,
            check: self.engine.check_tensors,
        };
        let loaded = load(&self.file, file_use, &team, stop);
        if loaded.is_ok() {
            self.placement.say_memory();
        }
        Ok(loaded?.map(|model| (model, team)))
    }
}

/// The model with another activation, if one is asked for; says so where the file has named its own.
///
/// # Errors
/// Another activation cannot take the place of the model's own.
pub(crate) fn with_activation(
    file: &model::ModelSource,
    activation: Option<Activation>,
) -> anyhow::Result<model::ModelSource> {
    let Some(activation) = activation else {
        return Ok(file.clone());
    };
    let changed = file.with_activation(activation)?;
    if let Some(own) = changed.replaced_activation() {
        let name = file.name();
        note(format_args!(
            "warning: --activation {activation} replaces {own}, the activation of {name}"
        ));
    }
    Ok(changed)
}

/// What stays on disk, and whether the file is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileUse<'o> {
    pub(crate) experts: &'o ExpertArgs,
    /// Whether rows of embeddings stay in the file.
    pub(crate) tables: bool,
    /// Whether all weights are checked first.
    pub(crate) check: bool,
}

/// Loads the weights with a progress bar. `None` if `stop` was set meanwhile.
pub(crate) fn load(
    opened: &model::ModelSource,
    file_use: FileUse<'_>,
    team: &Team,
    stop: &StopFlag,
) -> anyhow::Result<Option<Model>> {
    let mut bar = LoadBar::new();
    let mut progress = |progress| bar.update(progress);
    let options = LoadOptions {
        stop: Some(stop),
        progress: Some(&mut progress),
        experts: file_use.experts.options()?,
        tables_stay: file_use.tables,
        check_tensors: file_use.check,
        ..LoadOptions::default()
    };
    let model = match opened.load_with(team, options) {
        Err(LoadError::Stopped) => return Ok(None),
        loaded => loaded?,
    };
    experts::say(&model);
    Ok(Some(model))
}

impl Setup {
    /// Placed threads.
    pub(crate) fn pinned(team: &Team, isa: &'static str) -> Self {
        Self {
            n_workers: team.count(),
            n_pinned: team.pinned_count(),
            isa,
        }
    }
}

/// Warns that a file from before May 2024 does not name its pre-tokenizer, as llama.cpp does.
fn note_default_rules(gguf: &Gguf<'_>) {
    let text = |key| gguf.str(key).unwrap_or_default();
    if text("tokenizer.ggml.model") == "gpt2" && text("tokenizer.ggml.pre").is_empty() {
        note(format_args!(
            "warning: the file does not name its pre-tokenizer (tokenizer.ggml.pre), so default rules split words, \
             which may not be the model's; set it with `sluice quantize --override-kv`, or convert the model again"
        ));
    }
}

/// Names the tensors that the model does not use, as llama.cpp does: a file may contain more than
/// its architecture needs.
fn note_unused(opened: &model::ModelSource) {
    let (gguf, config) = (opened.gguf(), opened.config());
    let mut names: Vec<_> = gguf.tensors().map(|tensor| Some(tensor.name)).collect();
    let used = ModelPlan::used_tensors(gguf, config, |index| names[index] = None);
    let unused: Vec<_> = names.into_iter().flatten().collect();
    if used.is_err() || unused.is_empty() {
        return;
    }
    note(format_args!(
        "warning: the model does not use {} of the file's tensors: {}",
        unused.len(),
        listed(&unused)
    ));
}

/// Names the metadata keys that are ignored.
fn note_unread(opened: &model::ModelSource) {
    let gguf = opened.gguf();
    let unread = opened.config().unread_keys(gguf);
    let unread: Vec<_> = unread.chain(Tokenizer::unread_keys(gguf)).collect();
    if !unread.is_empty() {
        note(format_args!(
            "warning: unknown metadata keys are ignored: {}",
            listed(&unread)
        ));
    }
}

/// The first few of some names from a file.
fn listed(names: &[&str]) -> String {
    let (first, rest) = names.split_at(names.len().min(NAMES_SHOWN));
    let mut list: Vec<_> = first
        .iter()
        .map(|name| format::shown(name.as_bytes(), 60))
        .collect();
    if !rest.is_empty() {
        list.push(format!("and {} more", rest.len()));
    }
    list.join(", ")
}

const NAMES_SHOWN: usize = 8;
