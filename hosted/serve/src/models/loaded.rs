//! A model in memory, with everything that requests need of it.

use super::Entry;
use super::options::{Listed, ModelsOptions};
use crate::api::NotLoaded;
use crate::chat::prompt::Prompts;
use crate::engine::{EngineHandle, ModelId, ModelOptions, reads_whole};
use crate::metrics::Metrics;
use sluice::draft::SpeculationSetup;
use sluice::embed::EmbedOptions;
use sluice::experts::policy::EvictionPolicy;
use sluice::experts::{ExpertError, ExpertOptions};
use sluice::host::topology::Cores;
use sluice::model::{LoadError, LoadOptions, ModelSource, OpenError};
use sluice::session::SessionError;
use sluice::speculate::Drafter;
use sluice::{Limits, Model, Team};
use sluice_core::kernels::contract::CONTRACT_VERSION;
use sluice_core::model::LongRope;
use sluice_core::pooling::Pooling;
use sluice_core::team::StopFlag;
use sluice_text::grammar::Vocabulary;
use std::sync::{Arc, OnceLock};

/// A model that is ready for requests.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(super) id: ModelId,
    name: String,
    model: Model,
    limits: Limits,
    prompts: Prompts,
    pooling: Pooling,
    fingerprint: String,
    metrics: Arc<Metrics>,
    speculates: bool,
    /// The vocabulary prepared for grammars, on first use; or why that is not possible.
    vocabulary: OnceLock<Result<Vocabulary, String>>,
}

/// Why a model was not loaded.
#[derive(Debug)]
pub(super) struct LoadFailure {
    pub(super) message: String,
    /// There was not enough memory: it may help to unload another model.
    pub(super) is_memory: bool,
}

impl LoadFailure {
    /// The failure as requests for the model meet it.
    pub(super) fn told(self) -> NotLoaded {
        let shown = match self.is_memory {
            true => "there is not enough memory for it",
            false => "the server's log says why",
        };
        NotLoaded {
            shown,
            whole: self.message,
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.count_experts();
    }
}

impl Loaded {
    /// Loads a model, whose file may already be open, and adds it to the engine. Takes seconds.
    pub(super) fn load(
        listed: &Listed,
        opened: Option<ModelSource>,
        options: &ModelsOptions,
        engine: &EngineHandle,
        team: &Team,
        entry: &Entry,
        stop: &StopFlag,
    ) -> Result<Self, LoadFailure> {
        let opened = match opened {
            Some(opened) => opened,
            None => options.open_file(&listed.path).map_err(of_open)?,
        };
        let is_first = options
            .named
            .first()
            .is_some_and(|first| first.path == listed.path);
        let load = load_options(options, &opened, is_first, stop);
        let model = load.and_then(|load| opened.load_with(team, load));
        let model = model.map_err(|error| LoadFailure {
            is_memory: matches!(
                error,
                LoadError::Memory { .. } | LoadError::Experts(ExpertError::Memory(_))
            ),
            message: error.to_string(),
        })?;
        let plain = |message: String| LoadFailure {
            message: format!("{}: {message}", opened.name()),
            is_memory: false,
        };
        let prompts = Prompts::new(&model, options.chat_template.as_deref()).map_err(plain)?;
        let speculation = options.speculation.clone().map(|all| SpeculationSetup {
            draft: all.draft.filter(|_| is_first),
            ..all
        });
        let speculation = speculation.filter(|_| !opened.embeds());
        let limits = Limits {
            adapter_rank: options.adapters.rank,
            adapter_kinds: options.adapters.precision.kinds(),
            ..limits_of(&opened, &options.limits)
        };
        let limits = match &speculation {
            Some(all) => all.limits(&opened, limits),
            None => limits,
        };
        let load = LoadOptions {
            stop: Some(stop),
            check_tensors: options.check_tensors,
            ..LoadOptions::default()
        };
        let drafter = match &speculation {
            Some(all) => draft(all, &model, team, &limits, load)?,
            None => None,
        };
        let added = engine.add(ModelOptions {
            model: model.clone(),
            limits,
            metrics: Arc::clone(&entry.metrics),
            parked: entry.parked(),
            speculation: speculation.as_ref().map(|all| all.options(&limits)),
            drafter,
        });
        let own = || EmbedOptions::of(&opened).pooling;
        let id = added.map_err(|error| LoadFailure {
            is_memory: matches!(error, SessionError::Memory { .. }),
            message: format!("{}: {error}", opened.name()),
        })?;
        Ok(Self {
            id,
            name: listed.name.clone(),
            limits,
            prompts,
            pooling: options.pooling.unwrap_or_else(own),
            fingerprint: format!("{}-c{CONTRACT_VERSION}", model.fingerprint()),
            metrics: Arc::clone(&entry.metrics),
            speculates: limits.n_draft > 0 && !model.embeds(),
            model,
            vocabulary: OnceLock::new(),
        })
    }

    pub(crate) const fn id(&self) -> ModelId {
        self.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn model(&self) -> &Model {
        &self.model
    }

    /// Whether the model speculates.
    pub(crate) const fn speculates(&self) -> bool {
        self.speculates
    }

    /// Maximum number of texts at once.
    pub(crate) const fn n_seq(&self) -> usize {
        self.limits.n_seq
    }

    /// Maximum number of tokens of all texts together, and of a single text if there are no others.
    pub(crate) const fn n_ctx(&self) -> usize {
        self.limits.n_ctx
    }

    /// The limits of its texts.
    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) const fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// The vocabulary prepared for grammars.
    pub(crate) fn vocabulary(&self) -> Result<&Vocabulary, String> {
        let make = || Vocabulary::new(self.model.tokenizer()).map_err(|error| error.to_string());
        self.vocabulary
            .get_or_init(make)
            .as_ref()
            .map_err(Clone::clone)
    }

