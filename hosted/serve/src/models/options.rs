//! Options: which models to serve, and how to run them.

use crate::Log;
use crate::adapters::AdaptersOptions;
use crate::api::Defaults;
use core::time::Duration;
use sluice::Limits;
use sluice::draft::SpeculationSetup;
use sluice::experts::ExpertOptions;
use sluice::file::LoadMode;
use sluice::model::{ModelSource, OpenError};
use sluice::sparse::SparseMode;
use sluice_core::model::Activation;
use sluice_core::pooling::Pooling;
use sluice_pull::HubFile;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model named on the command line.
#[derive(Clone, Debug)]
pub struct NamedModel {
    /// The name that requests use; `None` for the file's name.
    pub alias: Option<String>,
    /// The file.
    pub path: PathBuf,
}

/// A model with options of its own (`--models-preset`).
#[derive(Clone, Debug)]
pub struct ModelPreset {
    /// The options. Their only named model is this one; which others there are, `max`, `turn`, `autoload` and the
    /// adapters are the server's.
    pub options: ModelsOptions,
    /// Values for the fields that requests for it leave out.
    pub defaults: Defaults,
    /// Whether it is loaded at the start; otherwise on first use.
    pub is_eager: bool,
    /// The flags that it was made of, by which it is seen to have changed when the list is read again.
    pub flags: String,
}

/// Which models there are in addition to the named ones, as files and folders say now.
#[derive(Clone, Debug, Default)]
pub struct ModelLists {
    /// As [`ModelsOptions::presets`].
    pub presets: Vec<ModelPreset>,
    /// As [`ModelsOptions::offered`].
    pub offered: Vec<NamedModel>,
}

/// Reads the lists again, without downloading anything; an error is for the log.
pub type ReadLists = Arc<dyn Fn() -> Result<ModelLists, String> + Send + Sync>;

/// Which models to serve, and how to run them.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    /// Models to load at the start, up to `max`.
    pub named: Vec<NamedModel>,
    /// Models with options of their own.
    pub presets: Vec<ModelPreset>,
    /// Models that are loaded on first use.
    pub offered: Vec<NamedModel>,
    /// A folder of models, each loaded on first use. One that is also a preset is not listed twice.
    pub folder: Option<PathBuf>,
    /// Whether a request loads the model that it names; true by default. Otherwise models that are not loaded at the
    /// start are loaded by `/models/load`.
    pub autoload: bool,
    /// How long a model is idle before it sleeps: its weights and its cached texts are freed until the next request.
    /// `None` (the default) for never.
    pub sleep_after: Option<Duration>,
    /// How long texts may go on when their model is unloaded by a request; 10 s by default.
    pub stop_after: Duration,
    /// Whether a request for a model that does not exist is answered by the first one; false by default.
    pub any_name: bool,
    /// Maximum number of models in memory; 4 by default, 0 for no limit.
    pub max: usize,
    /// How long a model may keep its place while another waits for it, before its texts are parked; 60 s by default.
    pub turn: Duration,
    /// The limits of each model; 4 texts at once by default.
    pub limits: Limits,
    /// Whether older tokens are dropped when the context is full, unless a request overrides it; false by default.
    pub context_shift: bool,
    /// Whether files are mapped (the default) or read.
    pub load_mode: LoadMode,
    /// Whether tables stay in the file, as [`LoadOptions::tables_stay`](sluice::model::LoadOptions::tables_stay).
    pub tables_stay: bool,
    /// The activation of gates, instead of the files' own; every model has to be able to take it.
    pub activation: Option<Activation>,
    /// The calibration file of [`Limits::sparse`]; `None` for the one next to each model.
    pub sparse_file: Option<PathBuf>,
    /// Whether all weights are checked first.
    pub check_tensors: bool,
    /// A template's name or source, which replaces the one in the file.
    pub chat_template: Option<String>,
    /// How token vectors become an embedding, instead of the file's setting.
    pub pooling: Option<Pooling>,
    /// Adapters of the models.
    pub adapters: AdaptersOptions,
    /// How to speculate; `None` disables speculation. A draft model drafts for the first named model.
    pub speculation: Option<SpeculationSetup>,
    /// How to read experts that stay on disk; `None` if all weights are in memory. Folders of copies, the profile and
    /// the trace belong to the first named model.
    pub experts: Option<ExpertOptions>,
}

