//! Options: which models to serve, and how to run them.

use super::roster::Roster;
use crate::Log;
use crate::adapters::AdaptersOptions;
use crate::api::{ApiError, Defaults, LATEST};
use core::time::Duration;
use sluice::Limits;
use sluice::draft::SpeculationSetup;
use sluice::experts::ExpertOptions;
use sluice::file::LoadMode;
use sluice::model::{ModelSource, OpenError};
use sluice_core::pooling::Pooling;
use sluice_pull::{HubFile, PullRequest};
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
}

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
        named
            .map(|named| ModelSource::open(&named.path, self.load_mode))
            .collect()
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
        }
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

/// The number of the model called `name` in `all`.
pub(super) fn find(all: &Roster<Listed>, name: Option<&str>) -> Result<usize, ApiError> {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return if all.len() == 0 {
            Err(ApiError::unavailable(NO_MODEL))
        } else {
            Ok(0)
        };
    };
    let by_name = |name: &str| all.iter().position(|model| model.name == name);
    let by_other = |name: &str| {
        all.iter()
            .position(|model| model.others.iter().any(|other| other == name))
    };
    let of = |name: &str| by_name(name).or_else(|| by_other(name));
    // Ollama's clients name each model's usual variant, and the place of models from Hugging Face.
    let plain = name.strip_suffix(LATEST).unwrap_or(name);
    let of_hub = || {
        let name = plain.strip_prefix(HUB)?;
        let by_name = all
            .iter()
            .position(|model| model.name.eq_ignore_ascii_case(name));
        by_name.or_else(|| by_type(all, name))
    };
    let usual = || of(plain).or_else(of_hub);
    of(name).or_else(usual).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|model| &*model.name).collect();
        ApiError::no_model(name, &names)
    })
}

/// The model that a download of `USER/NAME[:TYPE]` would choose among those that are there.
fn by_type(all: &Roster<Listed>, name: &str) -> Option<usize> {
    let asked = PullRequest::parse(name).ok()?;
    let files = all.iter().enumerate().filter_map(|(index, model)| {
        let hub = model.hub.as_ref()?;
        let is_of_repo = hub.repo.eq_ignore_ascii_case(asked.repo.as_str());
        is_of_repo.then_some((index, &*hub.file))
    });
    let files: Vec<_> = files.collect();
    let paths: Vec<_> = files.iter().map(|&(_, file)| file).collect();
    let chosen = asked.choice.of_models(&paths)?;
    let found = files.iter().find(|&&(_, file)| file == chosen);
    found.map(|&(index, _)| index)
}

/// Whether a list of models that names `listed` means the model called `name`. With `hf.co/` before either, the other
/// form is meant, too, in any case of the letters; without a type, all models of the repository.
pub(crate) fn means(listed: &str, name: &str) -> bool {
    let (bare, plain) = (listed.strip_prefix(HUB), name.strip_prefix(HUB));
    if bare.is_none() && plain.is_none() {
        return listed == name;
    }
    let (listed, name) = (bare.unwrap_or(listed), plain.unwrap_or(name));
    let repo = name.split_once(':').map_or(name, |(repo, _)| repo);
    let is_repo = bare.is_some() && !listed.contains(':');
    listed.eq_ignore_ascii_case(name) || is_repo && listed.eq_ignore_ascii_case(repo)
}

/// What Ollama's clients begin names of models from Hugging Face with.
const HUB: &str = "hf.co/";
const NO_MODEL: &str = "the server has no model: start it with -m FILE, or download one with `sluice pull` and start it again";

#[cfg(test)]
mod tests {
    use super::*;

    fn named(alias: Option<&str>, path: &str) -> NamedModel {
        NamedModel {
            alias: alias.map(str::to_owned),
            path: path.into(),
        }
    }

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
    fn models_of_the_hub_are_found_as_a_download_chooses_them() {
        let place = |file: &str| format!("/c/models--u--m/snapshots/0123/{file}");
        let models = vec![
            named(None, &place("m-F16.gguf")),
            named(Some("u/m:Q8_0"), &place("m-Q8_0.gguf")),
            named(
                Some("u/n:Q4_0"),
                "/c/models--u--n/snapshots/45/small-Q4_0.gguf",
            ),
        ];
        let all = Roster::new(listed(&options(models, None), &quiet()).unwrap());
        for (name, expected) in [
            ("hf.co/u/m", Some(1)),
            ("hf.co/U/M:latest", Some(1)),
            ("hf.co/u/m:f16", Some(0)),
            ("hf.co/u/m:Q4_K_M", None),
            ("hf.co/u/n:small", Some(2)),
            ("hf.co/u/n", Some(2)),
            ("hf.co/u/o", None),
            ("u/m", None),
        ] {
            assert_eq!(find(&all, Some(name)).ok(), expected, "{name}");
        }
    }

    #[test]
    fn lists_of_models_may_have_either_name_of_the_hub() {
        for (listed, name, expected) in [
            ("u/m:Q8_0", "hf.co/u/m:q8_0", true),
            ("hf.co/u/m:Q8_0", "u/m:Q8_0", true),
            ("hf.co/u/m", "u/m:Q8_0", true),
            ("hf.co/u/m", "hf.co/u/m", true),
            ("u/m", "u/m:Q8_0", false),
            ("hf.co/u/m", "u/mm:Q8_0", false),
            ("u/m:q8_0", "u/m:Q8_0", false),
            ("hf.co/u/m:Q4_0", "u/m:Q8_0", false),
            ("tale", "tale", true),
        ] {
            assert_eq!(means(listed, name), expected, "{listed} {name}");
        }
    }

    #[test]
    fn an_offered_model_whose_name_is_taken_is_left_out() {
        let mut options = options(vec![named(Some("a"), "/m/a.gguf")], None);
        options.offered = vec![
            named(Some("a"), "/m/b.gguf"),
            named(Some("u/a:Q4_0"), "/m/a.gguf"),
            named(Some("c"), "/m/c.gguf"),
        ];
        let all = Roster::new(listed(&options, &quiet()).unwrap());
        assert_eq!(all.len(), 2);
        assert_eq!(find(&all, Some("u/a:Q4_0")).unwrap(), 0);
        assert_eq!(find(&all, Some("c")).unwrap(), 1);
    }

    #[test]
    fn models_have_several_names() {
        let models = vec![
            named(None, "/m/a.gguf"),
            named(Some("b,c"), "/m/x.slc"),
            named(Some("u/m:Q4_0"), "/m/y.gguf"),
        ];
        let all = Roster::new(listed(&options(models, None), &quiet()).unwrap());
        for (name, expected) in [
            (None, 0),
            (Some(""), 0),
            (Some("a"), 0),
            (Some("a:latest"), 0),
            (Some("a.gguf"), 0),
            (Some("/m/a.gguf"), 0),
            (Some("b"), 1),
            (Some("c"), 1),
            (Some("x"), 1),
            (Some("hf.co/u/m:q4_0"), 2),
            (Some("hf.co/u/m:Q4_0:latest"), 2),
        ] {
            assert_eq!(find(&all, name).unwrap(), expected, "{name:?}");
        }
        let error = find(&all, Some("gpt-4")).unwrap_err();
        assert_eq!(error.kind, crate::api::ErrorKind::NotFound);
        let twice = vec![named(Some("a"), "/m/a.gguf"), named(Some("a"), "/m/b.gguf")];
        assert!(listed(&options(twice, None), &quiet()).is_err());
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