    pub(crate) const fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Equal for equal weights and rules of arithmetic: equal requests then have equal answers.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Updates the metrics of experts on disk.
    pub(super) fn count_experts(&self) {
        if let Some(experts) = self.model.experts() {
            self.metrics.experts(self.id.0, &experts.stats());
        }
    }

    /// Warns of a context that is longer than the model knows.
    pub(super) fn say_context(&self, log: &crate::Log) {
        let (trained, n_ctx) = (self.model.config().n_ctx_train, self.limits.n_ctx);
        if n_ctx > trained {
            log(&format!(
                "model {:?}: warning: a text may take all of -c {n_ctx}, but the model was trained on contexts of only \
                 {trained} tokens",
                self.name
            ));
        }
    }

    /// Warns of options that have no effect on this model.
    pub(super) fn say_without_effect(&self, options: &ModelsOptions, log: &crate::Log) {
        let warn = |what: &str| log(&format!("model {:?}: warning: {what}", self.name));
        if options.experts.is_some() && self.model.experts().is_none() {
            warn(
                "--expert-cache has no effect: it has neither experts nor cold neurons to keep on disk",
            );
        }
        if let Some(own) = self.model.replaced_activation() {
            warn(&format!(
                "--activation replaces {own}, the activation of the file"
            ));
        }
        if options.limits.longrope != LongRope::ByLength && !self.model.weights().has_long() {
            warn("--longrope has no effect: it has one set of rotary divisors");
        }
        let why_not = self.model.config().why_not_remove();
        if let Some(reason) = why_not.filter(|_| options.context_shift) {
            warn(&format!(
                "--context-shift has no effect: it {reason}, and answers end when the context is full"
            ));
        }
    }

    /// Logs how its experts are read, and any problems with that.
    pub(super) fn say_experts(&self, log: &crate::Log) {
        let name = &self.name;
        let Some(experts) = self.model.experts() else {
            return;
        };
        let (stats, mib) = (experts.stats(), |bytes: u64| bytes.div_ceil(1 << 20));
        log(&format!(
            "model {name:?}: {}: {} of {} in memory ({} of {} MiB), read by {}",
            experts.noun(),
            stats.n_slots,
            stats.n_experts,
            mib(experts.memory_bytes() as u64),
            mib(experts.total_bytes()),
            experts.io_name(),
        ));
        for text in experts.notes() {
            log(&format!("model {name:?}: warning: {text}"));
        }
        if reads_whole(&self.model) && !self.model.embeds() {
            log(&format!(
                "model {name:?}: prompts are processed {} tokens at a time (-ub) regardless of --turn-ms, so that \
                 each expert is read once per step",
                match self.limits.n_batch {
                    0 => 512,
                    n => n,
                }
            ));
        }
    }
}

/// The options that apply to any model: copies, profiles and traces belong to one model.
fn of_any(options: ExpertOptions) -> ExpertOptions {
    ExpertOptions {
        policy: match options.policy {
            EvictionPolicy::Static => EvictionPolicy::default(),
            policy => policy,
        },
        profile: None,
        dirs: Vec::new(),
        trace: None,
        ..options
    }
}

/// How the weights of `opened` are loaded.
fn load_options<'s>(
    options: &ModelsOptions,
    opened: &ModelSource,
    is_first: bool,
    stop: &'s StopFlag,
) -> Result<LoadOptions<'s>, LoadError> {
    let mut experts = options.experts.clone();
    if experts.is_some() && !opened.can_stay_on_disk()? {
        experts = None;
    }
    Ok(LoadOptions {
        stop: Some(stop),
        experts: experts.map(|all| if is_first { all } else { of_any(all) }),
        tables_stay: options.tables_stay,
        check_tensors: options.check_tensors,
        ..LoadOptions::default()
    })
}

/// The model, or the head, that drafts for `target`.
fn draft(
    speculation: &SpeculationSetup,
    target: &Model,
    team: &Team,
    limits: &Limits,
    load: LoadOptions<'_>,
) -> Result<Option<Box<dyn Drafter>>, LoadFailure> {
    let path = speculation
        .draft
        .as_ref()
        .map(|source| source.path.display());
    let loaded = speculation.load(target, team, limits, load);
    let loaded = loaded.map_err(|error| LoadFailure {
        is_memory: error.is_memory(),
        message: path.map_or_else(|| error.to_string(), |path| format!("{path}: {error}")),
    })?;
    Ok(loaded.flatten())
}

/// Defaults the context to the model's own length; encoders always keep theirs.
fn limits_of(opened: &ModelSource, asked: &Limits) -> Limits {
    let mut limits = *asked;
    let trained = opened.config().n_ctx_train.max(1);
    if opened.embeds() {
        limits.n_ctx = trained;
        limits.n_batch = 0;
        limits.types = None;
    } else if limits.n_ctx == 0 {
        limits.n_ctx = trained;
    }
    limits
}

/// Threads that load a model while requests run on `team`. There are as many, since the weights are laid out for that
/// number, but they are not the team's own, because running requests would have to wait.
pub(super) fn loading_team(team: &Team) -> std::io::Result<Team> {
    let options = sluice::host::placement::WorkerOptions {
        bind: sluice::host::placement::Bind::Together,
        poll: 0,
        ..Default::default()
    };
    Team::with_options(team.count(), &Cores::detect(), options)
}

fn of_open(error: OpenError) -> LoadFailure {
    LoadFailure {
        message: error.to_string(),
        is_memory: false,
    }
}
