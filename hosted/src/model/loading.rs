//! From an open file to weights in memory.

use super::{Model, ModelSource, Weights};
use crate::experts::{ColdNeurons, ExpertError, ExpertOptions, ExpertStore, Home};
use crate::file::HashRecords;
use crate::head::Heads;
use crate::identity::ModelIdentity;
use crate::load::{
    LoadError, ModelMemory, ModelPart, WeightsSource, load, load_from, longest_in_memory,
};
use crate::owned::Owned;
use crate::sparse_modes::SparsePlan;
use crate::team::Team;
use sluice_core::gguf::source::TensorSource;
use sluice_core::model::{LoadProgress, ModelPlan, ModelWeights, Residency, Tables};
use sluice_core::team::StopFlag;
use std::sync::Arc;

/// How weights are loaded.
#[derive(Default)]
pub struct LoadOptions<'l> {
    /// Stops loading when set.
    pub stop: Option<&'l StopFlag>,
    /// Called with the progress about every 512 KiB, on the calling thread.
    pub progress: Option<&'l mut (dyn FnMut(LoadProgress) + Send)>,
    /// Source of the tensors instead of the file, by the file's offsets.
    pub source: Option<&'l dyn TensorSource>,
    /// Leaves experts on disk, or the cold neurons of a dense model by neuron: every step takes them from a store that reads
    /// them as they are needed. Its other weights are then in memory, also where the file is mapped.
    pub experts: Option<ExpertOptions>,
    /// Leaves tables that are looked up row by row, such as embeddings, in the file, which has to be mapped: rows are
    /// read when tokens name them. Tables of a mapped `.slc` file always stay.
    pub tables_stay: bool,
    /// Checks all weights first, by their checksums (`.slc`) or for numbers that are not finite (GGUF): the whole file
    /// is read once more.
    pub check_tensors: bool,
    /// Where hashes of model files are remembered; `None` is the user's folder ([`HashRecords::of_user`]).
    pub hashes: Option<HashRecords>,
}

impl ModelSource {
    /// Loads the weights with all threads of `team`.
    ///
    /// # Errors
    /// [`LoadError`]: the first error of any thread.
    pub fn load(&self, team: &Team) -> Result<Model, LoadError> {
        self.load_with(team, LoadOptions::default())
    }

    /// As [`Self::load`], with a stop flag and progress.
    ///
    /// # Errors
    /// As [`Self::load`], and [`LoadError::Stopped`].
    pub fn load_with(&self, team: &Team, options: LoadOptions<'_>) -> Result<Model, LoadError> {
        let (tables, cold) = (self.tables(&options)?, self.left_cold(&options)?);
        let (n, none) = (team.count(), StopFlag::new());
        let stop = options.stop.unwrap_or(&none);
        let mut ignored = |_| {};
        let progress = options.progress.unwrap_or(&mut ignored);
        let (file, gguf, config) = (self.file(), self.gguf(), self.config());
        if options.check_tensors {
            self.check_tensors(stop)?;
        }
        let part = ModelPart {
            config,
            residency: match (&options.experts, &cold) {
                (Some(_), None) => Residency::WithoutExperts,
                _ => Residency::All,
            },
            cold: cold.as_ref(),
        };
        let memory = self.memory(part, tables, n, options.source.is_some())?;
        let cpus = team.cpus_before();
        let (of_neurons, of_experts) = match &cold {
            Some(_) => (options.experts, None),
            None => (None, options.experts),
        };
        let experts = of_experts
            .map(|options| beside_ranks(&cpus, || ExpertStore::open(file, gguf, config, options)));
        let experts = experts.transpose().map_err(LoadError::Experts)?;
        let dense = match (experts.is_some() || cold.is_some(), file.slc()?) {
            (true, Some(slc)) => longest_in_memory(&slc, part),
            _ => None,
        };
        let source = options.source.unwrap_or(file.source());
        let heads = Heads::load(file, gguf, config, source)?;
        let memory = (memory, self.clone(), None);
        let weights: Owned<Weights, _> = Owned::new(memory, |(memory, opened, _)| {
            let (file, gguf) = (opened.file(), opened.gguf());
            match options.source {
                None => load(file, gguf, part, memory, team, stop, progress),
                Some(source) => {
                    let from = WeightsSource {
                        name: file.name(),
                        gguf,
                        source,
                        map: None,
                    };
                    load_from(from, config, None, memory, team, stop, progress)
                }
            }
        })?;
        let sparse = self.sparse_plan(weights.get(), n, cold.is_some())?;
        let weights = Arc::new(weights);
        let neurons = cold.as_ref().zip(of_neurons).map(|(cold, options)| {
            let payloads = weights.get().weight_memory();
            let home = Home::new(payloads, cold.payload_offset(), weights.clone());
            beside_ranks(&cpus, || ExpertStore::of_neurons(file, cold, home, options))
        });
        let neurons = neurons.transpose().map_err(LoadError::Experts)?;
        Ok(Model {
            sparse,
            weights,
            heads: Arc::new(heads),
            opened: self.clone(),
            experts: experts.or(neurons).map(Arc::new),
            head_experts: None,
            dense,
            is_in_place: options.source.is_none() && file.slc()?.is_some(),
            identity: match options.source {
                None => self.identity(options.hashes),
                Some(_) => ModelIdentity::unlike_any(),
            },
        })
    }

