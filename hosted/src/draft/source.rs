//! How to draft for a model, set before it is loaded.

use super::{DraftError, DraftModel, HeadDrafter};
use crate::file::LoadMode;
use crate::host::topology::Cores;
use crate::model::{LoadError, LoadOptions, Model, ModelSource};
use crate::session::Limits;
use crate::speculate::{Drafter, SpeculationOptions};
use crate::team::Team;
use sluice_core::kernels::KvType;
use sluice_core::model::ModelConfig;
use sluice_core::speculate::n_draft;
use std::path::PathBuf;

/// The source of drafts for a model, and the limits of drafting.
#[derive(Clone, Debug, Default)]
pub struct SpeculationSetup {
    /// The limits; [`Self::n_max`] replaces their `n_max`.
    pub options: SpeculationOptions,
    /// Maximum draft tokens of a text in a step; `None` for 8, and for 4 where the model is recurrent: its states take
    /// room, and time.
    pub n_max: Option<usize>,
    /// A smaller model.
    pub draft: Option<DraftSource>,
    /// Without a draft model, use the model's own head for further tokens, if its file has one.
    pub head: bool,
}

/// A model that drafts, by its file.
#[derive(Clone, Debug)]
pub struct DraftSource {
    /// Its file.
    pub path: PathBuf,
    /// Its name: `draft-simple`, `draft-self`.
    pub name: &'static str,
    /// Whether it is the model itself with coarser weights, whose likeliest tokens the model's output layer scores
    /// again.
    pub rescores: bool,
    /// Whether the file is mapped or read.
    pub load_mode: LoadMode,
    /// Number of threads; `None` for the model's.
    pub n_threads: Option<usize>,
    /// Context of a text, in tokens; 0 for the model's. Longer texts continue without drafts.
    pub n_ctx: usize,
    /// Type of the keys; `None` for the model's key type.
    pub type_k: Option<KvType>,
    /// Type of the values; `None` for the model's value type.
    pub type_v: Option<KvType>,
}

impl SpeculationSetup {
    /// Room for draft tokens that a session over a model like this is to have ([`Limits::n_draft`]).
    #[must_use]
    pub fn n_draft(&self, config: &ModelConfig) -> usize {
        let default = || n_draft(config.is_recurrent());
        self.n_max.unwrap_or_else(default)
    }

    /// `limits` with the room that drafts take in a session over a model like this.
    #[must_use]
    pub fn limits(&self, file: &ModelSource, limits: Limits) -> Limits {
        let config = file.config();
        let n_batch = if limits.n_batch == 0 {
            512
        } else {
            limits.n_batch
        };
        Limits {
            n_draft: self.n_draft(config),
            // What a head reads are the hidden states of all tokens.
            n_hidden: if self.has_head(file) { n_batch } else { 0 },
            ..limits
        }
    }

    /// Whether a head of the model drafts.
    #[must_use]
    pub fn has_head(&self, file: &ModelSource) -> bool {
        let head = || ModelConfig::next_token_head(file.gguf());
        self.head && self.draft.is_none() && matches!(head(), Ok(Some(_)))
    }

    /// Loads the drafter for `model` in a session with `limits` on `team`: nothing, where texts and tables suffice.
    /// `None` if loading was stopped.
    ///
    /// # Errors
    /// It cannot be loaded, or does not fit the model.
    pub fn load(
        &self,
        model: &Model,
        team: &Team,
        limits: &Limits,
        load: LoadOptions<'_>,
    ) -> Result<Option<Option<Box<dyn Drafter>>>, DraftError> {
        if let Some(source) = &self.draft {
            let draft = source.load(model, team, limits, load)?;
            return Ok(draft.map(|draft| -> Option<Box<dyn Drafter>> { Some(Box::new(draft)) }));
        }
        if limits.n_hidden == 0 {
            return Ok(Some(None));
        }
        match HeadDrafter::new(model, team, limits, load) {
            Err(DraftError::Load(LoadError::Stopped)) => Ok(None),
            head => Ok(Some(
                head?.map(|head| -> Box<dyn Drafter> { Box::new(head) }),
            )),
        }
    }

    /// The options for a session that was made with `limits`.
    #[must_use]
    pub fn options(&self, limits: &Limits) -> SpeculationOptions {
        SpeculationOptions {
            n_max: limits.n_draft,
            ..self.options
        }
    }
}

impl DraftSource {
    /// Loads it, to draft for `target` in a session with `limits` on `team`. `None` if loading was stopped.
    ///
    /// # Errors
    /// It cannot be loaded, or does not fit the model.
    fn load(
        &self,
        target: &Model,
        team: &Team,
        limits: &Limits,
        load: LoadOptions<'_>,
    ) -> Result<Option<DraftModel>, DraftError> {
        let team = match self.n_threads {
            Some(n) => Team::new(n, &Cores::detect()).map_err(DraftError::Threads)?,
            None => team.clone(),
        };
        let opened = ModelSource::open(&self.path, self.load_mode).map_err(DraftError::Open)?;
        let model = match opened.load_with(&team, load) {
            Err(LoadError::Stopped) => return Ok(None),
            loaded => loaded.map_err(DraftError::Load)?,
        };
        let types = limits.types.map(|(k, v)| {
            let k = self.type_k.unwrap_or(k);
            (k, self.type_v.unwrap_or(v))
        });
        let n_ctx = match self.n_ctx {
            0 => limits.n_ctx,
            n => n.saturating_mul(limits.n_seq),
        };
        let limits = Limits {
            n_ctx,
            types,
            ..*limits
        };
        let draft = DraftModel::new(&model, target, &team, &limits, self.name)?;
        let draft = match self.n_ctx {
            0 => draft,
            n => draft.within(n),
        };
        Ok(Some(match self.rescores {
            true => draft.rescoring(),
            false => draft,
        }))
    }
}
