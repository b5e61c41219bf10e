//! From Python's keyword arguments to a server's configuration.

mod keywords;
mod value;

use core::fmt::Display;
use core::time::Duration;
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sluice::Team;
use sluice::adapter::AdapterFormat;
use sluice::core::kernels::KvType;
use sluice::core::team::{StopFlag, WORKERS_MAX};
use sluice::draft::{DraftKind, DraftOptions};
use sluice::experts::ExpertOptions;
use sluice::experts::policy::EvictionPolicy;
use sluice::file::{HashRecords, LoadMode, ModelFile};
use sluice::host::isa::kernel_table;
use sluice::host::measures::HostMeasure;
use sluice::host::threads::PlacementOptions;
use sluice::identity::Identity;
use sluice_make::draft_copy::DraftCopy;
use sluice_pull::{FileChoice, HubAccess, Progress, PullRequest, Watch};
use sluice_serve::engine::EngineOptions;
use sluice_serve::{Log, ModelsOptions, NamedModel, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Variables that stand for arguments which are not given.
const VARIABLES: [(&str, &str); 3] = [
    ("isa", "SLUICE_ISA"),
    ("cores", "SLUICE_CORES"),
    ("expert_cache_mib", "SLUICE_EXPERT_CACHE"),
];

/// The arguments of a `Service`.
#[derive(Default)]
pub(crate) struct Arguments {
    /// What is known before threads are started.
    config: ServerConfig,
    model: Option<PathBuf>,
    alias: Option<String>,
    request: Option<PullRequest>,
    hf_file: Option<String>,
    access: HubAccess,
    n_batch: Option<usize>,
    n_ubatch: Option<usize>,
    n_threads: Option<usize>,
    placement: PlacementOptions,
    /// Without `cache_bytes`, all experts are in memory.
    experts: ExpertOptions,
    /// The first argument that needs them on disk.
    of_experts: Option<String>,
    drafts: DraftOptions,
    /// Number of requests that are prepared at once; `None` for the number of threads.
    n_preparing: Option<usize>,
    enable_lora: bool,
    max_lora_rank: Option<usize>,
}

/// A server that has not been started.
pub(crate) struct Setup {
    pub(crate) config: ServerConfig,
    pub(crate) team: Team,
    /// The 2-bit copy of the model, if it drafts. The server reads its file when it loads the model.
    pub(crate) copy: Option<DraftCopy>,
}

impl Arguments {
    /// Reads a dictionary. None stands for the default.
    ///
    /// # Errors
    /// TypeError for an unknown name or a wrong type, ValueError for a value out of range.
    pub(crate) fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut arguments = Self::default();
        let config = &mut arguments.config;
        config.engine.cache_ram = EngineOptions::cache_ram_bytes(None);
        config.http.body_max = BODY_MAX;
        // Keep-alives are for connections.
        config.http.ping = Duration::ZERO;
        for (name, variable) in VARIABLES {
            if let Some(text) = std::env::var(variable).ok().filter(|text| !text.is_empty()) {
                let value = match text.parse::<i64>() {
                    Ok(number) => number.into_bound_py_any(given.py())?,
                    Err(_) => text.into_bound_py_any(given.py())?,
                };
                let is_known = keywords::set(&mut arguments, name, &value);
                is_known.map_err(|refusal| refusal.of(variable, &value))?;
            }
        }
        for (name, value) in given {
            let name: String = name.extract()?;
            let is_known = keywords::set(&mut arguments, &name, &value);
            if !is_known.map_err(|refusal| refusal.of(&name, &value))? {
                return Err(PyTypeError::new_err(format!("unknown argument {name:?}")));
            }
            let is_of_experts = name.starts_with("expert_") && name != "expert_cache_mib";
            if is_of_experts && !value.is_none() {
                arguments.of_experts.get_or_insert(name);
            }
        }
        Ok(arguments)
    }

    /// The types of keys and values.
    fn types(&mut self) -> &mut (KvType, KvType) {
        let types = &mut self.config.models.limits.types;
        types.get_or_insert((KvType::F16, KvType::F16))
    }

    /// Starts threads, downloads the model, and makes its copy. Call it on the thread that will be the engine's.
    ///
    /// # Errors
    /// Arguments that contradict each other, a model that cannot be downloaded or copied, or threads that cannot be
    /// started.
    pub(crate) fn set_up(mut self, log: Log, stop: &StopFlag) -> Result<Setup, String> {
        let experts = self.experts()?;
        self.check_adapters()?;
        let team = team(self.n_threads, &self.placement, &log)?;
        let path = self.path(&log, stop)?;
        let mut config = core::mem::take(&mut self.config);
        let models = &mut config.models;
        if experts.is_some() {
            models.load_mode = LoadMode::usual(true);
        }
        models.experts = experts;
        let adapters = core::mem::take(&mut models.adapters);
        models.adapters = adapters.with_room(self.enable_lora, self.max_lora_rank.unwrap_or(64));
        let limits = &mut models.limits;
        limits.n_batch = self
            .n_ubatch
            .unwrap_or(512)
            .min(self.n_batch.unwrap_or(2048));
        let table = limits.table.map_or_else(|| kernel_table(None), Ok);
        let table = table.map_err(|error| error.to_string())?;
        limits.table = Some(table);
        let drafts = self.drafts.setup(models.load_mode);
        models.speculation = drafts.map_err(|error| format!("spec_type: {error}"))?;
        let copy = match self.drafts.has(DraftKind::Copy) {
            true => Some(self.copy(models, &path, &team, stop)?),
            false => None,
        };
        models.named = vec![NamedModel {
            alias: self.alias,
            path,
        }];
        config.http.threads = self.n_preparing.unwrap_or(team.count());
        config.http.max_adapters = config.engine.max_adapters;
        config.http.isa = table.name().to_owned();
        config.log = log;
        Ok(Setup { config, team, copy })
    }

    /// The 2-bit copy of the model at `path`, as its draft model.
    fn copy(
        &self,
        models: &mut ModelsOptions,
        path: &Path,
        team: &Team,
        stop: &StopFlag,
    ) -> Result<DraftCopy, String> {
        let wrong = |error: &dyn Display| format!("spec_type 'draft-self': {error}");
        let file = ModelFile::open(path, models.load_mode).map_err(|error| wrong(&error))?;
        let copy = DraftCopy::new(&file, models.experts.is_some(), team, stop);
        let copy = copy.map_err(|error| wrong(&error))?.ok_or("interrupted")?;
        if let Some(setup) = &mut models.speculation {
            setup.draft = Some(self.drafts.copied(copy.path().to_path_buf()));
        }
        Ok(copy)
    }

    /// How experts are read, if they stay on disk.
    fn experts(&self) -> Result<Option<ExpertOptions>, String> {
        match &self.of_experts {
            _ if self.experts.cache_bytes > 0 => {}
            Some(name) => {
                return Err(format!(
                    "{name}: needs expert_cache_mib, without which experts are in memory"
                ));
            }
            None => return Ok(None),
        }
        if (self.experts.policy == EvictionPolicy::Static) != self.experts.profile.is_some() {
            return Err("expert_policy 'static' and expert_profile need each other".to_owned());
        }
        Ok(Some(self.experts.clone()))
    }

    /// Looks for the adapters' files before a model is loaded.
    fn check_adapters(&self) -> Result<(), String> {
        let adapters = &self.config.models.adapters;
        if let Some(folder) = adapters.folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(format!("lora_dir: {} is not a folder", folder.display()));
        }
        let mut paths = adapters.named.iter().flat_map(|named| &named.parts);
        paths.try_for_each(|part| match AdapterFormat::of(&part.path) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("adapter: {error}")),
        })
    }

    /// The model's file, downloaded if it is not cached.
    fn path(&mut self, log: &Log, stop: &StopFlag) -> Result<PathBuf, String> {
        match (self.model.take(), self.request.take()) {
            (Some(path), None) if self.hf_file.is_none() => Ok(path),
            (None, Some(mut request)) => {
                if let Some(file) = self.hf_file.take() {
                    request.choice = FileChoice::File(file);
                }
                let mut watch = Download {
                    log,
                    stop,
                    tenth: 0,
                };
                let pulled = self.access.fetch(&request, &mut watch);
                Ok(pulled.map_err(|error| error.to_string())?.into_model())
            }
            _ => Err(
                "expected a model's file or a repository, hf_file only with the latter".to_owned(),
            ),
        }
    }
}