impl Default for ModelsOptions {
    fn default() -> Self {
        Self {
            named: Vec::new(),
            presets: Vec::new(),
            offered: Vec::new(),
            folder: None,
            autoload: true,
            sleep_after: None,
            stop_after: Duration::from_secs(10),
            any_name: false,
            max: 4,
            turn: Duration::from_secs(60),
            limits: Limits {
                n_seq: 4,
                ..Limits::default()
            },
            context_shift: false,
            load_mode: LoadMode::Map,
            tables_stay: false,
            activation: None,
            sparse_file: None,
            check_tensors: false,
            chat_template: None,
            pooling: None,
            adapters: AdaptersOptions::default(),
            speculation: None,
            experts: None,
        }
    }
}

impl ModelsOptions {
    /// Opens the files that a server starts with, and checks their headers: the models to load at the start, and the
    /// draft model.
    ///
    /// # Errors
    /// A file is missing, or its header is invalid.
    pub(crate) fn open(&self) -> Result<Vec<ModelSource>, OpenError> {
        let draft = self.speculation.as_ref().and_then(|all| all.draft.as_ref());
        if let Some(draft) = draft {
            ModelSource::open(&draft.path, draft.load_mode)?;
        }
        for preset in &self.presets {
            preset.options.open()?;
        }
        let named = self.named.iter().take(self.eager_max());
        named.map(|named| self.open_file(&named.path)).collect()
    }

    /// Opens one of the models.
    pub(super) fn open_file(&self, path: &Path) -> Result<ModelSource, OpenError> {
        let source = ModelSource::open(path, self.load_mode)?;
        let source = match self.activation {
            Some(activation) => source.with_activation(activation)?,
            None => source,
        };
        let mode = self.limits.sparse.unwrap_or(SparseMode::Exact);
        Ok(source.with_sparse(mode, self.sparse_file.as_deref())?)
    }

    /// Maximum number of models to load at the start.
    pub(super) const fn eager_max(&self) -> usize {
        match self.max {
            0 => usize::MAX,
            max => max,
        }
    }
}

/// A model's name, other names of it, and its file.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) others: Vec<String>,
    pub(super) path: PathBuf,
    /// Its place on the hub, if it is in a cache of downloads.
    pub(super) hub: Option<HubFile>,
    /// Whether it is loaded at the start.
    pub(super) eager: bool,
    /// Its own options, instead of the server's.
    pub(super) preset: Option<Arc<ModelPreset>>,
    /// Whether it was added while the server runs.
    pub(super) is_added: bool,
    /// Whether it is not there any more.
    pub(super) is_withdrawn: bool,
}

impl Listed {
    pub(super) fn of(model: &NamedModel, eager: bool) -> Self {
        let names = model.alias.as_deref().unwrap_or_default().split(',');
        let mut names = names.map(str::trim).filter(|name| !name.is_empty());
        let stem = stem(&model.path);
        let name = names.next().map_or_else(|| stem.clone(), str::to_owned);
        let mut others: Vec<_> = names.map(str::to_owned).collect();
        others.push(stem);
        let file = model.path.file_name();
        others.extend(file.map(|name| name.to_string_lossy().into_owned()));
        others.push(model.path.to_string_lossy().into_owned());
        Self {
            name,
            others,
            hub: HubFile::at(&model.path),
            path: model.path.clone(),
            eager,
            preset: None,
            is_added: false,
            is_withdrawn: false,
        }
    }

    /// Whether it is named on the command line, which nothing but a new start changes.
    pub(super) const fn is_named(&self) -> bool {
        self.eager && self.preset.is_none()
    }

    /// Whether it is offered by a cache of downloads.
    pub(super) const fn is_cached(&self) -> bool {
        self.hub.is_some() && !self.eager && self.preset.is_none()
    }

    /// It, once it is not there any more.
    pub(super) fn withdrawn(&self) -> Self {
        Self {
            eager: false,
            is_withdrawn: true,
            ..self.clone()
        }
    }

    /// Whether it is run like `other`, from the same file.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let flags = |model: &Self| model.preset.as_ref().map(|preset| preset.flags.clone());
        !self.is_withdrawn
            && !other.is_withdrawn
            && self.path == other.path
            && self.others == other.others
            && flags(self) == flags(other)
    }

    fn of_preset(preset: &ModelPreset) -> Option<Self> {
        let named = preset.options.named.first()?;
        Some(Self {
            preset: Some(Arc::new(preset.clone())),
            ..Self::of(named, preset.is_eager)
        })
    }

    /// The options that it is run with: its own, or else the server's.
    pub(super) fn options<'o>(&'o self, server: &'o ModelsOptions) -> &'o ModelsOptions {
        self.preset.as_ref().map_or(server, |own| &own.options)
    }

    /// Values for the fields that requests for it leave out, if they are its own.
    pub(super) fn defaults(&self) -> Option<&Defaults> {
        self.preset.as_ref().map(|own| &own.defaults)
    }
}