    fn memory(
        &self,
        part: ModelPart<'_>,
        tables: Tables,
        n_workers: usize,
        has_source: bool,
    ) -> Result<ModelMemory, LoadError> {
        if !has_source {
            return ModelMemory::for_file(self.file(), self.gguf(), part, tables, n_workers);
        }
        let plan = ModelPlan::with_residency(self.gguf(), part.config, part.residency);
        let plan = plan.map_err(|error| LoadError::unusable(self.name(), error))?;
        ModelMemory::new(plan, n_workers)
    }

    fn sparse_plan(
        &self,
        weights: &ModelWeights<'_>,
        n_threads: usize,
        has_cold: bool,
    ) -> Result<Option<SparsePlan>, LoadError> {
        let setup = self.sparse.as_ref();
        let plan = setup.map(|setup| SparsePlan::new(setup, weights, n_threads, has_cold));
        plan.transpose().map_err(LoadError::Sparse)
    }

    /// The neurons that are left on disk.
    fn left_cold(&self, options: &LoadOptions<'_>) -> Result<Option<ColdNeurons>, LoadError> {
        match (&options.experts, options.source) {
            (None, _) => Ok(None),
            (Some(_), None) => self.cold_neurons(),
            (Some(_), Some(_)) => {
                let name = self.name().to_owned();
                Err(LoadError::Experts(ExpertError::OtherSource { name }))
            }
        }
    }

    /// The neurons that can stay on disk; of a mixture none, as its experts do.
    fn cold_neurons(&self) -> Result<Option<ColdNeurons>, LoadError> {
        if self.config().has_experts() {
            return Ok(None);
        }
        let slc = self.file().slc()?;
        let found = ColdNeurons::find(slc.as_ref(), self.config());
        found.map_err(|error| {
            LoadError::Experts(ExpertError::Order {
                name: self.name().to_owned(),
                error,
            })
        })
    }

    /// Whether parts of it can stay on disk ([`LoadOptions::experts`]): experts, or cold neurons.
    ///
    /// # Errors
    /// [`ExpertError::Order`]: the file's order of neurons is not sound.
    pub fn can_stay_on_disk(&self) -> Result<bool, LoadError> {
        Ok(self.config().has_experts() || self.cold_neurons()?.is_some())
    }

    fn identity(&self, hashes: Option<HashRecords>) -> ModelIdentity {
        ModelIdentity::of_file(self.file(), hashes).with_variant(self.variant())
    }

    fn check_tensors(&self, stop: &StopFlag) -> Result<(), LoadError> {
        self.file().check_tensors(stop)?;
        match stop.is_set() {
            true => Err(LoadError::Stopped),
            false => Ok(()),
        }
    }

    fn tables(&self, options: &LoadOptions<'_>) -> Result<Tables, LoadError> {
        if !options.tables_stay {
            return Ok(Tables::Loaded);
        }
        if self.file().mapped().is_none() || options.source.is_some() {
            let name = self.name().to_owned();
            return Err(LoadError::Tables { name });
        }
        Ok(Tables::InFile)
    }
}

/// Runs `make`, which starts threads: they may run on `cpus`, or where the caller may if `cpus` is empty.
fn beside_ranks<T: Send>(cpus: &[usize], make: impl FnOnce() -> T + Send) -> T {
    if cpus.is_empty() {
        return make();
    }
    let made = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // A thread that may not be bound stays where the caller is.
            let _bound = crate::host::topology::bind_current_thread(cpus);
            make()
        });
        thread.join()
    });
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