/// Logs a download.
struct Download<'d> {
    log: &'d Log,
    stop: &'d StopFlag,
    /// Tenths of the bytes that were reported.
    tenth: u64,
}

impl Watch for Download<'_> {
    fn progress(&mut self, progress: Progress) {
        let Progress {
            done_bytes,
            total_bytes,
        } = progress;
        let tenth = 10 * done_bytes / total_bytes.max(1);
        if tenth > self.tenth {
            self.tenth = tenth;
            (self.log)(&format!("fetched {done_bytes} of {total_bytes} bytes"));
        }
    }

    fn note(&mut self, text: &str) {
        (self.log)(&format!("note: {text}"));
    }

    fn received(&mut self, path: &Path, sha256: [u8; 32]) {
        HashRecords::note(path, Identity(sha256));
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}

/// Threads, and the arguments that they were started with.
struct KnownTeam {
    n_threads: Option<usize>,
    placement: PlacementOptions,
    team: Team,
    process: u32,
}

/// The threads for these arguments, shared by all models of a process, so that they take turns.
fn team(n_threads: Option<usize>, placement: &PlacementOptions, log: &Log) -> Result<Team, String> {
    static TEAMS: Mutex<Vec<KnownTeam>> = Mutex::new(Vec::new());
    let mut teams = TEAMS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut report = |measure: &HostMeasure| {
        if !measure.is_held() {
            log(&format!("warning: {measure}"));
        }
    };
    let process = std::process::id();
    // After a fork, the parent's threads do not exist in the child.
    let mut here = teams.iter().filter(|known| known.process == process);
    let cores = placement.apply(&mut report);
    if let Some(known) =
        here.find(|known| known.n_threads == n_threads && known.placement == *placement)
    {
        return Ok(known.team.clone());
    }
    let n = n_threads.unwrap_or_else(|| cores.default_workers());
    let workers = placement.workers(n.min(WORKERS_MAX), &cores, &mut report);
    let team = Team::from(workers.map_err(|error| format!("cannot start threads: {error}"))?);
    teams.push(KnownTeam {
        n_threads,
        placement: placement.clone(),
        team: team.clone(),
        process,
    });
    Ok(team)
}

/// Maximum size of a request in bytes.
const BODY_MAX: usize = 1 << 30;