/// All models, named ones first. Of the offered ones, those are left out, and logged, whose name another model has.
pub(super) fn listed(options: &ModelsOptions, log: &Log) -> std::io::Result<Vec<Listed>> {
    let named = options.named.iter().map(|model| Listed::of(model, true));
    let mut all: Vec<Listed> = named.collect();
    let n_named = all.len();
    all.extend(options.presets.iter().filter_map(Listed::of_preset));
    for model in &options.offered {
        let offered = Listed::of(model, false);
        if let Some(same) = all[..n_named]
            .iter_mut()
            .find(|named| named.path == offered.path)
        {
            same.others.push(offered.name);
        } else if all.iter().any(|other| other.name == offered.name) {
            let (name, path) = (&offered.name, offered.path.display());
            log(&format!(
                "{path} is not offered: another model is named {name:?}"
            ));
        } else {
            all.push(offered);
        }
    }
    if let Some(folder) = &options.folder {
        let is_preset = |found: &Listed| {
            let mut presets = all.iter().filter(|model| model.preset.is_some());
            presets.any(|model| model.name == found.name && model.path == found.path)
        };
        let mut found = in_folder(folder)?;
        found.retain(|found| !is_preset(found));
        all.extend(found);
    }
    if let Some(twice) = all.iter().enumerate().find_map(|(i, model)| {
        let is_same = |other: &&Listed| other.name == model.name;
        all[..i].iter().find(is_same)
    }) {
        let message = format!("two models are named {:?}", twice.name);
        return Err(std::io::Error::other(message));
    }
    Ok(all)
}

/// The models of a folder, by name, as [`ModelsOptions::folder`] offers them.
///
/// # Errors
/// The folder cannot be read.
pub fn models_of(folder: &Path) -> std::io::Result<Vec<NamedModel>> {
    let found = in_folder(folder)?.into_iter().map(|found| NamedModel {
        alias: Some(found.name),
        path: found.path,
    });
    Ok(found.collect())
}

/// All model files directly in a folder, sorted by name.
fn in_folder(folder: &Path) -> std::io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_model = path
            .extension()
            .is_some_and(|end| end == "gguf" || end == "slc");
        if is_model && path.is_file() && !is_later_part(&path) {
            found.push(Listed {
                name: stem(&path),
                others: path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .into_iter()
                    .collect(),
                hub: HubFile::at(&path),
                path,
                eager: false,
                preset: None,
                is_added: false,
                is_withdrawn: false,
            });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    // A packed file takes precedence over the one it was made from.
    found.dedup_by(|later, kept| {
        let is_same = later.name == kept.name;
        if is_same && later.path.extension().is_some_and(|end| end == "slc") {
            core::mem::swap(later, kept);
        }
        is_same
    });
    Ok(found)
}

/// Whether it is part of a split model, but not the first part.
fn is_later_part(path: &Path) -> bool {
    let stem = stem(path);
    let Some((rest, _)) = stem.rsplit_once("-of-") else {
        return false;
    };
    rest.rsplit_once('-')
        .is_some_and(|(_, n)| n.len() == 5 && n.parse().is_ok_and(|n: u32| n > 1))
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(named: Vec<NamedModel>, folder: Option<PathBuf>) -> ModelsOptions {
        ModelsOptions {
            named,
            folder,
            ..ModelsOptions::default()
        }
    }

    fn quiet() -> Log {
        Arc::new(|_: &str| {})
    }

    #[test]
    fn a_folder_gives_the_models_that_lie_in_it() {
        let folder = std::env::temp_dir().join(format!("sluice-models-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        for name in [
            "b.gguf",
            "a.slc",
            "b.slc",
            "notes.txt",
            "sub/c.gguf",
            "d-00001-of-00002.gguf",
            "d-00002-of-00002.gguf",
        ] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let all = listed(&options(Vec::new(), Some(folder.clone())), &quiet()).unwrap();
        let found: Vec<_> = all
            .iter()
            .map(|m| (&*m.name, m.path.extension().unwrap().to_str().unwrap()))
            .collect();
        assert_eq!(
            found,
            [("a", "slc"), ("b", "slc"), ("d-00001-of-00002", "gguf")]
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
