//! Heads that predict a token further, which some models have after their layers (multi-token prediction).
#![forbid(unsafe_code)]

use crate::experts::HeadExperts;
use crate::head::Heads;
use crate::identity::ModelIdentity;
use crate::load::{
    LoadError, ModelMemory, ModelPart, WeightsSource, load_from, load_head_in_place,
};
use crate::model::{LoadOptions, Model};
use crate::owned::Owned;
use crate::team::Team;
use sluice_core::model::{ModelConfig, ModelPlan, Residency};
use sluice_core::team::StopFlag;
use std::sync::Arc;

impl Model {
    /// The head of this model that predicts a token further, loaded with all threads of `team`: a model of one
    /// layer with a state of its own, for draft tokens. `None` if the file has none.
    ///
    /// Its steps take, with each token, the hidden state of this model before that token, or the head's own before it
    /// ([`StepHooks::hidden`](crate::session::StepHooks::hidden)). Positions of its sequences begin at 0. It
    /// shares this model's embedding and output layer, unless the file has others for it, and keeps the model in
    /// memory. Its experts stay on disk if this model's do, and share their cache.
    ///
    /// # Errors
    /// [`LoadError`]; also for heads of an architecture that does not support them.
    pub fn next_token_head(&self, team: &Team) -> Result<Option<Self>, LoadError> {
        self.next_token_head_with(team, LoadOptions::default())
    }

    /// As [`Self::next_token_head`], with a stop flag and progress.
    ///
    /// # Errors
    /// As [`Self::next_token_head`], and [`LoadError::Stopped`].
    pub fn next_token_head_with(
        &self,
        team: &Team,
        options: LoadOptions<'_>,
    ) -> Result<Option<Self>, LoadError> {
        let unusable = |error| LoadError::unusable(self.name(), error);
        let config = ModelConfig::next_token_head(self.gguf()).map_err(unusable)?;
        // A head does not have a further one.
        let Some(config) = config.filter(|_| self.config().next_token.is_none()) else {
            return Ok(None);
        };
        let (none, mut ignored) = (StopFlag::new(), |_| {});
        let stop = options.stop.unwrap_or(&none);
        let progress = options.progress.unwrap_or(&mut ignored);
        let in_place = self.is_in_place && options.source.is_none();
        let slc = match in_place {
            true => self.file().slc()?,
            false => None,
        };
        let store = self.experts.as_ref().filter(|_| options.source.is_none());
        let experts = store.and_then(HeadExperts::of);
        let residency = match experts {
            Some(_) => Residency::WithoutExperts,
            None => Residency::All,
        };
        let plan = match &slc {
            Some(slc) => ModelPlan::in_place(slc, &config),
            None => ModelPlan::with_residency(self.gguf(), &config, residency),
        };
        let memory = ModelMemory::new(plan.map_err(unusable)?, team.count())?;
        let memory = (memory, self.opened.clone(), Some(self.clone()));
        let weights = Owned::new(memory, |(memory, opened, trunk)| {
            let (file, trunk) = (opened.file(), trunk.as_ref().map(Self::weights));
            if let (Some(slc), Some(trunk)) = (&slc, trunk) {
                let part = ModelPart {
                    config: &config,
                    residency,
                    cold: None,
                };
                return load_head_in_place(file, slc, part, trunk, memory);
            }
            let from = WeightsSource {
                name: file.name(),
                gguf: opened.gguf(),
                source: options.source.unwrap_or(file.source()),
                map: None,
            };
            let loaded = load_from(from, &config, trunk, memory, team, stop, progress);
            loaded.map_err(|error| match options.source {
                Some(_) => error,
                None => error.of_part(file),
            })
        })?;
        Ok(Some(Self {
            experts: experts.as_ref().map(|experts| experts.store().clone()),
            head_experts: experts,
            dense: None,
            weights: Arc::new(weights),
            heads: Arc::new(Heads::default()),
            opened: self.opened.clone(),
            is_in_place: in_place,
            // Its states differ from its trunk's.
            identity: ModelIdentity::unlike_any(),
            sparse: None,
        }))
    }
}
